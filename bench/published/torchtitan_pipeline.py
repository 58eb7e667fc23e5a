"""torchtitan's pipelines: each rank's stages under FSDP2 and tensor parallel, all ranks against each other.

A pipeline rank has one stage (1F1B) or two (Interleaved1F1B). As many micro-batches as ranks go through it.
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
    """How torchtitan cuts layers into stages: the first has the fewest, those after it one more until none is left."""
    few, more = divmod(all_layers, stages)
    middle = [few + (at < more) for at in range(stages - 2)]
    return [few, *middle, all_layers - few - sum(middle)]


def ranks_of(row, schedule):
    """Each rank of one pipeline stands for those that do the same."""
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
    with loss_parallel():  # also while stages tell each other their shapes
        return sg.profile(make, row.ids, target=row.ids, world=row.gpus, ranks="all", roles=roles, **HOW,
                          spec=device(), interconnect="h100")  # fmt: skip
