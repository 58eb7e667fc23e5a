"""Tracks modules, optimizer steps, gradients and inputs when capturing a user-written training loop."""

import collections
import functools
import threading

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _shadowgraph as _C
from . import _wrappers


def canonical(device):
    device = torch.device(device)
    return f"{device.type}:0" if device.type != "cpu" and device.index is None else str(device)


class LoopTracker:
    """Declares modules, inputs and optimizer state of a capture as the program calls them.

    module: the first module that the program called; the graph is named after it.
    """

    def __init__(self, capture):
        self._capture = capture
        self._known: set[int] = set()
        self._alive: list = []  # modules and optimizers; keeps ids in _known from being reused
        self._names: set[str] = set()
        self._phases: list = []
        self._steps: collections.Counter[int] = collections.Counter()  # by optimizer, or calls by module
        self.module = None
        self.trains = False

    def records_as(self, mode):
        return self._capture._active().address() == mode

    def declare(self, module, name, state):
        """Notes that the module and its submodules are declared."""
        self._names.add(name)
        self._alive.append(module)
        self._known.update(id(part) for part in module.modules())
        if self.module is None and not state:
            self.module = module

    def called(self, module, arguments):
        self.leave()
        if id(module) not in self._known:
            self._name(module)
        if not self.trains and any(True for _ in module.parameters()):
            self._steps[id(module)] += 1
        for place, value in enumerate(arguments):
            if isinstance(value, torch.Tensor) and not value.requires_grad and _wrappers.is_fake(value):
                self._capture.name_input(value, f"input{place}", keep_contents=True)

    def _name(self, module):
        if not any(True for _ in module.parameters()) and not any(True for _ in module.buffers()):
            self._known.add(id(module))  # such as a loss
            self._alive.append(module)
            return
        name, count = "", 0
        while name in self._names:  # prefix for the second model and later ones
            count += 1
            name = type(module).__name__ + (str(count) if count > 1 else "")
        self._capture.name_module(module, name)

    def metadata(self, device):
        """Yields the (name, text) metadata that sg.profile sets."""
        yield "device", canonical(device)
        steps = set(self._steps.values())
        if steps - {1}:
            # Times are per step. Unequal numbers, or repeated calls without an optimizer, do not tell what a step is.
            yield "steps", str(steps.pop() if len(steps) == 1 and self.trains else 0)
        if self.module is not None:
            yield "mode", "train" if self.trains else "infer"
            yield "model", type(self.module).__name__

    def step_begins(self, optimizer, args, kwargs):
        if not self.trains:
            self.trains = True
            self._steps.clear()
        if id(optimizer) not in self._steps:
            self._alive.append(optimizer)
        self._steps[id(optimizer)] += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for _, part in _wrappers.inner(parameter.grad):
                        _C.mark_gradient(part)
        self._enter_step()
        if len(args) > 1 and callable(args[1]):  # args[0] is the optimizer
            return (args[0], self._outside_step(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._outside_step(kwargs["closure"])}
        return None

    def _enter_step(self):
        self._phases.append(_C.Phase("optimizer"))
        self._phases[-1].__enter__()

    def step_ends(self, optimizer, args, kwargs):
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    for _, part in _wrappers.inner(value):
                        _C.mark_optimizer_state(part)
        self._leave_phase()

    def _leave_phase(self):
        if self._phases:
            self._phases.pop().run()

    def _outside_step(self, closure):
        """Wraps a closure, which runs forward and backward during an optimizer step."""

        @functools.wraps(closure)
        def run(*args, **kwargs):
            self._leave_phase()
            result = closure(*args, **kwargs)
            self._enter_step()
            return result

        return run

    def leave(self):
        while self._phases:  # left open by steps that raised
            self._leave_phase()


class _ThreadState(threading.local):
    """Active trackers of a thread, innermost last."""

    def __init__(self):
        self.loops: list[LoopTracker] = []


_thread = _ThreadState()


def _of_innermost(method):
    """Returns a function that calls a method of the innermost mode's tracker, if that is a user's capture."""

    def call(*args):
        mode = _C.detect_fake_mode(()) if _thread.loops else None
        return method(_thread.loops[-1], *args) if mode and _thread.loops[-1].records_as(mode) else None

    return call


def install():
    """Registers the hooks. Called once per process."""
    _C.set_root_called(_of_innermost(LoopTracker.called))
    register_optimizer_step_pre_hook(_of_innermost(LoopTracker.step_begins))
    register_optimizer_step_post_hook(_of_innermost(LoopTracker.step_ends))


def track(loop, context):
    """Makes the tracker the innermost one of this thread until the context ends."""
    context.on_exit(_leave, loop)
    _thread.loops.append(loop)


def _leave(loop):
    loop.leave()
    _thread.loops[:] = [each for each in _thread.loops if each is not loop]
