"""Pipelines of one captured step, simulated on all ranks."""

from collections.abc import Iterable
from typing import Any

from . import _keywords
from . import _shadowgraph as _C
from ._shadowgraph import Graph, PipelineRun, PipelineSchedule

__all__ = ["pipeline"]


def pipeline(step: Graph, schedule: str | PipelineSchedule = "1f1b", *, ranks: int | None = None,
             microbatches: int | None = None, stages_per_rank: int | None = None, cuts: Iterable[str] = (),
             spec: str = "", interconnect: str = "", allocator: str = "", **how: Any) -> PipelineRun:  # fmt: skip
    """Cuts a training step of one micro-batch into stages and runs all ranks of a schedule against each other.

        step = sg.capture_training_step(make, "i64[1,2048]", loss=".loss", optimizer=torch.optim.AdamW, device="cuda")
        run = sg.pipeline(step, "1f1b", ranks=4, microbatches=16)
        print(run)                                     # each rank's seconds, waits and bytes, and the worst rank
        run.seconds, run.bubble, run.dict()["ranks"][0]["peak_bytes"]

    schedule: one of PipelineSchedule.names(), with `ranks`, `microbatches` and where it is open `stages_per_rank`; or a
    PipelineSchedule, of a CSV for example.
    cuts: modules at which the second stage begins, the third, ...; by default where the slowest stage is quickest.

    run.piece(step, 2, "I") is the input gradient of stage 2 as a graph, with names of what goes in and comes out.

    Raises Error for graphs that are no training steps, cuts that are no modules, sizes that do not fit the schedule.
    """
    if isinstance(schedule, str):
        if ranks is None or microbatches is None:
            raise _C.Error(f"schedule {schedule!r} needs ranks= and microbatches=")
        schedule = PipelineSchedule(schedule, ranks, microbatches, stages_per_rank)
    elif any(given is not None for given in (ranks, microbatches, stages_per_rank)):
        raise _C.Error("a PipelineSchedule has its ranks, micro-batches and stages: give the name of one with others")
    return PipelineRun(step, schedule, list(cuts), spec, interconnect, allocator, how)


_keywords.list_options(pipeline)
