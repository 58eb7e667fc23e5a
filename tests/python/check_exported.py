#!/usr/bin/env python3
"""Profiles every torch.export archive of make_exported_fixtures.py with the tool, then damaged archives.

Compares with a real run of the original module: shapes, dtypes and strides of the outputs at several sizes, FLOPs,
parameters, gradients, the modules' classes. Where the module was traced, also compares with the figures of the
TorchScript file.

    check_exported.py TOOL FIXTURES
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# These have no gradients.
DOES_NOT_TRAIN = {"derived_size", "size_arithmetic"}


def run(*command):
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=300)
    return result.stdout, result.stderr.strip(), result.returncode


def profile(tool, *arguments):
    out, error, code = run(tool, "profile", "--json", *arguments)
    return (None, f"exit code {code}: {error[:500]}") if code else (json.loads(out), None)


def inputs_of(specs):
    return [argument for spec in specs for argument in ("--input", spec)]


def outputs_of(report, with_strides):
    keys = ("shape", "dtype", "stride") if with_strides else ("shape", "dtype")
    return [{key: out[key] for key in keys} for out in report["outputs"]]


def compare_flops(report, phase, expected):
    """FlopCounterMode has no formula for the CPU's flash attention and oneDNN's LSTM. T5's attention kernel differs
    during export, and so does whether it is counted."""
    total, beyond = report["flops"][phase], report["flops_beyond_pytorch"][phase]
    if expected not in (total, total - beyond):
        yield f"{phase} FLOPs: {total}, {beyond} of them beyond PyTorch's, expected {expected}"


def compare(what, got, expected):
    if got != expected:
        yield f"{what}: {got}, expected {expected}"


def inference(tool, archive, facts, device):
    for index, real in enumerate(facts["runs"]):
        # Inputs may be omitted if they have the exported sizes.
        given = inputs_of(real["inputs"]) if index else []
        report, error = profile(tool, archive, "--device", device, *given)
        if error:
            yield error
            continue
        expected = outputs_of(dict(outputs=real["outputs"]), device == "cpu")
        yield from compare(f"outputs for {real['inputs']}", outputs_of(report, device == "cpu"), expected)
        for key in ("parameters", "parameter_bytes"):
            yield from compare(key, report[key], facts[key])
        if device == "cpu" and index == 0:
            yield from compare_flops(report, "forward", facts["flops"]["forward"])


def gradients_of(text):
    """Returns {parameter name: shape of its gradient}."""
    names = dict(re.findall(r'^n\d+: (%\d+) = sg::parameter\(name="([^"]*)"', text, re.M))
    shapes = {}
    for line in text.splitlines():
        match = re.match(r"n\d+: ((?:%\d+(?:, )?)+) = .*?\) : (.*?)(?: \||$)", line)
        if match:
            kinds = re.findall(r"\w+\[([\d,]*)\]", match[2])
            shapes.update(zip(match[1].split(", "), [[int(n) for n in kind.split(",") if n] for kind in kinds]))
    return {names[p]: shapes.get(g) for p, g in re.findall(r"sg::gradient\(parameter=(%\d+), gradient=(%\d+)\)", text)}


def training(tool, archive, facts, device):
    with tempfile.TemporaryDirectory() as folder:
        graph = pathlib.Path(folder) / "graph.sg"
        optimizer = "adamw" if device == "cuda" else "sgd"
        _, error, code = run(tool, "capture", archive, "--device", device, "--mode", "train", "--optimizer", optimizer,
                             "-o", graph)  # fmt: skip
        if facts["name"] in DOES_NOT_TRAIN:
            if code != 1 or "no loss to differentiate" not in error:
                yield f"should have no loss to differentiate: {code} {error[:200]}"
            return
        if code:
            yield f"training: exit code {code}: {error[:500]}"
            return
        text = graph.read_text()
        report, error = profile(tool, graph)
    gradients = gradients_of(text)
    yield from compare("gradients", gradients, facts["gradients"])
    if device == "cpu" and error is None:
        yield from compare_flops(report, "backward", facts["flops"]["backward"])
    regions = dict(re.findall(r'^r\d+ = module "([^"]*)" "([^"]+)"', text, re.M))
    for path, name in facts["modules"].items():
        # Modules that compute nothing, such as dropout in eval(), leave no trace.
        if path in regions:
            yield from compare(f"class of {path}", regions[path], name)
    # The branches of cond have no class information in the export.
    if not any(f'module "{path}"' in text for path in facts["modules"]):
        yield f"none of the modules {facts['modules']} is there"
    if not re.search(r'"[^"]+\.py:\d+"$', text, re.M):
        yield "no node names its line of Python"


def as_traced(tool, archive, facts, mode):
    """Profiles the same module through TorchScript."""
    traced = archive.with_suffix(".pt")
    script, error = profile(tool, traced, "--device", "cpu", "--mode", mode, *inputs_of(facts["runs"][0]["inputs"]))
    if error:
        yield f"TorchScript: {error}"
        return
    report, error = profile(tool, archive, "--device", "cpu", "--mode", mode)
    if error:
        yield error
        return
    for key in ("flops", "saved_bytes", "parameters"):
        yield from compare(f"{key} by TorchScript, {mode}", report[key], script[key])
    # A trace keeps the 1 of num_batches_tracked.add_(1) as an int64 tensor.
    if script["peak"]["bytes"] - report["peak"]["bytes"] not in (0, 8):
        yield from compare(f"peak by TorchScript, {mode}", report["peak"]["bytes"], script["peak"]["bytes"])


def problems_of(tool, archive):
    facts = json.loads(archive.with_suffix(".json").read_text())
    for device in ("cpu", "cuda"):
        for problem in (*inference(tool, archive, facts, device), *training(tool, archive, facts, device)):
            yield f"{archive.name} on {device}: {problem}"
    if facts["traced"] and not facts["name"].endswith("_decomposed"):
        for mode in ("infer", "train"):
            for problem in as_traced(tool, archive, facts, mode):
                yield f"{archive.name}: {problem}"


def damaged(tool, archive, folder):
    """Whatever is damaged, the tool prints one sentence and exits with 1."""
    whole = archive.read_bytes()
    torn = pathlib.Path(folder) / "torn.pt2"
    for size in range(100, len(whole), len(whole) // 12):
        torn.write_bytes(whole[:size])
        _, error, code = run(tool, "profile", torn)
        if code != 1 or "torn.pt2" not in error or "\n" in error:
            yield f"{archive.name} cut to {size} bytes: exit code {code}: {error[:300]}"
    renamed = pathlib.Path(folder) / "renamed.bin"
    renamed.write_bytes(whole)
    _, error, code = run(tool, "profile", renamed)
    if code:
        yield f"{archive.name} under another name: exit code {code}: {error[:300]}"


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    only = os.environ.get("ONLY_EXPORTED", "").split()
    archives = sorted(file for file in folder.glob("*.pt2") if file.with_suffix(".json").exists())
    archives = [file for file in archives if not only or file.stem in only]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for problems in pool.map(lambda archive: list(problems_of(tool, archive)), archives):
            print(*problems, sep="\n" if problems else "", end="\n" if problems else "")
            failed += bool(problems)
    with tempfile.TemporaryDirectory() as scratch:
        problems = [problem for file in archives if file.stem == "mlp" for problem in damaged(tool, file, scratch)]
    print(*problems, sep="\n")
    print(f"{len(archives)} torch.export archives, {failed} failures")
    sys.exit(1 if failed or problems or not archives else 0)


if __name__ == "__main__":
    main()
