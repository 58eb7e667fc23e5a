#!/usr/bin/env python3
"""Profiles every TorchScript fixture with the tool, for inference and training, on fake CPU and fake CUDA.

Compares with a real run in Python: shapes, dtypes and strides of the outputs, and the parameter count.

    check_torchscript.py TOOL FIXTURES
"""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile


def inputs_of(facts):
    return [argument for spec in facts["inputs"] for argument in ("--input", spec)]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    error = f"exit code {result.returncode}: {result.stderr.strip()[:500]}" if result.returncode != 0 else None
    return result.stdout, error


def profile(tool, *arguments):
    out, error = run(tool, "profile", "--json", *arguments)
    return (None, error) if error else (json.loads(out), None)


def differences(report, facts, device):
    expected = [{key: out[key] for key in ("shape", "dtype", "stride")} for out in facts["outputs"]]
    got = [{key: out[key] for key in ("shape", "dtype", "stride")} for out in report["outputs"]]
    if device == "cuda":  # the fixture has the CPU's strides of convolutions and attention
        for out in expected + got:
            del out["stride"]
    if got != expected:
        yield f"outputs {got}, a real run has {expected}"
    if report["parameters"] != facts["parameters"]:
        yield f"{report['parameters']} parameters, the module has {facts['parameters']}"
    wrong = {out["device"] for out in report["outputs"]} - {"cpu" if device == "cpu" else "cuda:0"}
    if wrong:
        yield f"outputs on {wrong}"


SOURCE = re.compile(r'^n\d+: .*"([^"]*)"$')


def source_problems(graph, facts):
    """Nodes record their Python source line, in the file that defines the module unless that is PyTorch's."""
    sources = [match[1] for line in graph.read_text().splitlines() if (match := SOURCE.match(line))]
    wrong = [source for source in sources if not re.fullmatch(r".+\.py:\d+", source)]
    if wrong or not sources:
        yield f"{len(sources)} nodes name a source, these are none: {wrong[:3]}"
    home = "/".join(facts["origin"].split(".")[:-1]) + ".py:"
    if not facts["origin"].startswith("torch.") and not any(home in source for source in sources):
        yield f"no node comes from {home}; some come from {sorted(set(sources))[:3]}"


def training_problems(report):
    if report["flops"].get("backward", 0) == 0 and report["flops"].get("forward", 0) != 0:
        yield "training: no backward FLOPs"


def profile_of_graph(tool, module, facts):
    """Profiles a saved training step, whose lines name sources; check_tool.py compares the profile."""
    with tempfile.TemporaryDirectory() as folder:
        graph = pathlib.Path(folder) / "graph.sg"
        _, error = run(tool, "capture", module, *inputs_of(facts), "--mode", "train", "-o", graph)
        if error:
            return None, error, []
        return *profile(tool, graph), list(source_problems(graph, facts))


def problems_of(tool, module):
    facts = json.loads(module.with_suffix(".json").read_text())
    for device in ("cpu", "cuda"):
        place = f"{module.name} on {device}: "
        report, error = profile(tool, module, *inputs_of(facts), "--device", device, "--mode", "infer")
        for problem in [error] if error else differences(report, facts, device):
            yield place + problem
        if device == "cuda":
            report, error = profile(tool, module, *inputs_of(facts), "--device", device, "--mode", "train")
            problems = []
        else:
            report, error, problems = profile_of_graph(tool, module, facts)
        problems += [f"training: {error}"] if error else training_problems(report)
        for problem in problems:
            yield place + problem


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    modules = sorted(file for file in folder.glob("*.pt") if file.with_suffix(".json").exists())
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for problems in pool.map(lambda module: list(problems_of(tool, module)), modules):
            for problem in problems:
                print(problem)
            failed += bool(problems)
    print(f"{len(modules)} TorchScript files, {failed} failures")
    sys.exit(1 if failed or not modules else 0)


if __name__ == "__main__":
    main()
