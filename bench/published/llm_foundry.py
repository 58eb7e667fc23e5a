"""Compares predictions with llm-foundry's table of MPT models with FSDP: throughput, and whether they fit in memory.

    PYTHONPATH=build/python python bench/published/llm_foundry.py [--csv FILE] [--rows 0..8] [--json FILE]

The rows in llm_foundry.csv are from the benchmarking page of mosaicml/llm-foundry: 8 to 512 A100 or H100, PyTorch FSDP,
parameters in float32, all-gathered in bfloat16. All of them fit in memory.

Time and live bytes per phase are extrapolated from models with four and six layers, since layers are identical.
Fragmentation of the allocator is that of the larger model.
"""

import functools
import json
import pathlib
import tempfile

import torch
from comparison import HERE, compare, read_rows
from mpt import SIZES, Mpt
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shadowgraph as sg

TABLE, TITLE, UNIT = "llm_foundry.csv", "llm-foundry, MPT under FSDP", "tokens/s and GPU"
WORST = "Runs on 32 and 64 A100 40 GB are slower than those on 8 and 128 in the same table."
SPECS = {"a100_40gb": "a100_40gb", "a100_80gb": "a100", "h100_80gb": "h100"}
# llm-foundry 0.0.4 used FlashAttention 1, which reaches 30 to 50 % of peak FLOPs in forward and 25 to 35 % in backward
# on A100 (FlashAttention-2 paper, 2.3). On H100 it is assumed to improve like FlashAttention-2.
ATTENTION = {"a100_40gb": (0.40, 0.30), "a100": (0.40, 0.30), "h100": (0.21, 0.16)}
# Fitted on half of the H100 rows: matrix products of CUDA 11 and 12 are slower than those of h100.json.
SUSTAINED = {"h100": 0.86}
PHASES = ("forward", "backward", "optimizer")
# {our column: column of the source}; --csv accepts both.
COLUMNS = {"gpu": "GPU", "gpus": "# GPUs", "model": "Model", "sequence": "SeqLen (T)", "micro_batch": "MicroBatchSize",
           "accumulate": "GradAccum", "sharding": "Sharding Strategy", "checkpoint": "Activation Checkpointing",
           "parameters": "NumParams", "tokens_per_second_per_gpu": "Throughput (T/s/GPU)"}  # fmt: skip
FEW, MORE = 4, 6  # layers


@functools.cache
def device(name):
    """Writes a device spec with the attention kernel of these runs and returns its path."""
    forward, backward = ATTENTION[name]
    path = pathlib.Path(tempfile.mkdtemp()) / f"{name}.json"
    figures = {"attention": forward, "attention_backward": backward}
    if name in SUSTAINED:
        figures["sustained"] = SUSTAINED[name]
    path.write_text(json.dumps({"version": 1, "base": name, "gpu": figures}))
    return str(path)


def made(row, layers):
    """Returns a function that creates the model of one rank."""

    def make():
        devices = int(row["gpus"])
        sums = torch.bfloat16 if row["precision"].endswith("PURE") else torch.float32
        how = {"mesh": init_device_mesh("cuda", (devices,)), "reshard_after_forward": row["sharding"] == "FULL_SHARD",
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=sums)}  # fmt: skip
        model = Mpt(row["model"], int(row["sequence"]), layers)
        for i, block in enumerate(model.blocks):
            wrapped = checkpoint_wrapper(block, preserve_rng_state=False) if row["checkpoint"] == "True" else block
            model.blocks[i] = fully_shard(wrapped, **how)
        return fully_shard(model, **how)

    return make


def step(row, layers, accumulate):
    """Returns the costs of a step with the given number of micro-batches."""
    ids = f"i64[{row['micro_batch']},{row['sequence']}]"
    spec = SPECS[row["gpu"]]
    with sg.fake_process_group(int(row["gpus"])):
        report = sg.profile(made(row, layers), ids, loss=lambda loss: loss, optimizer=torch.optim.AdamW,
                            steady_state=True, spec=device(spec), interconnect=spec.split("_")[0],
                            accumulate=accumulate).dict()  # fmt: skip
    live = {phase: peak["bytes"] for phase, peak in report["phase_peaks"].items()}
    beyond = report["fits"]["bytes"] - max(live.values())
    return {"seconds": report["communication"]["overlap"]["seconds"], "parameters": report["whole_parameters"],
            "beyond": beyond, "there": report["fits"]["memory_bytes"], **live}  # fmt: skip


def of_all_layers(row, accumulate):
    few, more = step(row, FEW, accumulate), step(row, MORE, accumulate)
    share = (SIZES[row["model"]][2] - FEW) / (MORE - FEW)
    whole = {figure: few[figure] + (more[figure] - few[figure]) * share for figure in few}
    return {**whole, "needs": max(whole[phase] for phase in PHASES) + more["beyond"]}


def predicted(row):
    accumulate = int(row["accumulate"])
    # Micro-batches are identical, too.
    first = of_all_layers(row, 1)
    second = of_all_layers(row, 2) if accumulate > 1 else first
    seconds = first["seconds"] + (accumulate - 1) * (second["seconds"] - first["seconds"])
    if round(first["parameters"]) != int(row["parameters"]):
        raise SystemExit(f"{row['model']} has {first['parameters']} parameters, published {row['parameters']}")
    tokens = int(row["micro_batch"]) * int(row["sequence"]) * accumulate
    return {"predicted": tokens / seconds, "needs": second["needs"], "fits": second["needs"] <= second["there"]}


def rows(path=HERE / TABLE):
    return [ours(row) if "Model" in row else row for row in read_rows(path)]


def ours(row):
    renamed = {name: row[column].replace(",", "") for name, column in COLUMNS.items()}
    return {**renamed, "precision": f"{row['Precision']} {row['MP Mode']}"}


def published(row):
    return float(row["tokens_per_second_per_gpu"])


def is_compared(row):
    return "fp8" not in row["precision"]  # kernels of TransformerEngine


def part(row):
    return row["gpu"]


def named(row):
    return (f"{row['gpu']:10} {row['gpus']:>4} {row['model']:>5} {row['sequence']:>6} x {row['micro_batch']:>2} "
            f"x {row['accumulate']:>2}")  # fmt: skip


if __name__ == "__main__":
    compare("llm_foundry")
