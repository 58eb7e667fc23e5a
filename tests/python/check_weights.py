#!/usr/bin/env python3
"""Reads the files written by `shadowgraph emit --weights` with torch.load.

    check_weights.py TOOL
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch

TOOL = sys.argv[1]
failures = []


def run(*arguments, env=None):
    result = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=env)
    return result.returncode, result.stdout, result.stderr


def expect(condition, what):
    if not condition:
        failures.append(what)


def load(*arguments, path):
    code, _, err = run("emit", "--weights", *arguments, "-o", path)
    expect(code == 0, f"emit --weights {arguments}: exit code {code}\n{err}")
    return torch.load(path, weights_only=True) if code == 0 else {}


def refused(*arguments, code, says):
    got, _, err = run("emit", "--weights", *arguments)
    expect(got == code, f"emit --weights {arguments}: exit code {got}, not {code}\n{err}")
    for text in says:
        expect(text in err, f"emit --weights {arguments}: stderr lacks '{text}':\n{err}")
    for trace in ("Exception raised from", "frame #", "terminate called"):
        expect(trace not in err, f"emit --weights {arguments}: stderr shows '{trace}':\n{err}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    whole = load("lstm_lm", "--seed", 3, path=folder / "whole.pt")
    expect(len(whole) > 5, f"only {len(whole)} tensors")
    for key, value in whole.items():
        expect(isinstance(value, torch.Tensor) and value.device.type == "cpu", f"{key} is {type(value)}")
    first = next(iter(whole))
    expect(whole[first].std() > 0, f"{first} is constant")

    # A part has the same values as in the whole; another seed gives other values.
    part = load("lstm_lm", "--seed", 3, "--only", "*hh*", path=folder / "part.pt")
    expect(0 < len(part) < len(whole), f"{len(part)} of {len(whole)} match *hh*")
    for key, value in part.items():
        expect(torch.equal(value, whole[key]), f"{key} differs between part and whole")
    other = load("lstm_lm", "--seed", 4, "--only", "*hh*", path=folder / "other.pt")
    expect(any(not torch.equal(other[key], part[key]) for key in part), "seeds 3 and 4 give the same")

    resnet = load("resnet18", "--seed", 7, path=folder / "resnet18.pt")
    expect(list(resnet["conv1.weight"].shape) == [64, 3, 7, 7], "conv1.weight has another shape")
    expect(resnet["bn1.num_batches_tracked"].dtype == torch.int64, "num_batches_tracked is no int64")
    expect(torch.equal(resnet["bn1.running_var"], torch.ones(64)), "running_var is not one")

    # Tied weights share memory.
    tied = load("gpt2", "--only", "*wte*", "--only", "*lm_head*", "--dtype", "bf16", path=folder / "tied.pt")
    expect(all(value.dtype == torch.bfloat16 for value in tied.values()), "gpt2 is not bfloat16")
    expect(len({value.untyped_storage().data_ptr() for value in tied.values()}) == 1, f"{list(tied)} are not tied")

    # One layer of a model that does not fit in memory.
    code, _, err = run("emit", "--weights", "llama3_70b", "--only", "*layers.79.self_attn.k_proj*", "--dtype", "bf16",
                       "-o", folder / "llama.pt")
    expect(code == 0, f"llama3_70b: {err}")
    if code == 0:
        llama = torch.load(folder / "llama.pt", weights_only=True)
        expect([list(v.shape) for v in llama.values()] == [[1024, 8192]], f"{[v.shape for v in llama.values()]}")

    refused("lstm_lm", "--only", "*nothing*", "-o", folder / "x.pt", code=1, says=("*nothing*", "no parameter"))
    refused("lstm_lm", "--only", "[abc", "-o", folder / "x.pt", code=1, says=("not closed",))
    refused("lstm_lm", "--only", "", "-o", folder / "x.pt", code=2, says=("--only: the value is empty",))
    refused("lstm_lx", "-o", folder / "x.pt", code=1, says=("lstm_lx", "did you mean lstm_lm"))
    refused("lstm_lm", code=2, says=("--output",))
    refused("lstm_lm", "--seed", "-1", "-o", folder / "x.pt", code=2, says=("not an integer >= 0",))
    refused("lstm_lm", "-o", folder / "absent" / "x.pt", code=1, says=("cannot write",))
    if os.path.exists("/dev/full"):
        refused("lstm_lm", "--only", "*hh*", "-o", "/dev/full", code=1, says=("/dev/full", "No space left"))
    expect(not (folder / "x.pt").exists(), "a refused run left a file")
    expect(not list(folder.glob("*.tmp*")), f"left behind: {list(folder.glob('*.tmp*'))}")

for failure in failures:
    print(failure, file=sys.stderr)
print(f"{len(failures)} failures" if failures else "weights: all as expected")
sys.exit(bool(failures))
