#!/usr/bin/env python3
"""Measures wall time and memory of cluster planning with the command line tool, including captures.

    PYTHONPATH=build/python python bench/plans.py [--figures]

--figures writes docs/figures/21-plans.json, with the tables of published_plans.py and peer_plans.py.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import peer_plans
import published_plans

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import write_figures  # noqa: E402

PAGE = ROOT / "docs/figures/21-plans.json"

TOKENS = ("--tokens-per-step", "16Mi", "--seq", "8192")
MORE = ("--offload", "activations,optimizer", "--recompute", "full,selective,curve")
LAYOUTS = ("--layout", "megatron,solved,lean")
CASES = [
    ("llama3_8b", "64xh100", ("--tokens-per-step", "1Mi", "--seq", "8192"), ""),
    ("llama3_70b", "256xh100", ("--tokens-per-step", "8Mi", "--seq", "8192"), ""),
    ("llama3_405b", "1024xh100", TOKENS, "10 s, 2 GiB"),
    ("llama3_405b", "8192xh100", TOKENS, "10 s, 2 GiB"),
    ("llama3_405b", "1024xh100", (*TOKENS, *MORE), ""),
    ("llama3_405b", "1024xh100", (*TOKENS, *LAYOUTS), ""),
    ("llama3_405b", "8192xh100", (*TOKENS, *LAYOUTS), ""),
    ("deepseek_v3", "2048xh100", ("--tokens-per-step", "60Mi", "--seq", "4096"), "30 s"),
    ("llama3_405b", "8192xh100", (*TOKENS, "--tensor", "8", "--pipeline", "16", "--zero", "1"), ""),
    ("llama3_405b", "16384xh100", (*TOKENS, "--tensor", "8", "--pipeline", "16", "--zero", "1"), ""),
]
QUESTIONS = ["devices", "network", "memory", "batch", "sequence"]
ASKED = ["llama3_405b", "--devices", "1024xh100", *TOKENS]
QUESTION_COLUMNS = ["sweep", "rows", "finding", "time s", "RSS", "aim"]
COLUMNS = ["model", "devices", "plan", "step s", "of the peak", "above the bound", "planning s", "RSS", "aim"]


def run_plan(title, *arguments):
    """Returns the JSON output of `shadowgraph plan`, its time in seconds and its peak memory as text."""
    with tempfile.TemporaryFile("w+") as out:
        begin = time.monotonic()
        process = subprocess.Popen([ROOT / "build/bin/shadowgraph", "plan", *arguments, "--json"], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        if status != 0:
            sys.exit(f"plan {title}: {status}")
        out.seek(0)
        return json.load(out), seconds, f"{usage.ru_maxrss / 2**20:.2f} GiB"


def row(model, devices, options, aim):
    plan, seconds, memory = run_plan(f"{model} {devices}", model, "--devices", devices, *options)
    best = plan["simulated"][0]
    if "--offload" in options:
        model += ", with offload and recompute curve"
    if "--layout" in options:
        model += ", with layouts of the solver"
    return [model, devices, best["text"], f"{best['seconds']:.2f}", f"{100 * plan['model_flops_share']:.1f} %",
            f"{100 * (best['seconds'] / plan['bound_seconds'] - 1):.1f} %", f"{seconds:.1f}", memory, aim]  # fmt: skip


def question_row(what, more=()):
    """Measures a sweep for Llama 3 405B on 1,024 H100s."""
    tables, seconds, memory = run_plan(f"--sweep {what}", *ASKED, "--sweep", what, *more)
    table = tables[what]
    return [what, str(len(table["rows"])), table["findings"][0] if table["findings"] else "", f"{seconds:.1f}",
            memory, ""]  # fmt: skip


def price_row():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as prices:
        json.dump({"h100": 2.5, "a100": 1.25}, prices)  # arbitrary prices
        prices.flush()
        return question_row("price", ["--tokens", "15T", "--within", "90d", "--prices", prices.name])


def comparisons():
    """Returns sentences of the page that no script measures: comparisons with captured programs and Meta's runs."""
    return [each for each in json.loads(PAGE.read_text())["reading"] if each.startswith("Beside ")]


def main():
    rows = [row(*case) for case in CASES]
    asked = [*map(question_row, QUESTIONS), price_row()]
    print("\n".join(" | ".join(cells) for cells in [COLUMNS, *rows, QUESTION_COLUMNS, *asked]))
    if "--figures" not in sys.argv[1:]:
        return
    others = [module.figures() for module in (published_plans, peer_plans)]
    figures = {
        "title": "Plans for a cluster",
        "about": "Wall time of `shadowgraph plan`. The last two rows evaluate plans that were used in training.",
        "measured": datetime.date.today().isoformat(),
        "machine": "two cores of a shared x86-64 virtual machine, libtorch 2.13.0 CPU build, g++ 12.2, Release",
        "command": "python bench/plans.py --figures",
        "reading": ["Aceso took 202 s for 13B according to its log, after profiling on the cluster.",
                    "Meta trained with the last two plans at 43 and 41 % of peak FLOPs; the program here is eager.",
                    *[sentence for _, reading in others for sentence in reading], *comparisons()],
        "tables": [
            {"columns": COLUMNS, "rows": rows},
            {"about": "Sweeps for Llama 3 405B on 1,024 H100s, 16M tokens per step (`--sweep`).",
             "columns": QUESTION_COLUMNS, "rows": asked},
            *[table for tables, _ in others for table in tables],
        ],
    }  # fmt: skip
    write_figures.write(PAGE, figures)


if __name__ == "__main__":
    main()
