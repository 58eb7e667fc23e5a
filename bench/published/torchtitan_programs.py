"""Programs of torchtitan's rows: FSDP2, tensor and context parallelism, activation checkpoints and AdamW."""

import contextlib
import functools
import json
import pathlib
import tempfile

import compiled_llama
import llama
import torch
from compiled_products import Products
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import shadowgraph as sg

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten._scaled_mm.default}
SAVED = {aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_flash_attention.default,
         torch.ops._c10d_functional.reduce_scatter_tensor.default, torch.ops.published.amax.default,
         *PRODUCTS}  # fmt: skip


@functools.cache
def device():
    """Spec of the H100 of these runs: 96 GB of HBM2e, 500 W. Clocks scale with power to the 1 / 2.5.

    Float8 reaches 0.709 of its peak where bf16 reaches 0.803: 1402.6 and 794.5 TFLOP/s in the table of
    stas00/ml-engineering.
    """
    clocks = (500 / 700) ** (1 / 2.5)
    # Kernels of Inductor are represented by operators, which on "sm_90" would get the rates of eager kernels.
    figures = {"version": 1, "base": "h100", "architecture": "sm_90a", "title": "NVIDIA H100 96 GB, 500 W",
               "memory_bytes": 102000000000, "bandwidth": 2.4e12,
               "matmul": {"float8_e4m3fn": 1978.9e12 * 0.709 / 0.803},
               "gpu": {"stream": 2.2e12, "moved": 0.85, "sustained": 0.86 * clocks, "attention": 0.375 * clocks,
                       "attention_backward": 0.33 * clocks}}  # fmt: skip
    path = pathlib.Path(tempfile.mkdtemp()) / "h100_96gb.json"
    path.write_text(json.dumps(figures))
    return str(path)


class LocalAdamW(torch.optim.AdamW):
    """AdamW on local tensors: the same kernels as AdamW on DTensors, but faster to capture."""

    def __init__(self, parameters):
        self.whole = list(parameters)
        super().__init__([parameter.detach().to_local() for parameter in self.whole])

    def step(self):
        parts = self.param_groups[0]["params"]
        for whole, part in zip(self.whole, parts, strict=True):
            part.grad = whole.grad.to_local()
        super().step()
        for part in parts:
            part.grad = None


def every_other_product(kept_products):
    """Selective checkpoint policy: saves expensive operators, and matrix products at the given positions of a block."""
    count = {True: 0, False: 0}

    def policy(context, operator, *arguments, **keywords):
        if operator in PRODUCTS:
            count[context.is_recompute] += 1
        kept = operator in SAVED and (operator not in PRODUCTS or count[context.is_recompute] in kept_products)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# Options for captures of full steps, without unused information.
HOW = {"optimizer": LocalAdamW, "device": "cuda", "steady_state": True,
       "options": {"guards": False, "source_lines": False}}  # fmt: skip


class Row:
    """Program options from the columns of a row."""

    def __init__(self, row):
        columns = {"pp": "pipeline", "dp": "shard", "cp": "context", "tp": "tensor"}
        self.sizes = {axis: int(row[column]) for axis, column in columns.items() if int(row[column]) > 1}
        self.size, self.layers, self.gpus = row["model"], llama.SIZES[row["model"]][1], int(row["gpus"])
        self.tokens = int(row["sequence"]) // int(row["context"])
        self.ids = f"i64[{row['micro_batch']},{self.tokens}]"
        self.compiled, self.float8 = row["compiled"] == "yes", row["precision"] == "fp8"
        self.selective, self.asynchronous = row["checkpoint"] == "selective", row["asynchronous_tensor"] == "yes"

    def tokens_of_gpu(self, row):
        """Tokens per GPU and step."""
        return int(row["micro_batch"]) * self.tokens / self.sizes.get("tp", 1) / self.sizes.get("pp", 1)

    def mesh(self):
        mesh = init_device_mesh("cuda", tuple(self.sizes.values()), mesh_dim_names=tuple(self.sizes))
        if "cp" in self.sizes:
            mesh[tuple(axis for axis in ("dp", "cp") if axis in self.sizes)]._flatten("fsdp")
        return mesh

    def checkpointed(self, layer):
        """With torch.compile, the last matrix product is not saved, since backward does not use it."""
        kept = {1, 3, 5} if self.compiled else {1, 3, 5, 7}
        if self.compiled and "tp" in self.sizes:
            kept.add(4)  # its reduce-scattered sum is saved, so it is not recomputed
        context = {"context_fn": functools.partial(every_other_product, kept)} if self.selective else {}
        return checkpoint_wrapper(layer, preserve_rng_state=False, **context)

    def sharded(self, model, mesh):
        whole = {"mesh": mesh["fsdp" if "cp" in self.sizes else "dp"],
                 "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}  # fmt: skip
        of_layers = dict(whole)
        if self.float8:  # cast before the all-gather
            of_layers["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.float8_e4m3fn, reduce_dtype=torch.float32,
                                                          cast_forward_inputs=False)  # fmt: skip
        for i, layer in enumerate(model.layers):
            again = "pp" not in self.sizes and i < len(model.layers) - 1
            model.layers[i] = fully_shard(self.checkpointed(layer), reshard_after_forward=again, **of_layers)
        return fully_shard(model, **whole)

    def model(self, mesh, layers, *ends, **given):
        if not self.compiled:
            return llama.Llama(self.size, self.tokens, layers)
        tp = mesh["tp"] if "tp" in self.sizes else None
        how = Products(self.float8, tp and tp.get_group(), self.asynchronous)
        return compiled_llama.Llama(self.size, self.tokens, layers, how, tp, *ends, **given)

    def profile(self):
        """Captures a step of one rank. For pipelines, see torchtitan_pipeline.py."""
        mesh = []

        def make():
            mesh[:] = [self.mesh()]
            return self.sharded(self.model(mesh[0], self.layers), mesh[0])

        def context(ids):
            stack = contextlib.ExitStack()
            if "tp" in self.sizes:
                stack.enter_context(loss_parallel())
            if "cp" in self.sizes:  # tokens are sharded already; their values do not affect costs
                set_rotate_method("allgather")
                order = torch.empty(self.tokens * self.sizes["cp"], device="cuda")
                stack.enter_context(context_parallel(mesh[0]["cp"], buffers=[order], buffer_seq_dims=[0]))
            return stack

        with sg.fake_process_group(self.gpus):
            return sg.profile(make, self.ids, loss=lambda loss: loss, context=context, **HOW, spec=device(),
                              interconnect="h100")  # fmt: skip
