"""Programs recorded as graphs."""

import contextlib
import dataclasses
import difflib
import functools
import gc
import inspect
import threading
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import _attributes, _compiled, _distributed, _inputs, _models, _own_loop, _pipelines, _schedules, _wrappers
from . import _shadowgraph as _C
from ._fake import Scope, fake
from ._keywords import keywords_apart
from ._own_loop import canonical
from ._training import PipelineLoop, Training, TrainingLoop, phase, region

__all__ = ["Capture", "capture", "capture_training_step", "phase", "region"]


class _ModuleCalls:
    """torch.nn.Module.__call__ tells captures which module runs, while there are captures on any thread.

    Meanwhile Python does not look for cycles. When it would is chance, and tensors in cycles would end in a graph
    wherever that happened to be.
    """

    lock = threading.Lock()
    users = 0
    original = None
    ours = None
    collects = True

    @classmethod
    def acquire(cls):
        with cls.lock:
            cls.users += 1
            if cls.users == 1:
                cls.original = torch.nn.Module.__dict__["__call__"]
                if cls.ours is None:
                    cls.ours = _C.module_call(torch.nn.Module, cls.original)
                torch.nn.Module.__call__ = cls.ours
                cls.collects = gc.isenabled()
                gc.disable()

    @classmethod
    def release(cls):
        with cls.lock:
            cls.users -= 1
            if cls.users == 0:
                torch.nn.Module.__call__ = cls.original
                if cls.collects:
                    gc.enable()


class Capture(Scope):
    """Records what runs inside ``with`` on this thread, below autograd, as one graph.

        with sg.Capture("cuda") as session:
            model = Net().cuda()
            session.name_module(model)
            loss = model(torch.empty(8, 3, 224, 224, device="cuda")).sum()
            loss.backward()
            graph = session.finish(loss)

    The arguments are those of `fake`, and what recording adds:

    saved_tensors: record what autograd keeps for backward.
    guards: record the sizes that the program asked for.
    source_lines: note the program's "file:line" at every node that is not backward's.
    """

    _kind = _C.Session

    def __init__(self, device="cpu", *, profile="", device_count=None, real_tensors="constant", data_sizes=None,
                 host_reads=None, contents_budget=None, unknown_operators_on_zeros=False, saved_tensors=True,
                 guards=True, source_lines=True):  # fmt: skip
        super().__init__(device, profile=profile, device_count=device_count, real_tensors=real_tensors,
                         data_sizes=data_sizes, host_reads=host_reads, contents_budget=contents_budget,
                         unknown_operators_on_zeros=unknown_operators_on_zeros, saved_tensors=saved_tensors,
                         guards=guards, source_lines=source_lines)  # fmt: skip
        self._loop: _own_loop.OwnLoop | None = _own_loop.OwnLoop(self)
        self._wrapped: list[tuple[str, torch.Tensor]] = []  # named parameters that hold other tensors
        self._plain: list[torch.Tensor] = []  # the other ones

    def __enter__(self):
        super().__enter__()
        self._accelerate = _distributed.AccelerateDevice(torch.device(self._device))
        _ModuleCalls.acquire()
        if self._loop is not None:
            _own_loop.enter(self._loop)
        return self

    def __exit__(self, *exception):
        if self._loop is not None:
            _own_loop.leave(self._loop)
        _ModuleCalls.release()
        self._accelerate.restore()
        super().__exit__(*exception)

    def name_module(self, module, name="", *, state=False):
        """Declares the module's parameters and buffers and knows its submodules' paths and classes.

        A module that the program calls declares itself, as soon as it is called.

        name: stands before all of them, "generator.0.weight", where a program has several modules.
        state: its parameters are what the loop keeps, as an average of a model: they count as buffers.
        """
        session = self._active()
        if self._loop is not None:
            self._loop.knows(module, name, state)
        if type(module).named_parameters is not torch.nn.Module.named_parameters:  # a wrapper with names of its own
            parts = list(module.named_modules())
            parameters, buffers = module.named_parameters(), module.named_buffers()
        else:
            parts, parameters, buffers = _models.parts_of(module)
        prefix = f"{name}." if name else ""
        for path, parameter in parameters:
            parts_of_it = _wrappers.inner(parameter)
            for suffix, part in parts_of_it:
                (session.name_buffer if state else session.name_parameter)(part, prefix + path + suffix)
            if _wrappers.has_class_of_its_own(parameter):
                self._name_attributes(_attributes.tensors_of(parameter), prefix + path, parameter)
            if parts_of_it[0][1] is not parameter:
                self._wrapped.append((prefix + path, parameter))
            else:
                self._plain.append(parameter)
        for path, buffer in buffers:
            for suffix, part in _wrappers.inner(buffer):
                session.name_buffer(part, prefix + path + suffix)
        for path, part in parts:
            session.name_module(part, prefix + path if path else name)
            for parameter in part._parameters.values():
                if parameter is not None and _wrappers.has_class_of_its_own(parameter):
                    found = _attributes.tensors_of(part, but=_models.OF_EVERY_MODULE)
                    self._name_attributes(found, prefix + path, parameter)

    def _name_attributes(self, named, path, parameter):
        """What a library hangs at its parameters and modules, but for what is the parameter itself."""
        for suffix, tensor in named:
            if _C.is_fake(tensor) and tensor.untyped_storage()._cdata != parameter.untyped_storage()._cdata:
                self._active().name_buffer(tensor, path + suffix)

    def name_input(self, tensor, name, keep_contents=False):
        """Declares an input: it comes first in the graph, under this name.

        keep_contents: the program may read what it holds (an attention mask); what it reads is noted as a guard.
        """
        for suffix, part in _wrappers.inner(tensor):
            self._active().name_input(part, name + suffix, keep_contents)

    def finish(self, outputs=()):
        """Ends the record and gives the graph; the tensors in `outputs` (nested structures) are its outputs."""
        tensors = [part for tensor in _inputs.tensors_of(outputs) for _, part in _wrappers.inner(tensor)]
        # Gradients hang at the wrapper, which C++ does not see.
        gradients = [
            (part, of_part)
            for _, parameter in self._wrapped
            if parameter.grad is not None
            for (_, part), (_, of_part) in zip(_wrappers.inner(parameter), _wrappers.inner(parameter.grad))
        ]
        # Megatron's parameters have their gradients there, in a buffer of all.
        gradients += [
            (parameter, parameter.main_grad)
            for parameter in self._plain
            if parameter.grad is None and isinstance(getattr(parameter, "main_grad", None), torch.Tensor)
        ]
        graph = self._active().finish(tensors, gradients)
        whole = {name: layout for name, parameter in self._wrapped if (layout := _wrappers.layout_of(parameter))}
        for node in graph if whole else ():
            if node.target == "sg::parameter" and node.argument("name") in whole:
                for key, value in whole[node.argument("name")].items():
                    node.set_note(key, value)
        if self._loop is not None:
            for key, value in self._loop.metadata(self._device):
                graph.set_metadata(key, value)
        return graph


class _OfModel(Capture):
    """A capture of what this package calls and names itself, not the program."""

    def __init__(self, device, **options):
        super().__init__(device, **options)
        self._loop = None


@keywords_apart
def capture(fn, /, *args, device="cpu", train=None, dtype=None, options=None, **kwargs):
    """Runs fn(*args, **kwargs) once on fakes and gives its graph.

    fn: a function or a torch.nn.Module, which stays as it is: its tensors are replaced by fakes while it runs.
    args, kwargs: tensors and nested structures of them; a text such as "f32[8,3,224,224]" makes one.
    device: where the module and the inputs pretend to be.
    train: sets the module's training mode for the run.
    options: those of `Capture`, e.g. {"host_reads": "finite", "data_sizes": {"nonzero0": 17}}.

    These four are capture's own. Where fn takes one of them by name, too, giving it raises TypeError, which says how to
    give either.

    Raises DataDependentError if the program reads data that a fake does not have.
    """
    return _run(fn, args, kwargs, device=device, dtype=dtype, train=train, options=options)[0]


ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip


def attention(kernel):
    """A context in which scaled_dot_product_attention takes this kernel; "device": what PyTorch takes there."""
    return contextlib.nullcontext() if kernel == "device" else sdpa_kernel(ATTENTION[kernel])


def capture_training_step(model, inputs, *, loss=None, optimizer=None, device="cpu", dtype=None, steady_state=False,
                          options=None, **training):  # fmt: skip
    """One training step as one graph: forward, loss, backward, optimizer step.

    model: a torch.nn.Module, which stays as it is; a function that makes one; a transformers configuration or class.
    inputs: a tensor, a sequence of arguments or a dict of keyword arguments; a text "i64[4,512]" makes a tensor, and so
        does a shape (8, 3, 224, 224) where there are only shapes: of float32.
    loss: a function of what forward gave; without one, its `.loss`, or the mean of its first floating-point tensor.
    optimizer: a class or function that takes parameters, or "sgd", "adam", "adamw"; None leaves the optimizer out.
    steady_state: record the second step, with the optimizer's state there.
    options: those of `Capture`, e.g. {"host_reads": "finite"}; they may also be keywords: host_reads="finite".
    training: what the loop does besides, by PyTorch's own pieces; all of it combines:
        accumulate=4: micro-batches a step, each the inputs given, their loss divided by 4.
        clip_grad_norm=1.0: torch.nn.utils.clip_grad_norm_.
        grad_scaler=True: torch.amp.GradScaler; no gradient is infinite unless host_reads says so.
        ema=0.999: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn of this decay.
        autocast=torch.bfloat16: torch.autocast of forward and loss.
        zero_grads=True: zero_grad(set_to_none=False).
        context=lambda ids: context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]): what forward, loss and backward
            run in, a function of the model's arguments; lambda ids: loss_parallel().
        target="i64[8,512]": of a schedule of torch.distributed.pipelining, what its loss function takes beside outputs.
        return_outputs=False: of such a schedule: the last stage does not put the outputs of micro-batches together.
    """
    around, options = _loop_and_options(training, options)
    args, kwargs = _inputs.as_call(inputs)
    return _run(model, args, kwargs, device=device, dtype=dtype, train=True, loss=loss, optimizer=optimizer,
                step=True, steady_state=steady_state, options=options, training=around)[0]  # fmt: skip


def is_training(mode, loss, optimizer, target):
    return mode == "train" if mode is not None else not (loss is optimizer is target is None)


def of_model(model, inputs, *, loss=None, optimizer=None, device, dtype=None, mode=None, steady_state=False,
             options=None, run_steps=0, **training):  # fmt: skip
    """(graph, seconds) of a training step, of `run_steps` of them, or of an inference."""
    if mode not in (None, "train", "infer"):
        raise _C.Error(f"mode={mode!r}; it is 'train' or 'infer'")
    train = is_training(mode, loss, optimizer, training.get("target"))
    if not train and (loss is not None or optimizer is not None):
        raise _C.Error("mode='infer' takes neither loss nor optimizer")
    if not train and run_steps:
        raise _C.Error("run=True is of training steps: give mode='train'")
    around, options = _loop_and_options(training, options)
    if not train:
        around.check_inference()
    args, kwargs = _inputs.as_call(inputs)
    return _run(model, args, kwargs, device=device, dtype=dtype, train=train, loss=loss, optimizer=optimizer,
                step=train, steady_state=steady_state and train, options=options, training=around,
                run_steps=run_steps)  # fmt: skip


# By keyword: of a mode, and of a capture, which has those too.
_OF_MODE, _OF_CAPTURE = (
    [name for name, given in inspect.signature(kind).parameters.items() if given.kind is given.KEYWORD_ONLY]
    for kind in (fake, Capture)
)


def _refuse_unknown(what, given, known):
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"unknown {what} {name!r}{hint} There are {', '.join(known)}")


def _loop_and_options(keywords, options):
    """What the loop does, and the capture's options, which may be keywords, too: so they stand in messages."""
    options = dict(options or {})
    of_loop = {}
    for name, value in keywords.items():
        if name in _OF_CAPTURE:
            if name in options:
                raise TypeError(f"{name} is given twice: as a keyword and in options")
            options[name] = value
        else:
            of_loop[name] = value
    known = [field.name for field in dataclasses.fields(Training)]
    _refuse_unknown("keyword argument", of_loop, [*known, *_OF_CAPTURE])
    return Training(**of_loop), options


def mode_options(keywords, options):
    """Those of the capture's options that a mode has, too."""
    of_capture = _loop_and_options(keywords, options)[1]
    _refuse_unknown("option", of_capture, _OF_CAPTURE)
    return {name: of_capture[name] for name in _OF_MODE if name in of_capture}


def _run(program, args, kwargs, *, device, dtype=None, train=None, loss=None, optimizer=None, step=False,
         steady_state=False, options=None, training=None, run_steps=0):  # fmt: skip
    """(graph, seconds of the recorded run)."""
    training = training or Training()
    is_model = isinstance(program, torch.nn.Module) or step or train is not None
    # The module, the optimizer and what steps before the recorded one leave are made in a mode around the capture.
    options = dict(options or {})
    _refuse_unknown("option", options, _OF_CAPTURE)
    around = {name: options[name] for name in _OF_MODE if name in options}
    with fake(device, **around) as mode, contextlib.ExitStack() as stack:
        module, conversion = None, _models.Conversion()
        if is_model:
            module = _models.made(program, device, dtype, conversion)
            stack.enter_context(_models.Converted(module, mode, device, dtype, conversion))
            stack.enter_context(_training(module, train))
        if isinstance(module, _schedules.PipelineRank):
            shapes = functools.partial(_pipelines.found_out, program, args, kwargs, training.target, device, dtype)
            stack.enter_context(_told_by_neighbours(module, program, shapes, fake(device, **around), step))
            args, kwargs = module.arguments(args, kwargs, training, loss)
        else:
            training.check_model()
        made: set[int] = set()  # ids of the tensors that texts stand for
        args, kwargs = _on_device(args, kwargs, device, dtype, mode, made)
        call = module if module is not None else program
        if step:
            loop = _loop_of(module, loss, optimizer, training, device)
            if steady_state:
                loop.run(args, kwargs)
            else:
                loop.zero_grad()
        session = stack.enter_context(_OfModel(device, **options))
        if module is not None:
            session.name_module(module)
        for name, tensor in _named(args, kwargs):
            # Token ids, masks and lengths that were given as tensors are data of the program; what a text made is not.
            session.name_input(tensor, name, keep_contents=not tensor.is_floating_point() and id(tensor) not in made)
        if step:
            loop.name_state(session)
        begin = time.perf_counter()
        with torch.set_grad_enabled(train) if train is not None else contextlib.nullcontext():
            if step:
                outputs = loop.record(args, kwargs, run_steps)
            else:
                with training.context_scope(args, kwargs), training.autocast_scope(device):
                    outputs = call(*args, **kwargs)
        graph = session.finish(outputs)
        seconds = time.perf_counter() - begin
    graph.set_metadata("device", canonical(device))
    graph.set_metadata("mode", "train" if step else "infer")
    if step and not run_steps:
        graph.set_metadata("step", "steady" if steady_state else "first")
    for name, value in training.metadata():
        graph.set_metadata(name, value)
    assumed = [conversion.text()]
    if _compiled.is_compiled(module):
        assumed.append("torch.compile left out: compiled programs hold less and are quicker")
    if any(assumed):
        graph.set_metadata("assumed", "; ".join(filter(None, assumed)))
    if module is not None:
        graph.set_metadata("model", _schedules.name_of(module))
    return graph, seconds


def _told_by_neighbours(module, program, shapes, mode, step):
    """What stages of other ranks say of their shapes, as a context."""
    if _pipelines.PipelineShapes.here() is not None or not module.asks_neighbours or _schedules.is_schedule(program):
        return contextlib.nullcontext()
    with mode:
        return shapes(backward=None if step else False)


def _loop_of(module, loss, optimizer, training, device):
    if isinstance(module, _schedules.PipelineRank):
        return PipelineLoop(module, optimizer, training, device)
    return TrainingLoop(module, functools.partial(_loss_of, loss=loss), optimizer, training, device)


@contextlib.contextmanager
def _training(module, train):
    """The module's training mode, for a while."""
    before = [(part, part.training) for part in module.modules()]
    if train is not None:
        module.train(train)
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _on_device(args, kwargs, device, dtype, mode, made):
    def leaf(path, value):
        is_text = isinstance(value, str)
        if is_text:
            value = _inputs.made(value, device)
        elif not _C.is_fake(value):
            value = mode.from_real(value, device)
        if dtype is not None and value.is_floating_point():
            value = value.to(dtype)
        if is_text:
            made.add(id(value))  # of what is kept: the id of a tensor that is gone may be another's soon
        return value

    return _inputs.mapped(list(args), leaf), _inputs.mapped(kwargs, leaf)


def _named(args, kwargs):
    """(name, tensor) of every input, each once."""
    seen, named = set(), []

    def leaf(path, tensor):
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            named.append((path, tensor))
        return tensor

    _inputs.mapped({f"input{i}": value for i, value in enumerate(args)}, leaf)
    _inputs.mapped(kwargs, leaf)
    return named


def _loss_of(outputs, loss):
    if callable(loss):
        value = loss(outputs)
    elif getattr(outputs, "loss", None) is not None:
        value = outputs.loss
    elif loss == ".loss":
        raise _C.Error("the outputs have no .loss: give the model labels among its inputs, or loss=function")
    else:
        floating = [tensor for tensor in _inputs.tensors_of(outputs) if tensor.is_floating_point()]
        if not floating:
            raise _C.Error("no output is floating-point, so there is nothing to train on: give loss=function")
        value = floating[0] if floating[0].dim() == 0 else floating[0].float().mean()
    if not isinstance(value, torch.Tensor) or value.dim() != 0 or not value.requires_grad:
        what = _C.describe(value) if isinstance(value, torch.Tensor) else type(value).__name__
        raise _C.Error(f"the loss must be a tensor of no dimensions that requires grad; it is {what}")
    return value
