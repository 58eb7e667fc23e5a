"""Patches of torch's Python code for fake modes.

All patches are here and in `_devices`, `_files` and `_reads`. A patched function calls the original one unless a mode
is active on the calling thread. Process-wide flags (`_Flags`) are set while any thread is in a mode.
"""

import concurrent.futures
import contextlib
import functools
import inspect
import os
import sys
import threading
import weakref

import torch
import torch._library.fake_impl
import torch._library.simple_registry
import torch._subclasses.fake_tensor
import torch.export
import torch.nn.attention.flex_attention
import torch.utils.checkpoint
import torch.utils.data
from _shadowgraph_build import CUDA_VERSION

from . import _compiled, _devices, _files, _flex_attention, _libraries, _loop_tracker, _reads, _wrappers
from . import _shadowgraph as _C
from ._libraries import when_imported
from ._shared import Shared, replaces, set_variable
from ._unfake import unfake

_lock = threading.Lock()
_installed = False


def install():
    """Installs all patches. Runs once per process; thread safe."""
    if _installed:
        return
    # Interrupts are raised on the calling thread and would leave half of the patches.
    with concurrent.futures.ThreadPoolExecutor(1, "shadowgraph.install") as pool:
        pool.submit(_install).result()


def _install():
    global _installed
    with _lock:
        if _installed:
            return
        _check_private_parts()
        flags.gpu_is_there = torch.cuda.is_available()
        init_error = None if flags.gpu_is_there else _devices.cuda_init_error()
        _C.install()
        _C.set_library_folders([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep])
        if not flags.gpu_is_there:
            _devices.simulate_cuda(init_error)
            flags.uninitialized.append("cuda")
        if not torch.xpu.is_available():
            _devices.simulate_xpu()
            flags.uninitialized.append("xpu")
        _reads.patch_reads()
        _patch_checkpoints()
        _files.patch_loading()
        _patch_data_dependent_functions()
        _patch_storage_access()
        _patch_host_buffers()
        _reads.patch_deepcopy()
        _patch_generators()
        _libraries.install_import_hook()
        _patch_storage_resize()
        _patch_fake_tensor_mode()
        _patch_fake_kernel_context()
        _patch_control_flow()
        _patch_script_calls()
        _patch_backward()
        _patch_is_fake_tensor()
        when_imported("triton.runtime.jit", _patch_triton)
        _compiled.watch(flags)
        _loop_tracker.install()
        _installed = True


# Private APIs of torch that this package relies on, in every supported version. The C++ side checks its own in
# core/libtorch.
_PRIVATE_PARTS = {
    "torch._C": ("_only_lift_cpu_tensors", "_set_only_lift_cpu_tensors", "_DisableTorchDispatch"),
    "torch._higher_order_ops.utils": ("_hop_compile_and_call",),
    "torch._library.fake_impl": ("set_ctx_getter",),
    "torch._library.simple_registry.singleton": ("_data",),
    "torch._ops.HigherOrderOperator": ("dispatch",),
    "torch._subclasses.fake_tensor.FakeTensorMode": ("__enter__", "__exit__"),
    "torch._tensor_str": ("_tensor_str",),
    "torch._utils": ("_rebuild_tensor", "_rebuild_tensor_v3"),
    "torch.UntypedStorage": ("_share_fd_cpu_", "_share_filename_cpu_", "_write_file"),
    "torch.autograd.graph": ("_engine_run_backward",),
    "torch.cuda": ("_cudart", "_exchange_device", "_get_pynvml_handler", "_lazy_init", "_maybe_exchange_device"),
    "torch.cuda.memory": ("is_initialized",),
    "torch.cuda.nvtx": ("_nvtx",),
    "torch.cuda.random": ("device_count",),
    "torch.nn.attention.flex_attention": ("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",),
    "torch.nn.init": ("_no_grad_trunc_normal_",),
    "torch.storage.TypedStorage": ("_getitem", "_setitem"),
    "torch.utils.checkpoint": ("CheckpointFunction", "_checkpoint_without_reentrant_generator", "_recomputation_hook"),
}
# The generator behind checkpoint(). The second name is used until torch 2.14; later versions keep it for other callers.
_CHECKPOINT_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


def _checkpoint_generator():
    return next(name for name in _CHECKPOINT_GENERATORS if hasattr(torch.utils.checkpoint, name))


def _is_called(module, name):
    """Returns True if another function of `module` calls `name`. Otherwise patching `name` there has no effect."""
    functions = [inspect.unwrap(each) for each in vars(module).values() if inspect.isfunction(each)]
    return any(name in each.__code__.co_names for each in functions if each.__name__ != name)


def _check_private_parts():
    absent = [f"{owner}.{name}" for owner, names in _PRIVATE_PARTS.items() for name in names
              if not hasattr(functools.reduce(getattr, owner.split(".")[1:], torch), name)]  # fmt: skip
    if not absent and not _is_called(torch.utils.checkpoint, _checkpoint_generator()):
        absent = [f"call of torch.utils.checkpoint.{_checkpoint_generator()}"]
    if absent:
        raise _C.Error(
            f"torch {torch.__version__} has no {absent[0]}, which shadowgraph {_C.version} requires; install torch "
            f"{_C.torch_version}, for which it was built"
        )


class _Flags(Shared):
    """Process-wide flags, set while any thread is in a mode."""

    # Makes transformers load weights on the calling thread; its worker threads are not in a mode.
    _SYNC_LOAD = "HF_DEACTIVATE_ASYNC_LOAD"

    def __init__(self):
        super().__init__()
        self.gpu_is_there = False
        self.uninitialized: list[str] = []  # missing devices, which torch must not initialize in modes

    def _apply(self):
        # torch.tensor(data, device="cuda") then creates a CPU tensor and lifts it by an operator that modes handle.
        self.on_exit(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        self.on_exit(set_variable, self._SYNC_LOAD, os.environ.get(self._SYNC_LOAD))
        set_variable(self._SYNC_LOAD, "1")
        _libraries.set_caches_aside(self)
        _compiled.run_eagerly(self)
        self.on_exit(_flex_attention.fuse_masks, False)
        _flex_attention.fuse_masks(True)
        if not self.gpu_is_there:
            # Libraries check torch.version.cuda in addition to is_available().
            self.set(torch.version, "cuda", torch.version.cuda or CUDA_VERSION)
        # A PrivateUse1 backend without a Python module cannot be initialized.
        custom = torch._C._get_privateuse1_backend_name()
        for device in [*self.uninitialized, *([] if hasattr(torch, custom) else [custom])]:
            self.on_exit(_C.set_requires_device_init, device, True)
            _C.set_requires_device_init(device, False)


flags = _Flags()


def _patch_checkpoints():
    """Captures runs of checkpointed functions as regions, and records the tensors saved during recomputation."""
    module = torch.utils.checkpoint

    class Checkpointed:
        def __init__(self, function):
            self._function = function
            self.runs = _C.ExternalCheckpoint(_name_of(function))

        def __call__(self, *args, **kwargs):
            self.runs.enter()
            try:
                return self._function(*args, **kwargs)
            finally:
                self.runs.leave()

    # Patches internals of torch.utils.checkpoint.checkpoint, because libraries may have imported the function already.
    reentrant = module.CheckpointFunction.apply

    @functools.wraps(reentrant)
    def apply(function, *args):
        if _C.is_capturing() and torch.is_grad_enabled():
            function = Checkpointed(function)
            with _initialized_cuda():
                return reentrant(function, *args)
        return reentrant(function, *args)

    module.CheckpointFunction.apply = staticmethod(apply)
    generator = getattr(module, _checkpoint_generator())

    @replaces(module, _checkpoint_generator())
    def around(function, *args, **kwargs):
        if not (_C.is_capturing() and torch.is_grad_enabled()):
            yield from generator(function, *args, **kwargs)
            return
        function = Checkpointed(function)
        inner = generator(function, *args, **kwargs)
        with _initialized_cuda():
            next(inner)
        # The caller runs the function while this generator is suspended.
        function.runs.enter()
        try:
            yield
        except BaseException as error:
            function.runs.leave()
            inner.throw(error)
            raise
        function.runs.leave()
        yield from inner

    begin = module._recomputation_hook.__init__

    @replaces(module._recomputation_hook, "__init__")
    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if not _C.is_capturing():
            return
        pack = self.pack_hook

        def pack_and_record(tensor):
            _C.ExternalCheckpoint.keep(tensor)
            return pack(tensor)

        self.pack_hook = pack_and_record


class _initialized_cuda(_C.Cleanup):
    """Lets checkpoint() save the random states of CUDA devices."""

    def _enter(self):
        self.set(torch.cuda, "_initialized", True)


def _name_of(function):
    inner = function.func if isinstance(function, functools.partial) else function
    for module in (getattr(inner, "__self__", None), inner):  # a layer's __call__, a layer
        if isinstance(module, torch.nn.Module):
            return type(module).__name__
    return getattr(inner, "__name__", "checkpoint")


def _patch_generators():
    """Lets captures and deferred_init watch a generator as soon as the program seeds, saves or restores it."""

    def watching(original):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            _C.watch_generator(self)
            return original(self, *args, **kwargs)

        return call

    for name in ("clone_state", "get_state", "manual_seed", "seed", "set_state"):
        if hasattr(torch.Generator, name):
            _C.set_type_attribute(torch.Generator, name, watching(getattr(torch.Generator, name)))


def _patch_data_dependent_functions():
    """Replaces torch functions that read the values of their results."""
    original_trunc_normal = torch.nn.init._no_grad_trunc_normal_

    # The internal function, because libraries may have imported the public one already.
    @replaces(torch.nn.init, "_no_grad_trunc_normal_")
    def trunc_normal_(tensor, mean, std, a, b, generator=None):
        if not _wrappers.is_fake(tensor):
            return original_trunc_normal(tensor, mean, std, a, b, generator=generator)
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    original_new_tensor = torch.Tensor.new_tensor

    @replaces(torch.Tensor, "new_tensor")
    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        if not _C.is_active():
            return original_new_tensor(self, data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
        if kwargs.pop("layout", torch.strided) is not torch.strided:
            raise _C.NoRuleError("Tensor.new_tensor() on fake tensors supports layout=torch.strided only")
        how = {"dtype": dtype or self.dtype, "device": device or self.device, "requires_grad": requires_grad}
        return torch.tensor(data, **how, **kwargs)

    original_new = torch.Tensor.new

    @replaces(torch.Tensor, "new")
    def new(self, *args, device=None):
        # The legacy constructor derives the device from the dispatch keys, of which fake tensors have an extra one.
        if not _C.is_fake(self):
            return original_new(self, *args) if device is None else original_new(self, *args, device=device)
        how = {"dtype": self.dtype, "device": self.device if device is None else device}
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].detach()
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return torch.tensor(args[0], **how)
        return torch.empty(*(args or (0,)), **how)


def _patch_storage_access():
    """Disables modes in storage accessors, which create temporary tensors that a mode would make fake."""

    def for_real(owner, name, storage_of):
        original = getattr(owner, name)

        @replaces(owner, name)
        def call(self, *args, **kwargs):
            with unfake() if _C.is_active() and storage_of(self).device.type != "meta" else contextlib.nullcontext():
                return original(self, *args, **kwargs)

    for name in ("_getitem", "_setitem"):
        for_real(torch.storage.TypedStorage, name, lambda typed: typed._untyped_storage)
    for_real(torch.UntypedStorage, "copy_", lambda storage: storage)


def _patch_host_buffers():
    """Makes tensors on a buffer tensors of the captured program, as from_numpy does, which ends in lift_fresh."""

    def lifting(original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            tensor = original(*args, **kwargs)
            source = next(iter((*args, *kwargs.values())), None)
            if not _C.is_capturing() or isinstance(source, (torch.Tensor, torch.UntypedStorage)):
                return tensor
            if _C.is_fake(tensor) or tensor.device.type != "cpu":
                return tensor
            with torch.no_grad():
                lifted = torch.ops.aten.lift_fresh(tensor)
            return lifted.requires_grad_(tensor.requires_grad)

        return call

    torch.asarray, torch.frombuffer = lifting(torch.asarray), lifting(torch.frombuffer)
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = lifting(torch.from_dlpack)


def _patch_storage_resize():
    """Records storage.resize_(0), by which FSDP2 frees gathered parameters. It is not an operator."""
    original = torch.UntypedStorage.resize_

    @replaces(torch.UntypedStorage, "resize_")
    def resize_(self, size):
        if _C.is_active() and self.device.type == "meta":
            _C.resize_storage(self, size)
            return self
        return original(self, size)


def _patch_fake_tensor_mode():
    """Disables our modes inside torch's FakeTensorMode, which DTensor uses for shape propagation."""
    mode = torch._subclasses.fake_tensor.FakeTensorMode
    enter, leave = mode.__enter__, mode.__exit__
    guards: weakref.WeakKeyDictionary[torch._subclasses.fake_tensor.FakeTensorMode, list] = weakref.WeakKeyDictionary()

    @replaces(mode, "__enter__")
    def enter_disabled(self):
        guard = unfake() if _C.is_active() else contextlib.nullcontext()
        guard.__enter__()
        guards.setdefault(self, []).append(guard)
        return enter(self)

    @replaces(mode, "__exit__")
    def leave_disabled(self, *exception):
        try:
            return leave(self, *exception)
        finally:
            guards[self].pop().__exit__(*exception)

    export = torch.export.export

    # torch.export initializes caches at its first call, which must not contain our fake tensors.
    @replaces(torch.export, "export")
    def export_disabled(*args, **kwargs):
        with unfake() if _C.is_active() else contextlib.nullcontext():
            return export(*args, **kwargs)


class _CustomOperatorSizes:
    """Result of torch.library.get_ctx() in a fake kernel: takes data-dependent sizes from the mode's data_sizes."""

    def __init__(self, operator, arguments):
        self._operator = operator
        self._tensor = next((each for each in arguments if isinstance(each, torch.Tensor)), None)
        self._requested = 0

    def new_dynamic_size(self, *, min=0, max=None):
        # Named after the operator: nonzero0, then nonzero1 at its next call. The second size is nonzero_size2_0.
        self._requested += 1
        name = self._operator.partition("::")[2].partition(".")[0]
        if self._requested > 1:
            name += f"_size{self._requested}_"
        tensor = torch.empty(0) if self._tensor is None else self._tensor
        size = _C.data_size(self._operator, name, tensor, sys.maxsize if max is None else max)
        if size < min:
            raise _C.Error(f"{self._operator}: size {size} in data_sizes for {name} is below the minimum {min}")
        return size

    create_unbacked_symint = new_dynamic_size


def _has_fake_kernel(operator):
    """Returns True if torch.library.register_fake was called for the operator, whose Meta kernel then calls Python."""
    entry = torch._library.simple_registry.singleton._data.get(operator)  # .get() since 2.13; find() adds an entry
    return entry is not None and entry.fake_impl.kernel is not None


def _patch_fake_kernel_context():
    _C.set_fake_kernel_finder(_has_fake_kernel)
    original = torch._library.fake_impl.set_ctx_getter

    @replaces(torch._library.fake_impl, "set_ctx_getter")
    def set_ctx_getter(getter):
        # The caller is the Meta kernel that torch.library creates for a fake kernel; read the operator from its frame.
        kernel = sys._getframe(1).f_locals
        arguments = (*kernel.get("args", ()), *kernel.get("kwargs", {}).values())
        if "qualname" not in kernel or not any(isinstance(x, torch.Tensor) and _C.is_fake(x) for x in arguments):
            return original(getter)
        sizes = _CustomOperatorSizes(kernel["qualname"], arguments)
        return original(lambda: sizes)


class _FlagOrActive:
    """A module flag that is also true while a mode is active on the calling thread."""

    def __init__(self, flag):
        self._flag = flag

    def __bool__(self):
        return bool(self._flag) or _C.is_active()


def _patch_control_flow():
    """Runs torch.cond, while_loop, scan, map and flex_attention eagerly instead of compiling them."""
    utils = torch._higher_order_ops.utils
    compile_and_call = utils._hop_compile_and_call

    @replaces(utils, "_hop_compile_and_call")
    def call(fn, args, kwargs=None):
        return fn(*args, **(kwargs or {})) if _C.is_active() else compile_and_call(fn, args, kwargs)

    flex = torch.nn.attention.flex_attention
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _FlagOrActive(flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)
    _flex_attention.patch()

    keys = torch._C.DispatchKey
    known_keys = frozenset(int(key) for key in keys.__members__.values())
    dispatch = torch._ops.HigherOrderOperator.dispatch

    @replaces(torch._ops.HigherOrderOperator, "dispatch")
    def dispatch_unknown_keys(self, dispatch_key, /, *args, **kwargs):
        # The dispatch keys of modes and fake tensors have no Python names.
        if int(dispatch_key) in known_keys:
            return dispatch(self, dispatch_key, *args, **kwargs)
        kernel = self.py_kernels.get(keys.CompositeExplicitAutograd)
        if kernel is None:
            raise _C.NoRuleError(
                f"the higher-order operator {self.name()} does not support fake tensors; call the operators it "
                "consists of instead, outside torch.compile"
            )
        return kernel(*args, **kwargs)


def _patch_is_fake_tensor():
    """Excludes our fake tensors from torch's C++ fake tensors (since 2.15), which use the same dispatch key."""
    if original := getattr(torch._C, "_is_fake_tensor", None):
        torch._C._is_fake_tensor = lambda tensor: not _C.is_fake(tensor) and original(tensor)


def _patch_triton(module):
    """Rejects Triton kernels on fake tensors, which have no data pointers."""
    original = module.JITFunction.run

    @replaces(module.JITFunction, "run")
    def run(self, *args, **kwargs):
        if any(isinstance(each, torch.Tensor) and _C.is_fake(each) for each in (*args, *kwargs.values())):
            raise _C.NoRuleError(
                f"cannot launch the Triton kernel {self.__name__} on fake tensors; wrap it in a custom operator with a "
                "fake kernel (torch.library.custom_op and register_fake), or disable Triton in the library"
            )
        return original(self, *args, **kwargs)


def _patch_script_calls():
    """Refuses TorchScript programs that call tolist(), which the interpreter runs on data pointers."""

    def patch(kind):
        original = kind.__call__

        @replaces(kind, "__call__")
        def call(self, *args, **kwargs):
            if _C.is_active() and self.inlined_graph.findNode("prim::tolist") is not None:
                raise _C.DataDependentError(
                    f"the TorchScript program {self.name} calls tolist(), which reads contents that fake tensors lack; "
                    "compute the list from sizes, or call the program's Python original"
                )
            return original(self, *args, **kwargs)

    patch(torch._C.ScriptFunction)
    patch(torch._C.ScriptMethod)


def _patch_backward():
    """Explains the failed assertion of autograd's engine when backward runs on a simulated device outside a mode."""
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(outputs, *args, **kwargs):
        try:
            return original(outputs, *args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, _C.Error):
                raise
            if _C.is_active() and any(each.device.type == torch._C._get_privateuse1_backend_name() for each in outputs):
                raise _C.UnsupportedError(
                    "autograd's engine supports privateuseone only with a registered backend; load it, or call "
                    'torch.utils.backend_registration._setup_privateuseone_for_python_backend("name") first, which is '
                    "permanent in the process"
                ) from error
            missing = None if _C.is_active() else _missing_device(outputs)
            if missing is None:
                raise
            raise _C.Error(
                f"backward() of fake tensors on {missing} outside a mode, where that device is not simulated; call it "
                "inside any `with shadowgraph.fake(...)`"
            ) from error

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run_backward


def _missing_device(outputs):
    """Returns the device type of the autograd graph of `outputs` if this machine lacks it, else None."""
    available = torch.accelerator.current_accelerator()
    pending = [each.node if hasattr(each, "node") else each.grad_fn for each in outputs]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for kind in (each.device.type for each in node._input_metadata):
            if kind not in ("cpu", "meta") and (available is None or available.type != kind):
                return kind
        pending.extend(each for each, _ in node.next_functions)
    return None
