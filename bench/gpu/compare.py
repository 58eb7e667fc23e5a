"""Compares predictions with measurements of an H100 (bench/gpu/h100). Writes docs/figures/22-h100.json.

    PYTHONPATH=build/python python bench/gpu/compare.py [--figures] [--predictions FILE] [--transformers FOLDER]

Measurements are from torch 2.11 and transformers 5.17; FOLDER contains that version if another one is installed.
Predictions are cached in FILE.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FIGURES = HERE.parents[1] / "docs/figures/22-h100.json"
GIB, MIB = 2**30, 2**20
# The time model was fitted on this number of operators; the others are held out.
FITTED = 429


def predictions(path, folder):
    environment = dict(os.environ, HF_HUB_OFFLINE="1")
    if folder:
        environment["PYTHONPATH"] = folder + os.pathsep + environment.get("PYTHONPATH", "")
    kept = json.loads(path.read_text()) if path.exists() else {}
    operators = path.with_name(f"operators-{path.name}")
    missing = [name for name in programs() if name not in kept]
    command = [sys.executable, HERE / "predict.py", "-o"]
    if missing:
        subprocess.run([*command, path, *missing], env=environment, check=True)
    if not operators.exists():
        subprocess.run([*command, operators, "operators"], env=environment, check=True)
    products = path.with_name(f"float8-{path.name}")
    if not products.exists():
        subprocess.run([*command, products, "float8"], env=environment, check=True)
    return (json.loads(path.read_text()), json.loads(operators.read_text())["rows"],
            json.loads(products.read_text()))  # fmt: skip


def measured(name):
    return json.loads((HERE / f"h100/{name}.json").read_text())


def programs():
    return measured("programs")["programs"]


def percent(share, digits=1):
    return f"{100 * share:+.{digits}f} %"


def program_rows(predicted):
    rows, errors = [], {"allocated": [], "reserved": [], "seconds": []}
    for name, row in programs().items():
        prediction, peaks = predicted[name], row["peaks"]
        off = {kind: prediction[kind] / peaks[kind] - 1 for kind in ("allocated", "reserved")}
        off["seconds"] = prediction["time"]["seconds"] / row["seconds"] - 1
        for kind, error in off.items():
            errors[kind].append(abs(error))
        rows.append([name, f"{peaks['allocated'] / GIB:.3f}", percent(off["allocated"], 3),
                     f"{peaks['reserved'] / GIB:.3f}", percent(off["reserved"]), f"{1e3 * row['seconds']:.1f}",
                     percent(off["seconds"])])  # fmt: skip
    return rows, errors


def operator_rows(predicted):
    """Returns errors per operator class, fitted and held out, without operators that are host bound."""
    by_class = {}
    for at, (name, (micros, host)) in enumerate(measured("operators").items()):
        prediction = predicted.get(name)
        if prediction is None or host > 0.8 * micros:
            continue
        kind = max((key for key in prediction if key != "seconds"), key=prediction.get)
        for key in (kind, "all"):
            by_class.setdefault(key, ([], []))[at >= FITTED].append(abs(1e6 * prediction["seconds"] / micros - 1))
    rows = []
    for kind in sorted(by_class, key=lambda key: (key == "all", key)):
        fitted, held = by_class[kind]
        cells = [f"{100 * average(errors):.1f} %" if errors else "" for errors in (fitted, held)
                 for average in (statistics.median, statistics.mean)]  # fmt: skip
        rows.append([kind, str(len(fitted)), *cells[:2], str(len(held)), *cells[2:]])
    return rows


def float8_rows(predicted):
    """Returns rows of training steps of four layers of Llama 3 8B at 8,192 tokens, and errors of single kernels."""
    results = measured("float8")
    steps = {name: 1e3 * row["seconds"] for name, row in results["programs"].items()}
    ours = {name: 1e3 * seconds for name, seconds in predicted["programs"].items()}
    rows = [[name, f"{steps[name]:.1f}", f"{ours[name]:.1f}", percent(ours[name] / steps[name] - 1)]
            for name in ("bf16", "as the pass", "torchao")]  # fmt: skip
    ratios = steps["torchao, compiled"] / steps["bf16, compiled"], ours["the pass"] / ours["bf16"]
    rows.append(["compiled: torchao / bf16; predicted: pass / bf16", *(f"x {ratio:.2f}" for ratio in ratios),
                 percent(ratios[1] / ratios[0] - 1)])  # fmt: skip
    off = {"_scaled_mm": [], "cast": []}
    for name, micros in results["operators"].items():
        for kind in off:
            if name.startswith(kind):
                off[kind].append(abs(predicted["operators"][name] / micros - 1))
    return rows, ", ".join(f"{kind} {100 * statistics.median(errors):.1f} % in the median of {len(errors)}"
                           for kind, errors in off.items())  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", action="store_true", help=f"write {FIGURES.name}")
    parser.add_argument("--predictions", type=pathlib.Path, default=pathlib.Path("build/h100-predictions.json"))
    parser.add_argument("--transformers", default="", help="folder with transformers 5.17")
    given = parser.parse_args()
    of_programs, of_operators, of_float8 = predictions(given.predictions, given.transformers)
    rows, errors = program_rows(of_programs)
    by_class = operator_rows(of_operators)
    steps, kernels = float8_rows(of_float8)
    for row in rows:
        print(f"{row[0]:32}", *(f"{cell:>10}" for cell in row[1:]))
    for row in by_class:
        print(f"{row[0]:32}", *(f"{cell:>9}" for cell in row[1:]))
    for row in steps:
        print(f"{row[0]:52}", *(f"{cell:>9}" for cell in row[1:]))
    summary = {kind: f"median {100 * statistics.median(off):.2g} %, mean {100 * statistics.mean(off):.2g} %, "
                     f"worst {100 * max(off):.3g} %" for kind, off in errors.items()}  # fmt: skip
    print(summary)
    if not given.figures:
        return
    machine = measured("programs")["machine"]
    document = {
        "title": "On an H100",
        "about": "Programs captured and run on one GPU from the same source. Peaks are those of the first three steps, "
        "and time is that of a later step. Distributed programs ran one rank, with collectives that transfer nothing, "
        "so that their time excludes communication.",
        "measured": "2026-11-26",
        "machine": f"{machine['device']}, torch {machine['torch']}, CUDA {machine['cuda']}, transformers "
        f"{machine['transformers']}; predictions by libtorch 2.13.0, {datetime.date.today()}",
        "command": "python bench/gpu/measure.py; python bench/gpu/compare.py --figures",
        "reading": [
            f"Allocated: {summary['allocated']}. Reserved: {summary['reserved']}. Seconds: {summary['seconds']}.",
            "Pipelines of torch 2.11 allocate other buffers than those of 2.13, which is used for the predictions.",
            "The time model lacks the Python overhead of DTensor, 200 us per call, which bounds both tensor parallel "
            "rows.",
            "Host-bound operators are excluded below.",
        ],
        "tables": [
            {"columns": ["program", "allocated GiB", "off", "reserved GiB", "off", "step ms", "off"], "rows": rows},
            {
                "about": "Single operators by class. The time model was fitted on the first group. Sizes of the held "
                "out operators were chosen afterwards.",
                "columns": ["class", "fitted on", "median", "mean", "held out", "median", "mean"],
                "rows": by_class,
            },
            {
                "about": "float8 linear layers (bench/gpu/float8.py): training steps of four layers of Llama 3 8B at "
                f"8,192 tokens. Errors of single kernels: {kernels}. The time model was fitted on them.",
                "columns": ["step", "measured ms", "predicted ms", "off"],
                "rows": steps,
            },
        ],
    }
    FIGURES.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
