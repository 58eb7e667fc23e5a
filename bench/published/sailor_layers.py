"""Compares predictions with forward and backward times of single layers of OPT and GPT-Neo on five GPUs.

    PYTHONPATH=build/python python bench/published/sailor_layers.py [--csv FILE] [--by part] [--json FILE]

The rows in sailor_layers.csv are from eth-easl/sailor, Planner/sailor_planner/profiles: CUDA event times of a layer in
float32, with TF32 since Ampere. No constant was fitted on the RTX 3090. Micro-batches below 4 are host bound.
"""

import functools
import json
import pathlib
import tempfile

import torch
from comparison import compare
from sailor_models import SEQUENCE, SIZES, Stage, rank_of

import shadowgraph as sg

TABLE, TITLE, UNIT = "sailor_layers.csv", "Layers that Sailor measured", "s"
WORST = "Matrix products on the RTX 3090 used TF32 if it ran NVIDIA's container, too."
# Differences from known devices: TF32 matrix products, and the memory of GH200.
SPECS = {"A100-40": {"base": "a100_40gb", "matmul": {"float32": 156e12}},
         "A100-80": {"base": "a100", "matmul": {"float32": 156e12}}, "V100-16": {"base": "v100"},
         "RTX-3090": {"base": "rtx3090"},
         "GH-96": {"base": "h100", "bandwidth": 4e12, "matmul": {"float32": 494.7e12},
                   "gpu": {"stream": 3.4e12}}}  # fmt: skip
LEAST = 4


@functools.cache
def spec_of(gpu):
    path = pathlib.Path(tempfile.mkdtemp()) / f"{gpu}.json"
    path.write_text(json.dumps({"version": 1, **SPECS[gpu]}))
    return str(path)


@functools.lru_cache(maxsize=8)
def captured(model, micro_batch):
    """Captures forward and backward of two layers, a second time with existing gradients."""
    with sg.fake_process_group(1), sg.Capture("cuda", source_lines=False) as session:
        rank = rank_of(model, 1, micro_batch)
        stage = Stage(model, rank, 1, 2)
        mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda")
        x = torch.empty(SEQUENCE, micro_batch, SIZES[model][1], device="cuda").requires_grad_()
        for _ in range(2):
            result = stage(None, mask, x)
            result.backward(torch.empty_like(result))
        return session.finish()


@functools.cache
def phases(model, micro_batch, gpu):
    return sg.profile(captured(model, micro_batch), spec=spec_of(gpu)).dict()["time"]["phases"]


def predicted(row):
    return {"predicted": phases(row["model"], int(row["micro_batch"]), row["gpu"])[row["part"]] / 4}


def published(row):
    return float(row["seconds"])


def is_compared(row):
    return int(row["micro_batch"]) >= LEAST


def part(row):
    return row["gpu"]


def named(row):
    return f"{row['model']} on {row['gpu']}, {row['micro_batch']:>2} sequences, {row['part']}"


if __name__ == "__main__":
    compare("sailor_layers")
