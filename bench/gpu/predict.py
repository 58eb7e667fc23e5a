"""Predicts memory and time of each program and operator, for the comparison with an H100."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import time
import types

import float8
import held_out  # noqa: F401 - adds operators
import programs
import ranks  # noqa: F401 - adds programs
import single_operators as operators
import torch

import shadowgraph as sg

# torchvision without its compiled operators fails to register fake kernels for them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("without operators"))

STEPS = 3


def captured(program, steps):
    with contextlib.ExitStack() as stack:
        if program.world > 1 or program.alone:
            stack.enter_context(sg.fake_process_group(program.world, rank=program.rank))
        session = stack.enter_context(sg.Capture("cuda", host_reads=["finite", {"bool": False}], guards=False,
                                                 source_lines=False))  # fmt: skip
        step = program()
        for _ in range(steps):
            step()
        return session.finish(None)


def totals(time):
    """Returns the seconds of all captured steps, in all and by class. A profile gives the mean of a loop's steps."""
    steps = max(1, time["steps"])
    seconds = {key: steps * time[key] for key in ("seconds", "device_seconds", "host_seconds")}
    return seconds, {kind: steps * each for kind, each in time["classes"].items()}


def predicted(program, spec):
    began = time.perf_counter()
    whole, before = (sg.profile(captured(program, steps), spec=spec, interconnect="h100").dict()
                     for steps in (STEPS, STEPS - 1))  # fmt: skip
    memory = whole["device_memory"]
    (seconds, classes), (seconds_before, classes_before) = (totals(report["time"]) for report in (whole, before))
    later = {key: seconds[key] - seconds_before[key] for key in seconds}
    later["classes"] = {kind: each - classes_before.get(kind, 0) for kind, each in classes.items()}
    return {"allocated": memory["allocated_peak_bytes"], "reserved": memory["reserved_peak_bytes"],
            "after_steps": memory["allocated_after_steps"], "reserved_after_steps": memory["reserved_after_steps"],
            "assumed": memory["assumed"], "time": later, "uncovered": whole["uncovered_operators"],
            "unknown_scratch": whole["unknown_scratch"], "took": time.perf_counter() - began}  # fmt: skip


def totals_of(make, calls, spec, passes=""):
    """Returns the totals of several calls of the function that make() returns."""
    with sg.Capture("cuda", guards=False, source_lines=False) as session:
        run = make()
        for _ in range(calls):
            run()
        graph = session.finish(None)
    if passes:
        graph.run_passes(passes)
    return totals(sg.profile(graph, spec=spec).dict()["time"])


def seconds_of(name, spec):
    """Returns the time of an additional call of an operator, in total and by kernel class."""

    def make():
        torch.backends.cuda.matmul.allow_tf32 = False
        return operators.OPERATORS[name]()

    def device_seconds(calls):
        seconds, classes = totals_of(make, calls, spec)
        return {**classes, "seconds": seconds["device_seconds"]}

    one, two = device_seconds(1), device_seconds(2)
    return {kind: two[kind] - one.get(kind, 0) for kind in two if two[kind] > one.get(kind, 0)}


def predict_operators(spec):
    rows, failed = {}, {}
    for name in operators.OPERATORS:
        try:
            rows[name] = seconds_of(name, spec)
        except Exception as error:
            failed[name] = f"{type(error).__name__} {error}"[:300]
    return {"rows": rows, "failed": failed}


def step_seconds(change, passes, spec):
    three, two = (totals_of(lambda: float8.trained(change), steps, spec, passes)[0]["seconds"] for steps in (3, 2))
    return three - two


def predict_float8(spec):
    """Predicts kernels and training steps of float8.py, and the bf16 step with the float8 pass."""
    kernels = {}
    for name in float8.measured()["operators"]:

        def make(name=name):
            return next(run for each, run in float8.operators() if each == name)

        two, one = (totals_of(make, calls, spec)[0]["device_seconds"] for calls in (2, 1))
        kernels[name] = 1e6 * (two - one)
    programs = {name: step_seconds(float8.PROGRAMS[name], "", spec) for name in ("bf16", "as the pass", "torchao")}
    programs["the pass"] = step_seconds(float8.PROGRAMS["bf16"], "float8", spec)
    return {"operators": kernels, "programs": programs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--spec", default="h100")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.names == ["operators"]:
        given.output.write_text(json.dumps(predict_operators(given.spec), indent=1) + "\n")
        return
    if given.names == ["float8"]:
        given.output.write_text(json.dumps(predict_float8(given.spec), indent=1) + "\n")
        return
    if given.one:
        print(json.dumps(predicted(programs.PROGRAMS[given.one], given.spec)))
        return
    rows = json.loads(given.output.read_text()) if given.output.exists() else {}
    for name in given.names or programs.PROGRAMS:
        run = subprocess.run([sys.executable, __file__, "--one", name, "-o", "-", "--spec", given.spec], text=True,
                             capture_output=True)  # fmt: skip
        if run.returncode:
            print(name, "FAILED", run.stderr[-1500:])
            continue
        rows[name] = json.loads(run.stdout.splitlines()[-1])
        row = rows[name]
        print(f"{name:32} {row['allocated'] / 2**30:8.3f} {row['reserved'] / 2**30:8.3f} GiB  "
              f"{1e3 * row['time']['device_seconds']:8.2f} {1e3 * row['time']['host_seconds']:8.2f} ms  "
              f"{row['took']:.0f} s", flush=True)  # fmt: skip
        given.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
