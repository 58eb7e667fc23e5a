#!/usr/bin/env python3
"""FLOPs by PyTorch's own formulas (torch.utils.flop_counter.flop_registry), the reference for ours.

    flop_reference.py calls FILE|-        one JSON object a line: {"op": "aten::mm", "phase": "forward", "args": [...],
                                          "kwargs": {...}, "out": [...]}; prints {phase: flops, ..., "no_formula":
                                          {op: n}}
    flop_reference.py counter [NAME ...]  FlopCounterMode over a forward and a backward pass of the torch.nn models
                                          below, attention on the math path; prints {name: {"forward": n, "backward":
                                          n}}

An argument is a tensor {"shape": [...], "dtype": "float32"}, a list, a number, a bool, a string or null. `out` is one
tensor or a list of them. Nothing is computed: the tensors are meta tensors.
"""

import argparse
import collections
import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry


def to_value(item):
    """Converts a JSON argument to a value."""
    if isinstance(item, dict):
        dtype = getattr(torch, item.get("dtype", "float32"))
        return torch.empty(item["shape"], dtype=dtype, device="meta")
    if isinstance(item, list):
        return [to_value(element) for element in item]
    return item


def packet(op_name):
    """'aten::mm', 'aten::mm.out' or 'aten.mm.default' -> torch.ops.aten.mm; None if the operator does not exist."""
    namespace, _, name = op_name.replace("::", ".").partition(".")
    return getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)


def flops(op_name, args, kwargs=None, out_val=None):
    """FLOPs of one call by PyTorch's formula, or None if there is none."""
    formula = flop_registry.get(packet(op_name))
    return None if formula is None else formula(*args, **(kwargs or {}), out_val=out_val)


def total(lines):
    """Sums over calls in the JSON form above: {phase: flops, ..., "no_formula": {op: count}}."""
    sums = collections.Counter()
    unknown = collections.Counter()
    for line in lines:
        call = json.loads(line)
        args = [to_value(item) for item in call["args"]]
        kwargs = {name: to_value(item) for name, item in call.get("kwargs", {}).items()}
        out = to_value(call["out"]) if call.get("out") is not None else None
        # The formulas expect results as in a dispatch mode: one tensor, or a tuple.
        if isinstance(out, list):
            out = out[0] if len(out) == 1 else tuple(out)
        count = flops(call["op"], args, kwargs, out)
        if count is None:
            unknown[call["op"]] += 1
        else:
            sums[call.get("phase", "forward")] += count
    return {**sums, "no_formula": dict(sorted(unknown.items()))}


# Architectures that tests/ also builds in C++ from the same torch::nn modules.
def mlp():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)), (8, 64)


def cnn():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1, groups=4), torch.nn.ReLU(), torch.nn.ConvTranspose2d(32, 8, 2, stride=2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10)), (2, 3, 32, 32)


def encoder():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (2, 16, 64)


MODELS = {"mlp": mlp, "cnn": cnn, "encoder": encoder}


def count_model(name):
    module, shape = MODELS[name]()
    module.to("meta").train()
    x = torch.randn(shape, device="meta")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            loss = module(x).sum()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("calls").add_argument("file", type=argparse.FileType("r"))
    commands.add_parser("counter").add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    arguments = parser.parse_args()
    if arguments.command == "calls":
        json.dump(total(line for line in arguments.file if line.strip()), sys.stdout, indent=1)
    else:
        json.dump({name: count_model(name) for name in arguments.names or MODELS}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
