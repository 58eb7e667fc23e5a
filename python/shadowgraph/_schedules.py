"""Wraps a schedule of torch.distributed.pipelining as a torch.nn.Module."""

import copy
import sys

import torch
import torch.utils._pytree

from . import _shadowgraph as _C


def is_schedule(program):
    pipelining = sys.modules.get("torch.distributed.pipelining.schedules")
    return pipelining is not None and isinstance(program, pipelining._PipelineSchedule)


def as_model(created):
    """Converts a schedule, or a tuple of a schedule and its modules, to a PipelineRank; returns others unchanged."""
    schedule, *rest = created if isinstance(created, tuple) and created else (created,)
    if not is_schedule(schedule):
        return created
    model = PipelineRank(schedule)
    own = {id(parameter) for parameter in model.parameters()}
    for module in torch.utils._pytree.tree_leaves(rest):
        for name, parameter in module.named_parameters() if isinstance(module, torch.nn.Module) else ():
            if id(parameter) not in own:
                raise _C.Error(f"parameter {name} of {type(module).__name__} is not in any stage of the schedule, "
                               "so it would never be used; add it to a stage")  # fmt: skip
    return model


def name_of(model):
    """Returns the class name of a model or of its schedule."""
    return type(model.schedule if isinstance(model, PipelineRank) else model).__name__


def stages_of(schedule):
    """Returns the stages of this rank, in order."""
    return list(schedule._stages) if hasattr(schedule, "_stages") else [schedule._stage]


def is_static(stage, has_backward):
    from torch.distributed.pipelining._utils import InferenceMode

    return not InferenceMode.needs_dynamic(stage._user_meta, has_backward)


class PipelineRank(torch.nn.Module):
    """A pipeline rank as a module: submodules "stage0", ... are its stages, and calling it runs a step."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule
        for stage in stages_of(schedule):
            self.add_module(f"stage{stage.stage_index}", stage.submod)

    def __deepcopy__(self, memo):
        """Copies only the stages, for AveragedModel; process groups cannot be copied."""
        copied = torch.nn.Module()
        for name, part in self.named_children():
            copied.add_module(name, copy.deepcopy(part, memo))
        return copied

    @property
    def infers_shapes(self):
        """True if the shapes of a stage are not specified by the program."""
        stages = [stage for stage in stages_of(self.schedule) if hasattr(stage, "_user_meta")]
        return not all(is_static(stage, self.schedule._has_backward) for stage in stages)

    def arguments(self, args, kwargs, training, loss):
        """Returns the arguments of this rank's step: inputs for the first stage, target for the last, and keywords."""
        if loss is not None:
            raise _C.Error("a schedule has its own loss function; pass loss_fn= to the schedule instead of loss=")
        kwargs = dict(kwargs)
        if self.schedule._loss_fn is not None and any(stage.is_last for stage in stages_of(self.schedule)):
            if training.target is None:
                raise _C.Error("the loss function of the schedule requires a target, also for inference; pass "
                               "target=")  # fmt: skip
            kwargs["target"] = training.target
        if not training.return_outputs:
            kwargs["return_outputs"] = False
        return args if any(stage.is_first for stage in stages_of(self.schedule)) else (), kwargs

    def received(self):
        """Yields (name, tensor) for each distinct receive buffer of the stages."""
        seen = set()
        for stage in stages_of(self.schedule):
            for kind, messages in (("activation", stage.args_recv_info), ("gradient", stage.grad_recv_info)):
                for chunk, infos in messages.items():
                    for number, info in enumerate(infos):
                        if info.buffer is not None and id(info.buffer) not in seen:
                            seen.add(id(info.buffer))
                            yield f"stage{stage.stage_index}.received_{kind}{number}.{chunk}", info.buffer

    def stages_of_others(self):
        """Yields (name, tensor) of other stages' parameters and buffers, which stages from pipeline() keep alive."""
        own = {id(tensor) for tensor in (*self.parameters(), *self.buffers())}
        wholes = {id(whole): whole for stage in stages_of(self.schedule) if hasattr(stage, "pipe_info")
                  if (whole := stage.pipe_info.graph.owning_module) is not None}  # fmt: skip
        for whole in wholes.values():
            for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
                if id(tensor) not in own:
                    yield f"others.{name}", tensor

    def forward(self, *args, target=None, **kwargs):
        """Runs a step, or an evaluation under no_grad. Returns the micro-batch losses, or the outputs without them."""
        run = self.schedule.step if torch.is_grad_enabled() else self.schedule.eval
        losses: list[torch.Tensor] | None = None if self.schedule._loss_fn is None else []
        try:
            outputs = run(*args, target=target, losses=losses, **kwargs)
        except RuntimeError as error:
            if isinstance(error.__cause__, _C.Error):  # stages wrap exceptions of their modules
                raise error.__cause__ from None
            raise
        return losses or outputs
