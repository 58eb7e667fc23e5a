#!/usr/bin/env python3
"""Writes a page that compares predictions for a GPU with measurements.

    accuracy_gpu.py BUILD --page build/accuracy-gpu.md                                 predictions only
    accuracy_gpu.py BUILD --page build/accuracy-gpu.md --measurements measurements.json

bench/gpu/measure_gpu.py creates the measurements on a machine with a GPU. Predictions are the output of
`shadowgraph profile --json` for the same configurations: memory from the first step, and memory and time of later steps
from the second one (--steady-state). Predictions are cached in BUILD/accuracy-gpu/ until the tool changes, so that an
interrupted run can continue.
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
DEVICES = pathlib.Path(__file__).parents[2] / "profiler/time/devices"
MIB = 2**20


class InputError(Exception):
    """Raised for an invalid file of measurements or invalid options."""


def number(row, *path):
    value = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise InputError(f"row {' '.join(map(str, measure_gpu.key_of(row)))}: '{'.'.join(path)}' must be a number "
                         f"above 0, but is {value!r}")
    return value


def read_measurements(path):
    """Reads and validates a file of measurements: every row is complete and has a known configuration."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != measure_gpu.FORMAT:
        raise InputError(f"{path} was not written by bench/gpu/measure_gpu.py: its 'format' is not "
                         f"'{measure_gpu.FORMAT}'")
    if document.get("version") != measure_gpu.VERSION:
        raise InputError(f"{path} has version {document.get('version')!r}, expected {measure_gpu.VERSION}")
    machine, rows = document.get("machine"), document.get("rows")
    if not isinstance(machine, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: 'machine' must be an object and 'rows' a list of objects")
    if machine.get("dry_run") or document.get("tiny"):
        raise InputError(f"{path} is from a dry run and has no GPU measurements at the usual sizes; measure without it")
    if not isinstance(machine.get("device"), str):
        raise InputError(f"{path}: 'machine' has no 'device'")
    if not rows:
        raise InputError(f"{path} has no rows")
    seen = set()
    for row in rows:
        try:
            key = name, size, sequence, mode, dtype = measure_gpu.key_of(row)
        except KeyError as error:
            raise InputError(f"{path}: a row has no {error}") from error
        label = " ".join(map(str, key))
        if name not in measure_gpu.MODELS or mode not in measure_gpu.MODES or dtype not in measure_gpu.DTYPES:
            raise InputError(f"{path}: row {label}: unknown model, mode or dtype")
        if type(size) is not int or type(sequence) is not int or size < 1 or sequence < 0:
            raise InputError(f"{path}: row {label}: batch must be a positive integer, and seq a non-negative one")
        if key in seen:
            raise InputError(f"{path}: duplicate row {label}")
        seen.add(key)
        if not row.get("out_of_memory"):
            for field in (("run", "active_bytes"), ("run", "reserved_bytes"), ("steady", "active_bytes"),
                          ("step_seconds",), ("host_seconds",)):
                number(row, *field)
    return document


def spec_for(device):
    """Returns the device spec whose `reported_as` matches the GPU name reported by torch, with the most words."""
    has = set(re.findall("[a-z0-9]+", device.lower()))
    specs = {path.stem: json.loads(path.read_text()).get("reported_as", "").split() for path in DEVICES.glob("*.json")}
    fitting = [spec for spec, words in specs.items()
               if words and all((word.strip("-") in has) != word.startswith("-") for word in words)]
    if fitting:
        return max(fitting, key=lambda spec: len([word for word in specs[spec] if not word.startswith("-")]))
    raise InputError(f"no spec for '{device}'; pass --spec with a name from `shadowgraph list devices` or a file")


def spec_for_python(spec, build):
    """Returns the spec with the host time of Python programs, which launch kernels more slowly than C++ programs."""
    if pathlib.Path(spec).suffix:
        return spec
    path = build / "accuracy-gpu" / f"{spec}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "base": spec, "host_call": 20e-6}) + "\n")
    return str(path)


class Predictor:
    """Runs the tool and caches its output, keyed by the hash of the tool and the arguments."""

    def __init__(self, build, spec, allocator):
        self.tool = build / "bin" / "shadowgraph"
        if not self.tool.is_file():
            raise InputError(f"{self.tool} does not exist; run make build")
        self.options = ["--device", "cuda", "--spec", spec_for_python(spec, build)]
        self.options += ["--allocator", allocator] if allocator else []
        digest = hashlib.sha256()
        # The spec may be a file.
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
        """Returns the predictions for a configuration."""
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


HEAD = """# Predictions for a GPU

Generated by `make accuracy-gpu` (bench/gpu/accuracy_gpu.py): each built-in model at its usual size; inference, SGD and
AdamW; float32 and bfloat16. {which}

- **active**: peak MiB allocated from the caching allocator in any step, including the cuBLAS workspace.
- **steady**: the same for steps after the first.
- **reserved**: peak MiB reserved by the caching allocator.
- **ms**: time of a step after the first, from its launch to its end on the GPU.
- **unknown**: calls per step whose temporary memory is unknown and not included (see docs/memory.md).
"""

HOW = """## Measuring
On a machine with a GPU, with torch 2.0 or newer:
```sh
python measure_gpu.py -o measurements.json            # bench/gpu/measure_gpu.py, copied there alone
```
Then, in this repository:
```sh
make accuracy-gpu MEASUREMENTS=measurements.json
```
"""


def page_of_predictions(keys, predictor):
    predicted = {key: predictor.of(key) for key in keys}
    title = next(iter(predicted.values()))["title"]
    out = [HEAD.format(which=f"Device: {title}."),
           "**This page contains predictions only**, without measurements. Aims for the errors:",
           aims_in_words() + ".", "",
           "| model | mode | dtype | active | steady | reserved | unknown | ms |", "|---|---|---|---|---|---|---|---|"]
    for key, row in predicted.items():
        out.append(f"| {label_of(key)} | {mib(row['active'])} | {mib(row['steady'])} | {mib(row['reserved'])} | "
                   f"{row['unknown']} | {milliseconds(row['seconds'])} |")
    return "\n".join([*out, "", HOW])


def verdict(errors):
    over = [name for name, error in errors.items() if abs(error) > AIMS[name]]
    return "within" if not over else ", ".join(over) + " off"


def machine_lines(machine, predicted):
    """Returns lines about the machine, and where it differs from the assumptions of the predictions."""
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
        lines += ["CUBLAS_WORKSPACE_CONFIG was set, which the predictions ignore.", ""]
    if machine.get("allocator", "native") != "native":
        lines += [f"The allocator was {machine['allocator']}, for which there is no model.", ""]
    return lines


def page_of_both(document, predictor):
    machine = document["machine"]
    rows = {measure_gpu.key_of(row): row for row in document["rows"]}
    predicted = {key: predictor.of(key) for key in rows}
    title = next(iter(predicted.values()))["title"]
    out = [HEAD.format(which=f"Device of the predictions: {title}."), *machine_lines(machine, predicted),
           "Columns are predicted, measured, and the error of the prediction. Aims:",
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
        # Steady-state steps have the same aim.
        result = verdict({"active": max(off["active"], off["steady"], key=abs), "reserved": off["reserved"],
                        "time": off["seconds"]})
        missed += result != "within"
        cells = [f"{mib(expected[name])} | {mib(real[name])} | {percent(off[name])}"
                 for name in ("active", "steady", "reserved")]
        out.append(head + " | ".join(cells) + f" | {expected['unknown']} | {milliseconds(expected['seconds'])} | "
                   f"{milliseconds(real['seconds'])} | {percent(off['seconds'])} | {result} |")
    out += ["", "Verdicts compare the time error of each row with the aim for the mean error.", ""]
    if times:
        mean = statistics.mean(times)

        def judged(name, error):
            return f"{'within' if abs(error) <= AIMS[name] else 'not within'} the aim of {100 * AIMS[name]:.0f} %"

        out += [f"- {words}: worst error {percent(worst[name])}, {judged(name, worst[name])}."
                for name, words in [("active", "Active peak"), ("reserved", "Reserved")]]
        out += [f"- Step time: mean error {100 * mean:.1f} %, {judged('time', mean)}."]
    out += [f"- {len(rows) - missed} of {len(rows)} rows are within all aims.", ""]
    return "\n".join([*out, HOW])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--measurements", type=pathlib.Path, help="output of measure_gpu.py")
    parser.add_argument("--spec", help="name from `shadowgraph list devices`, or a file (default: the GPU's, or h100)")
    parser.add_argument("--only", nargs="+", metavar="MODEL", choices=list(measure_gpu.MODELS))
    parser.add_argument("--page", type=pathlib.Path, help="output file of the page (default: stdout)")
    options = parser.parse_args()
    try:
        document = read_measurements(options.measurements) if options.measurements else None
        if document:
            if options.only:
                document["rows"] = [row for row in document["rows"] if row["model"] in options.only]
                if not document["rows"]:
                    raise InputError(f"{options.measurements} has no rows for {', '.join(options.only)}")
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
