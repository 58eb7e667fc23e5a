#!/usr/bin/env python3
"""Validates output and input files of the tool against docs/*.schema.json. Requires jsonschema.

These are `profile --json` of some models and modes, device files, what `calibrate` writes, assignment problems and
solutions. Damaged documents must fail.

    check_schema.py TOOL
"""

import copy
import itertools
import json
import os
import pathlib
import subprocess
import sys

import in_parts
import jsonschema

TOOL = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = {
    name: json.loads((ROOT / "docs" / f"{name}.schema.json").read_text())
    for name in ("profile", "device-spec", "interconnect", "assignment")
}
failures = []


def run(*arguments, cache):
    # Ignore measurements and calibrations of the user who runs the tests.
    result = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                            env=os.environ | {"XDG_CACHE_HOME": str(cache)})
    return result.returncode, result.stdout, result.stderr


def output(*arguments, cache):
    code, out, err = run(*arguments, cache=cache)
    if code != 0:
        failures.append(f"shadowgraph {' '.join(map(str, arguments))}: exit code {code}\n{err[:400]}")
        return None
    return json.loads(out) if out.startswith(("{", "[")) else out


def errors(schema, document):
    return list(jsonschema.Draft202012Validator(SCHEMAS[schema]).iter_errors(document))


def expect_valid(schema, document, what):
    for error in errors(schema, document)[:3]:
        failures.append(f"{what}: at {error.json_path}: {error.message[:300]}")


def expect_refused(schema, document, what):
    if not errors(schema, document):
        failures.append(f"{what}: the schema of {schema} lets it pass")


def schemas_themselves(folder):
    """They are valid schemas, and every key of a document is described."""
    def keys(schema, path):
        for name, value in schema.get("properties", {}).items():
            # A condition on a key (`if`) needs no description.
            if "description" not in value and not path.endswith("/if"):
                failures.append(f"{path}: {name} has no description")
        for name, value in schema.items():
            parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for part, inner in [(name, value)] + [(f"{name}/{part}", inner) for part, inner in parts]:
                if isinstance(inner, dict):
                    keys(inner, f"{path}/{part}")

    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        keys(schema, name)


def damages(document, path="$"):
    """Yields copies of the document, each with one error.

    Adds a key to objects with a fixed set of keys, makes numbers negative or strings, and replaces lists by strings.
    """
    # Objects whose keys are arbitrary names, such as operators.
    named = ("operators", "flops", "elementwise_flops", "transcendental", "flops_beyond_pytorch", "sources")
    maps = [[name] for name in named] + [["time", "phases"], ["phases"]]

    def edited(steps, edit):
        copied = copy.deepcopy(document)
        at = copied
        for step in steps:
            at = at[step]
        edit(at)
        return copied

    def walk(value, steps):
        where = path + "".join(f"[{step!r}]" for step in steps)
        if isinstance(value, dict):
            if steps not in maps:
                yield f"{where} with a key too many", edited(steps, lambda at: at.update(surprise=1))
            for key in value:
                yield from walk_item(value, key, steps)
        elif isinstance(value, list):
            for i in range(min(len(value), 2)):
                yield from walk_item(value, i, steps)

    def walk_item(container, key, steps):
        value = container[key]
        where = path + "".join(f"[{step!r}]" for step in [*steps, key])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            for wrong in (-1, "1", None):
                yield f"{where} = {wrong!r}", edited(steps, lambda at, wrong=wrong: at.update({key: wrong})
                                                     if isinstance(at, dict) else at.__setitem__(key, wrong))
        elif isinstance(value, (dict, list)):
            yield f"{where} = 'text'", edited(steps, lambda at: at.__setitem__(key, "text"))
        yield from walk(value, [*steps, key])

    yield from walk(document, [])


def without_required(document, required):
    for key in required:
        yield f"without {key}", {name: value for name, value in document.items() if name != key}


def profiles(folder):
    train = ("--mode", "train", "--batch", 2)
    modes = (
        ("resnet18", *train, "--device", "cuda"),
        ("resnet18", *train, "--device", "cuda", "--memory", "1GiB", "--steady-state"),
        ("resnet18", *train, "--device", "cuda", "--memory", "600MiB"),
        ("resnet18", *train, "--device", "cpu", "--optimizer", "adamw"),
        ("resnet18", "--batch", 2, "--device", "cpu", "--measure"),
        ("gpt2", "--device", "cpu", "--batch", 1, "--seq", 64),
        ("gpt2", *train, "--device", "cuda:3", "--dtype", "bf16", "--seq", 64, "--optimizer", "adamw", "--allocator",
         "expandable_segments:True", "--spec", "a100"),
        ("gpt2", *train, "--seq", 64, "--attention", "math", "--checkpoint", "auto"),
        ("lstm_lm", *train, "--device", "cpu"),
        ("resnet18", *train, "--run", "--optimizer", "adamw", "--accumulate", 2, "--clip-grad-norm", 1, "--ema", 0.99,
         "--grad-scaler", "--autocast", "bf16", "--zero-grads"),
        ("resnet18", *train, "--run", "--device", "cpu"),
        ("resnet18", *train, "--run", "--memory", "600MiB"),
        ("gpt2", "--mode", "prefill", "--batch", 2, "--seq", 64, "--cache", "static"),
        ("gpt2", "--mode", "decode", "--batch", 2, "--context", 64),
    )
    for arguments in modes:
        what = f"profile {' '.join(map(str, arguments))}"
        profile = output("profile", *arguments, "--json", cache=folder)
        if profile is None:
            continue
        expect_valid("profile", profile, what)
        if "600MiB" in arguments and "out_of_memory" not in profile:
            failures.append(f"{what}: it does not fit, and out_of_memory is absent")
        if ("--run" in arguments) != ("run" in profile) or ("prefill" in arguments or "decode" in arguments) != (
            "cache" in profile
        ):
            failures.append(f"{what}: run or cache is absent, or there unasked")
        if "run" in profile and profile["run"]["peak_bytes"] != max(
            profile["run"][step]["peak_bytes"] for step in ("first_step", "second_step", "steady_state")
        ):
            failures.append(f"{what}: the peak of the run is not that of its steps")
        if "time" not in profile:
            failures.append(f"{what}: time is absent")
        memory = profile.get("device_memory")
        if memory and memory["footprint_bytes"] != memory["reserved_peak_bytes"] + memory["assumed"]["context_bytes"]:
            failures.append(f"{what}: footprint_bytes is not the reserved bytes and the context")
        if profile["memory_layout"]["bytes"] < profile["memory_layout"]["bound"]:
            failures.append(f"{what}: the static plan is below its bound")
    output("profile", "resnet18", *train, "-o", folder / "out", cache=folder)
    expect_valid("profile", json.loads((folder / "out" / "profile.json").read_text()), "profile -o")
    by_device = ("--batch", "1..3", "--memory", "1KiB", "--mode", "infer")
    for arguments in (by_device, ("--batch", "2..3")):
        rows = output("fit", "resnet18", *arguments, "--json", cache=folder)
        expect_valid("profile", rows, f"fit resnet18 {' '.join(arguments)}")
        for what, damaged in damages(rows):
            if "['largest_batch'] = None" not in what:
                expect_refused("profile", damaged, f"fit {' '.join(arguments)}: {what}")


def damaged_profiles(folder):
    profile = output("profile", "resnet18", "--mode", "train", "--batch", 1, "--device", "cuda", "--run", "--json",
                     cache=folder)
    decode = output("profile", "gpt2", "--mode", "decode", "--context", 8, "--json", cache=folder)
    profile["cache"] = decode["cache"]
    # Deeper modules and later storages add no coverage and take long.
    profile["modules"]["children"] = profile["modules"]["children"][-1:]
    profile["top_at_peak"] = profile["top_at_peak"][:2]
    profile["operators"] = dict(list(profile["operators"].items())[:2])
    expect_valid("profile", profile, "the profile that is damaged next")
    count = 0
    for what, damaged in damages(profile):
        expect_refused("profile", damaged, what)
        count += 1
    if count < 100:
        failures.append(f"only {count} damaged profiles were made")
    for what, damaged in without_required(profile, SCHEMAS["profile"]["$defs"]["profile"]["required"]):
        expect_refused("profile", damaged, what)
    for what, change in {
        "a device that is none": {"device": "CUDA 0"},
        "memory of a device and none": {"out_of_memory": "node 3"},
        "device memory of a CPU": {"device": "cpu"},
        "a class that is none": {"time": profile["time"] | {"classes": {"matmull": 1.0}}},
        "a kind that is none": {"top_at_peak": [{"bytes": 1, "kind": "weight"}]},
        "a shape without a dtype": {"top_at_peak": [{"bytes": 1, "kind": "input", "shape": [1]}]},
        "half a byte": {"saved_bytes": 0.5},
    }.items():
        expect_refused("profile", profile | change, what)
    expect_refused("profile", [profile], "a list of profiles")
    expect_refused("profile", {name: value for name, value in profile.items() if name != "device_memory"},
                   "neither device_memory nor out_of_memory")


def device_specs(folder):
    files = sorted((ROOT / "profiler" / "time" / "devices").glob("*.json"))
    if len(files) < 2:
        failures.append("no device files found")
    for file in files:
        spec = json.loads(file.read_text())
        expect_valid("device-spec", spec, file.name)
        if not spec.get("sources"):
            failures.append(f"{file.name} names no sources")
        for kind, rates in spec.get("classes", {}).items():
            for points in (rates.get("compute", []), rates.get("memory", [])):
                if any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
                    failures.append(f"{file.name}: the work of {kind} does not rise")
    for spec in output("list", "devices", "--json", cache=folder):
        expect_valid("device-spec", spec, f"devices --json: {spec.get('name')}")
    h100 = json.loads((ROOT / "profiler" / "time" / "devices" / "h100.json").read_text())
    h100["classes"] = {"other": {"fixed": 2e-6, "memory": [[1e5, 4e11], [1e8, 3e12]]},
                       "convolution": {"compute": [[1e7, 7e11], [1e11, 3e13]], "scale": {"float32": 7.4}}}  # fmt: skip
    for what, damaged in damages(h100):
        expect_refused("device-spec", damaged, f"h100.json: {what}")
    for what, damaged in without_required(h100, ["version", "bandwidth", "matmul"]):
        expect_refused("device-spec", damaged, f"h100.json {what}")

    # The minimal document of docs/time.md, and documents that the tool refuses, too.
    least = {"version": 1, "bandwidth": 1e12, "matmul": {"float32": 1e13}}
    file = folder / "spec.json"

    def taken(spec):
        file.write_text(json.dumps(spec))
        return run("profile", "resnet18", "--batch", 1, "--spec", file, "--json", cache=folder)[0] == 0

    expect_valid("device-spec", least, "the least device")
    if not taken(least):
        failures.append("the tool refuses the minimal device")
    slower = {"version": 1, "base": "h100", "gpu": {"sustained": 0.8}}
    expect_valid("device-spec", slower, "a device with a base")
    if not taken(slower):
        failures.append("the tool refuses a device with a base")
    for change in ({"version": 2}, {"bandwidth": 0}, {"matmul": {"bfloat16": 1e13}}, {"host_call": -1},
                   {"classes": {"matmull": {}}}, {"classes": {"copy": {"memory": [[1, 2, 3]]}}},
                   {"gpu": {"multiprocessors": 100}}, {"base": "h1000"},
                   {"tables": {"matmull": {"float32": [[1, 1]]}}}, {"tables": {"copy": {"float32": [[1, 0]]}}},
                   {"tables": {"copy": {"float32": []}}}, {"tables": {"copy": {"float32": [[1, 1], [1, 2, 3]]}}},
                   {"tables": {"aten::mm": {"float32": [[1, 1.5, 1, 1, 1]]}}}):  # fmt: skip
        if "base" not in change:  # the schema does not list base devices
            expect_refused("device-spec", least | change, f"a device with {change}")
        if taken(least | change):
            failures.append(f"the tool takes a device with {change}")
    tables = {"tables": {"aten::mm": {"float32": [[1, 8, 8, 8, 1e-6]]}, "copy": {"float16": [[1, 1e-6], [2, 2e-6]]}}}
    expect_valid("device-spec", least | tables, "a device with tables")
    if not taken(least | tables):
        failures.append("the tool refuses a device with tables")
    (folder / "rows.csv").write_text("operator,dtype,bytes,flops,seconds\nattention,bfloat16,1e6,1e9,1e-5\n")
    output("calibrate", "--table", folder / "rows.csv", "--spec", "a100", "-o", folder / "tabled.json", cache=folder)
    expect_valid("device-spec", json.loads((folder / "tabled.json").read_text()), "what calibrate --table writes")


def communication(folder):
    """A program with collectives, and interconnect files."""
    program = ROOT / "tests" / "golden" / "profiler" / "data_parallel.sg"
    profile = output("profile", program, "--json", "--spec", "h100", cache=folder)
    expect_valid("profile", profile, "a program with collectives")
    if profile["communication"]["wire_bytes"] <= 0 or "overlap" not in profile["communication"]:
        failures.append("a program with collectives: nothing is sent, or no overlap is estimated")
    memory = profile["device_memory"]
    assumed = memory["assumed"]["context_bytes"] + memory["assumed"]["nccl_bytes"]
    if memory["footprint_bytes"] != memory["reserved_peak_bytes"] + assumed:
        failures.append("a program with collectives: footprint_bytes is not reserved bytes, context and NCCL's buffers")
    for what, damaged in damages(profile["communication"]):
        expect_refused("profile", profile | {"communication": damaged}, f"communication: {what}")
    files = sorted((ROOT / "profiler" / "communication" / "interconnects").glob("*.json"))
    if len(files) < 2:
        failures.append("no interconnect files found")
    for file in files:
        expect_valid("interconnect", json.loads(file.read_text()), file.name)
    h100 = json.loads(files[[file.stem for file in files].index("h100")].read_text())
    h100["axes"] = {"tp": {"latency": 1e-6, "tables": {"all_reduce": [[1, 1], [2, 2]]}}}
    expect_valid("interconnect", h100, "h100 with an axis")
    file = folder / "links.json"

    def taken(links):
        file.write_text(json.dumps(links))
        return run("profile", program, "--interconnect", file, "--json", cache=folder)[0] == 0

    if not taken(h100):
        failures.append("the tool refuses links with an axis")
    for change in ({"version": 2}, {"levels": []}, {"levels": [{"name": "x", "bandwidth": 0}]}, {"base": -1},
                   {"device_share": 1}, {"axes": {"tp": {"tables": {"sum": [[1, 1]]}}}},
                   {"axes": {"tp": {"tables": {"reduce": [[0, 1]]}}}}, {"tables": {"reduce": {"1": [[1, 1]]}}},
                   {"tables": {"sum": {"8": [[1, 1]]}}}, {"tables": {"reduce": {"8": []}}}, {"ring_fill": -1},
                   {"levels": [{"name": "x", "bandwidth": 1, "groups": [{"processes": 1, "bandwidth": 1}]}]}):
        expect_refused("interconnect", h100 | change, f"links with {change}")
        if taken(h100 | change):
            failures.append(f"the tool takes links with {change}")
    (folder / "rows.csv").write_text("collective,processes,bytes,seconds\nall_reduce,8,1e6,1e-5\n")
    output("calibrate", "--collectives", folder / "rows.csv", "--interconnect", "v100", "--links", file, cache=folder)
    expect_valid("interconnect", json.loads(file.read_text()), "what calibrate --collectives writes")
    if run("profile", program, "--mesh", "dp", cache=folder)[0] == 0:
        failures.append("the tool takes --mesh dp")


def assignments(folder):
    """Exported problems, and their solutions."""
    exported = folder / "problem.json"
    solved = folder / "solution.json"
    output("shard", "gpt2", "--mode", "train", "--batch", 2, "--seq", 64, "--mesh", "2", "--memory", "8GiB", "--export",
           exported, cache=folder)
    output("shard", "--problem", exported, "--time-limit", 5, "-o", solved, cache=folder)
    problem = json.loads(exported.read_text())
    solution = json.loads(solved.read_text())
    expect_valid("assignment", problem, "shard --export")
    expect_valid("assignment", solution, "assign -o")
    if not solution["feasible"] or len(solution["choice"]) != len(problem["nodes"]):
        failures.append(f"assign: no solution: {solution.get('why_infeasible')}")
    if not any("usages" in matrix for matrix in problem["matrices"]) or problem["usage_limit"] is None:
        failures.append("shard --export: no edge usages or no limit, so the check is incomplete")
    # One entry of each kind is enough.
    small = problem | {
        "nodes": [next(node for node in problem["nodes"] if "usages" in node)],
        "matrices": [next(matrix for matrix in problem["matrices"] if "usages" in matrix)],
        "edges": [next(edge for edge in problem["edges"] if "live" in edge)],
    }
    expect_valid("assignment", small, "the problem that is damaged next")
    for document, kind in ((small, "problem"), (solution, "solution")):
        for what, damaged in damages(document):
            # null is valid as a forbidden cost and as no limit; time points may be negative.
            null = what.endswith("= None") and ("['costs']" in what or what.startswith("$['usage_limit']"))
            if not null and not (what.endswith("= -1") and ("['live']" in what or "['peak_at']" in what)):
                expect_refused("assignment", damaged, f"{kind}: {what}")
        for what, damaged in without_required(document, SCHEMAS["assignment"]["$defs"][kind]["required"]):
            expect_refused("assignment", damaged, f"{kind} {what}")
    for wrong in (problem | {"version": 2}, problem | {"nodes": [{"costs": []}]}):
        expect_refused("assignment", wrong, "a problem of another version, or with a node without strategies")
        exported.write_text(json.dumps(wrong))
        if run("shard", "--problem", exported, cache=folder)[0] == 0:
            failures.append("the tool solves a problem of another version, or with a node without strategies")


def calibrated(folder):
    file = folder / "this-machine.json"
    output("calibrate", "-o", file, cache=folder)
    expect_valid("device-spec", json.loads(file.read_text()), "what calibrate writes")


if __name__ == "__main__":
    # Longest parts first.
    in_parts.run((calibrated, profiles, device_specs, communication, damaged_profiles, assignments, schemas_themselves),
                 failures)
