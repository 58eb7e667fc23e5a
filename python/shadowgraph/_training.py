"""The training loop around a recorded step: PyTorch's own pieces, on fakes."""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _shadowgraph as _C

# By the names that the tool knows.
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=1e-2),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


@contextlib.contextmanager
def _scope(scope):
    """One of C++'s, around the body of `with`."""
    scope.enter()
    try:
        yield
    finally:
        scope.leave()


def phase(name):
    """What is recorded inside belongs to this phase: "forward", "backward", "optimizer", "init" or another name."""
    return _scope(_C.Phase(name))


def region(label):
    """What is recorded inside lies in a region of kind "scope" and this name: `node.region`."""
    return _scope(_C.RegionScope(label))


_OF_FORWARD = ("autocast", "context", "target", "return_outputs")  # what an inference has, too


@dataclasses.dataclass
class Training:
    """What a loop does around forward, backward and the optimizer's step."""

    accumulate: int = 1
    clip_grad_norm: float | None = None
    grad_scaler: bool = False
    ema: float | None = None
    autocast: torch.dtype | str | None = None
    zero_grads: bool = False
    context: Callable[..., AbstractContextManager] | None = None
    target: Any = None
    return_outputs: bool = True

    def __post_init__(self):
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise _C.Error(f"accumulate={self.accumulate!r}: gradients are accumulated over at least 1 micro-batch")
        if self.clip_grad_norm is not None and not 0 < self.clip_grad_norm < math.inf:
            raise _C.Error(f"clip_grad_norm={self.clip_grad_norm!r}: the norm must be positive and finite")
        if self.ema is not None and not 0 <= self.ema <= 1:
            raise _C.Error(f"ema={self.ema!r}: the decay of an average is between 0 and 1")
        if isinstance(self.autocast, str):
            self.autocast = {"bf16": torch.bfloat16, "f16": torch.float16}.get(self.autocast, self.autocast)
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise _C.Error(f"autocast={self.autocast!r}: it takes torch.bfloat16 or torch.float16")

    def check_inference(self):
        for field in dataclasses.fields(self):
            if field.name not in _OF_FORWARD and getattr(self, field.name) != field.default:
                raise _C.Error(f"{field.name} is of a training step: give mode='train', a loss or an optimizer")

    def check_model(self):
        if self.target is not None or not self.return_outputs:
            raise _C.Error("target= and return_outputs= are of schedules of torch.distributed.pipelining: give other "
                           "models all their inputs")  # fmt: skip

    def context_scope(self, args, kwargs):
        return contextlib.nullcontext() if self.context is None else self.context(*args, **kwargs)

    def autocast_scope(self, device):
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(device).type, dtype=self.autocast)

    def metadata(self):
        """(name, text) of what is not as by default."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("context", "target", "return_outputs") or value == field.default:
                continue
            if field.name == "autocast":
                value = "bf16" if value == torch.bfloat16 else "f16"
            yield field.name, "true" if value is True else str(value)


def _made_optimizer(optimizer, parameters):
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise _C.Error(f"no optimizer {optimizer!r}: {', '.join(OPTIMIZERS)}, or a class or function of parameters")
        optimizer = OPTIMIZERS[optimizer]
    if not callable(optimizer):
        raise _C.Error(f"optimizer is {type(optimizer).__name__}: give a class or function that takes parameters")
    made = optimizer(parameters)
    if not hasattr(made, "step"):
        raise _C.Error(f"optimizer gave {type(made).__name__}: give a class or function that takes parameters")
    return made


class TrainingLoop:
    """zero_grad, then for every micro-batch forward, loss, backward, then the optimizer's step; gives the loss."""

    def __init__(self, model, loss, optimizer, training, device):
        self._model, self._loss, self._training, self._device = model, loss, training, device
        self._optimizer = self._scaler = self._average = None
        if optimizer is not None:
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self._optimizer = _made_optimizer(optimizer, parameters)
        if training.grad_scaler:
            if self._optimizer is None:
                raise _C.Error("a GradScaler steps an optimizer, and there is none: give optimizer=")
            self._scaler = torch.amp.GradScaler(torch.device(device).type)
        if training.ema is not None:
            from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

            model.zero_grad(set_to_none=True)
            self._average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(training.ema))

    def zero_grad(self):
        if not self._training.zero_grads:
            self._model.zero_grad(set_to_none=True)
            return
        with phase("optimizer"):
            if self._optimizer is not None:
                self._optimizer.zero_grad(set_to_none=False)
            held = {id(p) for group in self._optimizer.param_groups for p in group["params"]} if self._optimizer else {}
            for parameter in self._model.parameters():
                if parameter.grad is not None and id(parameter) not in held:
                    parameter.grad.zero_()

    def name_state(self, session):
        """What is there and belongs to no module of the program."""
        if self._average is not None:
            named = itertools.chain(self._average.module.named_parameters(), self._average.module.named_buffers())
            for name, tensor in named:
                session._active().name_buffer(tensor, "ema." + name)
            session._active().name_buffer(self._average.n_averaged, "ema.n_averaged")
        if self._scaler is not None and self._scaler._scale is not None:
            session._active().name_buffer(self._scaler._scale, "grad_scaler.scale")
            session._active().name_buffer(self._scaler._growth_tracker, "grad_scaler.growth_tracker")
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                session.name_input(parameter.grad, "gradient." + name)

    def run(self, args, kwargs):
        """A whole step that nobody records; what the next one finds is as in a loop."""
        self.zero_grad()
        self._step(args, kwargs, [None])
        if not self._training.zero_grads:
            self.zero_grad()

    def record(self, args, kwargs, run_steps):
        """One step, or the first ones of a run, each in a region of its own."""
        loss = [None]  # the loop's variable: what it holds dies where the program sets it
        if not run_steps:
            if self._training.zero_grads:
                self.zero_grad()
            self._step(args, kwargs, loss)
        for step in range(run_steps):
            with _scope(_C.RegionScope(f"step {step + 1}")):
                self.zero_grad()
                self._step(args, kwargs, loss)
        return loss[0]

    def _step(self, args, kwargs, loss):
        training = self._training
        for _ in range(training.accumulate):
            self._forward_and_backward(args, kwargs, loss)
        with phase("optimizer"):
            self._optimizer_step()
            if self._average is not None:
                self._average.update_parameters(self._model)

    def _forward_and_backward(self, args, kwargs, loss):
        training = self._training
        with torch.enable_grad(), training.context_scope(args, kwargs):
            with training.autocast_scope(self._device):
                loss[0] = self._loss(self._model(*args, **kwargs))
                if training.accumulate > 1:
                    loss[0] = loss[0] / training.accumulate
            if self._scaler is None:
                loss[0].backward()
            else:
                self._scaler.scale(loss[0]).backward()

    def _optimizer_step(self):
        clip = self._training.clip_grad_norm
        with _scope(_C.FiniteGradients()) if self._scaler is not None else contextlib.nullcontext():
            if self._scaler is not None and clip is not None:
                self._scaler.unscale_(self._optimizer)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(self._model.parameters(), clip)
            if self._scaler is not None:
                self._scaler.step(self._optimizer)
                self._scaler.update()
            elif self._optimizer is not None:
                self._optimizer.step()


class PipelineLoop(TrainingLoop):
    """zero_grad, then a schedule's step, which runs forward, its own loss and backward, then the optimizer's step."""

    def __init__(self, model, optimizer, training, device):
        if training.accumulate > 1 or training.grad_scaler:
            raise _C.Error("accumulate and grad_scaler are of loops that call backward: a schedule has micro-batches "
                           "and a loss function of its own")  # fmt: skip
        super().__init__(model, None, optimizer, training, device)

    def name_state(self, session):
        super().name_state(session)
        # What came last stays until the next comes, whether a step reads it or not.
        for name, tensor in self._model.received():
            session.name_input(tensor, name)
        for name, tensor in self._model.stages_of_others():
            session._active().name_buffer(tensor, name)

    def _forward_and_backward(self, args, kwargs, loss):
        training = self._training
        with torch.enable_grad(), training.context_scope(args, kwargs), training.autocast_scope(self._device):
            loss[0] = self._model(*args, **kwargs)
