#!/usr/bin/env python3
"""Predictions for a GPU beside measurements from one, as a page.

    accuracy_gpu.py BUILD --page build/accuracy-gpu.md                                 predictions alone
    accuracy_gpu.py BUILD --page build/accuracy-gpu.md --measurements measurements.json

The file of measurements is what scripts/measure_gpu.py writes on a machine with a GPU. Predictions are what
`shadowgraph profile --json` says of the same configurations. The first step gives the memory of a run, the second
(--steady-state) the memory and the time of those that follow. Predictions are kept in BUILD/accuracy-gpu/ for as long
as the tool stays the same, so that an interrupted run goes on.
"""

import argparse
import hashlib
import json
import pathlib
import re
import statistics
import subprocess
import sys

import measure_gpu

AIMS = {"active": 0.02, "reserved": 0.05, "time": 0.25}
DEVICES = pathlib.Path(__file__).parent.parent / "profiler/time/devices"
MIB = 2**20


class InputError(Exception):
    """The file of measurements, or what was asked of it, is no use."""


def number(row, *path):
    value = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise InputError(f"row {' '.join(map(str, measure_gpu.key_of(row)))}: '{'.'.join(path)}' must be a number "
                         f"above 0, but is {value!r}")
    return value


def read_measurements(path):
    """The document, checked: every row is of a configuration that can be predicted and has all that the page shows."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != measure_gpu.FORMAT:
        raise InputError(f"{path} was not written by scripts/measure_gpu.py: its 'format' is not "
                         f"'{measure_gpu.FORMAT}'")
    if document.get("version") != measure_gpu.VERSION:
        raise InputError(f"{path} is of version {document.get('version')!r}; this script reads {measure_gpu.VERSION}")
    machine, rows = document.get("machine"), document.get("rows")
    if not isinstance(machine, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: 'machine' must be an object and 'rows' a list of objects")
    if machine.get("dry_run") or document.get("tiny"):
        raise InputError(f"{path} is of a dry run: it has no memory of a GPU in it, or none of the usual sizes")
    if not isinstance(machine.get("device"), str):
        raise InputError(f"{path}: 'machine' has no name of a device")
    if not rows:
        raise InputError(f"{path} has no rows: nothing was measured")
    seen = set()
    for row in rows:
        try:
            key = name, size, sequence, mode, dtype = measure_gpu.key_of(row)
        except KeyError as error:
            raise InputError(f"{path}: a row has no {error}") from error
        label = " ".join(map(str, key))
        if name not in measure_gpu.MODELS or mode not in measure_gpu.MODES or dtype not in measure_gpu.DTYPES:
            raise InputError(f"{path}: row {label}: no such model, mode or dtype")
        if type(size) is not int or type(sequence) is not int or size < 1 or sequence < 0:
            raise InputError(f"{path}: row {label}: batch must be a number from 1, seq from 0")
        if key in seen:
            raise InputError(f"{path}: row {label} is there twice")
        seen.add(key)
        if not row.get("out_of_memory"):
            for field in (("run", "active_bytes"), ("run", "reserved_bytes"), ("steady", "active_bytes"),
                          ("step_seconds",), ("host_seconds",)):
                number(row, *field)
    return document


def spec_for(device):
    """The spec that a GPU's name as torch has it is of, by `reported_as` in its file; the one with most words."""
    has = set(re.findall("[a-z0-9]+", device.lower()))
    specs = {path.stem: json.loads(path.read_text()).get("reported_as", "").split() for path in DEVICES.glob("*.json")}
    fitting = [spec for spec, words in specs.items()
               if words and all((word.strip("-") in has) != word.startswith("-") for word in words)]
    if fitting:
        return max(fitting, key=lambda spec: len([word for word in specs[spec] if not word.startswith("-")]))
    raise InputError(f"no spec is known for '{device}': name one of `shadowgraph list devices`, or a file, with --spec")


def of_python(spec, build):
    """The device as a program in Python sees it, which issues calls more slowly than one in C++."""
    if pathlib.Path(spec).suffix:
        return spec
    path = build / "accuracy-gpu" / f"{spec}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "base": spec, "host_call": 20e-6}) + "\n")
    return str(path)


class Predictor:
    """What the tool says, kept in a file by the tool's contents and arguments."""

    def __init__(self, build, spec, allocator):
        self.tool = build / "bin" / "shadowgraph"
        if not self.tool.is_file():
            raise InputError(f"there is no {self.tool}: make build")
        self.options = ["--device", "cuda", "--spec", of_python(spec, build)]
        self.options += ["--allocator", allocator] if allocator else []
        digest = hashlib.sha256()
        # A spec may be a file, and what stands in it another day something else.
        for part in [self.tool, build / "libshadowgraph.so.0", pathlib.Path(self.options[3])]:
            if part.is_file():
                digest.update(part.read_bytes())
        self.stamp = digest.hexdigest()[:16]
        self.store = build / "accuracy-gpu" / "predictions.json"
        self.kept = {}
        if self.store.exists():
            kept = json.loads(self.store.read_text())
            if kept.get("stamp") == self.stamp:
                self.kept = kept["profiles"]

    def profile(self, *arguments):
        command = [*arguments, *self.options]
        key = " ".join(command)
        if key not in self.kept:
            print(f"shadowgraph profile {key}", flush=True)
            run = subprocess.run([self.tool, "profile", *command, "--json"], capture_output=True, text=True)
            if run.returncode != 0:
                raise InputError(f"shadowgraph profile {key}: {run.stderr.strip()[-800:]}")
            whole = json.loads(run.stdout)
            self.kept[key] = {name: whole[name] for name in ("device_memory", "time", "unknown_scratch")}
            self.store.parent.mkdir(parents=True, exist_ok=True)
            measure_gpu.write(self.store, {"stamp": self.stamp, "profiles": self.kept})
        return self.kept[key]

    def of(self, key):
        """The figures of the page for a configuration."""
        name, size, sequence, mode, dtype = key
        arguments = [name, "--batch", str(size), *(["--seq", str(sequence)] if sequence else []), "--dtype", dtype]
        if mode == "infer":
            run = steady = self.profile(*arguments, "--mode", "infer")
        else:
            arguments += ["--mode", "train", "--optimizer", mode]
            run, steady = self.profile(*arguments), self.profile(*arguments, "--steady-state")
        first, later = run["device_memory"], steady["device_memory"]

        def most(figure):
            return max(first[figure], later[figure])

        return {"active": most("allocated_peak_bytes"), "reserved": most("reserved_peak_bytes"),
                "footprint": most("footprint_bytes"), "assumed": first["assumed"],
                "steady": later["allocated_peak_bytes"], "seconds": steady["time"]["seconds"],
                "unknown": sum(each["count"] for each in run["unknown_scratch"]), "title": steady["time"]["spec"]}


def percent(error):
    return f"{100 * error:+.1f} %"


def mib(count):
    return f"{count / MIB:,.0f}"


def milliseconds(seconds):
    return f"{1000 * seconds:,.2f}"


def label_of(key):
    name, size, sequence, mode, dtype = key
    return f"{name} {size}{f'x{sequence}' if sequence else ''} | {mode} | {dtype}"


def aims_in_words():
    return (f"active peak {100 * AIMS['active']:.0f} %, reserved {100 * AIMS['reserved']:.0f} %, step time "
            f"{100 * AIMS['time']:.0f} % mean error")


HEAD = """# Predicted against a GPU

Written by `make accuracy-gpu` (scripts/accuracy_gpu.py): each built-in model at its usual size, inference, SGD and
AdamW, in float32 and bfloat16. {which}

- **active**: most bytes that the caching allocator has given out in any step, MiB; with cuBLAS's workspace.
- **steady**: the same of the steps after the first.
- **reserved**: most bytes of its segments, MiB.
- **ms**: of a step after the first, from issuing it to its end on the GPU.
- **unknown**: calls of a step whose scratch inside kernels is unknown and in no figure
  (docs/memory.md says why).
"""

HOW = """## Measuring
On a machine with a GPU; torch 2.0 or newer is all that the script needs:
```sh
python measure_gpu.py -o measurements.json            # scripts/measure_gpu.py, copied there alone
```
and here, with that file:
```sh
make accuracy-gpu MEASUREMENTS=measurements.json
```
"""


def page_of_predictions(keys, predictor):
    predicted = {key: predictor.of(key) for key in keys}
    title = next(iter(predicted.values()))["title"]
    out = [HEAD.format(which=f"Figures of {title}."),
           "**No GPU was to be had where this page was made.** What follows are predictions alone; nobody has measured",
           "one of them. The aims that they will be held to, as errors of a prediction:", aims_in_words() + ".", "",
           "| model | mode | dtype | active | steady | reserved | unknown | ms |", "|---|---|---|---|---|---|---|---|"]
    for key, row in predicted.items():
        out.append(f"| {label_of(key)} | {mib(row['active'])} | {mib(row['steady'])} | {mib(row['reserved'])} | "
                   f"{row['unknown']} | {milliseconds(row['seconds'])} |")
    return "\n".join([*out, "", HOW])


def verdict(errors):
    over = [name for name, error in errors.items() if abs(error) > AIMS[name]]
    return "within" if not over else ", ".join(over) + " off"


def machine_lines(machine, predicted):
    """What was measured on, and where it is not what the predictions assume."""
    facts = [("driver", machine.get("driver")), ("torch", machine.get("torch")), ("CUDA", machine.get("cuda")),
             ("ROCm", machine.get("rocm")), ("cuDNN", machine.get("cudnn")), ("Python", machine.get("python")),
             ("host", machine.get("host")), ("allocator settings", machine.get("allocator_settings")),
             ("CUBLAS_WORKSPACE_CONFIG", machine.get("cublas_workspace_config"))]
    lines = ["Measured on " + machine["device"] + ": "
             + ", ".join(f"{name} {value}" for name, value in facts if value) + ".", ""]
    assumed = max((row["assumed"]["cublas_workspace_bytes"] for row in predicted.values()), default=0)
    capability = machine.get("capability")
    if capability and capability[0] < 9 and assumed:
        lines += [f"Its compute capability is {capability[0]}.{capability[1]}, where PyTorch gives cuBLAS 8.1 MiB; the "
                  f"predictions assume {mib(assumed)} MiB (docs/memory.md).", ""]
    if machine.get("cublas_workspace_config"):
        lines += ["CUBLAS_WORKSPACE_CONFIG was set; the predictions know nothing of it.", ""]
    if machine.get("allocator", "native") != "native":
        lines += [f"The allocator was {machine['allocator']}, which is not modelled.", ""]
    return lines


def page_of_both(document, predictor):
    machine = document["machine"]
    rows = {measure_gpu.key_of(row): row for row in document["rows"]}
    predicted = {key: predictor.of(key) for key in rows}
    title = next(iter(predicted.values()))["title"]
    out = [HEAD.format(which=f"Predictions with the figures of {title}."), *machine_lines(machine, predicted),
           "Each figure is predicted, measured, and by how much the prediction is off. Aims:",
           aims_in_words() + ".", "",
           "| model | mode | dtype | active | | | steady | | | reserved | | | unknown | ms | | | verdict |",
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    worst = {"active": 0.0, "reserved": 0.0}
    times = []
    memory_bytes = machine.get("memory_bytes")
    missed = 0
    for key, row in rows.items():
        expected = predicted[key]
        head = f"| {label_of(key)} | "
        if row.get("out_of_memory"):
            fits = memory_bytes is None or expected["footprint"] <= memory_bytes
            missed += fits
            out.append(head + f"{mib(expected['active'])} | out of memory | | {mib(expected['steady'])} | | | "
                       f"{mib(expected['reserved'])} | | | {expected['unknown']} | "
                       f"{milliseconds(expected['seconds'])} | | | "
                       f"{'predicted to fit' if fits else 'within: predicted not to fit'} |")
            continue
        real = {"active": number(row, "run", "active_bytes"), "steady": number(row, "steady", "active_bytes"),
                "reserved": number(row, "run", "reserved_bytes"), "seconds": number(row, "step_seconds")}
        off = {name: expected[name] / value - 1 for name, value in real.items()}
        for name in worst:
            worst[name] = max(worst[name], off[name], key=abs)
        times.append(abs(off["seconds"]))
        # A step of steady state is part of the run, and has the same aim.
        said = verdict({"active": max(off["active"], off["steady"], key=abs), "reserved": off["reserved"],
                        "time": off["seconds"]})
        missed += said != "within"
        cells = [f"{mib(expected[name])} | {mib(real[name])} | {percent(off[name])}"
                 for name in ("active", "steady", "reserved")]
        out.append(head + " | ".join(cells) + f" | {expected['unknown']} | {milliseconds(expected['seconds'])} | "
                   f"{milliseconds(real['seconds'])} | {percent(off['seconds'])} | {said} |")
    out += ["", "A verdict holds the row's own time against the aim for the mean.", ""]
    if times:
        mean = statistics.mean(times)

        def judged(name, error):
            return f"{'within' if abs(error) <= AIMS[name] else 'not within'} the aim of {100 * AIMS[name]:.0f} %"

        out += [f"- {words}: the worst row is {percent(worst[name])} off, {judged(name, worst[name])}."
                for name, words in [("active", "Active peak"), ("reserved", "Reserved")]]
        out += [f"- Step time: mean error {100 * mean:.1f} %, {judged('time', mean)}."]
    out += [f"- {len(rows) - missed} of {len(rows)} rows are within all aims.", ""]
    return "\n".join([*out, HOW])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--measurements", type=pathlib.Path, help="what measure_gpu.py wrote")
    parser.add_argument("--spec", help="of `shadowgraph list devices`, or a file (default: by the GPU's name, or h100)")
    parser.add_argument("--only", nargs="+", metavar="MODEL", choices=list(measure_gpu.MODELS))
    parser.add_argument("--page", type=pathlib.Path, help="where to write the page (default: print it)")
    options = parser.parse_args()
    try:
        document = read_measurements(options.measurements) if options.measurements else None
        if document:
            if options.only:
                document["rows"] = [row for row in document["rows"] if row["model"] in options.only]
                if not document["rows"]:
                    raise InputError(f"{options.measurements} has no rows of {', '.join(options.only)}")
            machine = document["machine"]
            predictor = Predictor(options.build, options.spec or spec_for(machine["device"]),
                                  machine.get("allocator_settings") or "")
            text = page_of_both(document, predictor)
        else:
            keys = [(*configuration, mode, dtype) for configuration in measure_gpu.CONFIGURATIONS
                    for mode in measure_gpu.MODES for dtype in measure_gpu.DTYPES
                    if not options.only or configuration[0] in options.only]
            text = page_of_predictions(keys, Predictor(options.build, options.spec or "h100", ""))
    except InputError as error:
        sys.exit(f"accuracy_gpu.py: {error}")
    if not options.page:
        print(text, end="")
        return
    partial = options.page.with_name(options.page.name + ".new")
    partial.write_text(text)
    partial.replace(options.page)


if __name__ == "__main__":
    main()
