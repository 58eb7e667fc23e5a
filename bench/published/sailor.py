"""Compares predictions with Sailor's pipelines of OPT and GPT-Neo on GH200: highest memory of a GPU in nvidia-smi.

    PYTHONPATH=build/python python bench/published/sailor.py [--csv FILE] [--rows 0..8] [--json FILE]

The rows in sailor.csv are from eth-easl/sailor, Planner/simulations/validation. Bytes are those of the device,
including memory outside of the allocator.
"""

import functools
import json

from comparison import compare
from sailor_engine import STEPS, Engine
from sailor_models import rank_of

import shadowgraph as sg

TABLE, TITLE, UNIT = "sailor.csv", "Sailor's pipelines, reserved", "bytes"
WORST = "One row has 25 % less memory than two others with the same plan."
# Memory outside of PyTorch's allocator according to Sailor (Planner/simulations/runtime_simulator.py): CUDA contexts,
# kernels and NCCL buffers. Measured on GH200, estimated for other GPUs.
OUTSIDE = {"GH-96": 4_760_000_000 + 300_000_000}
OUTSIDE_ELSEWHERE = 3_000_000_000
SPECS = {"GH-96": "h100", "A100-40": "a100_40gb", "RTX-3090": "rtx3090"}


def published(row):
    return int(row["max_mem_bytes"])


@functools.lru_cache(maxsize=1)
def captured(model, tensor, micro_batch, first, last, ahead, micro_batches):
    """Captures two steps of a stage that runs `ahead` micro-batches before its first backward."""
    with sg.fake_process_group(tensor, rank=tensor - 1), sg.Capture("cuda", source_lines=False) as session:
        engine = Engine(model, rank_of(model, tensor, micro_batch), first, last, ahead)
        for _ in range(STEPS):
            engine.step(micro_batches)
        return session.finish()


def stages(row):
    """Returns (first layer, last layer, micro-batches before the first backward) of each stage."""
    counts, at = [int(count) for count in row["layers_per_stage"].split("/")], 0
    for i, count in enumerate(counts):
        yield at, at + count - 1, len(counts) - i
        at += count


def predicted(row):
    tensor, micro_batch = int(row["gpus_per_node_tp"]), int(row["mbs"])
    data = json.loads(row["dp"])[0]
    micro_batches = int(row["gbs"]) // (micro_batch * data)
    most = 0
    for first, last, ahead in stages(row):
        ahead = min(ahead, micro_batches)
        graph = captured(row["model"], tensor, micro_batch, first, last, ahead, min(micro_batches, ahead + 1))
        memory = sg.profile(graph, spec=SPECS.get(row["gpu"], "h100")).dict()["device_memory"]
        most = max(most, memory["reserved_peak_bytes"])
    return {"predicted": most + OUTSIDE.get(row["gpu"], OUTSIDE_ELSEWHERE)}


def is_compared(row):
    return True


def part(row):
    return row["gpu"]


def named(row):
    return f"{row['model']} on {row['N_nodes']} nodes of {row['gpu']}, {row['stages']} stages x {row['mbs']}"


if __name__ == "__main__":
    compare("sailor")
