#!/usr/bin/env python3
"""The tool as scripts see it: exit codes, messages, files written whole or not at all, the keys of `profile --json`.

    check_tool.py TOOL
"""

import hashlib
import json
import math
import os
import re
import subprocess
import sys

import in_parts

TOOL = sys.argv[1]
VERBS = ("profile", "fit", "checkpoint", "shard", "compare", "check", "draw", "capture", "opt", "emit", "list",
         "operator", "calibrate", "completion")
failures = []


def run(*arguments, stdin=None):
    result = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300, input=stdin)
    return result.returncode, result.stdout, result.stderr


def expect(code, *arguments, says=(), prints=()):
    got, out, err = run(*arguments)
    what = f"shadowgraph {' '.join(map(str, arguments))}"
    if got != code:
        failures.append(f"{what}: exit code {got}, not {code}\n{err[:400]}")
    for text in says:
        if text not in err:
            failures.append(f"{what}: stderr lacks '{text}':\n{err[:400]}")
    for text in prints:
        if text not in out:
            failures.append(f"{what}: stdout lacks '{text}':\n{out[:400]}")
    for trace in ("Exception raised from", "frame #", "terminate called", "std::"):
        if trace in err:
            failures.append(f"{what}: stderr shows '{trace}':\n{err[:400]}")
    return out


def usage(folder):
    help = expect(0, "--help", prints=("Examples", "Exit codes"))
    for verb in VERBS:
        if f"\n  {verb} " not in help:
            failures.append(f"--help does not list {verb}")
        text = expect(0, verb, "--help", prints=("Usage: ", "Examples:"))
        examples = text.partition("Examples:\n")[2]
        if len(re.findall(rf"shadowgraph {verb}\b", examples)) < 2:
            failures.append(f"{verb} --help has fewer than two examples:\n{examples}")
        for line in text.splitlines():
            if len(line) > 120:
                failures.append(f"{verb} --help has a line of {len(line)} characters: {line}")
    expect(0, "profile", "--help", prints=("Model:", "Step:", "Device:", "--input", "--optimizer"))
    expect(0, "--version", prints=("shadowgraph 0.",))
    expect(2)
    expect(2, "frobnicate", says=("frobnicate", "profile"))
    expect(2, "profle", says=("did you mean profile",))
    expect(2, "profile")
    expect(2, "profile", "resnet18", "--device", "tpu")
    expect(2, "profile", "resnet18", "--batch", "-1", says=(">= 1",))
    expect(2, "profile", "resnet18", "--batch", "9" * 20, says=(">= 1",))
    expect(2, "profile", "resnet18", "--mode", "dream")
    expect(0, "list", "models", prints=("llama3_8b", "8,030,261,248"))
    expect(2, "list", says=("WHAT",))
    expect(2, "list", "model", says=("did you mean models?",))
    expect(2, "list", "models", "--verify", says=("--verify cannot be used with models",))
    expect(0, "operator", "aten::gelu", prints=("aten::gelu(Tensor self", "core/fake/rules/", "sharding rule"))
    expect(1, "operator", "aten::gelo", says=("unknown operator 'aten::gelo'; did you mean aten::gelu?",))
    expect(1, "operator", "gelu", says=("did you mean aten::gelu?",))
    expect(2, "operator", says=("NAME",))
    cards = json.loads(expect(0, "operator", "aten::add.Tensor", "--json"))
    if [card["name"] for card in cards] != ["aten::add.Tensor"] or not all(row["entry"] for row in cards[0]["rows"]):
        failures.append(f"operator --json: {cards}")


def without_effect(folder):
    """Options without effect are refused; a mistyped option gets a suggestion."""
    training = ("--optimizer", "adamw"), ("--steady-state",), ("--accumulate", 2), ("--clip-grad-norm", 1)
    training += ("--grad-scaler",), ("--ema", 0.9), ("--zero-grads",)
    for verb in ("profile", "capture", "draw"):
        for option in training:
            expect(2, verb, "resnet18", *option, says=(f"{option[0]}: applies to training only; add --mode train",))
    expect(2, "profile", "resnet18", "--run", says=("--mode train",))
    expect(0, "profile", "gpt2", "--batch", 1, "--seq", 16, "--optimizer", "adamw", "--what-if", "zero=1,ranks=2")
    graph = folder / "step.sg"
    expect(0, "capture", "resnet18", "--batch", 1, "--mode", "train", "-o", graph)
    for option in (("--batch", 2), ("--dtype", "bf16"), ("--mode", "train"), ("--device", "cpu"), *training):
        for verb in ("profile", "capture", "draw"):
            expect(2, verb, graph, *option, says=(f"{option[0]}: has no effect", "is already captured"))
    expect(0, "profile", graph, "--checkpoint", "layer1.0")
    for option in (("--mesh", "dp=2"), ("--interconnect", "h100")):
        expect(1, "profile", "resnet18", *option, says=(f"{option[0]} has no effect", "shadowgraph shard"))
    expect(1, "profile", "resnet18", "--device", "cpu", "--allocator", "expandable_segments:True", says=("CUDA's",))
    expect(2, "profile", "resnet18", "--json", "--rows", 3, says=("--rows cannot be used with --json",))
    expect(2, "capture", "resnet18", "--json", "--preset", "short", says=("--preset cannot be used with --json",))
    shard = ("shard", "resnet18", "--mesh", 2)
    for option in (("--rank", 1), ("--all-ranks",), ("--highs", "x"), ("--format", "lp"), ("--gap", 0.1)):
        expect(2, *shard, *option, says=(option[0],))
    expect(2, *shard, "--json", "--rows", 3, says=("--rows cannot be used with --json",))
    for verb, wrong, meant in (("profile", "--optimzer", "--optimizer"), ("shard", "--meshh", "--mesh"),
                               ("fit", "--memroy", "--memory"), ("check", "--max-paek", "--max-peak")):
        sources = ("resnet18", "resnet18") if verb == "check" else ("resnet18",)
        expect(2, verb, *sources, wrong, 3, says=(f"did you mean {meant}?",))
    if "did you mean" in run("profile", "resnet18", "--frobnicate")[2]:
        failures.append("--frobnicate is accepted as an option")


def check(folder):
    """`check`: exit code 4 for regressions, distinct from errors, and which program it is about."""
    baseline = folder / "baseline.json"
    source = ("resnet18", "--batch", 2, "--mode", "train")
    expect(0, "check", baseline, *source, "--update", says=("at the peak",))
    written = baseline.read_bytes()
    expect(0, "check", baseline, *source, prints=("within the limits\n", "peak memory", "time on h100"))
    larger = ("resnet18", "--batch", 8, "--mode", "train")
    expect(4, "check", baseline, *larger, prints=("peak memory and time on h100 grew",))
    expect(0, "check", baseline, *larger, "--max-peak", "24GB", "--max-time", "+400%")
    said = json.loads(expect(4, "check", baseline, "resnet50", "--batch", 2, "--mode", "train", "--json"))
    if not said["grew"] or not any(row["module"].startswith("layer") for row in said["kernels"]):
        failures.append(f"check --json: {said}")
    if baseline.read_bytes() != written:
        failures.append("check changed its baseline")
    expect(1, "check", folder / "none.json", *source, says=("--update",))
    expect(1, "check", baseline, "resnet19", says=("did you mean resnet18?",))
    expect(2, "check", baseline, *source, "--update", "--markdown", says=("--markdown cannot be used with --update",))
    expect(2, "check", baseline, *source, "--max-peak", "5", says=("not a limit such as +1%",))


def inputs(folder):
    expect(1, "profile", "resnet19", says=("resnet19", "did you mean resnet18?", "llama3_8b"))
    expect(1, "profile", folder, says=("is a folder",))
    expect(2, "profile", "resnet18", "--batch", "1..4", says=("fit SOURCE --batch 1..4",))
    expect(1, "profile", "resnet18", "--seq", "7")
    expect(1, "profile", "resnet18", "--input", "f32[1]", says=("TorchScript",))
    expect(1, "profile", "resnet18", "--host-reads", "fine", says=("'fine'", "finite", "mask-full"))
    expect(1, "profile", "resnet18", "--host-reads", "item0=much", says=("'much'", "number"))
    expect(1, "profile", "resnet18", "--data-sizes", "nonzero0=x", says=("'x'", "number of elements"))
    expect(1, "capture", folder / "absent.sg", says=("absent.sg",))
    garbage = folder / "garbage.sg"
    garbage.write_bytes(bytes(range(256)) * 8)
    for command in (("capture",), ("capture", "--verify"), ("draw",), ("profile",)):
        expect(1, *command, garbage, says=("garbage.sg:1:",))
    (folder / "list.json").write_text("{]")
    expect(1, "capture", folder / "list.json", says=("list.json:1:2: invalid JSON",))
    (folder / "other.json").write_text('{"a": 1}')
    expect(1, "capture", folder / "other.json", says=("other.json:/: 'shadowgraph' is missing",))
    (folder / "empty.sg").write_text("")
    expect(1, "capture", folder / "empty.sg")
    expect(1, "capture", folder)
    (folder / "future.sg").write_text("shadowgraph 999 libtorch 9.9.9\n")
    expect(1, "capture", folder / "future.sg", says=("999",))
    zipped = folder / "net.pt"
    zipped.write_bytes(b"PK\x03\x04" + b"\0" * 60)
    expect(1, "profile", zipped, says=("--input",))
    expect(1, "profile", zipped, "--input", "f32[2,2]", says=("TorchScript",))
    for spec in ("f32", "f33[2]", "f32[2,,3]", "f32[a]", "f32[-1]", "[2]", "f32[2", "f32[9999999999,9999999999]"):
        expect(1, "profile", zipped, "--input", spec, says=("expected for example",))
    expect(1, "capture", "resnet18", "-o", folder / "no" / "such" / "g.sg", says=("g.sg",))
    with open("/dev/full", "w") as full:
        result = subprocess.run([TOOL, "list", "models"], stdout=full, stderr=subprocess.PIPE, text=True)
    if result.returncode != 1 or "No space left" not in result.stderr:
        failures.append(f"list models > /dev/full: exit code {result.returncode}, {result.stderr}")
    (folder / "file").write_text("")
    expect(1, "profile", "resnet18", "-o", folder / "file" / "out")
    leftovers = [path.name for path in folder.rglob("*tmp*")]
    if leftovers:
        failures.append(f"half-written files: {leftovers}")


def round_trip(folder):
    graph = folder / "g.sg"
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 2, "-o", graph)
    text = expect(0, "capture", graph)
    if text != graph.read_text():
        failures.append("capture does not give back the saved graph")
    expect(0, "capture", graph, "--verify", prints=(f"{graph}: ", "every invariant holds"))
    expect(0, "capture", "resnet18", "--verify", prints=("resnet18: ", "every invariant holds"))
    (folder / "g.json").write_text(expect(0, "capture", graph, "--json"))
    if json.loads((folder / "g.json").read_text())["shadowgraph"] != 1:
        failures.append("capture --json of a saved graph does not give the graph")
    for source in (graph, folder / "g.json", "resnet18"):
        again = folder / "again.sg"
        how = ("--mode", "train", "--batch", 2) if source == "resnet18" else ()
        expect(0, "capture", source, *how, "-o", again, says=("again.sg: ", "nodes"))
        if again.read_text() != text:
            failures.append(f"capture {source} -o writes another graph")
        if expect(0, "capture", source, *how) != text:
            failures.append(f"capture {source} prints another graph")
    short = expect(0, "capture", graph, "--preset", "short")
    if len(short) >= len(text):
        failures.append("capture --preset short is not shorter")
    expect(2, "capture", graph, "--preset", "long", says=("canonical, short, fingerprint",))
    expect(2, "capture", graph, "--preset", "short", "-o", again, says=("--preset cannot be used with -o",))
    drawings(folder, graph)
    pages(folder, graph)
    broken = folder / "broken.sg"
    broken.write_text("\n".join(line for line in text.splitlines() if "aten::relu_(" not in line) + "\n")
    expect(1, "capture", broken, "--verify", says=("broken.sg:",))
    broken.write_text(text[: len(text) // 2])
    expect(1, "capture", broken, "--verify", says=("broken.sg:",))
    direct = json.loads(expect(0, "profile", "resnet18", "--mode", "train", "--batch", 2, "--json"))
    saved = json.loads(expect(0, "profile", graph, "--json"))
    if "capture_seconds" in saved or direct.pop("capture_seconds") <= 0:
        failures.append("capture_seconds belongs to a capture, and only to that")
    if direct != saved:
        failures.append("profile of the model and of its saved graph differ")


def drawings(folder, graph):
    """`draw`: the suffix of -o selects the format; without -o, DOT goes to stdout."""
    dot = expect(0, "draw", graph, prints=("digraph",))
    expect(0, "draw", graph, "-o", folder / "g.dot")
    if (folder / "g.dot").read_text() != dot:
        failures.append("draw -o g.dot writes another picture than it prints")
    if not expect(0, "draw", "resnet18", prints=("digraph",)):
        failures.append("draw of a model prints nothing")
    svg = folder / "g.svg"
    expect(0, "draw", graph, "--all-phases", "-o", svg)
    if "<svg" not in svg.read_text() or "</svg>" not in svg.read_text():
        failures.append("draw -o g.svg does not write SVG")
    near = ("--around", "layer2.0.conv1", "--radius", 1)
    expect(0, "draw", graph, *near, "--color", "time", prints=("selected", "on NVIDIA"))
    expect(0, "draw", graph, "--path", "conv1", "layer1.0", "--color", "flops", "-o", svg)
    if not all(words in svg.read_text() for words in ("matmul FLOPs", "omitted")):
        failures.append("draw --path --color flops lacks its legend")
    expect(0, "draw", graph, "--diff", graph, "--phase", "backward", "--depth", 0, prints=("the graphs are identical",))
    expect(0, "draw", graph, "--rows", 15, prints=("--rows 0 all",), says=("--rows 0 all",))
    expect(0, "draw", graph, "--depth", 9, "--boxes", 30, says=("--boxes allows more",))
    expect(1, "draw", graph, "--around", "conv9", says=("--around: nothing in the graph is named 'conv9'",))
    expect(1, "draw", graph, "--path", "layer1.0", "conv1", says=("swap the ends",))
    expect(1, "draw", graph, "--color", "beauty", says=("unknown coloring 'beauty'; choose one of operator, flops",))
    expect(1, "draw", graph, "--color", "time", "--spec", "abacus", says=("abacus",))
    expect(1, "draw", graph, "--diff", folder / "missing.sg", says=("missing.sg",))
    expect(1, "draw", folder / "missing.sg", "-o", folder / "x.html", says=("neither a file nor a built-in model",))
    expect(2, "draw", graph, "--path", "conv1")
    expect(2, "draw", graph, "--depth", "-3")
    for name in ("picture", "picture.png", "svg"):
        expect(2, "draw", graph, "-o", folder / name, says=("end it with .svg, .dot or .html",))
    for option in (("--depth", 3), ("--views",), ("--around", "conv1"), ("--diff", graph)):
        expect(2, "draw", graph, "-o", folder / "x.html", *option, says=(f"{option[0]} cannot be used with",))
    expect(2, "draw", graph, "-o", folder / "x.html", "--color", "time", says=("--color", "FILE"))
    expect(2, "draw", graph, "-o", svg, "--title", "Net", says=("--title cannot be used with",))
    if (folder / "x.html").exists():
        failures.append("a refused draw wrote its output")


def pages(folder, graph):
    """`draw -o x.html`, and `compare -o x.html` with a baseline: a graph, a model or a profile.json."""
    page = folder / "g.html"
    expect(0, "draw", graph, "-o", page, says=("g.html: ", "nodes"))
    text = page.read_text()
    if not text.startswith("<!doctype html>") or 'id="graph-data"' not in text:
        failures.append("draw wrote no page")
    if 'id="before-profile"' in text:
        failures.append("draw wrote a page with a comparison")
    expect(0, "compare", graph, graph, "-o", page, says=("g.html: ",))
    expect(0, "compare", "resnet18", graph, "--mode", "train", "-o", page, "--title", "Grown", says=("g.html: ",))
    if "Grown" not in page.read_text():
        failures.append("compare -o --title ignores the title")
    expect(0, "profile", graph, "-o", folder / "saved", "--export", "nodes-csv")
    saved = folder / "saved" / "profile.json"
    expect(0, "compare", saved, graph, "-o", page, says=("g.html: ",))
    if 'id="before-profile"' not in page.read_text():
        failures.append("compare profile.json g.sg -o does not contain the profile")
    again = ("resnet18", "--mode", "train", "--batch", 2, "--checkpoint", "layer1.*")
    grown = json.loads(expect(0, "compare", graph, *again, "--json"))
    if not any(row["figure"] == "backward_flops" for row in grown["modules"]):
        failures.append("compare of a graph with its checkpointed capture shows no recomputed work")
    (folder / "batches.json").write_text('{"batches": []}')
    expect(1, "compare", folder / "batches.json", graph, "-o", folder / "x.html", says=("several batch sizes",))
    expect(1, "compare", folder / "batches.json", graph, says=("batches.json", "neither a profile.json nor"))
    table = f"{folder / 'saved' / 'nodes.csv'}:live_bytes"
    expect(0, "draw", graph, "--color", table, "-o", page, says=("g.html: ",))
    expect(0, "compare", graph, graph, "--color", table, "-o", page, says=("g.html: ",))
    expect(0, "draw", graph, "--color", table, prints=("color: live_bytes", "min "))
    expect(1, "draw", graph, "--color", table + "s", says=("no column 'live_bytess'; choose one of node, phase",))
    expect(1, "draw", graph, "-o", folder / "no" / "folder.html", says=("no/folder.html",))
    for option in (("--nodes",), ("--json",), ("--limit", 3)):
        expect(2, "compare", graph, graph, "-o", folder / "x.html", *option, says=(f"{option[0]} cannot be used",))
    expect(2, "compare", graph, graph, "--title", "Net", says=("--title cannot be used with", "-o"))
    expect(2, "compare", graph, graph, "--nodes", "--json", says=("--json cannot be used with --nodes",))
    if (folder / "x.html").exists():
        failures.append("a refused page was written")


def report(folder):
    for mode in ("infer", "train"):
        for device in ("cpu", "cuda", "cuda:3"):
            out = expect(0, "profile", "resnet18", "--mode", mode, "--device", device, "--batch", 2, "--json")
            profile = json.loads(out)
            keys = {"model", "device", "mode", "nodes", "parameters", "parameter_bytes", "flops", "elementwise_flops",
                    "uncovered_operators", "saved_bytes", "peak", "outputs", "capture_seconds"}
            if keys - set(profile):
                failures.append(f"profile lacks {keys - set(profile)}")
            if profile["parameters"] != 11689512 or profile["parameter_bytes"] != 4 * 11689512:
                failures.append("resnet18 has 11,689,512 parameters")
            if profile["device"] != (device if ":" in device or device == "cpu" else "cuda:0"):
                failures.append(f"device is {profile['device']}, asked {device}")
            if set(profile["peak"]) < {"bytes", "node", "phase", "by_kind"}:
                failures.append("peak lacks keys")
            if sum(profile["peak"]["by_kind"].values()) != profile["peak"]["bytes"]:
                failures.append("the kinds do not add up to the peak")
            if mode == "infer" and (profile["flops"]["backward"] or profile["saved_bytes"]):
                failures.append("inference has no backward and saves nothing")
            if mode == "infer" and profile["outputs"] != [
                    {"shape": [2, 1000], "dtype": "float32", "stride": [1000, 1], "device": profile["device"]}]:
                failures.append(f"outputs {profile['outputs']}")
    out = folder / "deep" / "folder"
    expect(0, "profile", "resnet18", "--batch", 2, "-o", out, prints=("parameters",), says=("report.html",))
    three = {"graph.sg", "profile.json", "report.html"}
    if {path.name for path in out.iterdir()} != three:
        failures.append(f"profile -o wrote {sorted(out.iterdir())}")
    if not (out / "report.html").read_text().startswith("<!doctype html>"):
        failures.append("profile -o wrote no page")
    exports = {"svg": "graph.svg", "dot": "graph.dot", "nodes-csv": "nodes.csv", "storages-csv": "storages.csv",
               "trace": "trace.json", "snapshot": "snapshot.pickle", "model-explorer": "model_explorer.json"}
    step = ("profile", "resnet18", "--batch", 2)
    expect(0, *step, "-o", folder / "all", "--export", ",".join(exports), says=tuple(exports.values()))
    if {path.name for path in (folder / "all").iterdir()} != three | set(exports.values()):
        failures.append(f"profile --export wrote {sorted((folder / 'all').iterdir())}")
    expect(0, *step, "-o", folder / "two", "--export", "svg", "--export", "trace")
    if {path.name for path in (folder / "two").iterdir()} != three | {"graph.svg", "trace.json"}:
        failures.append(f"profile --export twice wrote {sorted((folder / 'two').iterdir())}")
    expect(2, *step, "-o", folder / "none", "--export", "nodescsv", says=("did you mean nodes-csv?", "storages-csv"))
    expect(2, *step, "-o", folder / "none", "--export", "svg,pdf", says=("'pdf'",))
    expect(2, *step, "--export", "svg", says=("--export", "-o"))
    if (folder / "none").exists():
        failures.append("a refused --export created its folder")
    expect(0, *step, "--memory", "60MiB", "-o", folder / "small", "--export", "snapshot", says=("no snapshot",))
    if {path.name for path in (folder / "small").iterdir()} != three:
        failures.append(f"profile of what does not fit wrote {sorted((folder / 'small').iterdir())}")


def estimates(folder):
    """Memory capacity, times, and other results derived from a profile."""
    step = ("resnet18", "--mode", "train", "--batch", 2)
    text = expect(0, "profile", *step, "--rows", 1, prints=("reserved", "on the device", "estimated for NVIDIA H100"))
    if "unknown" not in text:
        failures.append("unknown scratch memory is not reported")
    expect(0, "profile", *step, "--spec", "a100", prints=("NVIDIA A100",))
    expect(1, "profile", *step, "--spec", "a1000", says=("'a1000'", "a100", "h100"))
    expect(1, "profile", *step, "--allocator", "expandable:1", says=("expandable",))
    expect(2, "profile", *step, "--memory", "much", says=("24GiB", "rtx5090"))
    expect(2, "profile", *step, "--memory", "24", says=("24 bytes", "24GiB"))
    if not expect(0, "profile", *step, "--memory", "600MiB").startswith("does not fit: "):
        failures.append("profile --memory 600MiB does not begin with the missing memory")
    text = expect(0, "profile", *step, "--memory", "24GB", says=("24GB means 22.35 GiB", "rtx3090 23.70 GiB"))
    if not text.startswith("fits: at least ") or " of 22.4 GiB (24GB) (steady state, with" not in text.splitlines()[0]:
        failures.append(f"profile --memory 24GB begins with {text.splitlines()[0]}")
    text = expect(0, "profile", *step, "--memory", "RTX 5090", prints=("estimated for NVIDIA GeForce RTX 5090",))
    if " of 31.4 GiB of an RTX 5090 32 GB (" not in text.splitlines()[0]:
        failures.append(f"profile --memory 'RTX 5090' begins with {text.splitlines()[0]}")
    if not expect(0, "profile", *step, "--device", "cpu").startswith("Op"):
        failures.append("a profile of a CPU with unknown memory has a first line about memory")
    for verb in (("gpt2", "--mode", "train", "--batch", 8, "--seq", 512, "--optimizer", "adamw", "--rows", 0), step):
        for line in expect(0, "profile", *verb).splitlines():
            if len(line) > 100 and " " in line.strip()[:60]:
                failures.append(f"profile {verb[0]} has a line of {len(line)} columns: {line}")
    settings = json.loads(expect(0, "profile", *step, "--allocator", "expandable_segments:True", "--json"))
    plain = json.loads(expect(0, "profile", *step, "--json"))
    for key in ("device_memory", "memory_layout", "time", "peak_with_scratch", "unknown_scratch", "findings"):
        if key not in plain:
            failures.append(f"profile --json lacks {key}")
    if settings["device_memory"]["reserved_peak_bytes"] == plain["device_memory"]["reserved_peak_bytes"]:
        failures.append("the allocator's settings change nothing")
    if plain["memory_layout"]["bytes"] < plain["memory_layout"]["bound"]:
        failures.append("a memory layout is below its bound")
    names = {entry["name"] for entry in json.loads(expect(0, "list", "devices", "--json"))}
    if not {"h100", "a100", "mi300x", "cpu"} <= names:
        failures.append(f"list devices: {names}")
    bad = folder / "spec.json"
    bad.write_text('{"version": 1, "bandwidth": 1, "matmul": {}}')
    expect(1, "profile", *step, "--spec", bad, says=("spec.json", "float32"))

    # The largest batch is one that was captured, and the next one does not fit. One rule for all verdicts.
    def verdict(*step):
        said = expect(0, "profile", *step)
        figures = json.loads(expect(0, "profile", *step, "--json"))["fits"]
        if not said.startswith("fits: " if figures["fits"] else "does not fit: ") or \
                figures["fits"] != (figures["bytes"] <= figures["memory_bytes"]):  # fmt: skip
            failures.append(f"profile {step}: {said.splitlines()[0]}, {figures}")
        return figures

    answer = json.loads(expect(0, "fit", "resnet18", "--memory", "2GiB", "--json", "--with-checkpoint", "auto"))
    batch = answer["batch"]
    held = [verdict("resnet18", "--mode", "train", "--batch", size, "--memory", "2GiB") for size in (batch, batch + 1)]
    if not held[0]["fits"] or held[0]["bytes"] != answer["bytes"] or held[1]["fits"]:
        failures.append(f"fit: batch {batch} holds {held[0]} of {2 << 30}, the next {held[1]}")
    if answer["with_checkpoints"][0]["checkpoint"] != "auto":
        failures.append(f"fit with checkpoints: {answer}")
    longest = json.loads(expect(0, "fit", "gpt2", "--memory", "40GiB", "--seq", "512..", "--batch", 1, "--json"))
    if longest["seq"] != 1024 or "1024 positions" not in longest["limit"]:
        failures.append(f"fit --seq: {longest}")
    expect(1, "fit", "resnet18", "--memory", "100MiB", says=("does not fit",))
    expect(2, "fit", "resnet18", says=("--memory",))
    by_spec = json.loads(expect(0, "fit", "resnet18", "--spec", "t4", "--json"))
    if by_spec["device"] != "t4" or by_spec["memory_bytes"] != 15095 << 20 or by_spec["bytes"] > 15095 << 20:
        failures.append(f"fit --spec t4: {by_spec}")
    table = json.loads(expect(0, "fit", "gpt2", "--memory", "l4", "--batch", "1..64", "--seq", "128..1Ki", "--json"))
    for cell in table["largest_batch"]:
        at = ("gpt2", "--mode", "train", "--seq", cell["seq"], "--memory", "l4")
        held = [verdict(*at, "--batch", size) for size in (cell["batch"], cell["batch"] + 1)]
        if not held[0]["fits"] or (cell["batch"] < 64 and held[1]["fits"]):
            failures.append(f"fit --batch A..B --seq A..B: {cell}, {held}")
    expect(2, "fit", "gpt2", "--batch", "1..4", "--seq", "64..128", says=("--memory",))
    expect(2, "fit", "gpt2", "--memory", "1GiB", "--seq", "x..", says=("'x..'",))

    # The cheapest checkpoints that fit, with allocator and context included.
    large, less = ("gpt2", "--mode", "train", "--batch", 16, "--seq", 1024), folder / "less.sg"
    if json.loads(expect(0, "profile", *large, "--memory", "12GiB", "--json"))["fits"]["fits"]:
        failures.append("16 sequences of gpt2 fit 12 GiB without checkpoints")
    expect(0, "checkpoint", *large, "--memory", "12GiB", "-o", less, says=("fits: at least 1",), prints=("RECOMPUTE",))
    if not json.loads(expect(0, "profile", less, "--memory", "12GiB", "--json"))["fits"]["fits"]:
        failures.append("checkpoint --memory 12GiB wrote what does not fit")
    expect(1, "checkpoint", *large, "--memory", "2GiB", says=("no plan fits", "does not fit: at least"))
    expect(1, "checkpoint", *large, "--memory", "12GiB", "--bytes", "8GiB", says=("one of them",))

    # The maximum context: one more token does not fit. A token takes 2 x 32 layers x 8 heads x 128 x 2 bytes.
    llama = ("llama3_8b", "--dtype", "bf16", "--mode", "decode")
    longest = json.loads(expect(0, "fit", *llama, "--memory", "24GiB", "--json"))
    memory = ("--memory", "24GiB", "--json")
    fits, more = (json.loads(expect(0, "profile", *llama, "--context", size, *memory))
                  for size in (longest["context"], longest["context"] * 101 // 100))
    if fits["device_memory"]["footprint_bytes"] != longest["bytes"] or "out_of_memory" not in more:
        failures.append(f"fit --mode decode: {longest}, {fits['device_memory']}, {more.get('device_memory')}")
    # The cache takes most of the memory left by weights and context; the rest are segments left over as the cache
    # grows.
    left = (24 << 30) - fits["parameter_bytes"] - fits["device_memory"]["assumed"]["context_bytes"]
    if longest["bytes_per_token"] != 131072 or longest["cache_bytes"] < 0.8 * left:
        failures.append(f"fit --mode decode: {longest}, {left} bytes beside the weights")
    if longest["context"] < 20000 or longest["positions"] != 131072:
        failures.append(f"fit --mode decode: {longest}")
    expect(1, "profile", "gpt2", "--mode", "decode", says=("--context",))
    expect(1, "profile", "resnet18", "--mode", "decode", "--context", 8, says=("has no key-value cache",))
    expect(1, "profile", "gpt2", "--mode", "decode", "--context", 1024, says=("1024 positions",))
    expect(1, "profile", "gpt2", "--context", 8, says=("--mode decode",))
    expect(1, "profile", "gpt2", "--cache", "static", says=("--mode prefill",))
    expect(1, "profile", "gpt2", "--mode", "decode", "--context", 8, "--seq", 8, says=("--context",))
    expect(2, "profile", "gpt2", "--mode", "decode", "--context", 8, "--accumulate", 2, says=("--mode train",))

    # Options of a training loop.
    for wrong in (("--accumulate", 0), ("--clip-grad-norm", 0), ("--clip-grad-norm", "x"), ("--ema", -0.5),
                  ("--ema", 2), ("--autocast", "f32")):
        expect(2, "profile", *step, *wrong, says=(wrong[0],))
    for option in (("--accumulate", 2), ("--clip-grad-norm", 1), ("--grad-scaler",), ("--ema", 0.9), ("--zero-grads",),
                   ("--run",)):
        expect(2, "profile", "resnet18", *option, says=(option[0], "--mode train"))
    expect(1, "profile", *step, "--run", "--checkpoint", "auto", says=("--checkpoint",))
    text = expect(0, "profile", *step, "--run", "--ema", 0.9)
    if not all(line in text for line in ("first step", "second step", "steady state", "maximum")):
        failures.append("profile --run does not show its steps")

    # What-if options against captures with those options.
    two = ("profile", "resnet18", "--batch", 2)
    # On a CPU optimizers step one parameter at a time, as what-if assumes.
    asked = json.loads(expect(0, *two, "--device", "cpu", "--what-if", "optimizer=adamw", "--json"))
    real = json.loads(expect(0, *two, "--device", "cpu", "--optimizer", "adamw", "--mode", "train", "--json"))
    if asked["peak_bytes"] != real["peak"]["bytes"]:
        failures.append(f"--what-if optimizer: {asked['peak_bytes']}, captured {real['peak']['bytes']}")
    saved = folder / "step.sg"
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 2, "-o", saved)
    changes = ("zero=3,ranks=8", "dtype=bf16,accumulate=4,checkpoint=layer1.*")
    together = expect(0, "profile", saved, "--what-if", ",".join(changes), prints=("what-if", "not modeled"))
    if together != expect(0, "profile", saved, "--what-if", changes[0], "--what-if", changes[1]):
        failures.append("--what-if twice says something else than once")
    expect(1, *two, "--what-if", "zero=1", says=("ranks",))
    for wrong, why in (("optimizer=adamax", "did you mean adam"), ("zerro=1", "did you mean zero?"),
                       ("zero", "missing"), ("zero=4", "0, 1, 2, 3"), ("ranks=1", ">= 2"),
                       ("dtype=f32", "bf16, f16")):
        expect(2, *two, "--what-if", wrong, says=("--what-if", why))
    expect(2, *two, "--what-if", "dtype=bf16", "--mode", "infer", says=("training step",))
    for option in (("-o", folder / "no"), ("--rows", 3), ("--memory", "1GiB"), ("--run",)):
        expect(2, *two, "--what-if", "dtype=bf16", *option, says=("cannot be used with --what-if",))

    # Comparing two graphs reports what differs and omits what does not.
    one, two = folder / "one.sg", folder / "two.sg"
    expect(0, "capture", *step, "-o", one)
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 4, "-o", two)
    expect(0, "compare", one, two, "--limit", 0, prints=("peak bytes", "layer1", "forward_flops"))
    same = json.loads(expect(0, "compare", one, one, "--json"))
    if same["modules"] or same["operators"] or any(row["before"] != row["after"] for row in same["totals"]):
        failures.append(f"a graph differs from itself: {same}")
    expect(1, "compare", one, folder / "three.sg", says=("three.sg",))


def passes(folder):
    listed = {entry["name"] for entry in json.loads(expect(0, "list", "passes", "--json"))}
    for name in ("canonicalize", "collapse", "const-fold", "cse", "dce", "dead-storage", "find-repeats", "fuse-groups"):
        if name not in listed:
            failures.append(f"list passes --json lacks {name}")
    expect(0, "list", "passes", prints=("dce", "random=keep"))
    graph = folder / "net.sg"
    small = folder / "small.sg"
    expect(0, "capture", "resnet18", "--batch", 1, "--mode", "train", "-o", graph)
    expect(0, "opt", graph, "--pass", "canonicalize, cse, dce{random=drop}", "-o", small, prints=("changes", "cse"))
    expect(0, "capture", small, "--verify")
    printed = expect(0, "opt", graph, "--pass", "canonicalize,cse,dce{random=drop}", says=("changes",))
    if printed != small.read_text():
        failures.append("opt prints another graph than it writes")
    report = json.loads(expect(0, "opt", graph, "--pass", "dce,find-repeats", "-o", small, "--json"))
    if [entry["pass"] for entry in report["passes"]] != ["dce", "find-repeats"]:
        failures.append(f"opt --json: {report}")
    expect(0, "opt", graph, "--pass", "collapse{depth=1}", "-o", small, prints=("call_module[target=",))
    absent = folder / "absent.sg"
    expect(2, "opt", graph, "--pass", "cze", "-o", absent, says=("did you mean cse",))
    expect(2, "opt", graph, "--pass", "dce{rand=1}", "-o", absent, says=("no option 'rand'",))
    expect(2, "opt", graph, "--pass", "dce", "--json", says=("-o",))
    expect(2, "opt", graph)
    for verb in (("opt", graph, "--pass", "dce"), ("profile", "resnet18"), ("capture", "resnet18")):
        expect(2, *verb, "-o", "", says=("--output: the value is empty",))
    expect(1, "opt", "resnet18", "--pass", "dce", says=("shadowgraph capture resnet18 -o",))
    (folder / "garbage.pt").write_bytes(b"garbage")
    expect(1, "profile", folder / "garbage.pt", says=("is not a zip archive",))
    expect(0, "opt", graph, "--pass", "dce", "-o", folder / "graph.pt")
    expect(0, "opt", folder / "graph.pt", "--pass", "dce", "-o", small)
    expect(1, "opt", graph, "--pass", "dce{random=1}", "-o", absent, says=("keep, drop",))
    for broken, why in (
        ("dce{", "name=value"),
        ("dce{random=drop", "'}' is missing"),
        ("dce,,cse", "the name of a pass"),
        ("rewrite{rules='rule x}", "unterminated quote"),
    ):
        expect(2, "opt", graph, "--pass", broken, "-o", absent, says=(why, "example of a pipeline"))
    for refused, why in (
        ("fuse-groups{min_nodes=abc}", "min_nodes=abc"),
        ("dce,rewrite", "step 2 of 2"),
        ("rewrite{rules='rule x'}", "'=>'"),
        ("rewrite{file=/no/such/rules}", "/no/such/rules"),
        ("decompose{to=everything}", "core-aten"),
        ("shape-prop{inputs=zz=f32[1]}", "image, labels"),
        ("shape-prop{inputs=image}", "name=f32"),
        ("partition{merge=some}", "all, linked"),
    ):
        expect(1, "opt", graph, "--pass", refused, "-o", absent, says=(why,))
    expect(0, "opt", graph, "--pass", "partition{operators=aten::nope}", "-o", small,
           prints=("not in the graph: aten::nope",))
    expect(1, "opt", absent, "--pass", "dce", says=("absent.sg",))
    if absent.exists():
        failures.append("a failed opt wrote its output")


def batches(folder):
    """A range of batches is computed from a fit, single batches from a capture; both agree."""
    kind = ("--mode", "train", "--optimizer", "adamw")
    out = json.loads(expect(0, "fit", "resnet18", *kind, "--batch", "8..41:11", "--json"))
    if [row["batch"] for row in out["batches"]] != [8, 19, 30, 41]:
        failures.append(f"fit --batch 8..41:11 has rows {out['batches']}")
    for row in out["batches"]:
        if row["captured"]:
            failures.append(f"batch {row['batch']} was captured, not answered from the fit")
        # The fit was made from none of these sizes.
        alone = json.loads(expect(0, "profile", "resnet18", *kind, "--batch", row["batch"], "--json"))
        whole = {
            "flops": sum(alone["flops"].values()),
            "elementwise_flops": sum(alone["elementwise_flops"].values()),
            "transcendental": sum(alone["transcendental"].values()),
            "peak_bytes": alone["steady_peak"]["bytes"],
            "saved_bytes": alone["saved_activation_bytes"],
        }
        if not math.isclose(row["seconds"], alone["time"]["seconds"], rel_tol=1e-9):
            failures.append(f"batch {row['batch']}: a step takes {row['seconds']} s, not {alone['time']['seconds']}")
        for key, value in whole.items():
            if row[key] != value:
                failures.append(f"batch {row['batch']}: {key} is {row[key]} by the fit, {value} by a capture")
    expect(0, "fit", "resnet18", "--mode", "infer", "--batch", "1..3", prints=("BATCH", "captured", "polynomials"))
    expect(0, "fit", "resnet18", "--batch", "2..3", "--memory", "1KiB", prints=("no batch of the range fits",))
    expect(0, "fit", "resnet18", "--batch", "2..3", "--memory", "1TiB", prints=("3",))
    for wrong in ("8..1", "1..x", "0..4", "1..", "..4", "1..8:0", "1...8", "1..99999999999999999999"):
        expect(2, "fit", "resnet18", "--batch", wrong, says=("--batch",))
    expect(2, "fit", "resnet18", "--batch", "1..4", "--memory", "banana", says=("24GiB",))
    sweep_by_reserved_bytes()
    for verb in (("capture", "-o", "/dev/null"), ("checkpoint", "--pareto"), ("draw",)):
        expect(2, *verb, "resnet18", "--batch", "1..4", says=("shadowgraph fit SOURCE --batch 1..4",))
    expect(2, "fit", "gpt2", "--batch", "1..4", "--seq", "64..", says=("--memory",))
    expect(2, "fit", "gpt2", "--batch", "1..4", "--with-checkpoint", "auto", says=("--with-checkpoint cannot be used",))
    expect(1, "fit", "no_such_net", "--batch", "1..4", says=("llama3_8b",))


def sweep_by_reserved_bytes():
    """A sweep finds the same batch by device bytes as fit does; allocator settings matter."""
    step = ("resnet18", "--mode", "train", "--memory", "1280MiB")
    sweep = (*step, "--batch", "4..20", "--json")
    by_device = json.loads(expect(0, "fit", *sweep))
    fitted = json.loads(expect(0, "fit", "resnet18", "--memory", "1280MiB", "--json"))
    held = {row["batch"]: row["footprint_bytes"] for row in by_device["batches"]}
    if by_device["largest_batch"] != fitted["batch"] or held[fitted["batch"]] != fitted["bytes"]:
        failures.append(f"fit --batch A..B says {by_device['largest_batch']}, fit {fitted}")
    reserved = json.loads(expect(0, "fit", "resnet18", "--memory", "600MiB", "--by", "reserved", "--json"))
    by_live = json.loads(expect(0, "fit", "resnet18", "--memory", "600MiB", "--by", "live", "--json"))
    if not (reserved["bytes"] <= 600 << 20 and by_live["bytes"] == by_live["peak_bytes"] <= 600 << 20):
        failures.append(f"fit --by: {reserved}, {by_live}")
    if (fitted["by"], reserved["by"]) != ("device", "reserved") or reserved["batch"] > by_live["batch"]:
        failures.append(f"fit --by says {fitted['by']}, {reserved['by']}; {reserved['batch']}, {by_live['batch']}")
    decode = ("llama3_8b", "--mode", "decode", "--memory", "40GB", "--json")
    longest = {by: json.loads(expect(0, "fit", *decode, "--by", by)) for by in ("reserved", "device")}
    room = {by: fit["memory_bytes"] - fit["bytes"] for by, fit in longest.items()}
    # The allocator may reserve all of the memory; the context is added to it.
    full = all(0 <= left < 256 << 20 for left in room.values())
    if not full or longest["reserved"]["memory_bytes"] != 40_000_000_000 or \
            longest["reserved"]["context"] <= longest["device"]["context"]:  # fmt: skip
        failures.append(f"fit --mode decode --by: {longest}")
    grows = json.loads(expect(0, "fit", *sweep, "--by", "live", "--allocator", "expandable_segments:True"))
    if (by_device["by"], grows["by"]) != ("device", "live") or grows["batches"] == by_device["batches"]:
        failures.append("the allocator's settings change nothing in a sweep")
    expect(1, "fit", "resnet18", "--batch", "2..3", "--by", "reserved", says=("--memory",))
    for sizes in (("--batch", "2..3"), ()):
        expect(1, "fit", "resnet18", *sizes, "--device", "cpu", "--memory", "9GiB", "--by", "reserved",
               says=("no caching allocator",))
    cpu = ("--device", "cpu", "--memory", "9GiB", "--json")
    on_cpu = json.loads(expect(0, "fit", "resnet18", "--batch", "2..3", *cpu))
    if (on_cpu["by"], on_cpu["largest_batch"]) != ("live", 3):
        failures.append(f"fit --batch 2..3 --device cpu: {on_cpu['by']}, {on_cpu['largest_batch']}")


def kernels(folder):
    """The kernel cache, filled by hand because the tool does not write it. The tool erases only its own files."""
    cache = folder / "cache"
    at = ("--dir", cache)
    expect(0, "list", "kernels", *at, prints=("no kernels",))
    library = b"not really a library"
    manifest = {"version": 2, "name": "aten::add_Tensor", "key": "k", "identity": "some compiler",
                "sha256": hashlib.sha256(library).hexdigest(), "verdicts": {}}
    place = cache / "aten::add_Tensor"
    place.mkdir(parents=True)
    names = [f"000000000000000{i}" for i in range(4)]
    for name in names[:3]:
        (place / f"{name}.so").write_bytes(library)
        (place / f"{name}.cpp").write_text("//\n")
        (place / f"{name}.json").write_text(json.dumps(manifest))
    held = sum(path.stat().st_size for path in place.glob("000*"))  # below a KiB, so it is printed to the byte
    # A folder in use by other programs, with files that look like entries.
    foreign = ["notes.txt", "aten::add_Tensor/notes.txt", "web/package.json", "web/main.cpp", "web/x.so", "web/x.lock",
               f"aten::add_Tensor/{names[3]}.json", "web/0000000000000000.json", "web/a.tmp1.cpp"]  # fmt: skip
    (cache / "web").mkdir()
    for name in foreign:
        (cache / name).write_text("mine")
    expect(1, "list", "kernels", *at, "--clear", says=("is not a kernel cache", "nothing was deleted"))
    expect(0, "list", "kernels", *at, "--prune", "1B", prints=("0 entries deleted",))
    stems = [f"aten::add_Tensor/{name}" for name in names[:3]]
    outside = ["../web/0000000000000000", "/web/0000000000000000", "web/../notes.txt", "web/package.json", "web/x"]
    (cache / "shadowgraph-kernels.txt").write_text("\n".join(["shadowgraph kernel cache 1", *stems, *outside]) + "\n")
    expect(0, "list", "kernels", *at,
           prints=("aten::add_Tensor", f" 3 {f'{held} B':>12}  ", "3 for another compiler or processor", "total"))
    expect(0, "list", "kernels", "--verify", *at, prints=("3 of 3 entries are intact",))
    (place / f"{names[1]}.so").write_bytes(library[:-1])
    (place / f"{names[2]}.json").write_text("{")
    expect(1, "list", "kernels", "--verify", *at, prints=("does not match its manifest", "1 of 3 entries are"),
           says=("2 of the kernels",))
    entries = json.loads(expect(1, "list", "kernels", "--verify", *at, "--json"))["entries"]
    if [entry["problem"] == "" for entry in entries] != [True, False, False]:
        failures.append(f"list kernels --verify --json: {entries}")
    expect(0, "list", "kernels", *at, "--prune", "1GiB", "--dry-run", prints=("1 entry would be deleted",))
    expect(0, "list", "kernels", *at, "--prune", "1GiB", prints=("1 entry deleted",))
    expect(0, "list", "kernels", "--clear", *at, "--dry-run", prints=("2 entries would be deleted",))
    expect(0, "list", "kernels", *at, "--prune", "1B", prints=("2 entries deleted",))
    (place / ".shadowgraph-0123").write_bytes(b"interrupted")
    (place / ".shadowgraph-Ab3dEf").mkdir()
    (place / ".shadowgraph-Ab3dEf" / "kernel.cpp").write_text("interrupted")
    expect(0, "list", "kernels", "--clear", *at, prints=("0 entries deleted",))
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    if left != sorted([*foreign, "shadowgraph-kernels.txt"]):
        failures.append(f"list kernels --clear left {left}")
    expect(1, "list", "kernels", "--dir", cache / "notes.txt", says=("notes.txt",))
    expect(2, "list", "kernels", *at, "--prune", says=("--prune",))
    expect(2, "list", "kernels", *at, "--verify", "--clear", says=("at a time",))
    expect(2, "list", "kernels", *at, "--dry-run", says=("--dry-run",))
    expect(2, "list", "kernels", *at, "--clear", "--json", says=("--json cannot be used with --clear",))
    expect(0, "list", "kernels", "--operators",
           prints=("operators have kernels:\n  aten::", "have none: it is a matrix product", "  aten::mm\n"))
    listed = json.loads(expect(0, "list", "kernels", "--operators", "--json"))
    if "aten::gelu" not in listed["compiled"] or "is a scan" not in listed["without"]["aten::cumsum"]:
        failures.append(f"list kernels --operators --json: {str(listed)[:300]}")
    expect(2, "list", "kernels", "--operators", "--verify", says=("--operators",))
    expect(2, "list", "kernels", *at, "--prune", "much", says=("'much' is not a size such as 24GiB",))


def differences(folder):
    """`compare --nodes` exits like diff(1): 0 the same, 1 different or no graph, 2 wrong usage."""
    one, two = folder / "one.sg", folder / "two.sg"
    expect(0, "capture", "resnet18", "--batch", 1, "-o", one)
    expect(0, "capture", "resnet18", "--batch", 2, "-o", two)
    if expect(0, "compare", "--nodes", one, one):
        failures.append("compare --nodes of a file with itself prints something")
    out = expect(1, "compare", "--nodes", one, two, prints=("f32[1,3,224,224]", "f32[2,3,224,224]", " changed, "))
    short = expect(1, "compare", "--nodes", one, two, "--limit", 2, prints=("more",))
    if len(short) >= len(out):
        failures.append("compare --nodes --limit 2 is no shorter than without")
    everything = expect(1, "compare", "--nodes", one, two, "--limit", 0)
    if "... and" in everything:
        failures.append("compare --nodes --limit 0 leaves something out")
    expect(0, "opt", one, "--pass", "canonicalize,dce", "-o", two)
    expect(1, "compare", "--nodes", one, two, prints=(" removed, 0 added",))
    expect(1, "compare", "--nodes", one, folder / "nothing.sg", says=("nothing.sg",))
    (folder / "text.sg").write_text("hello\n")
    expect(1, "compare", "--nodes", one, folder / "text.sg", says=("text.sg:1:",))
    expect(2, "compare", "--nodes", one, says=("AFTER",))
    expect(1, "compare", "--nodes", one, "resnet18", "--batch", 2, prints=(" changed, ",))
    expect(0, "compare", "--nodes", one, "resnet18", "--batch", 1)
    expect(2, "compare", "--nodes", one, two, "--limit", "-1", says=("--limit",))


def problems(folder):
    """`shard --problem` solves an exported problem from its file and refuses capture options."""
    exported, solution = folder / "problem.json", folder / "solution.json"
    step = ("shard", "resnet18", "--batch", 2, "--mesh", 2)
    expect(0, *step, "--export", exported, "--time-limit", 5)
    limits = ("--time-limit", 5, "--threads", 2)
    said = expect(0, "shard", "--problem", exported, *limits, "-o", solution, prints=("cost ",))
    if json.loads(solution.read_text())["cost"] not in said:
        failures.append(f"shard --problem prints another cost than it writes: {said}")
    expect(1, "shard", "--problem", folder / "absent.json", says=("absent.json",))
    expect(2, "shard", says=("SOURCE is required",))
    expect(2, "shard", "resnet18", says=("--mesh is required",))
    expect(2, *step, "--gap", "0.1", says=("--gap", "--problem"))
    for given in (("resnet18",), ("--mesh", 2), ("--batch", 2), ("--spec", "a100"), ("--rows", 3)):
        expect(2, "shard", "--problem", exported, *given, says=("cannot be used with --problem",))


def files_of_others(folder):
    """Folders in the way, misspelt keys, rates of zero, names that steer terminals, logs and paths."""
    graph = folder / "graph.sg"
    run("capture", "resnet18", "--batch", "1", "-o", graph)
    for name in ("h100", "a100", "nvlink", "l4"):  # folders of built-in names
        (folder / name).mkdir()
    command = [os.path.abspath(TOOL), "profile", str(graph), "--spec", "h100"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if found.returncode != 0:
        failures.append(f"--spec h100 beside a folder of that name: {found.stderr[:300]}")
    (folder / "file").write_text("in the way")
    for path in (folder / "file" / "sub", folder / ("x" * 300), folder / "file"):
        for verb in (("profile", graph), ("pipeline", graph, "--ranks", "2"), ("shard", graph, "--mesh", "2")):
            code, _, errors = run(*verb, "-o", path)
            if code not in (1, 2) or "internal error" in errors:
                failures.append(f"{verb[0]} -o {path.name[:20]}: exit code {code}\n{errors[:300]}")
    for where, key in (((), "bandwith"), (("levels", 0), "bandwith"), (("levels", 0, "groups", 0), "procesess")):
        level = {"name": "nvlink", "size": 8, "bandwidth": 1e11, "groups": [{"processes": 2, "bandwidth": 1e11}]}
        links = {"version": 1, "name": "mine", "levels": [level, {"name": "spine", "bandwidth": 1e10}]}
        at = links
        for step in where:
            at = at[step]
        at[key] = 1e11
        (folder / "links.json").write_text(json.dumps(links))
        expect(1, "shard", graph, "--mesh", "2", "--interconnect", folder / "links.json", says=(key, "is not a key of"))
    spec = json.loads(run("list", "devices", "--json")[1])[0]
    spec["matmul"]["float32"] = 0
    (folder / "spec.json").write_text(json.dumps(spec))
    expect(1, "profile", graph, "--spec", folder / "spec.json", says=("matmul", "float32", "must be positive"))
    text = graph.read_text()
    hostile = r'meta "model" = "\x1b]0;t\x07\n::error file=a::b\n##vso[x]y"'
    (folder / "hostile.sg").write_text(re.sub(r'meta "model" = .*', lambda _: hostile, text))
    for verb in (("profile",), ("capture",), ("shard", "--mesh", "2"), ("pipeline", "--ranks", "2")):
        _, out, errors = run(verb[0], folder / "hostile.sg", *verb[1:])
        for line in (out + errors).splitlines():
            if "\x1b" in line or "\x07" in line or line.lstrip().startswith("::error") or "##vso" in line:
                failures.append(f"{verb[0]} of a hostile name prints {line!r}")


if __name__ == "__main__":
    # Longest parts first.
    parts = (estimates, report, without_effect, round_trip, passes, batches, differences, problems, check, kernels,
             files_of_others, inputs, usage)
    in_parts.run(parts, failures)
