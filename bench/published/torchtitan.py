"""torchtitan's Llama 3 under FSDP2 on H100s of 96 GB: tokens a second, and reserved bytes, beside the prediction.

    PYTHONPATH=build/python python bench/published/torchtitan.py [--csv FILE] [--json FILE]

The rows in torchtitan.csv are facts of the benchmark pages of pytorch/torchtitan, December 2024 and June 2025.
"""

import contextlib
import functools
import json
import pathlib
import tempfile

import compiled_llama
import llama
import torch
from comparison import compare
from compiled_products import Products
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import shadowgraph as sg

TABLE, TITLE, UNIT = "torchtitan.csv", "torchtitan, Llama 3 under FSDP2", "tokens/s and GPU"
WORST = "The card is one of 500 W and HBM2e, whose clocks nobody published; they follow from its share of 700 W."
FEW, MORE = 4, 6  # layers
aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten._scaled_mm.default}
SAVED = {aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_flash_attention.default,
         torch.ops._c10d_functional.reduce_scatter_tensor.default, torch.ops.published.amax.default,
         *PRODUCTS}  # fmt: skip


@functools.cache
def device():
    """The H100 of these runs: 96 GB of HBM2e, 500 W. Clocks go with the power to about 1 / 2.5."""
    clocks = (500 / 700) ** (1 / 2.5)
    figures = {"version": 1, "base": "h100", "title": "NVIDIA H100 96 GB, 500 W", "memory_bytes": 102000000000,
               "bandwidth": 2.4e12,
               "gpu": {"stream": 2.2e12, "sustained": 0.86 * clocks}}  # fmt: skip
    path = pathlib.Path(tempfile.mkdtemp()) / "h100_96gb.json"
    path.write_text(json.dumps(figures))
    return str(path)


def every_other_product(kept_products):
    """Keeps what is dear to compute again, of products those at the given places of a block."""
    count = {True: 0, False: 0}

    def policy(context, operator, *arguments, **keywords):
        if operator in PRODUCTS:
            count[context.is_recompute] += 1
        kept = operator in SAVED and (operator not in PRODUCTS or count[context.is_recompute] in kept_products)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Row:
    """What a row's columns mean for its program."""

    def __init__(self, row):
        self.sizes = {axis: int(row[column]) for axis, column in (("pp", "pipeline"), ("dp", "shard"), ("cp", "context"),
                                                                   ("tp", "tensor")) if int(row[column]) > 1}  # fmt: skip
        self.size, self.tokens = row["model"], int(row["sequence"]) // int(row["context"])
        self.batch, self.compiled, self.float8 = int(row["micro_batch"]), row["compiled"] == "yes", row["precision"] == "fp8"
        self.selective, self.asynchronous = row["checkpoint"] == "selective", row["asynchronous_tensor"] == "yes"
        self.gpus = int(row["gpus"])

    def mesh(self):
        mesh = init_device_mesh("cuda", tuple(self.sizes.values()), mesh_dim_names=tuple(self.sizes))
        if "cp" in self.sizes:
            mesh[tuple(axis for axis in ("dp", "cp") if axis in self.sizes)]._flatten("fsdp")
        return mesh

    def checkpointed(self, layer):
        """After torch.compile, the last product is not kept, since backward does not ask for it."""
        kept = {1, 3, 5} if self.compiled else {1, 3, 5, 7}
        if self.compiled and "tp" in self.sizes:
            kept.add(4)  # its scattered sum is kept, so nobody computes it again
        context = {"context_fn": functools.partial(every_other_product, kept)} if self.selective else {}
        return checkpoint_wrapper(layer, preserve_rng_state=False, **context)

    def sharded(self, model, mesh):
        whole = {"mesh": mesh["fsdp" if "cp" in self.sizes else "dp"],
                 "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}  # fmt: skip
        of_layers = dict(whole)
        if self.float8:  # cast before they are gathered
            of_layers["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.float8_e4m3fn, reduce_dtype=torch.float32,
                                                          cast_forward_inputs=False)  # fmt: skip
        for i, layer in enumerate(model.layers):
            again = "pp" not in self.sizes and i < len(model.layers) - 1
            model.layers[i] = fully_shard(self.checkpointed(layer), reshard_after_forward=again, **of_layers)
        return fully_shard(model, **whole)

    def model(self, mesh, layers):
        if not self.compiled:
            return llama.Llama(self.size, self.tokens, layers)
        group = mesh["tp"].get_group() if "tp" in self.sizes else None
        how = Products(self.float8, group, self.asynchronous)
        return compiled_llama.Llama(self.size, self.tokens, layers, how, mesh["tp"] if group else None)

    def profile(self, layers):
        mesh = []

        def make():
            mesh[:] = [self.mesh()]
            return self.sharded(self.model(mesh[0], layers), mesh[0])

        def context(ids):
            stack = contextlib.ExitStack()
            if "tp" in self.sizes:
                stack.enter_context(loss_parallel())
            if "cp" in self.sizes:
                set_rotate_method("allgather")
                order = torch.empty(self.tokens * self.sizes["cp"], device="cuda")
                stack.enter_context(context_parallel(mesh[0]["cp"], buffers=[order], buffer_seq_dims=[0]))
            return stack

        with sg.fake_process_group(self.gpus):
            return sg.profile(make, f"i64[{self.batch},{self.tokens}]", loss=lambda loss: loss, context=context,
                              optimizer=torch.optim.AdamW, steady_state=True, spec=device(),
                              interconnect="h100")  # fmt: skip


def step(row, layers):
    report = Row(row).profile(layers).dict()
    live = {phase: peak["bytes"] for phase, peak in report["phase_peaks"].items()}
    beyond = report["device_memory"]["reserved_peak_bytes"] - max(live.values())
    return {"seconds": report["communication"]["overlap"]["seconds"], "beyond": beyond, **live}


def predicted(row):
    few, more = step(row, FEW), step(row, MORE)
    share = (llama.SIZES[row["model"]][1] - FEW) / (MORE - FEW)
    whole = {figure: few[figure] + (more[figure] - few[figure]) * share for figure in few}
    tokens = int(row["micro_batch"]) * int(row["sequence"])
    reserved = max(whole[phase] for phase in ("forward", "backward", "optimizer")) + more["beyond"]
    ranks = int(row["tensor"]) * int(row["context"]) * int(row["pipeline"])
    return {"predicted": tokens / whole["seconds"] / ranks, "reserved": reserved / 2**30}


def published(row):
    return float(row["tokens_per_second_per_gpu"])


def is_compared(row):
    return row["pipeline"] == "1"


def part(row):
    return f"{row['model']}, {row['gpu']}"


def named(row):
    how = [row["precision"]] + ["compiled"] * (row["compiled"] == "yes")
    axes = [f"{axis}{row[column]}" for axis, column in (("fsdp ", "shard"), ("tp ", "tensor"), ("cp ", "context"), ("pp ", "pipeline"))
            if row[column] != "1"]
    asynchronous = ", asynchronous" * (row["asynchronous_tensor"] == "yes")
    reserved = f", {row['reserved']:.1f} of {row['reserved_gib']} GiB" if row["reserved_gib"] else ""
    return (f"{row['model']:>4} on {row['gpus']:>3}, {' '.join(axes)}, {row['sequence']} x {row['micro_batch']}, "
            f"{row['checkpoint']}, {' '.join(how)}{asynchronous}{reserved}")


if __name__ == "__main__":
    compare("torchtitan")
