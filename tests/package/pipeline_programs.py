"""Programs that use torch.distributed.pipelining as users write them, and a script that runs one real rank of them.

The command line is that of parallel_programs.py. test_pipelines.py predicts memory and transfers of the second step.
"""

import functools
import gc
import tempfile

import torch
import torch.distributed as dist
from parallel_programs import BATCH, LENGTH, WIDTH, WORDS, Block, Decoder, main, tensor_parallel, watched
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline, schedules
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 8
ALL = 2 * BATCH  # sequences per step


class Part(nn.Module):
    """A stage of a decoder: the first has the embedding, the last the head."""

    def __init__(self, index, parts):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.block = Block()
        last = index == parts - 1
        self.norm, self.head = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)) if last else (None, None)

    def forward(self, x):
        x = self.block(x if self.embedding is None else self.embedding(x))
        return x if self.head is None else self.head(self.norm(x))


class Masked(nn.Module):
    """Returns a tensor and a mask; no gradient flows back to the mask."""

    def __init__(self, index):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        x = self.layer(x if self.embedding is None else self.embedding(x))
        x = x if mask is None else x * mask
        return x, x > 0


def loss_of(logits, labels):
    logits = logits[0] if isinstance(logits, tuple) else logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make(name, device, style="loop", parts=1, share=None, given=False):
    """Returns this rank's schedule, from a schedule class of torch or a CSV file.

    style, parts: how stages are assigned to ranks, and the number of stages per rank. share: how two ranks share a
    stage. given: each stage is given its shapes explicitly.
    """
    size = dist.get_world_size() // (1 if share is None else 2)
    mesh = init_device_mesh(device, (size, dist.get_world_size() // size), mesh_dim_names=("pp", "inner"))
    rank, group = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
    numbers = [rank, 2 * size - 1 - rank] if style == "v" else [rank + size * part for part in range(parts)]
    share = share if share is None else functools.partial(share, mesh=mesh["inner"])
    stages = [_stage(number, size * len(numbers), device, group, share, given) for number in numbers]
    if name.startswith("csv of "):
        schedule = schedules._PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=loss_of)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            getattr(schedules, name.removeprefix("csv of "))(stages, MICRO_BATCHES)._dump_csv(file.name, "compute_only")
            schedule._load_csv(file.name)
        return schedule
    kind = getattr(schedules, name)
    many = issubclass(kind, schedules.PipelineScheduleMulti)
    return kind(stages if many else stages[0], MICRO_BATCHES, loss_fn=loss_of)


def fsdp(module, mesh):
    fully_shard(module.block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def ddp(module, mesh):
    return DistributedDataParallel(module, process_group=mesh.get_group())


def tp(module, mesh):
    tensor_parallel([module.block], mesh)
    return module


def _stage(number, count, device, group, share=None, given=False):
    module = Part(number, count).to(device)
    if share is not None:
        module = share(module)
    shapes = {}
    if given:
        of_a_chunk = (ALL // MICRO_BATCHES, LENGTH)
        inner = torch.empty(*of_a_chunk, WIDTH, device=device, requires_grad=True)
        shapes["input_args"] = torch.empty(of_a_chunk, dtype=torch.int64, device=device) if number == 0 else inner
        shapes["output_args"] = torch.empty(*of_a_chunk, WORDS, device=device) if number == count - 1 else inner
    return PipelineStage(module, number, count, torch.device(device), group=group, **shapes)


def split(device):
    """Splits a whole model with torch.export."""
    ids = torch.zeros(ALL // MICRO_BATCHES, LENGTH, dtype=torch.int64, device=device)
    cuts = dict.fromkeys(("blocks.1", "blocks.2", "norm"), SplitPoint.BEGINNING)
    whole = pipeline(Decoder().to(device), mb_args=(ids,), split_spec=cuts)
    stage = whole.build_stage(dist.get_rank(), torch.device(device))
    return schedules.Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)


def two_tensors(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Masked(rank).to(device), rank, size, torch.device(device))
    return schedules.Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)


_PROGRAMS = {
    "gpipe": ("ScheduleGPipe", {}),
    "1f1b": ("Schedule1F1B", {}),
    "1f1b with shapes given": ("Schedule1F1B", {"given": True}),
    "1f1b x fsdp": ("Schedule1F1B", {"share": fsdp}),
    "1f1b x ddp": ("Schedule1F1B", {"share": ddp}),
    "zbv x tp": ("ScheduleZBVZeroBubble", {"style": "v", "share": tp}),
    "interleaved": ("ScheduleInterleaved1F1B", {"parts": 2}),
    "looped bfs": ("ScheduleLoopedBFS", {"parts": 2}),
    "zero bubble": ("ScheduleInterleavedZeroBubble", {"parts": 2}),
    "zbv": ("ScheduleZBVZeroBubble", {"style": "v"}),
    "dualpipev": ("ScheduleDualPipeV", {"style": "v"}),
    "csv": ("csv of ScheduleInterleaved1F1B", {"parts": 2}),
    "interleaved x fsdp": ("ScheduleInterleaved1F1B", {"parts": 2, "share": fsdp}),
}
PROGRAMS = {name: functools.partial(make, schedule, **how) for name, (schedule, how) in _PROGRAMS.items()}
PROGRAMS["split by export"] = split
# Up to torch 2.12, stages refuse inputs that receive no gradient.
MASKS_ARE_SENT = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
if MASKS_ARE_SENT:
    PROGRAMS["two tensors"] = two_tensors


def optimizer_of(name):
    """Avoids foreach kernels where they would get lists that mix DTensors and plain tensors, which they refuse."""
    return functools.partial(torch.optim.AdamW, foreach=not name.endswith("tp"))


def modules_of(schedule):
    stages = schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]
    return {stage.stage_index: stage.submod for stage in stages}


def second_step(name, size, live):
    """Returns memory and collectives of the second step of a program, as JSON."""
    before = live()
    schedule = PROGRAMS[name]("cpu")
    gc.collect()  # torch.export leaves reference cycles
    modules = modules_of(schedule)
    optimizer = optimizer_of(name)([parameter for module in modules.values() for parameter in module.parameters()])
    last = max(modules) == schedule._num_stages - 1
    given = [torch.zeros(ALL, LENGTH, dtype=torch.int64)] if 0 in modules else []
    target = torch.zeros(ALL, LENGTH, dtype=torch.int64) if last else None

    def step():
        losses = []
        schedule.step(*given, target=target, losses=losses)
        optimizer.step()

    return watched(step, optimizer, live, before)


if __name__ == "__main__":
    main(second_step)
