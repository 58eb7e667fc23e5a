"""The training loop of a captured step, built from PyTorch's own components on fake tensors."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _shadowgraph as _C

# Names of optimizers in the command line tool.
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=1e-2),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


def phase(name):
    """Captures nodes inside ``with sg.phase(name):`` in this phase, such as "forward", "backward" or "optimizer"."""
    return _C.Phase(name)


def region(label):
    """Captures nodes inside ``with sg.region(label):`` in a region (`node.region`) of kind "scope" with this name."""
    return _C.RegionScope(label)


_OF_FORWARD = ("autocast", "context", "target", "return_outputs")  # also accepted for inference


@dataclasses.dataclass
class Training:
    """Options of the training loop around forward, backward and the optimizer step. See `capture_training_step`."""

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
            raise _C.Error(f"accumulate={self.accumulate!r}: expected a number of micro-batches of at least 1")
        if self.clip_grad_norm is not None and not 0 < self.clip_grad_norm < math.inf:
            raise _C.Error(f"clip_grad_norm={self.clip_grad_norm!r}: expected a positive, finite norm")
        if self.ema is not None and not 0 <= self.ema <= 1:
            raise _C.Error(f"ema={self.ema!r}: expected a decay between 0 and 1")
        if isinstance(self.autocast, str):
            self.autocast = {"bf16": torch.bfloat16, "f16": torch.float16}.get(self.autocast, self.autocast)
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise _C.Error(f"autocast={self.autocast!r}: expected torch.bfloat16 or torch.float16")

    def check_inference(self):
        for field in dataclasses.fields(self):
            if field.name not in _OF_FORWARD and getattr(self, field.name) != field.default:
                raise _C.Error(f"{field.name}= requires a training step; pass mode='train', a loss or an optimizer")

    def check_model(self):
        if self.target is not None or not self.return_outputs:
            raise _C.Error("target= and return_outputs= apply to schedules of torch.distributed.pipelining only; pass "
                           "targets of other models as inputs")  # fmt: skip

    def context_scope(self, args, kwargs):
        return contextlib.nullcontext() if self.context is None else self.context(*args, **kwargs)

    def autocast_scope(self, device):
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(device).type, dtype=self.autocast)

    def metadata(self):
        """Yields (name, text) of options that differ from their defaults."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("context", "target", "return_outputs") or value == field.default:
                continue
            if field.name == "autocast":
                value = "bf16" if value == torch.bfloat16 else "f16"
            yield field.name, "true" if value is True else str(value)


def _create_optimizer(optimizer, parameters):
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise _C.Error(f"unknown optimizer {optimizer!r}; expected {', '.join(OPTIMIZERS)}, or a class or function")
        optimizer = OPTIMIZERS[optimizer]
    if not callable(optimizer):
        raise _C.Error(f"optimizer= must be a class or function that takes parameters, not {type(optimizer).__name__}")
    created = optimizer(parameters)
    if not hasattr(created, "step"):
        raise _C.Error(f"optimizer= must return a torch.optim.Optimizer, but returned {type(created).__name__}")
    return created


class TrainingLoop:
    """zero_grad; forward, loss and backward for every micro-batch; optimizer step. Returns the loss."""

    def __init__(self, model, loss, optimizer, training, device):
        self._model, self._loss, self._training, self._device = model, loss, training, device
        self._optimizer = self._scaler = self._average = None
        if optimizer is not None:
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self._optimizer = _create_optimizer(optimizer, parameters)
        if training.grad_scaler:
            if self._optimizer is None:
                raise _C.Error("grad_scaler=True requires an optimizer; pass optimizer=")
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
        """Declares state outside the model: averaged parameters, scaler state and existing gradients."""
        if self._average is not None:
            average = self._average.module
            for name, tensor in (*average.named_parameters(), *average.named_buffers()):
                session._active().name_buffer(tensor, "ema." + name)
            session._active().name_buffer(self._average.n_averaged, "ema.n_averaged")
        if self._scaler is not None and self._scaler._scale is not None:
            session._active().name_buffer(self._scaler._scale, "grad_scaler.scale")
            session._active().name_buffer(self._scaler._growth_tracker, "grad_scaler.growth_tracker")
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                session.name_input(parameter.grad, "gradient." + name)

    def run(self, args, kwargs):
        """Runs a step that is not captured, so that the next one finds the state it would in a loop."""
        self.zero_grad()
        self._step(args, kwargs, [None])
        if not self._training.zero_grads:
            self.zero_grad()

    def record(self, args, kwargs, run_steps):
        """Runs one step, or the first `run_steps` steps of a run in a region each."""
        loss = [None]  # the loop variable; the old loss is freed when it is assigned
        if not run_steps:
            if self._training.zero_grads:
                self.zero_grad()
            self._step(args, kwargs, loss)
        for step in range(run_steps):
            with region(f"step {step + 1}"):
                self.zero_grad()
                self._step(args, kwargs, loss)
        return loss[0]

    def _step(self, args, kwargs, loss):
        for _ in range(self._training.accumulate):
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
        with _C.FiniteGradients() if self._scaler is not None else contextlib.nullcontext():
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
    """zero_grad; step of a pipeline schedule, which runs forward, loss and backward; optimizer step."""

    def __init__(self, model, optimizer, training, device):
        if training.accumulate > 1 or training.grad_scaler:
            raise _C.Error("accumulate= and grad_scaler= are not supported for a pipeline schedule, which has "
                           "micro-batches and calls backward itself")  # fmt: skip
        super().__init__(model, None, optimizer, training, device)

    def name_state(self, session):
        super().name_state(session)
        # Receive buffers stay allocated until the next message, even if the step does not read them.
        for name, tensor in self._model.received():
            session.name_input(tensor, name)
        for name, tensor in self._model.stages_of_others():
            session._active().name_buffer(tensor, name)

    def _forward_and_backward(self, args, kwargs, loss):
        training = self._training
        with torch.enable_grad(), training.context_scope(args, kwargs), training.autocast_scope(self._device):
            loss[0] = self._model(*args, **kwargs)
