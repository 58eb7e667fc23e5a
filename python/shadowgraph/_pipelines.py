"""What stages of torch.distributed.pipelining tell each other of their shapes.

Before its first step, a stage asks its neighbours for the shapes of activations and gradients. Nobody answers in a fake
process group. So they are found out in this process: all stages run once, one after the other, on fakes.
"""

import contextlib
from typing import ClassVar

import torch

from . import _inputs
from . import _shadowgraph as _C
from ._distributed import as_rank, ranks_of, world_size
from ._fake import fake
from ._libraries import when_imported
from ._schedules import PipelineRank, is_static, stages_of

__all__ = ["PipelineShapes", "found_out", "known_to_all", "pipeline_shapes"]

_STAGE = "torch.distributed.pipelining.stage"
_SCHEDULES = "torch.distributed.pipelining.schedules"


class PipelineShapes:
    """What every stage of a pipeline receives and gives, made by `pipeline_shapes`; prints as a table.

    Inside ``with shapes:`` the stages of torch.distributed.pipelining get their answers from it, on whichever rank.
    forward, backward: by stage, the message to the next stage and to the one before.
    """

    _active: ClassVar[list["PipelineShapes"]] = []

    def __init__(self, stages):
        self.stages = stages
        self.static = False  # the program gives all shapes itself
        self.forward: dict = {}
        self.backward: dict = {}

    def __enter__(self):
        self._active.append(self)
        return self

    def __exit__(self, *exception):
        self._active.remove(self)

    @classmethod
    def here(cls):
        return cls._active[-1] if cls._active else None

    def __str__(self):
        lines = [f"{'STAGE':>5}  {'SENDS FORWARD':<40}  SENDS BACKWARD"]
        for stage in range(self.stages):
            given, back = self.forward.get(stage), self.backward.get(stage)
            lines.append(
                f"{stage:>5}  {_text(given.forward_metas if given else ()):<40}  "
                f"{_text(back.backward_metas if back and stage > 0 else ())}".rstrip()
            )
        return "\n".join(lines)

    def __repr__(self):
        return f"<shadowgraph.PipelineShapes of {self.stages} stages>"

    def from_stage(self, stage, asked_by):
        """The message of a stage to a neighbour."""
        messages = self.forward if stage < asked_by else self.backward
        if stage not in messages:
            raise _C.DataDependentError(
                f"stage {asked_by} asks for the shapes of stage {stage}, which are not known: the pipeline had "
                f"{self.stages} stages when they were found out"
            )
        return messages[stage]

    def check(self, stage, message):
        """A stage must say the same when it is captured as when the shapes were found out."""
        known = (self.forward if hasattr(message, "forward_metas") else self.backward).get(stage)
        if known is not None and known != message:
            raise _C.Error(f"stage {stage} now gives {message}, and gave {known} when the shapes of its pipeline were "
                           "found out: give the inputs and the function of this program")  # fmt: skip


def _text(metas):
    names = {dtype: name for name, dtype in _inputs.DTYPES.items()}
    return ", ".join(f"{names.get(meta.dtype, meta.dtype)}[{','.join(map(str, meta.shape))}]" if meta else "none"
                     for meta in metas)  # fmt: skip


# ---- The handshake ---------------------------------------------------------------------------------------------------


def answer_handshakes():
    """Once a process: stages of a fake process group ask `PipelineShapes`; those of real groups go on as they are."""
    when_imported(_STAGE, _answer)  # seconds, so its users do that
    when_imported(_SCHEDULES, _answer_for_all_stages)


def _answer(module):
    stage = module.PipelineStage
    if hasattr(stage, "_shadowgraph_answers"):
        return
    answers = {"_send_meta": _send_meta, "_recv_meta": _recv_meta}
    for name, answer in answers.items():
        setattr(stage, name, _in_fake_groups(getattr(stage, name), answer))
    stage._shadowgraph_answers = True


def _answer_for_all_stages(module):
    """Since 2.15 a schedule asks for all its stages, by one collective, and connects them; 2.14 refuses fake groups."""
    schedule = module._PipelineSchedule
    if hasattr(schedule, "_shadowgraph_answers"):
        return
    name = "_initialize_pipeline_distributed_state"
    if hasattr(schedule, name):
        setattr(schedule, name, _in_fake_groups(getattr(schedule, name), _vote_of_all))
    elif hasattr(schedule, "_warmup_p2p"):  # until 2.14
        schedule._warmup_p2p = _in_fake_groups(schedule._warmup_p2p, _warm_up(schedule._warmup_p2p))
    schedule._shadowgraph_answers = True


def _in_fake_groups(original, answer):
    def ask(self, *args, **kwargs):
        return (original if world_size() is None else answer)(self, *args, **kwargs)

    return ask


def _send_meta(stage, message, to_stage):
    shapes = PipelineShapes.here()
    if shapes is not None:
        shapes.check(stage.stage_index, message)


def _recv_meta(stage, from_stage):
    shapes = PipelineShapes.here()
    if shapes is None:
        what = "outputs" if from_stage < stage.stage_index else "input gradients"
        raise _C.DataDependentError(
            f"PipelineStage {stage.stage_index} asks stage {from_stage} of another rank for the shapes of its {what}, "
            "and nothing is sent in a fake process group. Give sg.profile the function that makes the schedule; or go "
            "inside `with sg.pipeline_shapes(make_schedule, inputs, target=...):`; or give every PipelineStage its "
            "input_args= and output_args="
        )
    return shapes.from_stage(from_stage, stage.stage_index)


def _knows_shapes(stage, has_backward):
    shapes = PipelineShapes.here()
    # The other ranks run the same program, so they give shapes if this one does.
    return is_static(stage, has_backward) if shapes is None else shapes.static


def _vote_of_all(schedule, stages, has_backward, initialize_p2p):
    from torch.distributed.pipelining._utils import InferenceMode

    by_hand = [stage for stage in stages if hasattr(stage, "_user_meta")]
    static = all(_knows_shapes(stage, has_backward) for stage in by_hand)
    for stage in by_hand:
        stage._inference_mode = InferenceMode.STATIC if static else InferenceMode.DYNAMIC
    if initialize_p2p and stages[0].p2p_per_edge:
        from torch.distributed.pipelining._p2p import _build_p2p_edge_groups

        first = stages[0]
        edges, _ = _build_p2p_edge_groups(first._parent_group, first.stage_index_to_group_rank, first.device)
        for stage in stages:
            stage._p2p_edge_groups = edges


def _warm_up(original):
    def warm_up(schedule, stages, has_backward, p2p_done):
        if all(hasattr(stage, "_user_meta") for stage in stages):
            _vote_of_all(schedule, stages, has_backward, initialize_p2p=False)
        else:  # stages that ask nothing
            original(schedule, stages, has_backward, p2p_done)

    return warm_up


# ---- The shapes of a whole pipeline ----------------------------------------------------------------------------------


def pipeline_shapes(make, inputs=(), *, target=None, device="cuda", dtype=None, backward=None):
    """What the stages of a pipeline give each other, found out without recording: a `PipelineShapes`.

        with sg.fake_process_group(4, rank=1):
            with sg.pipeline_shapes(make_schedule, "i64[8,512]", target="i64[8,512]"), sg.Capture("cuda") as session:
                schedule = make_schedule()
                ...
                schedule.step()

    Inside `fake_process_group`. `sg.profile` of a function that makes a schedule does it by itself.

    make: a function without arguments that makes the schedule of the rank that it runs as, its groups and meshes too.
        It runs once as each rank of the pipeline.
    inputs, target: what the first and the last stage of a step get, as for `profile`.
    backward: whether the schedule runs backward; without one, if it has a loss function.

    Raises Error if the schedules of all ranks do not have each stage once.
    """
    if world_size() is None:
        raise _C.Error("pipeline_shapes() is of programs inside `with sg.fake_process_group(world, rank):`")
    if not callable(make):
        raise _C.Error(f"{type(make).__name__} makes no schedules: give a function that makes the schedule of the rank "
                       "that it runs as")  # fmt: skip
    args, kwargs = _inputs.as_call(inputs)
    with fake(device):
        return found_out(make, args, kwargs, target, device, dtype, backward)


def known_to_all(make, model, inputs, target, device, dtype, train, options):
    """The shapes of a pipeline, found out once for all ranks, as a context; nothing for other models."""
    if not isinstance(model, PipelineRank) or not model.asks_neighbours or PipelineShapes.here() is not None:
        return contextlib.nullcontext()
    args, kwargs = _inputs.as_call(inputs)
    with fake(device, **options):
        return found_out(make, args, kwargs, target, device, dtype, None if train else False)


def found_out(make, args, kwargs, target, device, dtype, backward=None):
    """`pipeline_shapes` inside a mode that records nothing."""
    args, kwargs, target = _inputs.on_device([list(args), kwargs, target], device, dtype)
    ranks = _schedules_of_all_ranks(make, device, dtype)
    owners = {stage.stage_index: (rank, schedule, stage) for rank, schedule in ranks for stage in stages_of(schedule)}
    shapes = PipelineShapes(stages_of(ranks[0][1])[0].num_stages)
    _check_owners(owners, shapes.stages, len(ranks))
    with shapes:
        _exchange(shapes, owners, args, kwargs, target, backward)
    return shapes


_EACH_TIME = "it must ask for the rank, and make its groups and meshes, each time that it runs"


def _schedules_of_all_ranks(make, device, dtype):
    """(rank, schedule) of the ranks of this rank's pipeline."""
    from . import _models

    def made(rank):
        with rank:
            try:
                model = _models.made(make, device, dtype)
            except (KeyError, RuntimeError, ValueError) as error:
                if isinstance(error, _C.Error):
                    raise
                raise _C.Error(f"as rank {rank.rank}, the function raised {type(error).__name__}: {error}\n"
                               f"{_EACH_TIME}") from error  # fmt: skip
        if not isinstance(model, PipelineRank):
            raise _C.Error(f"the function gave {type(model).__name__}, and no schedule of torch.distributed.pipelining")
        return rank, model.schedule

    first = made(as_rank(torch.distributed.get_rank()))
    with first[0]:
        group = stages_of(first[1])[0].group or torch.distributed.group.WORLD
        members = ranks_of(group.group_name)
    return [first, *(made(as_rank(member)) for member in members if member != first[0].rank)]


def _check_owners(owners, stages, ranks):
    missing = [index for index in range(stages) if index not in owners]
    if missing:
        raise _C.Error(
            f"as the {ranks} ranks of its pipeline, the function made stages {', '.join(map(str, sorted(owners)))} of "
            f"{stages}: {_EACH_TIME}"
        )


def _exchange(shapes, owners, args, kwargs, target, backward):
    """Runs all stages once, from the first to the last and back, and keeps what they send."""
    schedules = {id(schedule): schedule for _, schedule, _ in owners.values()}
    has_backward = any(schedule._has_backward for schedule in schedules.values()) if backward is None else backward
    by_hand = {index: owner for index, owner in owners.items() if hasattr(owner[2], "_user_meta")}
    if len(by_hand) < shapes.stages:
        return  # made by pipeline(): stages that torch.export has cut know their neighbours
    if all(is_static(stage, has_backward) for _, _, stage in owners.values()):
        shapes.static = True
        return
    for index in range(shapes.stages):
        rank, schedule, stage = owners[index]
        with rank:
            stage.has_backward = has_backward
            arg_chunks, kwarg_chunks = schedule._split_inputs(tuple(args) if stage.is_first else (), kwargs)
            given = arg_chunks[0] if stage.is_first else shapes.forward[index - 1]
            stage._forward_metadata_inference(given, kwarg_chunks[0], has_backward)
            shapes.forward[index] = _message(stage, "forward")
    for index in reversed(range(shapes.stages) if has_backward else ()):
        rank, schedule, stage = owners[index]
        with rank:
            stage._backward_metadata_inference(schedule._loss_fn, _first_chunk(schedule, target),
                                               shapes.backward.get(index + 1))  # fmt: skip
            shapes.backward[index] = _message(stage, "backward")


def _message(stage, direction):
    from torch.distributed.pipelining._utils import _StageBackwardMeta, _StageForwardMeta

    meta = stage._stage_meta
    if direction == "forward":
        return _StageForwardMeta(meta.outputs)
    return _StageBackwardMeta(meta.input_grads)


def _first_chunk(schedule, target):
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.microbatch import _split_tensor

    if target is None:
        raise _C.Error("the schedule has a loss function, which takes a target: give target=")
    if not hasattr(schedules, "_TARGET_CHUNK_SPEC"):  # 2.12
        return torch.tensor_split(target, schedule._n_microbatches)[0]
    return next(iter(_split_tensor(target, schedules._TARGET_CHUNK_SPEC, schedule._n_microbatches)))
