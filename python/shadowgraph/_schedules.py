"""A schedule of torch.distributed.pipelining as a model: what a rank of a pipeline runs."""

import copy
import sys

import torch
import torch.utils._pytree

from . import _shadowgraph as _C

__all__ = ["PipelineRank", "as_model", "is_schedule", "is_static", "name_of", "stages_of"]


def is_schedule(program):
    pipelining = sys.modules.get("torch.distributed.pipelining.schedules")
    return pipelining is not None and isinstance(program, pipelining._PipelineSchedule)


def as_model(made):
    """What a function has made, with a PipelineRank in place of a schedule, or of a schedule and its modules."""
    schedule, *rest = made if isinstance(made, tuple) and made else (made,)
    if not is_schedule(schedule):
        return made
    model = PipelineRank(schedule)
    own = {id(parameter) for parameter in model.parameters()}
    for module in torch.utils._pytree.tree_leaves(rest):
        for name, parameter in module.named_parameters() if isinstance(module, torch.nn.Module) else ():
            if id(parameter) not in own:
                raise _C.Error(f"the parameter {name} of {type(module).__name__} is in no stage of the schedule: a "
                               "schedule's stages are all that runs")  # fmt: skip
    return model


def name_of(model):
    """The class of a model, or of its schedule."""
    return type(model.schedule if isinstance(model, PipelineRank) else model).__name__


def stages_of(schedule):
    """The stages that this rank has, in their order."""
    return list(schedule._stages) if hasattr(schedule, "_stages") else [schedule._stage]


def is_static(stage, has_backward):
    from torch.distributed.pipelining._utils import InferenceMode

    return not InferenceMode.needs_dynamic(stage._user_meta, has_backward)


class PipelineRank(torch.nn.Module):
    """A schedule as a model: its stages are the parts, "stage0", ..., and a call is a step."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule
        for stage in stages_of(schedule):
            self.add_module(f"stage{stage.stage_index}", stage.submod)

    def __deepcopy__(self, memo):
        """The stages alone, as an average of parameters wants them: process groups cannot be copied."""
        copied = torch.nn.Module()
        for name, part in self.named_children():
            copied.add_module(name, copy.deepcopy(part, memo))
        return copied

    @property
    def is_first(self):
        return any(stage.is_first for stage in stages_of(self.schedule))

    @property
    def is_last(self):
        return any(stage.is_last for stage in stages_of(self.schedule))

    @property
    def infers_shapes(self):
        """Whether a stage does not know its shapes from its program."""
        backward = self.schedule._has_backward
        return any(hasattr(stage, "_user_meta") and not is_static(stage, backward)
                   for stage in stages_of(self.schedule))  # fmt: skip

    def arguments(self, args, kwargs, training, loss):
        """What this rank's step gets: the first stage the inputs, the last the target, all of them the keywords."""
        if loss is not None:
            raise _C.Error("a schedule has its own loss function: give it to the schedule, and no loss=")
        kwargs = dict(kwargs)
        if self.is_last and self.schedule._loss_fn is not None:
            if training.target is None:
                raise _C.Error("the schedule has a loss function, which takes a target, also where nothing is trained: "
                               "give target=")  # fmt: skip
            kwargs["target"] = training.target
        if not training.return_outputs:
            kwargs["return_outputs"] = False
        return args if self.is_first else (), kwargs

    def received(self):
        """(name, tensor) of what stages have received, each once."""
        seen = set()
        for stage in stages_of(self.schedule):
            for kind, messages in (("activation", stage.args_recv_info), ("gradient", stage.grad_recv_info)):
                for chunk, infos in messages.items():
                    for number, info in enumerate(infos):
                        if info.buffer is not None and id(info.buffer) not in seen:
                            seen.add(id(info.buffer))
                            yield f"stage{stage.stage_index}.received_{kind}{number}.{chunk}", info.buffer

    def stages_of_others(self):
        """(name, tensor) of the rest of a model that pipeline() has cut, which a stage's graph keeps."""
        own = {id(tensor) for tensor in (*self.parameters(), *self.buffers())}
        wholes = {id(whole): whole for stage in stages_of(self.schedule) if hasattr(stage, "pipe_info")
                  if (whole := stage.pipe_info.graph.owning_module) is not None}  # fmt: skip
        for whole in wholes.values():
            for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
                if id(tensor) not in own:
                    yield f"others.{name}", tensor

    def forward(self, *args, target=None, **kwargs):
        """A step, or without gradients an evaluation; gives the losses of micro-batches, or else the outputs."""
        run = self.schedule.step if torch.is_grad_enabled() else self.schedule.eval
        losses: list[torch.Tensor] | None = None if self.schedule._loss_fn is None else []
        try:
            outputs = run(*args, target=target, losses=losses, **kwargs)
        except RuntimeError as error:
            if isinstance(error.__cause__, _C.Error):  # stages wrap what their modules raise
                raise error.__cause__ from None
            raise
        return losses or outputs
