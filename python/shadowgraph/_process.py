"""What torch's Python side is told while a fake mode is active on the calling thread; otherwise it is as torch made it.

All that this package changes in torch is here and in `_devices`, `_files` and `_reads`. Wrapped functions
ask whether a mode is active and pass through if none is. Flags of the process (`_Flags`) are set while any thread is
in a mode.
"""

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

from . import _compiled, _devices, _files, _libraries, _reads, _wrappers
from . import _shadowgraph as _C
from ._libraries import when_imported
from ._unfake import unfake

_lock = threading.Lock()
_installed = False


def install():
    """Once a process; safe from any thread."""
    global _installed
    if _installed:
        return
    with _lock:
        if _installed:
            return
        _check_private_parts()
        _Flags.gpu_is_there = torch.cuda.is_available()
        init_error = None if _Flags.gpu_is_there else _devices.cuda_init_error()
        _C.install()
        _C.set_library_folders([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep])
        if not _Flags.gpu_is_there:
            _devices.simulate_cuda(init_error)
        _reads.guard()
        _tell_captures_of_checkpoints()
        _files.patch_loading()
        _replace_what_reads_its_own_results()
        _leave_real_storages_real()
        _reads.copy_fake_storages()
        _libraries.see_the_real_machine()
        _tell_captures_of_resized_storages()
        _step_aside_for_torchs_own_mode()
        _give_sizes_to_custom_operators()
        _run_control_flow()
        _explain_failed_backward()
        _tell_torch_that_fakes_are_not_its_own()
        when_imported("triton.runtime.jit", _refuse_fakes_in_triton)
        _compiled.watch(lambda: _Flags.users > 0)
        _installed = True


# What of torch is private and relied on here, in each version that there are builds for. The C++ side checks its own
# (core/libtorch).
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
    "torch.cuda": ("_exchange_device", "_lazy_init", "_maybe_exchange_device"),
    "torch.nn.attention.flex_attention": ("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",),
    "torch.nn.init": ("_no_grad_trunc_normal_",),
    "torch.storage.TypedStorage": ("_getitem", "_setitem"),
    "torch.utils.checkpoint": ("CheckpointFunction", "_checkpoint_without_reentrant_generator", "_recomputation_hook"),
}
# By what checkpoint() runs a function; the second until 2.14, which later versions keep for others.
_CHECKPOINT_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


def _checkpoint_generator():
    return next(name for name in _CHECKPOINT_GENERATORS if hasattr(torch.utils.checkpoint, name))


def _is_called(module, name):
    """Whether another function of the module calls it: what nobody calls any more would be replaced for nothing."""
    functions = [inspect.unwrap(each) for each in vars(module).values() if inspect.isfunction(each)]
    return any(name in each.__code__.co_names for each in functions if each.__name__ != name)


def _check_private_parts():
    def refuse(what):
        raise _C.Error(
            f"this torch ({torch.__version__}) has no {what}, which shadowgraph {_C.version} needs: it is made for "
            f"{_C.torch_version}; nothing was changed"
        )

    for owner, names in _PRIVATE_PARTS.items():
        part = torch
        for name in owner.split(".")[1:]:
            part = getattr(part, name)
        for name in names:
            if not hasattr(part, name):
                refuse(f"{owner}.{name}")
    if not _is_called(torch.utils.checkpoint, _checkpoint_generator()):
        refuse(f"call of torch.utils.checkpoint.{_checkpoint_generator()}")


class _Flags:
    """Flags of the whole process, set while any thread is in a mode."""

    gpu_is_there = False
    users = 0
    lift = False
    cuda_version: str | None = None
    caches = _libraries.Caches()
    # transformers loads weights on threads of its own, which are in no mode, unless this says so.
    loads_here = "HF_DEACTIVATE_ASYNC_LOAD"
    loads_here_before = None

    @classmethod
    def acquire(cls):
        with _lock:
            cls.users += 1
            if cls.users > 1:
                return
            # torch.tensor(data, device="cuda") is made on the CPU and lifted there, so that our kernel sees it.
            cls.lift = torch._C._only_lift_cpu_tensors()
            torch._C._set_only_lift_cpu_tensors(True)
            cls.loads_here_before = os.environ.get(cls.loads_here)
            os.environ[cls.loads_here] = "1"
            cls.caches.set_aside()
            _compiled.run_eagerly()
            if not cls.gpu_is_there:
                _C.set_requires_device_init("cuda", False)
                # Libraries take a torch without it for one without CUDA, whatever is_available() says.
                cls.cuda_version, torch.version.cuda = torch.version.cuda, torch.version.cuda or CUDA_VERSION

    @classmethod
    def release(cls):
        with _lock:
            cls.users -= 1
            if cls.users > 0:
                return
            torch._C._set_only_lift_cpu_tensors(cls.lift)
            _compiled.run_compiled()
            cls.caches.bring_back()
            if cls.loads_here_before is None:
                os.environ.pop(cls.loads_here, None)
            else:
                os.environ[cls.loads_here] = cls.loads_here_before
            if not cls.gpu_is_there:
                _C.set_requires_device_init("cuda", True)
                torch.version.cuda = cls.cuda_version


acquire, release = _Flags.acquire, _Flags.release


def _tell_captures_of_checkpoints():
    """torch.utils.checkpoint: its runs of a function are regions of a capture, and what the second keeps is known."""
    module = torch.utils.checkpoint

    class Checkpointed:
        def __init__(self, function):
            self._function = function
            self.runs = _C.CheckpointRuns(_name_of(function))

        def __call__(self, *args, **kwargs):
            self.runs.enter()
            try:
                return self._function(*args, **kwargs)
            finally:
                self.runs.leave()

    # Below torch.utils.checkpoint.checkpoint, which libraries hold from before this was installed.
    reentrant = module.CheckpointFunction.apply

    @functools.wraps(reentrant)
    def apply(function, *args):
        if _C.is_capturing() and torch.is_grad_enabled():
            function = Checkpointed(function)
        return reentrant(function, *args)

    module.CheckpointFunction.apply = staticmethod(apply)
    generator = getattr(module, _checkpoint_generator())

    @functools.wraps(generator)
    def around(function, *args, **kwargs):
        if not (_C.is_capturing() and torch.is_grad_enabled()):
            yield from generator(function, *args, **kwargs)
            return
        function = Checkpointed(function)
        inner = generator(function, *args, **kwargs)
        next(inner)
        # The first run is the caller's, between the two.
        function.runs.enter()
        try:
            yield
        except BaseException as error:
            function.runs.leave()
            inner.throw(error)
            raise
        function.runs.leave()
        yield from inner

    setattr(module, _checkpoint_generator(), around)

    hook = module._recomputation_hook
    begin = hook.__init__

    @functools.wraps(begin)
    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if not _C.is_capturing():
            return
        pack = self.pack_hook

        def pack_and_tell(tensor):
            _C.CheckpointRuns.keep(tensor)
            return pack(tensor)

        self.pack_hook = pack_and_tell

    hook.__init__ = init


def _name_of(function):
    inner = function.func if isinstance(function, functools.partial) else function
    owner = getattr(inner, "__self__", None)  # a bound method such as a layer's __call__
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    if isinstance(inner, torch.nn.Module):
        return type(inner).__name__
    return getattr(inner, "__name__", "checkpoint")


def _replace_what_reads_its_own_results():
    """Functions of torch that look at what they have just made."""
    # By its inner name: libraries hold the public function from before this was installed.
    original_trunc_normal = torch.nn.init._no_grad_trunc_normal_

    @functools.wraps(original_trunc_normal)
    def trunc_normal_(tensor, mean, std, a, b, generator=None):
        if not _wrappers.is_fake(tensor):
            return original_trunc_normal(tensor, mean, std, a, b, generator=generator)
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    torch.nn.init._no_grad_trunc_normal_ = trunc_normal_

    original_new_tensor = torch.Tensor.new_tensor

    @functools.wraps(original_new_tensor)
    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        if not _C.is_active():
            return original_new_tensor(self, data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
        if kwargs.pop("layout", torch.strided) is not torch.strided:
            raise _C.NoRuleError("Tensor.new_tensor with a layout other than torch.strided: fake tensors are dense")
        how = {"dtype": dtype or self.dtype, "device": device or self.device, "requires_grad": requires_grad}
        return torch.tensor(data, **how, **kwargs)

    torch.Tensor.new_tensor = new_tensor

    original_new = torch.Tensor.new

    @functools.wraps(original_new)
    def new(self, *args, device=None):
        # The legacy constructor asks for the device of the dispatch key, of which fakes have one more.
        if not _C.is_fake(self):
            return original_new(self, *args) if device is None else original_new(self, *args, device=device)
        how = {"dtype": self.dtype, "device": self.device if device is None else device}
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].detach()
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return torch.tensor(args[0], **how)
        return torch.empty(*(args or (0,)), **how)

    torch.Tensor.new = new


def _leave_real_storages_real():
    """Storages are no tensors, but these make tensors to read and write them, which a mode would make fake."""

    def for_real(owner, name, storage_of):
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(self, *args, **kwargs):
            if not _C.is_active() or storage_of(self).device.type == "meta":
                return original(self, *args, **kwargs)
            with unfake():
                return original(self, *args, **kwargs)

        setattr(owner, name, call)

    for name in ("_getitem", "_setitem"):
        for_real(torch.storage.TypedStorage, name, lambda typed: typed._untyped_storage)
    for_real(torch.UntypedStorage, "copy_", lambda storage: storage)


def _tell_captures_of_resized_storages():
    """FSDP2 gives gathered parameters back by storage.resize_(0), which is no operator."""
    original = torch.UntypedStorage.resize_

    @functools.wraps(original)
    def resize_(self, size):
        if _C.is_active() and self.device.type == "meta":
            _C.resize_storage(self, size)
            return self
        return original(self, size)

    torch.UntypedStorage.resize_ = resize_


def _step_aside_for_torchs_own_mode():
    """Inside torch's FakeTensorMode, by which DTensor asks for shapes, tensors are that mode's: nothing is recorded."""
    mode = torch._subclasses.fake_tensor.FakeTensorMode
    enter, leave = mode.__enter__, mode.__exit__
    asides: weakref.WeakKeyDictionary[torch._subclasses.fake_tensor.FakeTensorMode, list] = weakref.WeakKeyDictionary()

    @functools.wraps(enter)
    def enter_alone(self):
        aside = unfake() if _C.is_active() else contextlib.nullcontext()
        aside.__enter__()
        asides.setdefault(self, []).append(aside)
        return enter(self)

    @functools.wraps(leave)
    def leave_alone(self, *exception):
        try:
            return leave(self, *exception)
        finally:
            asides[self].pop().__exit__(*exception)

    mode.__enter__, mode.__exit__ = enter_alone, leave_alone
    # What it prepares at its first call is prepared for that mode.
    export = torch.export.export

    @functools.wraps(export)
    def export_alone(*args, **kwargs):
        with unfake() if _C.is_active() else contextlib.nullcontext():
            return export(*args, **kwargs)

    torch.export.export = export_alone


class _CustomOperatorSizes:
    """What torch.library.get_ctx() gives to a fake kernel: sizes that depend on data are those the mode was given."""

    def __init__(self, operator, arguments):
        self._operator = operator
        self._tensor = next((each for each in arguments if isinstance(each, torch.Tensor)), None)
        self._asked = 0

    def new_dynamic_size(self, *, min=0, max=None):
        # By the operator's name: nonzero0, then nonzero1 at its next call; a call's second size is nonzero_size2_0.
        self._asked += 1
        question = self._operator.partition("::")[2].partition(".")[0]
        if self._asked > 1:
            question += f"_size{self._asked}_"
        about = torch.empty(0) if self._tensor is None else self._tensor
        size = _C.data_size(self._operator, question, about, sys.maxsize if max is None else max)
        if size < min:
            raise _C.Error(f"{self._operator}: the size given as {question}, {size}, is less than its least, {min}")
        return size

    create_unbacked_symint = new_dynamic_size


def _has_fake_kernel(operator):
    """Whether torch.library.register_fake was called for it: such a kernel is a program on fakes, no Meta kernel."""
    entry = torch._library.simple_registry.singleton._data.get(operator)  # .get() since 2.13; find() makes an entry
    return entry is not None and entry.fake_impl.kernel is not None


def _give_sizes_to_custom_operators():
    _C.set_fake_kernel_finder(_has_fake_kernel)
    module = torch._library.fake_impl
    original = module.set_ctx_getter

    @functools.wraps(original)
    def set_ctx_getter(getter):
        # Called by the Meta kernel that torch.library makes of a fake one: the operator is among its variables.
        kernel = sys._getframe(1).f_locals
        arguments = (*kernel.get("args", ()), *kernel.get("kwargs", {}).values())
        if "qualname" not in kernel or not any(isinstance(x, torch.Tensor) and _C.is_fake(x) for x in arguments):
            return original(getter)
        sizes = _CustomOperatorSizes(kernel["qualname"], arguments)
        return original(lambda: sizes)

    module.set_ctx_getter = set_ctx_getter


class _FlagOrActive:
    """A flag of a module, which is set besides while a mode is active on the thread that asks."""

    def __init__(self, flag):
        self._flag = flag

    def __bool__(self):
        return bool(self._flag) or _C.is_active()


def _run_control_flow():
    """torch.cond, while_loop, scan, map and flex_attention run what eager runs in the end, without torch's compiler."""
    utils = torch._higher_order_ops.utils
    compile_and_call = utils._hop_compile_and_call

    @functools.wraps(compile_and_call)
    def call(fn, args, kwargs=None):
        return fn(*args, **(kwargs or {})) if _C.is_active() else compile_and_call(fn, args, kwargs)

    utils._hop_compile_and_call = call
    flex = torch.nn.attention.flex_attention
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _FlagOrActive(flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)

    keys = torch._C.DispatchKey
    known_keys = frozenset(int(key) for key in keys.__members__.values())
    dispatch = torch._ops.HigherOrderOperator.dispatch

    @functools.wraps(dispatch)
    def dispatch_ours(self, dispatch_key, /, *args, **kwargs):
        # The key of a mode or of a fake has no name in Python.
        if int(dispatch_key) in known_keys:
            return dispatch(self, dispatch_key, *args, **kwargs)
        kernel = self.py_kernels.get(keys.CompositeExplicitAutograd)
        if kernel is None:
            raise _C.NoRuleError(
                f"the higher-order operator {self.name()} has no form that runs on fake tensors; call what it is made "
                "of instead, without torch.compile around it"
            )
        return kernel(*args, **kwargs)

    torch._ops.HigherOrderOperator.dispatch = dispatch_ours


def _tell_torch_that_fakes_are_not_its_own():
    """Since 2.15 torch has fakes in C++, which it knows by the dispatch key that those of this package have."""
    original = getattr(torch._C, "_is_fake_tensor", None)
    if original is not None:
        torch._C._is_fake_tensor = lambda tensor: not _C.is_fake(tensor) and original(tensor)


def _refuse_fakes_in_triton(module):
    """A kernel writes through pointers, of which fakes have none. Triton would look for a GPU's driver first."""
    original = module.JITFunction.run

    @functools.wraps(original)
    def run(self, *args, **kwargs):
        if any(isinstance(each, torch.Tensor) and _C.is_fake(each) for each in (*args, *kwargs.values())):
            raise _C.NoRuleError(
                f"the Triton kernel {self.__name__} was launched on fake tensors. Launch it inside an operator that "
                "has a fake kernel (torch.library.custom_op and register_fake), or run the library without Triton"
            )
        return original(self, *args, **kwargs)

    module.JITFunction.run = run


def _explain_failed_backward():
    """Outside a mode no device is pretended, and autograd's engine asserts that there is the one of a gradient."""
    original = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(outputs, *args, **kwargs):
        try:
            return original(outputs, *args, **kwargs)
        except RuntimeError as error:
            missing = None if isinstance(error, _C.Error) or _C.is_active() else _missing_device(outputs)
            if missing is None:
                raise
            raise _C.Error(
                f"backward over fake tensors on {missing} outside a mode: autograd's engine finds no such device in "
                "this process. Run it inside `with shadowgraph.fake(...)`, which may be another one than made them"
            ) from error

    torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run_backward


def _missing_device(outputs):
    """The kind of accelerator that the graph behind `outputs` is on, if this machine has none."""
    here = torch.accelerator.current_accelerator()
    waiting = [each.node if hasattr(each, "node") else each.grad_fn for each in outputs]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for kind in (each.device.type for each in node._input_metadata):
            if kind not in ("cpu", "meta") and (here is None or here.type != kind):
                return kind
        waiting.extend(each for each, _ in node.next_functions)
    return None
