"""torchtitan's Llama 3 under FSDP2 on H100s of 96 GB: tokens a second, and reserved bytes, beside the prediction.

    PYTHONPATH=build/python python bench/published/torchtitan.py [--csv FILE] [--json FILE]

The rows in torchtitan.csv are facts of the benchmark pages of pytorch/torchtitan, December 2024. Rows that were
compiled, or in float8, are there and not compared: Inductor's kernels and torchao's casts are not eager PyTorch's.
"""

import functools
import json
import pathlib
import tempfile

import torch
from comparison import compare
from llama import SIZES, Llama
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import shadowgraph as sg

TABLE, TITLE, UNIT = "torchtitan.csv", "torchtitan, Llama 3 under FSDP2", "tokens/s and GPU"
WORST = "The card is one of 500 W and HBM2e, whose clocks nobody published; they follow from its share of 700 W."
FEW, MORE = 4, 6  # layers
aten = torch.ops.aten
SAVED = {aten.mm.default, aten._scaled_dot_product_efficient_attention.default,
         aten._scaled_dot_product_flash_attention.default,
         torch.ops._c10d_functional.reduce_scatter_tensor.default}  # fmt: skip


@functools.cache
def device():
    """The H100 of these runs: 96 GB of HBM2e, 500 W. Clocks go with the power to about 1 / 2.5."""
    figures = {"version": 1, "base": "h100", "title": "NVIDIA H100 96 GB, 500 W", "memory_bytes": 102000000000,
               "bandwidth": 2.4e12,
               "gpu": {"stream": 2.2e12, "sustained": 0.86 * (500 / 700) ** (1 / 2.5)}}  # fmt: skip
    path = pathlib.Path(tempfile.mkdtemp()) / "h100_96gb.json"
    path.write_text(json.dumps(figures))
    return str(path)


def every_other_product():
    """Keeps what is dear to compute again, of products every other one."""
    count = {True: 0, False: 0}

    def policy(context, operator, *arguments, **keywords):
        if operator == aten.mm.default:
            count[context.is_recompute] += 1
        kept = operator in SAVED and not (operator == aten.mm.default and count[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def made(row, layers):
    def make():
        mesh = init_device_mesh("cuda", (int(row["shard"]),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        how = {"mesh": mesh, "mp_policy": policy}
        model = Llama(row["model"], int(row["sequence"]), layers)
        context = {"context_fn": every_other_product} if row["checkpoint"] == "selective" else {}
        for i, layer in enumerate(model.layers):
            model.layers[i] = fully_shard(checkpoint_wrapper(layer, preserve_rng_state=False, **context), **how)
        return fully_shard(model, **how)

    return make


def step(row, layers):
    ids = f"i64[{row['micro_batch']},{row['sequence']}]"
    with sg.fake_process_group(int(row["gpus"])):
        report = sg.profile(made(row, layers), ids, loss=lambda loss: loss, optimizer=torch.optim.AdamW,
                            steady_state=True, spec=device(), interconnect="h100").dict()  # fmt: skip
    live = {phase: peak["bytes"] for phase, peak in report["phase_peaks"].items()}
    beyond = report["device_memory"]["reserved_peak_bytes"] - max(live.values())
    return {"seconds": report["communication"]["overlap"]["seconds"], "beyond": beyond, **live}


def predicted(row):
    few, more = step(row, FEW), step(row, MORE)
    share = (SIZES[row["model"]][1] - FEW) / (MORE - FEW)
    whole = {figure: few[figure] + (more[figure] - few[figure]) * share for figure in few}
    tokens = int(row["micro_batch"]) * int(row["sequence"])
    reserved = max(whole[phase] for phase in ("forward", "backward", "optimizer")) + more["beyond"]
    return {"predicted": tokens / whole["seconds"], "reserved": reserved / 2**30}


def published(row):
    return float(row["tokens_per_second_per_gpu"])


def is_compared(row):
    return row["compiled"] == "no" and row["precision"] == "bf16" and row["tensor"] == row["pipeline"] == "1"


def part(row):
    return f"{row['model']}, {row['gpu']}"


def named(row):
    return f"{row['model']:>4} on {row['gpus']:>3}, {row['sequence']} x {row['micro_batch']}, {row['checkpoint']}"


if __name__ == "__main__":
    compare("torchtitan")
