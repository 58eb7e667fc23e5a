"""What torch's Python side is told while a fake mode is active on the calling thread; otherwise it is as torch made it.

All that this package changes in torch is in this file. Wrapped functions ask whether a mode is active and pass through if
none is; two flags of the process (`_Flags`) are set while any thread is in a mode.
"""

import contextlib
import functools
import os
import threading

import torch

from . import _shadowgraph as _C

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
        _C.install()
        _C.set_library_folders([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep])
        _Flags.gpu_is_there = torch.cuda.is_available()
        if not _Flags.gpu_is_there:
            _pretend_cuda()
        _guard_reads_of_data()
        _replace_what_reads_its_own_results()
        _installed = True


class _Flags:
    """Flags of the whole process, set while any thread is in a mode."""

    gpu_is_there = False
    users = 0
    lift = False

    @classmethod
    def acquire(cls):
        with _lock:
            cls.users += 1
            if cls.users > 1:
                return
            # torch.tensor(data, device="cuda") is made on the CPU and lifted there, so that our kernel sees it.
            cls.lift = torch._C._only_lift_cpu_tensors()
            torch._C._set_only_lift_cpu_tensors(True)
            if not cls.gpu_is_there:
                _C.set_requires_device_init("cuda", False)

    @classmethod
    def release(cls):
        with _lock:
            cls.users -= 1
            if cls.users > 0:
                return
            torch._C._set_only_lift_cpu_tensors(cls.lift)
            if not cls.gpu_is_there:
                _C.set_requires_device_init("cuda", True)


acquire, release = _Flags.acquire, _Flags.release


def _while_active(owner, name, answer):
    """owner.name answers with `answer` while a mode is active on this thread."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args, **kwargs):
        return answer(*args, **kwargs) if _C.is_active() else original(*args, **kwargs)

    setattr(owner, name, ask)


def _pretend_cuda():
    cuda = torch.cuda
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: _C.device_count(),
        "current_device": lambda: _C.current_device(),
        "set_device": lambda device: _C.set_current_device(_index(device)),
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_initialized": lambda: True,
        "get_device_capability": lambda device=None: _C.device_capability(),
        "get_device_name": lambda device=None: _C.device_name(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: _C.device_capability() >= (8, 0) or including_emulation,
        "get_rng_state": lambda device="cuda": torch.empty(16, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda new_state, device="cuda": None,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "current_stream": lambda device=None: _Stream(device),
        "default_stream": lambda device=None: _Stream(device),
        "set_stream": lambda stream: None,
        "stream": lambda stream: contextlib.nullcontext(stream),
        "memory_allocated": _no_figures("memory_allocated"),
        "max_memory_allocated": _no_figures("max_memory_allocated"),
        "memory_reserved": _no_figures("memory_reserved"),
        "max_memory_reserved": _no_figures("max_memory_reserved"),
        "mem_get_info": _no_figures("mem_get_info"),
        "get_device_properties": _no_figures("get_device_properties"),
    }
    for name, answer in answers.items():
        _while_active(cuda, name, answer)
    _made_while_active(cuda.Stream, _Stream)
    _made_while_active(cuda.Event, _Event)
    record_stream = torch.Tensor.record_stream

    @functools.wraps(record_stream)
    def record(self, stream):
        return None if _C.is_fake(self) else record_stream(self, stream)

    torch.Tensor.record_stream = record


class _Stream:
    """A stream of a pretended device: the program's order is the order of everything."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device = torch.device("cuda", _C.current_device() if device is None else _index(device))
        self.priority, self.stream_id, self.cuda_stream = priority, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def record_event(self, event=None):
        return _Event() if event is None else event

    def wait_event(self, event):
        return None

    wait_stream = wait_event

    def synchronize(self):
        return None

    def query(self):
        return True


class _Event:
    """An event of a pretended device: it has happened."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, stream=None):
        return None

    wait = record

    def synchronize(self):
        return None

    def query(self):
        return True

    def elapsed_time(self, other):
        raise _C.DataDependentError("Event.elapsed_time(): nothing runs on a pretended device, so nothing takes time")


def _made_while_active(original, pretended):
    """original(...) makes a `pretended` while a mode is active on this thread."""
    make = original.__new__

    def new(cls, *args, **kwargs):
        return pretended(*args, **kwargs) if _C.is_active() else make(cls, *args, **kwargs)

    original.__new__ = staticmethod(new)


def _exchange_device(device):
    before = _C.current_device()
    if device >= 0:
        _C.set_current_device(device)
    return before


def _index(device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return 0 if index is None else index


def _no_figures(name):
    def refuse(*args, **kwargs):
        raise _C.DataDependentError(
            f"torch.cuda.{name}(): the device is pretended and has no memory to ask about; the report of "
            "shadowgraph.profile has the bytes"
        )

    return refuse


def _guard_reads_of_data():
    """Whatever reads a tensor through a pointer, below every dispatch key, is an error on a fake: never garbage."""

    def guarded(name, advice):
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def read(self, *args, **kwargs):
            if _C.is_fake(self):
                raise _C.DataDependentError(f"Tensor.{name}() on a tensor without data ({_C.describe(self)}): {advice}")
            return original(self, *args, **kwargs)

        setattr(torch.Tensor, name, read)

    keep = "leave this line out of what is captured, or do it with a real tensor under shadowgraph.unfake()"
    for name in ("numpy", "__array__", "__dlpack__", "share_memory_"):
        guarded(name, keep)
    for owner, name in ((torch._C, "_to_dlpack"), (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")):
        if hasattr(owner, name):
            setattr(owner, name, _refusing_fakes(getattr(owner, name), keep))
    guarded("__reduce_ex__", "a fake tensor cannot be pickled or saved; save the real one, or the graph (Graph.save)")

    original_repr = torch.Tensor.__repr__

    @functools.wraps(original_repr)
    def text(self, *, tensor_contents=None):
        if not _C.is_fake(self):
            return original_repr(self, tensor_contents=tensor_contents)
        return f"<{_C.describe(self)}>"

    torch.Tensor.__repr__ = text


def _refusing_fakes(function, advice):
    @functools.wraps(function)
    def call(tensor, *args, **kwargs):
        if isinstance(tensor, torch.Tensor) and _C.is_fake(tensor):
            raise _C.DataDependentError(
                f"{function.__name__}() of a tensor without data ({_C.describe(tensor)}): {advice}"
            )
        return function(tensor, *args, **kwargs)

    return call


def _replace_what_reads_its_own_results():
    """Functions of torch that look at what they have just made."""
    # By its inner name: libraries hold the public function from before this was installed.
    original_trunc_normal = torch.nn.init._no_grad_trunc_normal_

    @functools.wraps(original_trunc_normal)
    def trunc_normal_(tensor, mean, std, a, b, generator=None):
        if not _C.is_fake(tensor):
            return original_trunc_normal(tensor, mean, std, a, b, generator=generator)
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    torch.nn.init._no_grad_trunc_normal_ = trunc_normal_

    original_new_tensor = torch.Tensor.new_tensor

    @functools.wraps(original_new_tensor)
    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        if not _C.is_active():
            return original_new_tensor(self, data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    torch.Tensor.new_tensor = new_tensor
