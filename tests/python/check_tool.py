#!/usr/bin/env python3
"""The tool as scripts see it: exit codes, messages, files written whole or not at all, the keys of `profile --json`.

    check_tool.py TOOL
"""

import hashlib
import json
import subprocess
import sys

import in_parts

TOOL = sys.argv[1]
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
    expect(0, "--help", prints=("profile", "capture", "Examples", "Exit codes"))
    expect(0, "profile", "--help", prints=("--input", "--batch", "--optimizer"))
    expect(0, "--version", prints=("shadowgraph 0.",))
    expect(2)
    expect(2, "frobnicate", says=("frobnicate", "profile"))
    expect(2, "profle", says=("did you mean profile",))
    expect(2, "profile")
    expect(2, "profile", "resnet18", "--device", "tpu")
    expect(2, "profile", "resnet18", "--batch", "-1", says=("at least 1",))
    expect(2, "profile", "resnet18", "--batch", "9" * 20, says=("at least 1",))
    expect(2, "profile", "resnet18", "--mode", "dream")
    expect(2, "capture", "resnet18")
    expect(0, "models", prints=("llama3_8b", "8,030,261,248"))


def inputs(folder):
    expect(1, "profile", "resnet19", says=("resnet19", "did you mean resnet18?", "llama3_8b"))
    expect(1, "profile", folder, says=("is a folder",))
    expect(1, "profile", "resnet18", "--seq", "7")
    expect(1, "profile", "resnet18", "--input", "f32[1]", says=("TorchScript",))
    expect(1, "profile", "resnet18", "--host-reads", "fine", says=("'fine'", "finite", "mask-full"))
    expect(1, "profile", "resnet18", "--host-reads", "item0=much", says=("'much'", "number"))
    expect(1, "profile", "resnet18", "--data-sizes", "nonzero0=x", says=("'x'", "number of elements"))
    expect(1, "print", folder / "absent.sg", says=("absent.sg",))
    garbage = folder / "garbage.sg"
    garbage.write_bytes(bytes(range(256)) * 8)
    for command in ("print", "verify", "dot", "profile"):
        expect(1, command, garbage, says=("garbage.sg:1:",))
    (folder / "empty.sg").write_text("")
    expect(1, "print", folder / "empty.sg")
    expect(1, "print", folder)
    (folder / "future.sg").write_text("shadowgraph 999 libtorch 9.9.9\n")
    expect(1, "print", folder / "future.sg", says=("999",))
    zipped = folder / "net.pt"
    zipped.write_bytes(b"PK\x03\x04" + b"\0" * 60)
    expect(1, "profile", zipped, says=("--input",))
    expect(1, "profile", zipped, "--input", "f32[2,2]", says=("TorchScript",))
    for spec in ("f32", "f33[2]", "f32[2,,3]", "f32[a]", "f32[-1]", "[2]", "f32[2", "f32[9999999999,9999999999]"):
        expect(1, "profile", zipped, "--input", spec, says=("write for example",))
    expect(1, "capture", "resnet18", "-o", folder / "no" / "such" / "g.sg", says=("g.sg",))
    with open("/dev/full", "w") as full:
        result = subprocess.run([TOOL, "models"], stdout=full, stderr=subprocess.PIPE, text=True)
    if result.returncode != 1 or "No space left" not in result.stderr:
        failures.append(f"models > /dev/full: exit code {result.returncode}, {result.stderr}")
    (folder / "file").write_text("")
    expect(1, "profile", "resnet18", "-o", folder / "file" / "out")
    leftovers = [path.name for path in folder.rglob("*tmp*")]
    if leftovers:
        failures.append(f"half-written files: {leftovers}")


def round_trip(folder):
    graph = folder / "g.sg"
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 2, "-o", graph)
    text = expect(0, "print", graph)
    if text != graph.read_text():
        failures.append("print does not give back the graph file")
    expect(0, "verify", graph, prints=("every invariant holds",))
    json.loads(expect(0, "print", graph, "--json"))
    expect(0, "print", graph, "--preset", "short")
    expect(0, "dot", graph, prints=("digraph",))
    expect(0, "dot", graph, "--svg", prints=("<svg", "</svg>"))
    expect(0, "dot", graph, "--all-phases", "-o", folder / "g.svg")
    if "</svg>" not in (folder / "g.svg").read_text():
        failures.append("dot -o g.svg does not write SVG")
    near = ("--around", "layer2.0.conv1", "--radius", 1)
    expect(0, "dot", graph, *near, "--color", "time", prints=("asked for", "on NVIDIA"))
    way = ("--path", "conv1", "layer1.0")
    expect(0, "dot", graph, *way, "--color", "flops", "--svg", prints=("FLOPs of matrix products", "left out"))
    expect(0, "dot", graph, "--diff", graph, "--phase", "backward", "--depth", 0, prints=("no node differs",))
    expect(0, "dot", graph, "--rows", 15, prints=("--rows 0 all",), says=("--rows 0 all",))
    expect(1, "dot", graph, "--around", "conv9", says=("--around: nothing in the graph is called 'conv9'",))
    expect(1, "dot", graph, "--path", "layer1.0", "conv1", says=("name them the other way round",))
    expect(1, "dot", graph, "--color", "beauty", says=("no colours by 'beauty'; there are operator, flops",))
    expect(1, "dot", graph, "--color", "time", "--spec", "abacus", says=("abacus",))
    expect(1, "dot", graph, "--diff", folder / "missing.sg", says=("missing.sg",))
    expect(2, "dot", graph, "--path", "conv1")
    expect(1, "capture", graph, "-o", folder / "h.sg", says=("not a model",))
    expect(2, "dot", graph, "--depth", "-3")
    expect(0, "report", graph, "-o", folder / "g.html", says=("g.html: ", "nodes"))
    text = (folder / "g.html").read_text()
    if not text.startswith("<!doctype html>") or 'id="graph-data"' not in text:
        failures.append("report wrote no page")
    expect(0, "report", graph, "--compare", graph, "-o", folder / "g.html", says=("g.html: ",))
    expect(0, "profile", graph, "-o", folder / "saved")
    saved = folder / "saved" / "profile.json"
    expect(0, "report", graph, "--compare", saved, "-o", folder / "g.html", says=("g.html: ",))
    if 'id="before-profile"' not in (folder / "g.html").read_text():
        failures.append("report --compare profile.json holds no profile")
    (folder / "batches.json").write_text('{"batches": []}')
    expect(1, "report", graph, "--compare", folder / "batches.json", "-o", folder / "x.html", says=("several batches",))
    table = f"{folder / 'saved' / 'nodes.csv'}:live_bytes"
    expect(0, "report", graph, "--color", table, "-o", folder / "g.html", says=("g.html: ",))
    expect(0, "dot", graph, "--color", table, prints=("colour: live_bytes", "min "))
    expect(1, "dot", graph, "--color", table + "s", says=("no column 'live_bytess'; there are node, phase",))
    expect(0, "dot", graph, "--depth", 9, "--boxes", 30, says=("--boxes allows more",))
    expect(1, "report", folder / "missing.sg", "-o", folder / "g.html", says=("neither a file nor a built-in model",))
    expect(1, "report", graph, "-o", folder / "no" / "folder.html", says=("no/folder.html",))
    expect(2, "report", graph, says=("--output is required",))
    broken = folder / "broken.sg"
    broken.write_text("\n".join(line for line in text.splitlines() if "aten::relu_(" not in line) + "\n")
    expect(1, "verify", broken, says=("broken.sg:",))
    broken.write_text(text[: len(text) // 2])
    expect(1, "verify", broken, says=("broken.sg:",))
    direct = json.loads(expect(0, "profile", "resnet18", "--mode", "train", "--batch", 2, "--json"))
    saved = json.loads(expect(0, "profile", graph, "--json"))
    if "capture_seconds" in saved or direct.pop("capture_seconds") <= 0:
        failures.append("capture_seconds belongs to a capture, and only to that")
    if direct != saved:
        failures.append("profile of the model and of its saved graph differ")


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
    expect(0, "profile", "resnet18", "--batch", 2, "-o", out, prints=("parameters",))
    written = {path.name for path in out.iterdir()}
    if written != {"graph.sg", "profile.json", "graph.dot", "graph.svg", "nodes.csv", "storages.csv", "trace.json",
                   "model_explorer.json", "snapshot.pickle"}:
        failures.append(f"profile -o wrote {written}")


def estimates(folder):
    """What the device holds, times, and what else follows from a profile."""
    step = ("resnet18", "--mode", "train", "--batch", 2)
    text = expect(0, "profile", *step, "--rows", 1, prints=("reserved", "on the device", "estimated for NVIDIA H100"))
    if "unknown" not in text:
        failures.append("nothing is said of unknown scratch")
    expect(0, "profile", *step, "--spec", "a100", prints=("NVIDIA A100",))
    expect(1, "profile", *step, "--spec", "a1000", says=("'a1000'", "a100", "h100"))
    expect(1, "profile", *step, "--allocator", "expandable:1", says=("expandable",))
    expect(2, "profile", *step, "--device-memory", "much", says=("80GiB",))
    expect(0, "profile", *step, "--device-memory", "600MiB", prints=("does not fit",))
    expect(1, "profile", "resnet18", "--batch", "1..4", "--spec", "a100", says=("not for a range",))
    settings = json.loads(expect(0, "profile", *step, "--allocator", "expandable_segments:True", "--json"))
    plain = json.loads(expect(0, "profile", *step, "--json"))
    for key in ("device_memory", "static_plan", "time", "peak_with_scratch", "unknown_scratch", "findings"):
        if key not in plain:
            failures.append(f"profile --json lacks {key}")
    if settings["device_memory"]["reserved_peak_bytes"] == plain["device_memory"]["reserved_peak_bytes"]:
        failures.append("the allocator's settings change nothing")
    if plain["static_plan"]["bytes"] < plain["static_plan"]["bound"]:
        failures.append("a plan below its bound")
    names = {entry["name"] for entry in json.loads(expect(0, "devices", "--json"))}
    if not {"h100", "a100", "mi300x", "cpu"} <= names:
        failures.append(f"devices: {names}")
    bad = folder / "spec.json"
    bad.write_text('{"version": 1, "bandwidth": 1, "matmul": {}}')
    expect(1, "profile", *step, "--spec", bad, says=("spec.json", "float32"))

    # The largest batch is one that was captured, and the next one does not fit.
    answer = json.loads(expect(0, "fit", "resnet18", "--memory", "2GiB", "--json", "--with-checkpoint", "auto"))
    batch = answer["batch"]
    held = [json.loads(expect(0, "profile", "resnet18", "--mode", "train", "--batch", size, "--json"))["device_memory"]
            ["footprint_bytes"] for size in (batch, batch + 1)]
    if not held[0] == answer["bytes"] <= 2 << 30 < held[1]:
        failures.append(f"fit: batch {batch} holds {held[0]} of {2 << 30}, the next {held[1]}")
    if answer["with_checkpoints"][0]["checkpoint"] != "auto":
        failures.append(f"fit with checkpoints: {answer}")
    longest = json.loads(expect(0, "fit", "gpt2", "--memory", "40GiB", "--seq", "512..", "--batch", 1, "--json"))
    if longest["seq"] != 1024 or "1024 positions" not in longest["limit"]:
        failures.append(f"fit --seq: {longest}")
    expect(1, "fit", "resnet18", "--memory", "100MiB", says=("does not fit",))
    expect(2, "fit", "resnet18", says=("--memory",))
    expect(2, "fit", "gpt2", "--memory", "1GiB", "--seq", "x..", says=("'x..'",))

    # The longest context: the next token does not fit. 2 x 32 layers x 8 heads x 128 x 2 bytes a token.
    llama = ("llama3_8b", "--dtype", "bf16", "--mode", "decode")
    longest = json.loads(expect(0, "fit", *llama, "--memory", "24GiB", "--json"))
    memory = ("--device-memory", "24GiB", "--json")
    fits, more = (json.loads(expect(0, "profile", *llama, "--context", size, *memory))
                  for size in (longest["context"], longest["context"] * 101 // 100))
    if fits["device_memory"]["footprint_bytes"] != longest["bytes"] or "out_of_memory" not in more:
        failures.append(f"fit --mode decode: {longest}, {fits['device_memory']}, {more.get('device_memory')}")
    # Most of what weights and context leave is cache; the rest are segments that a growing cache leaves behind.
    left = (24 << 30) - fits["parameter_bytes"] - fits["device_memory"]["assumed"]["context_bytes"]
    if longest["bytes_per_token"] != 131072 or longest["cache_bytes"] < 0.8 * left:
        failures.append(f"fit --mode decode: {longest}, {left} bytes beside the weights")
    if longest["context"] < 20000 or longest["positions"] != 8192:
        failures.append(f"fit --mode decode: {longest}")
    expect(1, "profile", "gpt2", "--mode", "decode", says=("--context",))
    expect(1, "profile", "resnet18", "--mode", "decode", "--context", 8, says=("keeps no keys and values",))
    expect(1, "profile", "gpt2", "--mode", "decode", "--context", 1024, says=("1024 positions",))
    expect(1, "profile", "gpt2", "--context", 8, says=("--mode decode",))
    expect(1, "profile", "gpt2", "--cache", "static", says=("--mode prefill",))
    expect(1, "profile", "gpt2", "--mode", "decode", "--context", 8, "--seq", 8, says=("--context",))
    expect(1, "profile", "gpt2", "--mode", "decode", "--context", 8, "--accumulate", 2, says=("--mode train",))

    # Options of a training loop.
    for wrong in (("--accumulate", 0), ("--clip-grad-norm", 0), ("--clip-grad-norm", "x"), ("--ema", -0.5),
                  ("--ema", 2), ("--autocast", "f32")):
        expect(2, "profile", *step, *wrong, says=(wrong[0],))
    for option in (("--accumulate", 2), ("--clip-grad-norm", 1), ("--grad-scaler",), ("--ema", 0.9), ("--zero-grads",),
                   ("--run",)):
        expect(1, "profile", "resnet18", *option, says=(option[0], "--mode train"))
    expect(1, "profile", *step, "--run", "--checkpoint", "auto", says=("--checkpoint",))
    text = expect(0, "profile", *step, "--run", "--ema", 0.9)
    if not all(line in text for line in ("first step", "second step", "steady state", "peak of all")):
        failures.append("profile --run does not show its steps")

    # What if: against captures of what was asked.
    adamw = ("resnet18", "--batch", 2, "--optimizer", "adamw", "--json")
    asked = json.loads(expect(0, "whatif", *adamw))
    real = json.loads(expect(0, "profile", *adamw, "--mode", "train"))
    if asked["peak_bytes"] != real["peak"]["bytes"]:
        failures.append(f"whatif --optimizer: {asked['peak_bytes']}, captured {real['peak']['bytes']}")
    saved = folder / "step.sg"
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 2, "-o", saved)
    expect(0, "whatif", saved, "--zero", 3, "--ranks", 8, "--dtype", "bf16", "--accumulate", 4, "--checkpoint",
           "layer1.*", prints=("as asked", "not in it"))
    expect(1, "whatif", "resnet18", says=("what if what",))
    expect(1, "whatif", "resnet18", "--zero", 1, says=("ranks",))
    expect(2, "whatif", "resnet18", "--optimizer", "adamax", says=("adamax",))

    # Two graphs: what differs is said, what does not is not.
    one, two = folder / "one.sg", folder / "two.sg"
    expect(0, "capture", *step, "-o", one)
    expect(0, "capture", "resnet18", "--mode", "train", "--batch", 4, "-o", two)
    expect(0, "compare", one, two, "--limit", 0, prints=("peak bytes", "layer1", "forward_flops"))
    same = json.loads(expect(0, "compare", one, one, "--json"))
    if same["modules"] or same["operators"] or any(row["before"] != row["after"] for row in same["totals"]):
        failures.append(f"a graph differs from itself: {same}")
    expect(1, "compare", one, folder / "three.sg", says=("three.sg",))


def passes(folder):
    listed = {entry["name"] for entry in json.loads(expect(0, "passes", "--json"))}
    for name in ("canonicalize", "collapse", "const-fold", "cse", "dce", "dead-storage", "find-repeats", "fuse-groups"):
        if name not in listed:
            failures.append(f"passes --json lacks {name}")
    expect(0, "passes", prints=("dce", "random=keep"))
    graph = folder / "net.sg"
    small = folder / "small.sg"
    expect(0, "capture", "resnet18", "--batch", 1, "--mode", "train", "-o", graph)
    expect(0, "opt", graph, "--pass", "canonicalize, cse, dce{random=drop}", "-o", small, prints=("what it did", "cse"))
    expect(0, "verify", small)
    printed = expect(0, "opt", graph, "--pass", "canonicalize,cse,dce{random=drop}", says=("what it did",))
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
    expect(1, "opt", graph, "--pass", "dce{random=1}", "-o", absent, says=("keep, drop",))
    for broken, why in (
        ("dce{", "name=value"),
        ("dce{random=drop", "'}' is missing"),
        ("dce,,cse", "the name of a pass"),
        ("", "the name of a pass"),
        ("rewrite{rules='rule x}", "the quote is not closed"),
    ):
        expect(2, "opt", graph, "--pass", broken, "-o", absent, says=(why, "a pipeline looks like"))
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
    """A range of batches is answered from a fit; single batches from a capture. Both say the same."""
    kind = ("--mode", "train", "--optimizer", "adamw")
    out = json.loads(expect(0, "profile", "resnet18", *kind, "--batch", "8..41:11", "--json"))
    if [row["batch"] for row in out["batches"]] != [8, 19, 30, 41]:
        failures.append(f"profile --batch 8..41:11 has rows {out['batches']}")
    for row in out["batches"]:
        if row["captured"]:
            failures.append(f"batch {row['batch']} was captured, not answered from the fit")
        # None of these sizes is one that the fit was made from.
        alone = json.loads(expect(0, "profile", "resnet18", *kind, "--batch", row["batch"], "--json"))
        whole = {
            "flops": sum(alone["flops"].values()),
            "elementwise_flops": sum(alone["elementwise_flops"].values()),
            "transcendental": sum(alone["transcendental"].values()),
            "peak_bytes": alone["peak"]["bytes"],
            "saved_bytes": alone["saved_activation_bytes"],
        }
        for key, value in whole.items():
            if row[key] != value:
                failures.append(f"batch {row['batch']}: {key} is {row[key]} by the fit, {value} by a capture")
    expect(0, "profile", "resnet18", "--batch", "1..3", prints=("BATCH", "RESERVED", "captured", "polynomials"))
    expect(0, "profile", "resnet18", "--batch", "2..3", "--memory", "1KiB", prints=("no batch of the range fits",))
    expect(0, "profile", "resnet18", "--batch", "2..3", "--memory", "1TiB", prints=("3",))
    for wrong in ("8..1", "1..x", "0..4", "1..", "..4", "1..8:0", "1...8", "1..99999999999999999999"):
        expect(2, "profile", "resnet18", "--batch", wrong, says=("--batch",))
    expect(2, "profile", "resnet18", "--batch", "1..4", "--memory", "banana", says=("24GiB",))
    sweep_by_reserved_bytes()
    expect(2, "capture", "resnet18", "--batch", "1..4", "-o", "/dev/null")
    expect(1, "profile", "no_such_net", "--batch", "1..4", says=("llama3_8b",))


def sweep_by_reserved_bytes():
    """The batch that a sweep names by bytes on the device is the one that fit finds; the allocator's settings tell."""
    step = ("resnet18", "--mode", "train", "--memory", "1GiB")
    sweep = (*step, "--batch", "4..20", "--json")
    by_device = json.loads(expect(0, "profile", *sweep, "--by", "device"))
    fitted = json.loads(expect(0, "fit", "resnet18", "--memory", "1GiB", "--json"))
    held = {row["batch"]: row["footprint_bytes"] for row in by_device["batches"]}
    if by_device["largest_batch"] != fitted["batch"] or held[fitted["batch"]] != fitted["bytes"]:
        failures.append(f"profile --by device says {by_device['largest_batch']}, fit {fitted}")
    reserved = json.loads(expect(0, "fit", "resnet18", "--memory", "600MiB", "--by", "reserved", "--json"))
    by_live = json.loads(expect(0, "fit", "resnet18", "--memory", "600MiB", "--by", "live", "--json"))
    if not (reserved["bytes"] <= 600 << 20 and by_live["bytes"] == by_live["peak_bytes"] <= 600 << 20):
        failures.append(f"fit --by: {reserved}, {by_live}")
    if (fitted["by"], reserved["by"]) != ("device", "reserved") or reserved["batch"] > by_live["batch"]:
        failures.append(f"fit --by says {fitted['by']}, {reserved['by']}; {reserved['batch']}, {by_live['batch']}")
    grows = json.loads(expect(0, "profile", *sweep, "--allocator", "expandable_segments:True"))
    if grows["by"] != "live" or grows["batches"] == by_device["batches"]:
        failures.append("the allocator's settings change nothing in a sweep")
    expect(1, "profile", "resnet18", "--batch", "2..3", "--by", "reserved", says=("--memory",))
    for wrong in (("profile", "--batch", "2..3"), ("fit",)):
        expect(1, wrong[0], "resnet18", *wrong[1:], "--device", "cpu", "--memory", "9GiB", "--by", "reserved",
               says=("no caching allocator",))


def kernels(folder):
    """The folder of kernels, filled by hand: the tool makes none. What it erases is its own alone."""
    cache = folder / "cache"
    at = ("--dir", cache)
    expect(0, "kernels", "list", *at, prints=("no kernels",))
    library = b"not really a library"
    manifest = {"version": 1, "name": "aten::add_Tensor", "key": "k", "identity": "some compiler",
                "sha256": hashlib.sha256(library).hexdigest(), "verdicts": {}}
    place = cache / "aten::add_Tensor"
    place.mkdir(parents=True)
    for name in ("0001", "0002", "0003"):
        (place / f"{name}.so").write_bytes(library)
        (place / f"{name}.cpp").write_text("//\n")
        (place / f"{name}.json").write_text(json.dumps(manifest))
    (cache / "notes.txt").write_text("mine")
    (place / "notes.txt").write_text("mine")
    expect(0, "kernels", "list", *at, prints=("aten::add_Tensor", "3 of another compiler or processor", "total"))
    expect(0, "kernels", "verify", *at, prints=("3 of 3 entries are whole",))
    (place / "0002.so").write_bytes(library[:-1])
    (place / "0003.json").write_text("{")
    expect(1, "kernels", "verify", *at, prints=("is not what its manifest tells of", "1 of 3 entries are whole"))
    entries = json.loads(expect(1, "kernels", "verify", *at, "--json"))["entries"]
    if [entry["problem"] == "" for entry in entries] != [True, False, False]:
        failures.append(f"kernels verify --json: {entries}")
    expect(0, "kernels", "prune", *at, "--max-bytes", "1GiB", "--dry-run", prints=("1 entry would be erased",))
    expect(0, "kernels", "prune", *at, "--max-bytes", "1GiB", prints=("1 entry erased",))
    expect(0, "kernels", "clear", *at, "--dry-run", prints=("2 entries would be erased",))
    expect(0, "kernels", "prune", *at, "--max-bytes", "1B", prints=("2 entries erased",))
    (place / "0004.so.tmp12.0").write_bytes(b"interrupted")
    expect(0, "kernels", "clear", *at, prints=("0 entries erased",))
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    if left != ["aten::add_Tensor/notes.txt", "notes.txt"]:
        failures.append(f"kernels clear left {left}")
    expect(1, "kernels", "list", "--dir", cache / "notes.txt", says=("notes.txt",))
    expect(2, "kernels", says=("A subcommand is required",))
    expect(2, "kernels", "prune", *at, says=("--max-bytes is required",))
    expect(2, "kernels", "prune", *at, "--max-bytes", "much", says=("'much' is no size such as 100MB",))


def differences(folder):
    """`diff` as diff(1): 0 the same, 1 different or no graph, 2 wrong usage."""
    one, two = folder / "one.sg", folder / "two.sg"
    expect(0, "capture", "resnet18", "--batch", 1, "-o", one)
    expect(0, "capture", "resnet18", "--batch", 2, "-o", two)
    if expect(0, "diff", one, one):
        failures.append("diff of a file with itself prints something")
    out = expect(1, "diff", one, two, prints=("f32[1,3,224,224]", "f32[2,3,224,224]", " changed, "))
    short = expect(1, "diff", one, two, "--limit", 2, prints=("more",))
    if len(short) >= len(out):
        failures.append("diff --limit 2 is no shorter than without")
    everything = expect(1, "diff", one, two, "--limit", 0)
    if "... and" in everything:
        failures.append("diff --limit 0 leaves something out")
    expect(0, "opt", one, "--pass", "canonicalize,dce", "-o", two)
    expect(1, "diff", one, two, prints=(" removed, 0 added",))
    expect(1, "diff", one, folder / "nothing.sg", says=("nothing.sg",))
    (folder / "text.sg").write_text("hello\n")
    expect(1, "diff", one, folder / "text.sg", says=("text.sg:1:",))
    expect(2, "diff", one, says=("after",))
    expect(2, "diff", one, two, "--limit", "-1", says=("--limit",))


if __name__ == "__main__":
    # The longest first.
    in_parts.run((estimates, report, round_trip, passes, batches, differences, kernels, inputs, usage), failures)
