"""Simulates torchtitan's pipelines of stages with FSDP2 and tensor parallelism on all ranks.

A pipeline rank has one stage (1F1B) or two (Interleaved1F1B). The number of micro-batches equals the number of ranks.
"""

import torch
import torch.distributed as dist
from compiled_llama import loss_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import loss_parallel
from torchtitan_programs import HOW, device

import shadowgraph as sg

SCHEDULES = {"1F1B": (Schedule1F1B, 1), "Interleaved1F1B": (ScheduleInterleaved1F1B, 2)}


def layers_of(all_layers, stages):
    """Returns the layers per stage as in torchtitan: the first stage has the fewest, later ones one more as needed."""
    few, more = divmod(all_layers, stages)
    middle = [few + (at < more) for at in range(stages - 2)]
    return [few, *middle, all_layers - few - sum(middle)]


def ranks_of(row, schedule):
    """Captures the ranks of one pipeline, each on behalf of identical ranks."""
    ranks = row.sizes["pp"]
    apart = row.gpus // ranks
    made, stages_of_rank = SCHEDULES[schedule]
    stages = ranks * stages_of_rank
    layers = layers_of(row.layers, stages)

    def make():
        mesh = row.mesh()
        parts = []
        for at in range(dist.get_rank() // apart, stages, ranks):
            model = row.model(mesh, layers[at], at == 0, at == stages - 1, gives_loss=False)
            parts.append(PipelineStage(row.sharded(model, mesh), at, stages, torch.device("cuda"),
                                       group=mesh["pp"].get_group()))  # fmt: skip
        return made(parts if stages_of_rank > 1 else parts[0], n_microbatches=ranks, loss_fn=loss_of)

    roles = {f"rank {at}": range(at * apart, (at + 1) * apart) for at in range(ranks)}
    with loss_parallel():  # also during shape inference of stages
        return sg.profile(make, row.ids, target=row.ids, world=row.gpus, ranks="all", roles=roles, **HOW,
                          spec=device(), interconnect="h100")  # fmt: skip
