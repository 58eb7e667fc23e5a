"""Shape inference for torch.distributed.pipelining in fake process groups.

Before its first step, a stage receives the shapes of activations and gradients from its neighbors. A fake process group
sends nothing, so the shapes are inferred in this process by running all stages once in sequence on fake tensors.
"""

import contextlib
from typing import ClassVar

import torch

from . import _inputs
from . import _shadowgraph as _C
from ._distributed import as_rank, ranks_of, world_size
from ._fake import fake
from ._libraries import when_imported
from ._schedules import PipelineRank, is_schedule, is_static, stages_of

_STAGE = "torch.distributed.pipelining.stage"
_SCHEDULES = "torch.distributed.pipelining.schedules"


class PipelineShapes(_C.Cleanup):
    """Shapes that the stages of a pipeline exchange, returned by `pipeline_shapes`; prints as a table.

    Inside ``with shapes:`` stages of torch.distributed.pipelining use these shapes, on any rank.

    forward, backward: {stage: message} to the next and to the previous stage.
    """

    _active: ClassVar[list["PipelineShapes"]] = []

    def __init__(self, stages):
        super().__init__()
        self.stages = stages
        self.static = False  # the program specifies all shapes
        self.forward: dict = {}
        self.backward: dict = {}

    def _enter(self):
        self.on_exit(setattr, PipelineShapes, "_active", self._active)
        PipelineShapes._active = [*self._active, self]

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

    def from_stage(self, stage, receiver):
        """Returns the message of a stage to its neighbor `receiver`."""
        messages = self.forward if stage < receiver else self.backward
        if stage not in messages:
            raise _C.DataDependentError(
                f"stage {receiver} requires the shapes of stage {stage}, which are unknown; they were inferred for a "
                f"pipeline of {self.stages} stages"
            )
        return messages[stage]

    def check(self, stage, message):
        """Raises Error if the message of a stage differs from the inferred one."""
        known = (self.forward if hasattr(message, "forward_metas") else self.backward).get(stage)
        if known is not None and known != message:
            raise _C.Error(f"stage {stage} sends {message}, but {known} was inferred for its pipeline; pass the same "
                           "function and inputs to pipeline_shapes()")  # fmt: skip


def _text(metas):
    names = {dtype: name for name, dtype in _inputs.DTYPES.items()}
    return ", ".join(f"{names.get(meta.dtype, meta.dtype)}[{','.join(map(str, meta.shape))}]" if meta else "none"
                     for meta in metas)  # fmt: skip


def patch_handshakes():
    """Lets stages in fake process groups use `PipelineShapes`. Called once per process; real groups are unaffected."""
    when_imported(_STAGE, _patch_stage)  # not imported here, which takes seconds
    when_imported(_SCHEDULES, _patch_schedule)


def _patch_stage(module):
    stage = module.PipelineStage
    if not hasattr(stage, "_shadowgraph_patched"):
        stage._send_meta = _in_fake_groups(stage._send_meta, _send_meta)
        stage._recv_meta = _in_fake_groups(stage._recv_meta, _recv_meta)
        stage._shadowgraph_patched = True


def _patch_schedule(module):
    """Patches the handshake of all stages: since torch 2.15 one collective of the schedule, before that _warmup_p2p."""
    schedule = module._PipelineSchedule
    if hasattr(schedule, "_shadowgraph_patched"):
        return
    if initialize := getattr(schedule, "_initialize_pipeline_distributed_state", None):
        schedule._initialize_pipeline_distributed_state = _in_fake_groups(initialize, _set_inference_modes)
    elif hasattr(schedule, "_warmup_p2p"):  # until 2.14
        schedule._warmup_p2p = _in_fake_groups(schedule._warmup_p2p, _warm_up(schedule._warmup_p2p))
    schedule._shadowgraph_patched = True


def _in_fake_groups(original, replacement):
    def call(self, *args, **kwargs):
        return (original if world_size() is None else replacement)(self, *args, **kwargs)

    return call


def _send_meta(stage, message, to_stage):
    shapes = PipelineShapes.here()
    if shapes is not None:
        shapes.check(stage.stage_index, message)


def _recv_meta(stage, from_stage):
    shapes = PipelineShapes.here()
    if shapes is None:
        what = "outputs" if from_stage < stage.stage_index else "input gradients"
        raise _C.DataDependentError(
            f"PipelineStage {stage.stage_index} requires the shapes of the {what} of stage {from_stage} on another "
            "rank, and a fake process group sends nothing. Pass sg.profile a function that creates the schedule, enter "
            "`with sg.pipeline_shapes(make_schedule, inputs, target=...):`, or pass input_args= and output_args= to "
            "every PipelineStage"
        )
    return shapes.from_stage(from_stage, stage.stage_index)


def _has_shapes(stage, has_backward):
    shapes = PipelineShapes.here()
    # Other ranks run the same program, so they specify shapes if this one does.
    return is_static(stage, has_backward) if shapes is None else shapes.static


def _set_inference_modes(schedule, stages, has_backward, initialize_p2p):
    from torch.distributed.pipelining._utils import InferenceMode

    manual = [stage for stage in stages if hasattr(stage, "_user_meta")]
    static = all(_has_shapes(stage, has_backward) for stage in manual)
    for stage in manual:
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
            _set_inference_modes(schedule, stages, has_backward, initialize_p2p=False)
        else:  # stages of pipeline(), whose shapes are known
            original(schedule, stages, has_backward, p2p_done)

    return warm_up


def pipeline_shapes(make, inputs=(), *, target=None, device="cuda", dtype=None, backward=None):
    """Infers the shapes that the stages of a pipeline exchange, without capturing. Returns a `PipelineShapes`.

        with sg.fake_process_group(4, rank=1):
            with sg.pipeline_shapes(make_schedule, "i64[8,512]", target="i64[8,512]"), sg.Capture("cuda") as session:
                schedule = make_schedule()
                ...
                schedule.step()

    Requires an active `fake_process_group`. Not needed for `sg.profile` of a function that creates a schedule.

    make: a function without arguments that creates the schedule of the current rank, and its groups and meshes. Called
        once as each rank of the pipeline.
    inputs, target: inputs of the first stage and target of the last one, as for `profile`.
    backward: whether the schedule runs backward. By default, if it has a loss function.

    Raises Error unless each stage is in the schedule of exactly one rank.
    """
    if world_size() is None:
        raise _C.Error("pipeline_shapes() requires a process group; enter `with sg.fake_process_group(world, rank):`")
    if not callable(make):
        raise _C.Error("pipeline_shapes() expects a function that returns the schedule of the current rank, got "
                       f"{type(make).__name__}")  # fmt: skip
    args, kwargs = _inputs.as_call(inputs)
    with fake(device):
        return infer_shapes(make, args, kwargs, target, device, dtype, backward)


def shared_shapes(make, model, inputs, target, device, dtype, train, options):
    """Returns a context with the shapes of a pipeline, inferred once for all ranks; a null context for other models."""
    known = PipelineShapes.here() is not None or is_schedule(make)  # of this rank, which has no function for others
    if known or not isinstance(model, PipelineRank) or not model.infers_shapes:
        return contextlib.nullcontext()
    args, kwargs = _inputs.as_call(inputs)
    with fake(device, **options):
        return infer_shapes(make, args, kwargs, target, device, dtype, None if train else False)


def infer_shapes(make, args, kwargs, target, device, dtype, backward=None):
    """Implements `pipeline_shapes`. Call inside a mode that does not capture."""
    args, kwargs, target = _inputs.on_device([list(args), kwargs, target], device, dtype)
    ranks = _schedules_of_all_ranks(make, device, dtype)
    owners = {stage.stage_index: (rank, schedule, stage) for rank, schedule in ranks for stage in stages_of(schedule)}
    shapes = PipelineShapes(stages_of(ranks[0][1])[0].num_stages)
    if any(index not in owners for index in range(shapes.stages)):
        raise _C.Error(
            f"called as the {len(ranks)} ranks of its pipeline, the function created stages "
            f"{', '.join(map(str, sorted(owners)))} of {shapes.stages}; {_EACH_CALL}"
        )
    with shapes:
        _exchange(shapes, owners, args, kwargs, target, backward)
    return shapes


_EACH_CALL = "the function must read the rank and create its groups and meshes at each call"


def _schedules_of_all_ranks(make, device, dtype):
    """Returns [(rank, schedule)] for all ranks of this rank's pipeline."""
    from . import _models

    def create(rank):
        with rank:
            try:
                model = _models.create(make, device, dtype)
            except (KeyError, RuntimeError, ValueError) as error:
                if isinstance(error, _C.Error):
                    raise
                raise _C.Error(f"as rank {rank.rank}, the function raised {type(error).__name__}: {error}\n"
                               f"{_EACH_CALL}") from error  # fmt: skip
        if not isinstance(model, PipelineRank):
            raise _C.Error("the function must return a schedule of torch.distributed.pipelining, but returned "
                           f"{type(model).__name__}")  # fmt: skip
        return rank, model.schedule

    first = create(as_rank(torch.distributed.get_rank()))
    with first[0]:
        group = stages_of(first[1])[0].group or torch.distributed.group.WORLD
        members = ranks_of(group.group_name)
    return [first, *(create(as_rank(member)) for member in members if member != first[0].rank)]


def _exchange(shapes, owners, args, kwargs, target, backward):
    """Runs the forward of all stages in order, then backward in reverse order, and stores their messages."""
    schedules = {id(schedule): schedule for _, schedule, _ in owners.values()}
    has_backward = any(schedule._has_backward for schedule in schedules.values()) if backward is None else backward
    manual = {index: owner for index, owner in owners.items() if hasattr(owner[2], "_user_meta")}
    if len(manual) < shapes.stages:
        return  # split by torch.export in pipeline(), so shapes are known
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
    return _StageForwardMeta(meta.outputs) if direction == "forward" else _StageBackwardMeta(meta.input_grads)


def _first_chunk(schedule, target):
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.microbatch import _split_tensor

    if target is None:
        raise _C.Error("the loss function of the schedule requires a target; pass target=")
    if not hasattr(schedules, "_TARGET_CHUNK_SPEC"):  # 2.12
        return torch.tensor_split(target, schedule._n_microbatches)[0]
    return next(iter(_split_tensor(target, schedules._TARGET_CHUNK_SPEC, schedule._n_microbatches)))
