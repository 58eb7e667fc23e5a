"""Captures programs as graphs."""

import contextlib
import dataclasses
import functools
import gc
import inspect
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import _attributes, _compiled, _distributed, _inputs, _loop_tracker, _models, _pipelines, _schedules, _wrappers
from . import _shadowgraph as _C
from ._fake import Scope, fake
from ._keywords import keywords_apart
from ._loop_tracker import canonical
from ._shared import Shared, nearest
from ._training import PipelineLoop, Training, TrainingLoop


class _ModuleCalls(Shared):
    """Patches torch.nn.Module.__call__ to track the running module while any thread captures.

    Also disables garbage collection meanwhile. It runs at arbitrary points, so tensors in reference cycles would be
    freed at nondeterministic points of the graph.
    """

    _tracking = None

    def _apply(self):
        if self._tracking is None:
            self._tracking = _C.module_call(torch.nn.Module, torch.nn.Module.__dict__["__call__"])
        self.set(torch.nn.Module, "__call__", self._tracking)
        if gc.isenabled():
            self.on_exit(gc.enable)
            gc.disable()


_module_calls = _ModuleCalls()


class Capture(Scope):
    """Captures the operators that run inside ``with`` on this thread, below autograd, as one graph.

        with sg.Capture("cuda") as session:
            model = Net().cuda()
            session.name_module(model)
            loss = model(torch.empty(8, 3, 224, 224, device="cuda")).sum()
            loss.backward()
            graph = session.finish(loss)

    Takes the arguments of `fake`, and:

    saved_tensors: record the tensors that autograd saves for backward.
    guards: record the sizes that the program reads.
    source_lines: record "file:line" of the program for every node outside backward.
    """

    _kind = _C.Session

    def __init__(self, device="cpu", *, profile="", device_count=None, real_tensors="constant", data_sizes=None,
                 host_reads=None, contents_budget=None, allow_fallback_kernels=False, saved_tensors=True,
                 guards=True, source_lines=True):  # fmt: skip
        super().__init__(device, profile=profile, device_count=device_count, real_tensors=real_tensors,
                         data_sizes=data_sizes, host_reads=host_reads, contents_budget=contents_budget,
                         allow_fallback_kernels=allow_fallback_kernels, saved_tensors=saved_tensors,
                         guards=guards, source_lines=source_lines)  # fmt: skip
        self._loop: _loop_tracker.LoopTracker | None = _loop_tracker.LoopTracker(self)
        self._wrapped: list[tuple[str, torch.Tensor]] = []  # (name, parameter) of tensor subclasses that wrap tensors
        self._plain: list[torch.Tensor] = []  # all other parameters

    def _enter(self):
        super()._enter()
        _distributed.set_accelerate_device(torch.device(self._device), self)
        _module_calls.hold(self)
        if self._loop is not None:
            _loop_tracker.track(self._loop, self)

    def name_module(self, module, name="", *, state=False):
        """Declares the parameters and buffers of a module, and the paths and classes of its submodules.

        Optional: a module that the program calls is declared at its first call.

        name: prefix of all names, for programs with several modules: "generator.0.weight".
        state: treat the parameters as buffers, for example those of an averaged model.
        """
        session = self._active()
        if self._loop is not None:
            self._loop.declare(module, name, state)
        if type(module).named_parameters is not torch.nn.Module.named_parameters:  # a wrapper that changes names
            parts = list(module.named_modules())
            parameters, buffers = module.named_parameters(), module.named_buffers()
        else:
            parts, parameters, buffers = _models.parts_of(module)
        prefix = f"{name}." if name else ""
        for path, parameter in parameters:
            parts_of_it = _wrappers.inner(parameter)
            for suffix, part in parts_of_it:
                (session.name_buffer if state else session.name_parameter)(part, prefix + path + suffix)
            if _wrappers.is_subclass(parameter):
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
                if parameter is not None and _wrappers.is_subclass(parameter):
                    found = _attributes.tensors_of(part, but=_models.OF_EVERY_MODULE)
                    self._name_attributes(found, prefix + path, parameter)

    def _name_attributes(self, named, path, parameter):
        """Declares tensors in attributes of parameters and modules as buffers, except aliases of `parameter`."""
        for suffix, tensor in named:
            if _C.is_fake(tensor) and tensor.untyped_storage()._cdata != parameter.untyped_storage()._cdata:
                self._active().name_buffer(tensor, path + suffix)

    def name_input(self, tensor, name, keep_contents=False):
        """Declares a tensor as a graph input with this name.

        keep_contents: allow the program to read its values (such as an attention mask); each read becomes a guard.
        """
        for suffix, part in _wrappers.inner(tensor):
            self._active().name_input(part, name + suffix, keep_contents)

    def finish(self, outputs=()):
        """Ends the capture and returns the graph. The tensors in `outputs`, a nested structure, are its outputs."""
        tensors = [part for tensor in _inputs.tensors_of(outputs) for _, part in _wrappers.inner(tensor)]
        gradients = []
        for _, parameter in self._wrapped:
            if parameter.grad is not None:  # set on the wrapper subclass, which C++ does not see
                parts = zip(_wrappers.inner(parameter), _wrappers.inner(parameter.grad))
                gradients += [(part, of_part) for (_, part), (_, of_part) in parts]
        for parameter in self._plain:
            # Megatron-LM keeps gradients in main_grad, a view of one contiguous buffer.
            if parameter.grad is None and isinstance(getattr(parameter, "main_grad", None), torch.Tensor):
                gradients.append((parameter, parameter.main_grad))
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


class _ModelCapture(Capture):
    """A capture for calls made by this package, which declares modules and inputs itself."""

    def __init__(self, device, **options):
        super().__init__(device, **options)
        self._loop = None


@keywords_apart
def capture(fn, /, *args, device="cpu", train=None, dtype=None, options=None, **kwargs):
    """Runs fn(*args, **kwargs) once on fake tensors and returns the graph.

    fn: a function or a torch.nn.Module. A module is not modified; its tensors are replaced by fake tensors for the run.
    args, kwargs: tensors and nested structures of them; a string such as "f32[8,3,224,224]" creates a tensor.
    device: device of the module and the inputs.
    train: training mode of the module during the run; None leaves it unchanged.
    dtype: converts floating-point parameters, buffers and inputs.
    options: options of `Capture`, for example {"host_reads": "finite", "data_sizes": {"nonzero0": 17}}.

    If fn also has a parameter called device, train, dtype or options, passing that keyword raises TypeError.

    Raises DataDependentError if the program reads values that a fake tensor does not have.
    """
    return _run(fn, args, kwargs, device=device, dtype=dtype, train=train, options=options)[0]


ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip


def attention(kernel):
    """Returns a context that selects the scaled_dot_product_attention kernel; "device" leaves the choice to PyTorch."""
    return contextlib.nullcontext() if kernel == "device" else sdpa_kernel(ATTENTION[kernel])


def capture_training_step(model, inputs, *, loss=None, optimizer=None, device="cpu", dtype=None, steady_state=False,
                          options=None, **training):  # fmt: skip
    """Captures one training step as one graph: forward, loss, backward and optimizer step.

    model: a torch.nn.Module (not modified), a function that creates one, or a transformers configuration or class.
    inputs: a tensor, a sequence of arguments or a dict of keyword arguments. A string such as "i64[4,512]" creates a
        tensor. A shape (8, 3, 224, 224), or a sequence of only shapes, creates float32 tensors.
    loss: a function of the model output. Defaults to its `.loss`, else the mean of its first floating-point tensor.
    optimizer: a class or function that takes parameters, or "sgd", "adam", "adamw"; None captures no optimizer step.
    device: device of the model and the inputs.
    dtype: converts floating-point parameters, buffers and inputs.
    steady_state: capture the second step, when the optimizer state already exists.
    options: options of `Capture`, for example {"host_reads": "finite"}; also accepted as keywords: host_reads="finite".
    training: further parts of the training loop, which can be combined:
        accumulate=4: gradient accumulation steps; each uses the given inputs and a quarter of the loss.
        clip_grad_norm=1.0: torch.nn.utils.clip_grad_norm_.
        grad_scaler=True: torch.amp.GradScaler; gradients are finite unless host_reads specifies otherwise.
        ema=0.999: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn of this decay.
        autocast=torch.bfloat16: torch.autocast for forward and loss.
        zero_grads=True: zero_grad(set_to_none=False).
        context=lambda ids: context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]): context manager around forward,
            loss and backward, as a function of the model's arguments; for example lambda ids: loss_parallel().
        target="i64[8,512]": target of the loss function of a torch.distributed.pipelining schedule.
        return_outputs=False: for such a schedule, do not merge the outputs of the micro-batches on the last stage.
    """
    around, options = _loop_and_options(training, options)
    args, kwargs = _inputs.as_call(inputs)
    return _run(model, args, kwargs, device=device, dtype=dtype, train=True, loss=loss, optimizer=optimizer,
                step=True, steady_state=steady_state, options=options, training=around)[0]  # fmt: skip


def is_training(mode, loss, optimizer, target):
    return mode == "train" if mode is not None else not (loss is optimizer is target is None)


def of_model(model, inputs, *, loss=None, optimizer=None, device, dtype=None, mode=None, steady_state=False,
             options=None, run_steps=0, **training):  # fmt: skip
    """Returns (graph, seconds) for one training step, for `run_steps` of them, or for inference."""
    if mode not in (None, "train", "infer"):
        raise _C.Error(f"mode={mode!r}: expected 'train' or 'infer'")
    train = is_training(mode, loss, optimizer, training.get("target"))
    if not train and (loss is not None or optimizer is not None):
        raise _C.Error("mode='infer' accepts neither loss= nor optimizer=")
    if not train and run_steps:
        raise _C.Error("run=True requires a training step; pass mode='train'")
    around, options = _loop_and_options(training, options)
    if not train:
        around.check_inference()
    args, kwargs = _inputs.as_call(inputs)
    return _run(model, args, kwargs, device=device, dtype=dtype, train=train, loss=loss, optimizer=optimizer,
                step=train, steady_state=steady_state and train, options=options, training=around,
                run_steps=run_steps)  # fmt: skip


# Keyword arguments of `fake`, and those of `Capture`, which include them.
_OF_MODE, _OF_CAPTURE = (
    [name for name, given in inspect.signature(kind).parameters.items() if given.kind is given.KEYWORD_ONLY]
    for kind in (fake, Capture)
)


def _refuse_unknown(what, given, known):
    for name in given:
        if name not in known:
            raise TypeError(f"unknown {what} {name!r}{nearest(name, known) or '.'} Accepted: {', '.join(known)}")


def _loop_and_options(keywords, options):
    """Splits keywords into (Training, options of the capture). Options may be given as keywords or in `options`."""
    of_capture = {name: value for name, value in keywords.items() if name in _OF_CAPTURE}
    if twice := [name for name in of_capture if name in (options or {})]:
        raise TypeError(f"{twice[0]} is given twice: as a keyword and in options=; give it once")
    of_loop = {name: value for name, value in keywords.items() if name not in of_capture}
    _refuse_unknown("keyword argument", of_loop, [field.name for field in dataclasses.fields(Training)] + _OF_CAPTURE)
    return Training(**of_loop), {**(options or {}), **of_capture}


def mode_options(keywords, options):
    """Returns the capture options that `fake` accepts, too."""
    of_capture = _loop_and_options(keywords, options)[1]
    _refuse_unknown("option", of_capture, _OF_CAPTURE)
    return {name: of_capture[name] for name in _OF_MODE if name in of_capture}


def _run(program, args, kwargs, *, device, dtype=None, train=None, loss=None, optimizer=None, step=False,
         steady_state=False, options=None, training=None, run_steps=0):  # fmt: skip
    """Returns (graph, seconds of the captured run)."""
    training = training or Training()
    is_model = isinstance(program, torch.nn.Module) or step or train is not None
    # The module, the optimizer and the state left by earlier steps are created in a mode around the capture.
    options = dict(options or {})
    _refuse_unknown("option", options, _OF_CAPTURE)
    around = {name: options[name] for name in _OF_MODE if name in options}
    with fake(device, **around) as mode, _C.Cleanup() as stack:
        module, conversion = None, _models.Conversion()
        if is_model:
            module = _models.create(program, device, dtype, conversion)
            stack.enter_context(_models.Converted(module, mode, device, dtype, conversion, train))
        if isinstance(module, _schedules.PipelineRank):
            given = _inputs.Call(args, kwargs)
            stack.enter_context(
                _pipelines.shared_shapes(program, module, given, training.target, device, dtype, step, around)
            )
            args, kwargs = module.arguments(args, kwargs, training, loss)
        else:
            training.check_model()
        created: set[int] = set()  # ids of the tensors created from strings
        args, kwargs = _on_device(args, kwargs, device, dtype, mode, created)
        ids = kwargs.get("input_ids", args[0] if args else None)
        tokens = ids.shape[-1] if isinstance(ids, torch.Tensor) and ids.dtype == torch.int64 and ids.dim() else 0
        beyond = _models.beyond_positions(module, tokens)
        call = module if module is not None else program
        if step:
            if not isinstance(module, _schedules.PipelineRank):
                loop = TrainingLoop(module, functools.partial(_loss_of, loss=loss), optimizer, training, device)
            else:
                loop = PipelineLoop(module, optimizer, training, device)
            if steady_state:
                loop.run(args, kwargs)
            else:
                loop.zero_grad()
        session = stack.enter_context(_ModelCapture(device, **options))
        if module is not None:
            session.name_module(module)
        for name, tensor in _named(args, kwargs):
            # Token ids, masks and lengths given as tensors are real data; tensors created from strings are not.
            session.name_input(tensor, name, keep_contents=not tensor.is_floating_point() and id(tensor) not in created)
        if step:
            loop.name_state(session)
        begin = time.perf_counter()
        try:
            with torch.set_grad_enabled(train) if train is not None else contextlib.nullcontext():
                if step:
                    outputs = loop.record(args, kwargs, run_steps)
                else:
                    with training.context_scope(args, kwargs), training.autocast_scope(device):
                        outputs = call(*args, **kwargs)
        except (RuntimeError, torch.jit.Error) as error:
            if isinstance(error, _C.Error) or not isinstance(module, torch.jit.ScriptModule):
                raise
            # The interpreter replaces the types of errors and adds the source of every module.
            raise _C.Error(f"the TorchScript program failed: {str(error).rpartition('Error: ')[2].strip()}") from error
        graph = session.finish(outputs)
        seconds = time.perf_counter() - begin
    assumed = [conversion.text(), _media_left_out(module, args, kwargs), beyond]
    if _compiled.is_compiled(module):
        assumed.append("torch.compile is ignored: compiled programs use less memory and time")
    if _models.is_exported(module):
        assumed.append("the model runs in the training or evaluation mode in which it was exported")
    metadata = {"device": canonical(device), "mode": "train" if step else "infer"}
    if run_steps:
        metadata["steps"] = str(run_steps)
    elif step:
        metadata["step"] = "steady" if steady_state else "first"
    metadata.update(training.metadata(), assumed="; ".join(filter(None, assumed)))
    if module is not None:
        metadata["model"] = _schedules.name_of(module)
    for name, value in metadata.items():
        if value:
            graph.set_metadata(name, value)
    return graph, seconds


# Inputs of transformers models that are read by another part of the model than the text.
_MEDIA = ("pixel_values", "pixel_values_videos", "input_features", "input_values")


def _media_left_out(module, args, kwargs):
    """Returns a note if a multimodal transformers model runs without images, videos and audio, else ""."""
    if not getattr(getattr(module, "config", None), "sub_configs", None):
        return ""
    takes = list(inspect.signature(module.forward).parameters)
    given = {*takes[: len(args)], *kwargs}
    media = [name for name in _MEDIA if name in takes]
    if not media or given.intersection(media):
        return ""
    return (f"without {' or '.join(media)}, the model runs on text alone: the encoder of images, video or audio counts "
            "as parameters only; give it as an input")  # fmt: skip


def _on_device(args, kwargs, device, dtype, mode, created):
    def leaf(path, given):
        value = _inputs.from_spec(given, device) if isinstance(given, str) else given
        if not _C.is_fake(value):
            value = mode.from_real(value, device)
        if dtype is not None and value.is_floating_point():
            value = value.to(dtype)
        if isinstance(given, str):
            created.add(id(value))  # after conversion: ids of freed tensors are reused
        return value

    return _inputs.mapped(list(args), leaf), _inputs.mapped(kwargs, leaf)


def _named(args, kwargs):
    """Returns (name, tensor) for each distinct input."""
    named: dict[int, tuple[str, torch.Tensor]] = {}

    def leaf(path, tensor):
        named.setdefault(id(tensor), (path, tensor))
        return tensor

    _inputs.mapped({f"input{i}": value for i, value in enumerate(args)}, leaf)
    _inputs.mapped(kwargs, leaf)
    return list(named.values())


def _loss_of(outputs, loss):
    if callable(loss):
        value = loss(outputs)
    elif getattr(outputs, "loss", None) is not None:
        value = outputs.loss
    elif loss == ".loss":
        raise _C.Error("the model output has no .loss; pass labels among the inputs, or a function as loss=")
    else:
        value = next((tensor for tensor in _inputs.tensors_of(outputs) if tensor.is_floating_point()), None)
        if value is None:
            raise _C.Error("the model has no floating-point output to use as loss; pass a function as loss=")
        value = value if value.dim() == 0 else value.float().mean()
    if not isinstance(value, torch.Tensor) or value.dim() != 0 or not value.requires_grad:
        what = _C.describe(value) if isinstance(value, torch.Tensor) else type(value).__name__
        raise _C.Error(f"the loss must be a scalar tensor that requires grad, but is {what}")
    return value
