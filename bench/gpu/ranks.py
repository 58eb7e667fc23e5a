"""Distributed programs, one rank of each. Importing this adds them to programs.PROGRAMS.

Other ranks are simulated, on the GPU by torch's "fake" backend, whose collectives transfer nothing. Allocations are the
same as on a real rank.
"""

import torch
from programs import BF16, program, step_of, tokens
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.head = width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, key_heads * self.head, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.attention_norm, self.feed_norm = Norm(width), Norm(width)
        self.attention, self.feed = Attention(width, heads, key_heads), FeedForward(width, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Decoder(nn.Module):
    def __init__(self, layers=32, width=4096, heads=32, key_heads=8, hidden=14336, words=128256, *, checkpoints=False):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, words, bias=False)
        self.checkpoints = checkpoints

    def forward(self, ids):
        from torch.utils.checkpoint import checkpoint

        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(self.norm(x))


def loss_of_tokens(logits, ids):
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def sharded(decoder, mesh, *, reshard=True, reduce=torch.float32):
    """Applies FSDP2 with mixed precision, then materializes the shards on the device."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=reduce)
    for block in decoder.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(decoder, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    decoder.to_empty(device="cuda")
    with torch.no_grad():
        for each in decoder.parameters():
            each.to_local().normal_(0, 0.02)
    return decoder


def mesh_of(sizes, names):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cuda", sizes, mesh_dim_names=names)


def fsdp_step(batch, length, mesh, *, checkpoints=False, layers=32, fused=False, **how):
    with torch.device("meta"):
        model = Decoder(layers, checkpoints=checkpoints)
    sharded(model, mesh, **how)
    ids = tokens(batch, length)
    return step_of(model, lambda: loss_of_tokens(model(ids), ids), torch.optim.AdamW(model.parameters(), fused=fused))


@program(world=64)
def fsdp_8b_64():
    return fsdp_step(1, 4096, mesh_of((64,), ("dp",)), checkpoints=True)


@program(world=64)
def fsdp_8b_64_kept():
    return fsdp_step(1, 2048, mesh_of((64,), ("dp",)), reshard=False)


@program(world=64, rank=9)
def hsdp_8b_8x8():
    return fsdp_step(1, 4096, mesh_of((8, 8), ("replicas", "dp")), checkpoints=True, reduce=BF16)


@program(alone=True)
def ddp_1b():
    from torch.nn.parallel import DistributedDataParallel

    with torch.device("cuda"):
        model = Decoder(16, 2048, 32, 8, 8192, 32000)
    model = DistributedDataParallel(model, device_ids=[0])
    ids = tokens(4, 2048)
    return step_of(model, lambda: loss_of_tokens(model(ids), ids), torch.optim.AdamW(model.parameters()), autocast=BF16)


def apply_tensor_parallel(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})  # fmt: skip
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(), "feed_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed.w1": ColwiseParallel(), "feed.w3": ColwiseParallel(),
            "feed.w2": RowwiseParallel(output_layouts=Shard(1))})  # fmt: skip
    return model


def filled(model):
    """Materializes parameters, including DTensors, on the device."""
    model.to_empty(device="cuda")
    with torch.no_grad():
        for each in model.parameters():
            (each.to_local() if hasattr(each, "to_local") else each).normal_(0, 0.02)
    return model


@program(world=8, rank=3)
def tensor_parallel_8_of_70b():
    with torch.device("meta"):
        model = Decoder(8, 8192, 64, 8, 28672, 128256)
    model = filled(apply_tensor_parallel(model, mesh_of((8,), ("tp",))).to(BF16))
    ids = tokens(1, 4096)
    return step_of(model, lambda: loss_of_tokens(model(ids), ids), torch.optim.AdamW(model.parameters(), fused=True))


@program(world=64, rank=17)
def fsdp_8_x_tensor_8_of_70b():
    mesh = mesh_of((8, 8), ("dp", "tp"))
    with torch.device("meta"):
        model = Decoder(16, 8192, 64, 8, 28672, 128256)
    model = sharded(apply_tensor_parallel(model, mesh["tp"]), mesh["dp"])
    ids = tokens(1, 4096)
    return step_of(model, lambda: loss_of_tokens(model(ids), ids), torch.optim.AdamW(model.parameters(), fused=True))


class Stage(nn.Module):
    def __init__(self, layers, *, first, last):
        super().__init__()
        whole = Decoder(layers)
        self.blocks = whole.blocks
        self.embedding = whole.embedding if first else None
        self.norm, self.head = (whole.norm, whole.head) if last else (None, None)

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head else x


def pipeline_step(schedule, rank, ranks=4, layers=8, microbatches=8, length=2048):
    from torch.distributed.pipelining import PipelineStage

    with torch.device("cuda"):
        model = Stage(layers, first=rank == 0, last=rank == ranks - 1).to(BF16)
        ids = tokens(microbatches, length)
        x = ids[:1] if rank == 0 else torch.empty(1, length, 4096, dtype=BF16, requires_grad=True)
        y = torch.empty(1, length, 128256 if rank == ranks - 1 else 4096, dtype=BF16, requires_grad=True)
    stage = PipelineStage(model, rank, ranks, torch.device("cuda"), input_args=(x,), output_args=(y,))
    run = schedule(stage, microbatches, loss_fn=loss_of_tokens)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        run.step(*([ids] if rank == 0 else []), **({"target": ids, "losses": []} if rank == ranks - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def one_forward_one_backward(rank):
    from torch.distributed.pipelining import Schedule1F1B

    return pipeline_step(Schedule1F1B, rank)


@program(world=4, rank=0)
def pipeline_first():
    return one_forward_one_backward(0)


@program(world=4, rank=1)
def pipeline_second():
    return one_forward_one_backward(1)


@program(world=4, rank=3)
def pipeline_last():
    return one_forward_one_backward(3)


@program(world=4, rank=1)
def pipeline_gpipe():
    from torch.distributed.pipelining import ScheduleGPipe

    return pipeline_step(ScheduleGPipe, 1)
