"""Compares predictions with SimuMax's runs of Llama in Megatron-LM on eight B200s: step time.

    PYTHONPATH=build/python python bench/published/simumax_seconds.py [--csv FILE] [--rows 0..8] [--json FILE]

Excludes pipelines, because only the last rank is simulated. Matrix products reach 49 % of peak FLOPs, as measured by
SimuMax on that machine (configs/system/b200_bf16_ceperm.json).
"""

import dataclasses
import functools
import json
import pathlib
import tempfile

import megatron_arguments
import simumax
from comparison import compare
from megatron_models import Rank, chunks
from megatron_training import Training
from simumax import named, part, rows  # noqa: F401

import shadowgraph as sg

TABLE, TITLE, UNIT = "simumax.csv", "SimuMax's runs of Megatron-LM on B200, a step", "ms"
WORST = "70 B with tensor parallel 8, where kernels are short; SimuMax is 7 to 11 % too low there, too."


@functools.cache
def device():
    figures = {"version": 1, "base": "b200", "gpu": {"sustained": 0.65}}  # 0.75 of the peak in short
    path = pathlib.Path(tempfile.mkdtemp()) / "b200.json"
    path.write_text(json.dumps(figures))
    return str(path)


@functools.lru_cache(maxsize=4)
def step(arguments, micro_batches):
    count = arguments.gpus
    with sg.fake_process_group(count, rank=count - 1), sg.Capture("cuda", source_lines=False) as session:
        rank = Rank(arguments)
        training = Training(rank, chunks(rank))
        training.step(micro_batches)
        graph = session.finish(training.reports)
    report = sg.profile(graph, spec=device(), interconnect="b200").dict()
    return report["communication"]["overlap"]["seconds"]


def predicted(row):
    arguments = megatron_arguments.of_row({**row, "case": "gpt/" + row["case"]})
    given = dataclasses.replace(arguments, micro_batches=2)
    once, twice = step(given, 1), step(given, 2)
    return {"predicted": 1e3 * (once + (twice - once) * (arguments.micro_batches - 1))}


def published(row):
    return float(row["real_ms"])


def is_compared(row):
    return simumax.is_compared(row) and "_pp1_" in row["case"]


if __name__ == "__main__":
    compare("simumax_seconds")
