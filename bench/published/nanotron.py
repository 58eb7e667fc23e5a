"""Compares predictions with nanotron's best runs of Llama on 8 to 512 H100s: model FLOPs utilization.

    PYTHONPATH=build/python python bench/published/nanotron.py [--csv FILE] [--rows 0..8] [--json FILE]

The rows in nanotron.csv are from the benchmark summary of huggingface/nanotron. Sequences have 4,096 tokens; without
recompute and grouped-query attention.
"""

import functools

import stage_clock
from comparison import HERE, compare, read_rows
from nanotron_models import SEQUENCE, SIZES, WORDS
from nanotron_training import Training, stage_of

import shadowgraph as sg

TABLE, TITLE, UNIT = "nanotron.csv", "nanotron's Llama on H100, share of the peak", "%"
WORST = ("80 B with tensor parallel 8 and one sequence per micro-batch is probably host bound. On 256 GPUs and more, "
         "gradient reductions are slower than the line rate.")  # fmt: skip
PEAK = 989e12
NUMBERS = ("nodes", "gpus", "dp", "tp", "pp", "gas", "mbs", "zero")


def rows(path=HERE / TABLE):
    return [{key: int(value) if key in NUMBERS else value for key, value in row.items()} for row in read_rows(path)]


def layers_of(row):
    """Returns the number of layers per stage, limited by the stage's share of all matrix products."""
    count, width, _, inner = SIZES[row["model_B"]]
    layer, output = 4 * width * width + 3 * width * inner, WORDS * width
    total, counts, stage = count * layer + output, [0] * row["pp"], 0
    for number in range(count):
        if (number + 1) * layer > total * (stage + 1) / row["pp"]:
            stage += 1
        counts[stage] += 1
    return counts


def captured(row, layers, first, last, micro_batches, ahead, steps):
    ranks = row["tp"] * row["dp"]
    with sg.fake_process_group(ranks, rank=ranks - 1), sg.Capture("cuda", source_lines=False) as session:
        training = Training(row, stage_of(row["model_B"], layers, first, last), first, last)
        for _ in range(steps):
            training.step(micro_batches, ahead)
        return session.finish()


def seconds_of(row, layers, first, last):
    """Returns times of (forward, backward, rest of a step), extrapolated from captures of one and two layers."""

    @functools.cache
    def of(count, micro_batches):
        graph = captured(row, count, first, last, micro_batches, 1, 1)
        report = sg.profile(graph, spec="h100", interconnect="h100").dict()
        phases = report["time"]["phases"]
        share = phases["forward"] / (phases["forward"] + phases["backward"])
        overlap = report.get("communication", {}).get("overlap")
        return (overlap or report["time"])["seconds"], share

    def linear(micro_batches):
        (one, _), (two, share) = of(1, micro_batches), of(2, micro_batches)
        return one + (two - one) * (layers - 1), share

    (once, _), (twice, share) = linear(1), linear(2)
    each = twice - once
    return each * share, each * (1 - share), once - each


def step_seconds(row):
    counts = layers_of(row)
    times = [seconds_of(row, layers, i == 0, i + 1 == len(counts)) for i, layers in enumerate(counts)]
    forward, backward, rest = zip(*times, strict=True)
    width = SIZES[row["model_B"]][1]
    send = 2e-5 + 2 * SEQUENCE * row["mbs"] * width / row["tp"] / 50e9
    programs = stage_clock.deepspeed(len(counts), row["gas"], forward, backward, send)
    for program, seconds in zip(programs, rest, strict=True):
        program.append(("compute", seconds))
    return stage_clock.run(programs)


def flops(row):
    """Returns FLOPs of a step on all GPUs as counted by nanotron, including all scores of causal attention."""
    count, width, _, inner = SIZES[row["model_B"]]
    of_token = count * (8 * width * width + 4 * SEQUENCE * width + 6 * width * inner) + 2 * width * WORDS
    return 3 * of_token * SEQUENCE * row["mbs"] * row["gas"] * row["dp"]


def published(row):
    return float(row["mfu_pct"])


def predicted(row):
    share = flops(row) / step_seconds(row) / row["gpus"] / PEAK
    return {"predicted": 100 * share}


def is_compared(row):
    return True


def part(row):
    return "pipelines" if row["pp"] > 1 else "tensor parallel"


def named(row):
    plan = f"dp {row['dp']}, tp {row['tp']}, pp {row['pp']}, {row['gas']} x {row['mbs']}"
    return f"{row['model_B']} B on {row['gpus']}, {plan}"


if __name__ == "__main__":
    compare("nanotron")
