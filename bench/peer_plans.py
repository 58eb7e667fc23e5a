#!/usr/bin/env python3
"""Compares our plans with those of other planners, using our simulator for all.

    PYTHONPATH=build/python python bench/peer_plans.py

bench/peer_plans.json has the plans of eight planners: Sailor, and AMP, Piper, Varuna, Metis, Galvatron, DTFM and
FlashFlex as ported by the authors of Sailor. It also has the commit, settings and budgets. Each planner returned up to
five plans, best first, of which the first that fits in our simulator is used, with its numbers of ranks and its
micro-batch size. Stage boundaries and recompute are chosen by our planner.
"""

import functools
import json
import os
import pathlib
import tempfile
import time

import plan_models

ROOT = pathlib.Path(__file__).parents[1]
PUBLISHED = ROOT / "bench/published"
MODELS = {
    "OPT-350": {"layers": 24, "width": 1024, "heads": 16, "words": 50272},
    "GPT-Neo-2.7": {"layers": 32, "width": 2560, "heads": 32, "words": 50257},
    "LLAMA-3-8": {"layers": 32, "width": 4096, "heads": 32, "key_heads": 8, "inner": 14336, "words": 128256,
                  "gated": True},
}  # fmt: skip
# (spec, links, bytes of memory) as in the cluster files of Sailor.
DEVICES = {
    "A100-40": ("a100_40gb", "a100", 42338615296),
    "V100-16": ("v100", "v100", 17179869184),
    "GH-96": (str(PUBLISHED / "gh200.json"), str(PUBLISHED / "gh200_links.json"), 102625181696),
}
LENGTH = 2048


def plan_arguments(model, gpu, devices, batch):
    """Returns (model, inputs, keywords) for sg.plan."""
    import torch

    sizes = {**MODELS[model], "length": LENGTH}
    spec, links, memory = DEVICES[gpu]

    def make(layers):
        return lambda: plan_models.Model(**{**sizes, "layers": layers})

    given = {"layers": (sizes["layers"], make), "devices": f"{devices}x{spec}", "batch": batch, "sequence": LENGTH,
             "interconnect": links, "loss": lambda loss: loss, "dtype": torch.float32, "memory": memory,
             "optimizer": torch.optim.AdamW, "captured_state": True}  # fmt: skip
    return make(sizes["layers"]), lambda samples: f"i64[{samples},{LENGTH}]", given


def ours(case):
    import shadowgraph as sg

    model, inputs, given = plan_arguments(*case)
    begin = time.monotonic()
    found = sg.plan(model, inputs, **given)
    return found, time.monotonic() - begin


@functools.cache
def simulated(case, tensor, data, pipeline, micro_batch):
    """Returns (seconds, text), or None if the plan does not fit in memory."""
    import shadowgraph as sg

    model, inputs, given = plan_arguments(case[0], case[1], tensor * data * pipeline, case[3])
    try:
        made = sg.plan(model, inputs, tensor=[tensor], pipeline=[pipeline], zero=[0, 1], micro_batch=[micro_batch],
                       stages_per_rank=[1], schedule=["1f1b"], simulated=1, **given)  # fmt: skip
    except sg.InfeasibleError:
        return None
    return made.seconds, made.dict()["simulated"][0]["text"]


def theirs(case, plans):
    """Returns the result of the first plan that fits."""
    sizes = ([plan[key] for key in ("tensor", "data", "pipeline", "micro_batch")] for plan in plans)
    return next((made for plan in sizes if (made := simulated(case, *plan))), None)


NONE = "none fits"
COLUMNS = ["model", "devices", "batch", "ours", "step s", "found in s", "best of others", "step s", "planner",
           "others by seconds", "ours is faster by"]  # fmt: skip


def figures():
    document = json.loads((ROOT / "bench/peer_plans.json").read_text())
    rows, won, seconds = [], 0, {}
    cases = list(dict.fromkeys((a["model"], a["gpu"], a["devices"], a["batch"]) for a in document["answers"]))
    for case in cases:
        found, took = ours(case)
        made = {}
        for answer in document["answers"]:
            if (answer["model"], answer["gpu"], answer["devices"], answer["batch"]) != case:
                continue
            if answer["seconds"] is not None:
                seconds.setdefault(answer["planner"], []).append(answer["seconds"])
            if (one := theirs(case, answer["plans"])) is not None:
                made[answer["planner"]] = one
        best = min(made, key=made.get, default=None)
        quicker = made[best][0] / found.seconds - 1 if best else None
        won += quicker is None or quicker >= -0.001
        every = ", ".join(f"{name} {made[name][0]:.2f}" for name in sorted(made, key=made.get))
        rows.append([case[0], f"{case[2]} {case[1]}", str(case[3]), found.dict()["simulated"][0]["text"],
                     f"{found.seconds:.2f}", f"{took:.1f}", made[best][1] if best else NONE,
                     f"{made[best][0]:.2f}" if best else "", best or "", every,
                     f"{100 * quicker:+.1f} %" if best else ""])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    alone = sum(cells[6] == NONE for cells in rows)
    reading = [f"Our plan is at least as fast as the best of eight other planners in {won} of {len(rows)} cases. In "
               f"{alone} of them no other plan fits."]  # fmt: skip
    table = {"about": "Plans of other planners (from Sailor's repository) and ours in our simulator; float32, AdamW.",
             "command": "python bench/peer_plans.py", "columns": COLUMNS, "rows": rows}  # fmt: skip
    return [table, took_table(seconds)], reading


def took_table(seconds):
    rows = [[name, str(len(of)), f"{sum(of) / len(of):.2f}", f"{max(of):.1f}"] for name, of in sorted(seconds.items())]
    return {"about": "Time of other planners, without profiling.",
            "columns": ["planner", "answers", "mean s", "max s"], "rows": rows}  # fmt: skip


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    print("\n".join(figures()[1]))
