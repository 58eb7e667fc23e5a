#!/usr/bin/env python3
"""Compares our FLOP counts with PyTorch's own; they must be equal.

    check_flops.py TOOL formulas    every built-in model on fake CUDA, one training step: the formulas of
                                    torch.utils.flop_counter.flop_registry, applied to the operators and shapes of our
                                    graph, give the FLOPs that `profile` reports
    check_flops.py TOOL counter     gpt2, end to end: FlopCounterMode over Hugging Face's model gives ours, attention on
                                    the math path on both sides

Operators that we count but PyTorch does not (fused recurrent layers) are listed in BEYOND and excluded.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import flop_reference

# Matrix products that FlopCounterMode does not count.
BEYOND = {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}
DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool", "u64": "uint64",
}


def run(tool, *arguments):
    result = subprocess.run([tool, *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(arguments)} failed with {result.returncode}: {result.stderr}")
    return result.stdout


def capture(tool, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "g.json"
        run(tool, "capture", *arguments, "--json", "-o", str(path))
        return json.loads(path.read_text())


def calls_of(graph):
    """Converts our graph to the JSON form of flop_reference: one call per operator node."""
    import torch

    values = {}
    # JSON objects are unordered: the schema gives the argument order.
    order = {}
    for operator in graph["operators"]:
        schema = torch._C.parse_schema(operator["schema"])
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        order[name] = [(formal.name, formal.kwarg_only) for formal in schema.arguments]

    def remember(result):
        if isinstance(result, list):
            return [remember(element) for element in result]
        if not result or "sizes" not in result:
            return None
        tensor = {"shape": result["sizes"], "dtype": DTYPES.get(result["dtype"], "float32")}
        values[result["value"]] = tensor
        return tensor

    def argument(item):
        if isinstance(item, dict):
            return values.get(item["value"]) if "value" in item else None
        if isinstance(item, list):
            return [argument(element) for element in item]
        return item

    for node in graph["nodes"]:
        call = {
            "op": node["target"],
            "phase": node["phase"],
            "args": [argument(node["arguments"][name])
                     for name, keyword in order.get(node["target"], []) if not keyword],
            "kwargs": {name: argument(node["arguments"][name])
                       for name, keyword in order.get(node["target"], []) if keyword},
            "out": [remember(result) for result in node.get("results", [])],
        }
        if node["target"].startswith("aten::") and node["target"] not in BEYOND:
            yield call


def check_formulas(tool):
    failed = 0
    for model in json.loads(run(tool, "list", "models", "--json")):
        name = model["name"]
        arguments = [name, "--mode", "train", "--device", "cuda"]
        graph = capture(tool, *arguments)
        theirs = flop_reference.total(
            json.dumps(call) for call in calls_of(graph)
            if flop_reference.flop_registry.get(flop_reference.packet(call["op"])) is not None)
        profile = json.loads(run(tool, "profile", *arguments, "--json"))
        ours = dict(profile["flops"])
        beyond = profile.get("flops_beyond_pytorch", {})
        for phase in ("forward", "backward", "optimizer"):
            counted = ours.get(phase, 0) - beyond.get(phase, 0)
            if counted != theirs.get(phase, 0):
                print(f"{name} {phase}: ours {counted}, PyTorch's formulas {theirs.get(phase, 0)}")
                failed += 1
        print(f"{name}: forward {ours.get('forward', 0)}, backward {ours.get('backward', 0)}")
        if ours.get("forward", 0) == 0 or ours.get("backward", 0) == 0:
            print(f"{name}: counted nothing")
            failed += 1
    return failed


def check_counter(tool):
    import fixture_files
    import torch

    fixture_files.stub_torchvision_operators()
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    batch, seq = 2, 128
    with torch.device("meta"):
        config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
        model = transformers.GPT2LMHeadModel(config)
        ids = torch.zeros(batch, seq, dtype=torch.long)
    forward = FlopCounterMode(display=False)
    with forward:
        loss = model(ids, labels=ids).loss
    backward = FlopCounterMode(display=False)
    with backward:
        loss.backward()
    profile = json.loads(run(tool, "profile", "gpt2", "--mode", "train", "--device", "cuda", "--attention", "math",
                             "--batch", str(batch), "--seq", str(seq), "--json"))
    ours = (profile["flops"]["forward"], profile["flops"]["backward"])
    theirs = (forward.get_total_flops(), backward.get_total_flops())
    print(f"gpt2 {batch} x {seq}: ours {ours}, FlopCounterMode {theirs}")
    return int(ours != theirs)


def main():
    tool, what = sys.argv[1:]
    sys.exit(1 if {"formulas": check_formulas, "counter": check_counter}[what](tool) else 0)


if __name__ == "__main__":
    main()
