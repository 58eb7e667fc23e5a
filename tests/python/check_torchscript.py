#!/usr/bin/env python3
"""Profiles every TorchScript fixture with the tool, for inference and training, on fake CPU and fake CUDA, and compares
with what a real run in Python showed: shapes, dtypes and strides of the outputs, and the parameter count.

    check_torchscript.py TOOL FIXTURES
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile


def profile(tool, module, facts, *arguments):
    inputs = [argument for spec in facts["inputs"] for argument in ("--input", spec)]
    command = [tool, "profile", str(module), *inputs, "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        return None, f"exit code {result.returncode}: {result.stderr.strip()[:500]}"
    return json.loads(result.stdout), None


def differences(report, facts, device):
    expected = [{key: out[key] for key in ("shape", "dtype", "stride")} for out in facts["outputs"]]
    got = [{key: out[key] for key in ("shape", "dtype", "stride")} for out in report["outputs"]]
    if device == "cuda":  # strides of convolutions and attention are the CPU's in the fixture
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


def source_problems(tool, module, facts):
    """Nodes carry the line of Python they come from: in the file that defines the module, if that is not PyTorch's."""
    with tempfile.TemporaryDirectory() as folder:
        graph = pathlib.Path(folder) / "graph.sg"
        inputs = [argument for spec in facts["inputs"] for argument in ("--input", spec)]
        command = [tool, "capture", str(module), *inputs, "--mode", "train", "-o", str(graph)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            yield f"capture: {result.stderr.strip()[:500]}"
            return
        sources = [match[1] for line in graph.read_text().splitlines() if (match := SOURCE.match(line))]
    wrong = [source for source in sources if not re.fullmatch(r".+\.py:\d+", source)]
    if wrong or not sources:
        yield f"{len(sources)} nodes name a source, these are none: {wrong[:3]}"
    home = "/".join(facts["origin"].split(".")[:-1]) + ".py:"
    if not facts["origin"].startswith("torch.") and not any(home in source for source in sources):
        yield f"no node comes from {home}; some come from {sorted(set(sources))[:3]}"


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    modules = sorted(file for file in folder.glob("*.pt") if file.with_suffix(".json").exists())
    failed = 0
    for module in modules:
        facts = json.loads(module.with_suffix(".json").read_text())
        for device in ("cpu", "cuda"):
            report, error = profile(tool, module, facts, "--device", device, "--mode", "infer")
            problems = [error] if error else list(differences(report, facts, device))
            report, error = profile(tool, module, facts, "--device", device, "--mode", "train")
            if error:
                problems.append(f"training: {error}")
            elif report["flops"].get("backward", 0) == 0 and report["flops"].get("forward", 0) != 0:
                problems.append("training: no backward FLOPs")
            if device == "cpu":
                problems += source_problems(tool, module, facts)
            for problem in problems:
                print(f"{module.name} on {device}: {problem}")
            failed += bool(problems)
    print(f"{len(modules)} TorchScript files, {failed} failures")
    sys.exit(1 if failed or not modules else 0)


if __name__ == "__main__":
    main()
