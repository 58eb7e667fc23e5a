"""Distributed training programs as users write them, and a script that runs one real rank of them.

    python parallel_programs.py RANK SIZE STORE COUNTING_ALLOCATOR NAME...

runs two steps of each over gloo and prints a line of JSON: the peak of live bytes at the end of an operator in the
second step, and its collectives with the bytes they transfer. test_parallel_programs.py predicts both.
"""

import contextlib
import ctypes
import functools
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
import types

import flash_on_cpu
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rank_processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 64, 4, 3, 96, 4, 32
EXPERTS, CHOICES = 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        heads = [part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                 for part in (self.query, self.key, self.value)]  # fmt: skip
        return self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Experts(nn.Module):
    """A mixture of experts with top-2 routing; tokens are sent to the ranks of their experts and back."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(FeedForward() for _ in range(EXPERTS // size))
        # Routing is balanced, but the program learns that only at run time.
        turns = (torch.arange(BATCH * LENGTH)[:, None] + torch.arange(CHOICES)) % EXPERTS
        self.register_buffer("turns", torch.zeros(BATCH * LENGTH, EXPERTS).scatter(1, turns, 2.0))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        chosen = (scores + self.turns).topk(CHOICES).indices
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, received = (each.view(self.size, -1).sum(1).tolist() for each in (counts, arriving))
        order = chosen.flatten().argsort(stable=True)
        mine = funcol.all_to_all_single_autograd(tokens[order // CHOICES], received, sent, dist.group.WORLD)
        pieces = mine.split(arriving.tolist())
        done = [None] * len(pieces)
        for i, expert in enumerate(self.experts):
            of_expert = pieces[i :: len(self.experts)]
            done[i :: len(self.experts)] = expert(torch.cat(of_expert)).split([len(each) for each in of_expert])
        back = funcol.all_to_all_single_autograd(torch.cat(done), sent, received, dist.group.WORLD)
        weights = scores.gather(1, chosen).flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOICES, back * weights).view_as(x)


class Decoder(nn.Module):
    def __init__(self, checkpoints=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.checkpoints = checkpoints

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = self._checkpoint(block, x) if self.checkpoints else block(x)
        return self.head(self.norm(x))

    @staticmethod
    def _checkpoint(block, x):
        # The CPU generator state that a checkpoint saves is not a tensor of the program.
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)


def loss_of(logits):
    logits = logits.flatten(0, 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


# ---- Programs: functions of the number of ranks and the kind of device


def ddp(size, device):
    return DistributedDataParallel(Decoder(), bucket_cap_mb=0.1)


def fsdp(size, device, checkpoints=False, **options):
    mesh = init_device_mesh(device, (size,), mesh_dim_names=("fsdp",))
    model = Decoder(checkpoints)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def hsdp(size, device):
    mesh = init_device_mesh(device, (2, size // 2), mesh_dim_names=("replicas", "shards"))
    model = Decoder()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(blocks, mesh):
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {"attention.out": RowwiseParallel(), "feed_forward.up": ColwiseParallel(),
             "feed_forward.down": RowwiseParallel()}  # fmt: skip
    for block in blocks:
        parallelize_module(block, mesh, plan)


def tp(size, device):
    model = Decoder()
    tensor_parallel(model.blocks, init_device_mesh(device, (size,), mesh_dim_names=("tp",)))
    return model


def sequence_parallel(size, device):
    mesh = init_device_mesh(device, (size,), mesh_dim_names=("tp",))
    model = Decoder()
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}  # fmt: skip
    parallelize_module(model, mesh, plan)
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    of_block = {"attention_norm": SequenceParallel(), "attention": gathered, "feed_forward_norm": SequenceParallel(),
                "feed_forward": gathered, "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=Shard(1))}  # fmt: skip
    of_block |= {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    for block in model.blocks:
        parallelize_module(block, mesh, of_block)
    return model


def fsdp_tp(size, device):
    mesh = init_device_mesh(device, (2, size // 2), mesh_dim_names=("fsdp", "tp"))
    model = Decoder()
    tensor_parallel(model.blocks, mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["fsdp"])
    return fully_shard(model, mesh=mesh["fsdp"])


def expert_parallel(size, device):
    model = Decoder()
    for block in model.blocks:
        block.feed_forward = Experts(size)
    return model


def context_parallel(size, device, rotation):
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method(rotation)
    return fsdp(size, device)


class ShardedStates(torch.optim.Optimizer):
    """ZeRO 1 as in Megatron: parameters and gradients are packed into two buffers; each rank updates its shard in
    float32."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(parameters, {})
        size, rank = dist.get_world_size(), dist.get_rank()
        length = size * -(-sum(parameter.numel() for parameter in parameters) // size)
        self.values = torch.zeros(length, dtype=parameters[0].dtype, device=parameters[0].device)
        self.gradients = torch.zeros(length, device=parameters[0].device)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            self.values[begin:end].copy_(parameter.detach().flatten())
            parameter.data = self.values[begin:end].view_as(parameter)
            parameter.main_grad = self.gradients[begin:end].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self._add)
            begin = end
        part = length // size
        self.own_values = self.values[rank * part : (rank + 1) * part]
        self.own_gradients = self.gradients[rank * part : (rank + 1) * part]
        self.own = self.own_values.detach().float().clone()
        self.inner = torch.optim.AdamW([self.own])

    @staticmethod
    def _add(parameter):
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    @torch.no_grad()
    def step(self):
        dist.reduce_scatter_tensor(self.own_gradients, self.gradients)
        self.own.grad = self.own_gradients
        self.inner.step()
        self.own.grad = None
        self.own_values.copy_(self.own)
        dist.all_gather_into_tensor(self.values, self.own_values)
        self.gradients.zero_()


PROGRAMS = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp without reshard": functools.partial(fsdp, reshard_after_forward=False),
    "fsdp in bf16": functools.partial(
        fsdp, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
    "fsdp with checkpoints": functools.partial(fsdp, checkpoints=True),
    "hsdp": hsdp,
    "tp": tp,
    "tp with sequence parallel": sequence_parallel,
    "fsdp x tp": fsdp_tp,
    "expert parallel": expert_parallel,
    "context parallel by all_gather": functools.partial(context_parallel, rotation="allgather"),
    "context parallel by all_to_all": functools.partial(context_parallel, rotation="alltoall"),
    "zero 1": ddp,
    "zero 1 in buffers": lambda size, device: Decoder().to(torch.bfloat16),
}


def optimizer_of(name):
    """Avoids foreach kernels where they would get lists that mix DTensors and plain tensors, which they refuse."""
    if name == "zero 1":
        return functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
    if name == "zero 1 in buffers":
        return ShardedStates
    return functools.partial(torch.optim.AdamW, foreach=not name.startswith("tp"))


@contextlib.contextmanager
def _in_context_parallel(ids):
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh(ids.device.type, (dist.get_world_size(),))
    with flash_on_cpu.chosen(), context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]):
        yield


def context_of(name):
    """Returns the context in which forward, loss and backward run, as a function of the inputs."""
    return _in_context_parallel if name.startswith("context parallel") else lambda ids: contextlib.nullcontext()


WAIT = "_c10d_functional::wait_tensor"  # a collective that has completed is not waited for again


def payload(tensors):
    """Bytes of a tensor, or of all tensors in a nested list."""
    return sum(map(payload, tensors)) if isinstance(tensors, (list, tuple)) else tensors.nbytes


class Watch(TorchDispatchMode):
    """Records the peak of live bytes at the end of non-communicating operators, and the collectives that ran."""

    def __init__(self, live):
        super().__init__()
        self.live, self.most, self.at, self.collectives = live, 0, "", []
        self.gloo_works = False  # gloo's thread still splits and copies received data

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in kinds):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        communicates = func.namespace in ("c10d", "_c10d_functional")
        self.gloo_works = communicates or (self.gloo_works and name in ("aten::split", "aten::copy_"))
        if self.gloo_works:
            self._wait_for_gloo()
        if communicates and name != WAIT:
            self.collectives.append([name, payload(args[0])])
        if not self.gloo_works and (now := self.live()) > self.most:
            self.most, self.at = now, name
        return result

    def seen(self, before):
        return {"peak": self.most - before, "at": self.at, "collectives": self.collectives}

    def _wait_for_gloo(self):
        """Waits until gloo's thread has freed its buffers: until live bytes are stable for 20 ms."""
        before, same = self.live(), 0
        while same < 4:
            time.sleep(0.005)
            now = self.live()
            before, same = now, same + 1 if now == before else 0


def second_step(name, size, live):
    """Returns memory and collectives of the second step of a program, as JSON."""
    before = live()
    model = PROGRAMS[name](size, "cpu")
    optimizer = optimizer_of(name)(model.parameters())
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)

    def step():
        with context_of(name)(ids):
            loss = loss_of(model(ids))
            loss.backward()
        optimizer.step()

    return watched(step, optimizer, live, before)


def watched(step, optimizer, live, before):
    """Measures the second of two steps: peak bytes above the initial ones, and collectives; "first" has the first
    step's."""
    with Watch(live) as first:
        step()
    optimizer.zero_grad()
    with Watch(live) as second:
        step()
    return {**second.seen(before), "first": first.seen(before)}


def run(rank, size, store, library, names, second_step):
    live = count_with(library)
    flash_on_cpu.register()
    done = {}
    for name in names:
        dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(f"{store}.{name}", size))
        done[name] = second_step(name, size, live)
        dist.destroy_process_group()
        gc.collect()
    print(json.dumps(done), flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts


def counting_library(folder):
    """Compiles counting_allocator.cpp."""
    library, torch_folder = folder / "libcounting.so", torch.__path__[0]
    source = pathlib.Path(__file__).with_name("counting_allocator.cpp")
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", source, "-o", library, "-isystem",
                    f"{torch_folder}/include", "-L", f"{torch_folder}/lib", "-lc10"], check=True)  # fmt: skip
    return library


def count_with(library):
    """Starts counting CPU allocations of this thread; returns a function that gives the live bytes."""
    counting = ctypes.CDLL(library)
    counting.live_bytes.restype = ctypes.c_int64
    counting.install()
    return counting.live_bytes


class RealRanks(dict[str, list]):
    """Results of real ranks by program name; `names` lists programs by number of ranks."""

    def __init__(self, folder, program, names):
        super().__init__()
        self._folder, self._program, self._runs = folder, program, 0
        self._library = counting_library(folder)
        self._sizes = {name: size for size, of_size in names.items() for name in of_size}
        for size, of_size in names.items():
            self._run(size, of_size)

    def _run(self, size, names):
        self._runs += 1
        self.update({name: [] for name in names})
        for rank in run_ranks(self._program, size, self._folder / f"store{self._runs}", self._library, *names):
            for name, what in rank.items():
                self[name].append(what)

    def agree(self, name, check):
        """Calls check(ranks of the program). On a busy machine gloo's threads may free late, which raises the peak,
        so the program is rerun up to twice before the check fails."""
        for runs_left in (2, 1, 0):
            try:
                return check(self[name])
            except AssertionError:
                if runs_left == 0:
                    raise
                self._run(self._sizes[name], [name])


def collectives_of(graph):
    """Returns the collectives of a graph in the form that Watch records."""
    calls = ((node.target.split(".")[0], node) for node in graph)
    return [[name, payload(node.args[0])] for name, node in calls
            if name.startswith(("c10d::", "_c10d_functional::")) and name != WAIT]  # fmt: skip


def main(second_step):
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:], second_step)


if __name__ == "__main__":
    main(second_step)
