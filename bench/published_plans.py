#!/usr/bin/env python3
"""Simulates published plans and compares them with our plans for the same devices, batch size and sequence length.

    PYTHONPATH=build/python python bench/published_plans.py

`figures()` returns the tables of docs/figures/21-plans.json. Models run in eager PyTorch with bfloat16, or float8
matrix products where the run used them, and float32 gradients, main weights and moments. Frameworks of the published
runs compile and fuse kernels where noted.
"""

import csv
import json
import pathlib
import sys
import tempfile

import plan_models

ROOT = pathlib.Path(__file__).parents[1]
PEAK = 989.4e12  # of an H100, bfloat16
LLAMA = {
    "405b": {"layers": 126, "width": 16384, "heads": 128, "key_heads": 8, "inner": 53248, "words": 128256},
    "80b": {"layers": 80, "width": 8192, "heads": 64, "key_heads": 64, "inner": 28672, "words": 131072},
    "8.86b": {"layers": 32, "width": 4096, "heads": 32, "key_heads": 32, "inner": 14336, "words": 131072},
    "3.57b": {"layers": 28, "width": 3072, "heads": 32, "key_heads": 32, "inner": 8192, "words": 131072},
    "1.34b": {"layers": 16, "width": 2048, "heads": 32, "key_heads": 32, "inner": 8192, "words": 131072},
}
# Megatron-LM's README, images/model_table.png: heads, width, layers, tensor, pipeline, GPUs, batch, MFU in percent.
MEGATRON = {
    "1.7b": (16, 2048, 24, 1, 1, 48, 192, 41),
    "7.1b": (32, 4096, 30, 2, 1, 96, 192, 47),
    "16b": (48, 6144, 32, 4, 1, 192, 192, 49),
    "32b": (56, 7168, 48, 8, 1, 384, 192, 46),
    "70b": (64, 8192, 84, 8, 2, 768, 384, 42),
    "119b": (80, 10240, 92, 8, 4, 1536, 768, 43),
    "177b": (96, 12288, 96, 8, 6, 2304, 1152, 44),
    "314b": (128, 16384, 96, 8, 8, 3072, 1536, 48),
    "462b": (144, 18432, 112, 8, 16, 6144, 3072, 47),
}
# MLPerf Training 5.0, llama31_405b on H100s: GPUs, batch, micro-batches per replica, seconds. In float8 with tensor 8,
# pipeline 8 with 8 stages per rank, and context 2. Stages per rank are chosen here, because 8 do not fit.
MLPERF = [(512, 1152, 288, 55.13), (2048, 1152, 72, 14.22), (2432, 1216, 64, 12.73)]


# Overlap of tensor parallel collectives in the frameworks, according to their documentation. Unknown for Meta; nanotron
# used tp_linear_async_communication and tp_recompute_allgather.
OVERLAP = {"Llama 3": "backward", "torchtitan": "pieces", "Megatron-LM": "pieces", "nanotron": "backward",
           "MLPerf": "pieces"}  # fmt: skip


def case(name, source, sizes, devices, batch, length, plan, mfu, differs=""):
    return {"name": name, "source": source, "sizes": {**sizes, "length": length}, "devices": devices, "batch": batch,
            "plan": plan, "mfu": mfu, "differs": differs}  # fmt: skip


def meta():
    sizes = {**LLAMA["405b"], "gated": True}
    for devices, mfu in ((8192, 43.4), (16384, 40.4)):
        plan = {"tensor": 8, "pipeline": 16, "schedule": "interleaved", "zero": 1, "micro_batch": [1]}
        yield case("405b", "Llama 3", sizes, devices, 2048, 8192, plan, mfu, "fused kernels, no recompute")
    plan = {"tensor": 8, "context": 16, "pipeline": 16, "schedule": "interleaved", "zero": 1, "micro_batch": [1]}
    yield case("405b, 131,072 tokens", "Llama 3", sizes, 16384, 128, 131072, plan, 100 * 380e12 / PEAK,
               "fused kernels, no recompute")  # fmt: skip


def torchtitan():
    sizes = {**LLAMA["405b"], "gated": True}
    for schedule, each, rate in (("1f1b", 1, 100), ("interleaved", 2, 128)):
        plan = {"tensor": 8, "pipeline": 8, "stages_per_rank": [each], "schedule": schedule, "zero": 2,
                "micro_batch": [1]}  # fmt: skip
        whole = plan_models.flops(**sizes, length=8192)
        yield case("405b", "torchtitan", sizes, 512, 256, 8192, plan, 100 * rate * whole / 8192 / PEAK,
                   "compiled, weights gathered in float8, 96 GB")  # fmt: skip


def megatron():
    for name, (heads, width, layers, tensor, pipeline, devices, batch, mfu) in MEGATRON.items():
        sizes = {"layers": layers, "width": width, "heads": heads, "words": 131072}
        plan = {"tensor": tensor, "pipeline": pipeline, "zero": 1}
        if pipeline > 1:
            each = next(n for n in (6, 4, 3, 2, 1) if layers % (pipeline * n) == 0)
            plan |= {"stages_per_rank": [each], "schedule": "interleaved" if each > 1 else "1f1b"}
        yield case(name, "Megatron-LM", sizes, devices, batch, 4096, plan, mfu,
                   "fused kernels; unknown micro-batch size")  # fmt: skip


def nanotron():
    with open(ROOT / "bench/published/nanotron.csv") as file:
        for row in csv.DictReader(file):
            size = f"{float(row['model_B']):g}b"
            plan = {"tensor": int(row["tp"]), "pipeline": int(row["pp"]), "zero": int(row["zero"]),
                    "micro_batch": [int(row["mbs"])], "schedule": "1f1b"}  # fmt: skip
            batch = int(row["dp"]) * int(row["gas"]) * int(row["mbs"])
            yield case(size, "nanotron", {**LLAMA[size], "gated": True}, int(row["gpus"]), batch, 4096, plan,
                       float(row["mfu_pct"]), "other kernels")  # fmt: skip


def mlperf():
    sizes = {**LLAMA["405b"], "gated": True}
    whole = plan_models.flops(**sizes, length=8192)
    for devices, batch, _, seconds in MLPERF:
        plan = {"tensor": 8, "context": 2, "pipeline": 8, "schedule": "interleaved", "zero": 1, "micro_batch": [1]}
        yield case("405b", "MLPerf", sizes, devices, batch, 8192, plan,
                   100 * whole * batch / seconds / devices / PEAK,
                   "fused kernels, weights gathered in float8")  # fmt: skip


CASES = [*meta(), *torchtitan(), *megatron(), *nanotron(), *mlperf()]


def program(sizes):
    """Returns (model, inputs, layers) for sg.plan."""

    def make(layers):
        return lambda: plan_models.Model(**{**sizes, "layers": layers})

    return make(sizes["layers"]), lambda samples, tokens: f"i64[{samples},{tokens}]", (sizes["layers"], make)


def as_published(one, **more):
    """Returns the plan with the published sizes, chosen stages and recompute, or None if none fits in memory."""
    import shadowgraph as sg

    plan = one["plan"]
    schedule = [plan["schedule"]] if plan["pipeline"] > 1 else []
    try:
        return found(one, tensor=[plan["tensor"]], context=[plan.get("context", 1)], pipeline=[plan["pipeline"]],
                     zero=[plan["zero"]], schedule=schedule, stages_per_rank=plan.get("stages_per_rank", []),
                     micro_batch=plan.get("micro_batch", []), simulated=1, **more)  # fmt: skip
    except sg.InfeasibleError:
        return None


def found(one, **options):
    import shadowgraph as sg

    model, inputs, layers = program(one["sizes"])
    how = {"overlap": OVERLAP[one["source"]], "float8": one["source"] in FLOAT8, **options}
    return sg.plan(model, inputs, devices=f"{one['devices']}xh100", batch=one["batch"], layers=layers,
                   sequence=one["sizes"]["length"], loss=lambda loss: loss, **how)  # fmt: skip


def share(one, seconds):
    return 100 * plan_models.flops(**one["sizes"]) * one["batch"] / seconds / one["devices"] / PEAK


FLOAT8 = ("torchtitan", "MLPerf")
COLUMNS = ["source", "model", "devices", "published plan", "published", "simulated", "ours", "simulated", "faster by",
           "differences of the run"]  # fmt: skip


def recompute_text(found):
    """Returns text with the numbers of layers with full and selective recompute."""
    plan = found.dict()["simulated"][0]["plan"]
    units = sum(stage["units"] for stage in plan["stages"]) - 2
    whole, part = len(plan["recomputed"]), len(plan["selective"])
    return (f", {whole} of {units} recomputed" if whole else "") + (f", {part} selective" if part else "")


def row(one):
    made, ours = as_published(one), found(one)
    cells = [one["source"], one["name"], f"{one['devices']:,}",
             named(one["plan"]) + (recompute_text(made) if made else ""), f"{one['mfu']:.1f} %",
             f"{share(one, made.seconds):.1f} %" if made else "does not fit",
             ours.dict()["simulated"][0]["text"] + recompute_text(ours), f"{share(one, ours.seconds):.1f} %",
             f"{100 * (made.seconds / ours.seconds - 1):+.1f} %" if made else "", one["differs"]]  # fmt: skip
    return cells, made.seconds / ours.seconds if made else None


def named(plan):
    pipeline = f"pp {plan['pipeline']}" + (f" x {plan['stages_per_rank'][0]}" if "stages_per_rank" in plan else "")
    schedule = f" {plan['schedule']}" if plan["pipeline"] > 1 else ""
    micro_batch = f", x {plan['micro_batch'][0]}" if "micro_batch" in plan else ""
    context = f", cp {plan['context']}" if "context" in plan else ""
    return f"tp {plan['tensor']}{context}, {pipeline}{schedule}, zero {plan['zero']}{micro_batch}"


FREE = {"version": 1, "base": 1e-9, "levels": [{"name": "wire", "size": 8, "latency": 1e-9, "bandwidth": 1e15},
        {"name": "network", "latency": 1e-9, "bandwidth": 1e15}]}  # fmt: skip
EXPLAINED = ("Llama 3 405b", "Megatron-LM 32b", "Megatron-LM 119b", "Megatron-LM 462b")
WHY_COLUMNS = ["source", "model", "devices", "published", "no overlap", "overlap backward", "overlap pieces",
               "and no recompute", "and free collectives", "and no bubble"]  # fmt: skip


def explain(one):
    """Returns a row that explains the difference from the published share by removing one cause after another."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as links:
        json.dump(FREE, links)
        links.flush()
        made = [as_published(one, overlap=overlap) for overlap in ("none", "backward", "pieces")]
        roomy, free = (as_published(one, memory="4000GB", overlap="pieces", **more)
                       for more in ({}, {"interconnect": links.name}))  # fmt: skip
    shares = [share(one, found.seconds) if found else None for found in (*made, roomy, free)]
    shares.append(shares[-1] / (1 - free.run.bubble))
    return [one["source"], one["name"], f"{one['devices']:,}", f"{one['mfu']:.1f} %",
            *(f"{value:.1f} %" if value else "does not fit" for value in shares)]  # fmt: skip


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0] * len(values)
    for place, index in enumerate(order):
        places[index] = place
    return places


def correlation(pairs):
    """Returns Spearman's rank correlation of published and simulated values."""
    a, b = (ranks([pair[side] for pair in pairs]) for side in (0, 1))
    n = len(pairs)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / (n * (n * n - 1))


def figures():
    rows, worse, pairs = [], 0, {}
    for one in CASES:
        cells, faster = row(one)
        print(" | ".join(cells), flush=True)
        rows.append(cells)
        if faster is not None:
            worse += faster < 0.999
            pairs.setdefault(one["source"], []).append((one["mfu"], float(cells[5].rstrip(" %"))))
    pairs["all in bfloat16"] = [pair for source, of in pairs.items() if source not in FLOAT8 for pair in of]
    orders = ", ".join(f"{source} {correlation(of):.2f}" for source, of in pairs.items() if len(of) > 2)
    reading = [f"Rank correlation of published and simulated shares of the peak: {orders}.",
               f"Our plan is at least as fast as the published one in {len(rows) - worse} of {len(rows)} rows."]
    table = {"about": "Published plans and ours for the same devices, batch size and sequence length, in the same cost "
                      "model. Tensor parallel collectives overlap as in the framework of the run. Shares are of peak "
                      "bfloat16 FLOPs; causal attention counts half of the scores.",
             "command": "python bench/published_plans.py", "columns": COLUMNS, "rows": rows}  # fmt: skip
    explained = [explain(one) for one in CASES if f"{one['source']} {one['name']}" in EXPLAINED]
    print("\n".join(" | ".join(cells) for cells in explained), flush=True)
    causes = {"about": "Causes of lower simulated shares of the peak, removed one after another.",
              "command": "python bench/published_plans.py", "columns": WHY_COLUMNS, "rows": explained}  # fmt: skip
    return [table, causes], reading


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "bench"))
    print("\n".join(figures()[1]))
