"""Simulates torch.cuda on a machine without a GPU while a fake mode is active on the calling thread."""

import functools
import os

import torch

from . import _shadowgraph as _C
from . import _streams

_DEFAULT_DEVICE_COUNT = 8  # must match include/shadowgraph/capture/fake.h


def _patch(owner, name, simulated):
    """Replaces owner.name by `simulated` while a mode is active on this thread."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args, **kwargs):
        return simulated(*args, **kwargs) if _C.is_active() else original(*args, **kwargs)

    setattr(owner, name, call)


def cuda_init_error():
    """Returns the error that torch.cuda raises on this machine, or None. Call before patching."""
    try:
        torch.cuda._lazy_init()
    except (AssertionError, RuntimeError) as error:
        return error
    return None


def simulate_cuda(init_error):
    """Patches torch.cuda. `init_error` is raised outside modes, where a CUDA build would now consider CUDA ready."""
    cuda = torch.cuda
    if init_error is not None:

        def refuse():
            raise type(init_error)(*init_error.args)

        cuda._lazy_init = refuse
    simulated = {
        "is_available": lambda: _C.device_count() > 0,
        "device_count": _count,
        "current_device": lambda: _checked_index(None),
        "set_device": lambda device: _C.set_current_device(_streams.index_of(device)),
        "_lazy_init": _lazy_init,
        "init": _lazy_init,
        "is_initialized": lambda: _C.device_count() > 0,
        "get_device_capability": _of_device(lambda: _C.device_capability()),
        "get_device_name": _of_device(lambda: _C.device_name()),
        "synchronize": _of_device(lambda: None),
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "ipc_collect": lambda: None,
        "is_bf16_supported": _is_bf16_supported,
        "get_rng_state": lambda device="cuda": torch.empty(16, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda new_state, device="cuda": None,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "current_stream": _streams.current_stream,
        "default_stream": _streams.default_stream,
        "set_stream": _streams.set_stream,
        "stream": _streams.StreamContext,
        "memory_allocated": _unavailable("memory_allocated"),
        "max_memory_allocated": _unavailable("max_memory_allocated"),
        "memory_reserved": _unavailable("memory_reserved"),
        "max_memory_reserved": _unavailable("max_memory_reserved"),
        "mem_get_info": _unavailable("mem_get_info"),
        "get_device_properties": _of_device(Properties),
        "reset_peak_memory_stats": _of_device(lambda: None),
    }
    for name, function in simulated.items():
        _patch(cuda, name, function)
    _patch_class(cuda.Stream, _streams.Stream)
    _patch_class(cuda.Event, _streams.Event)
    record_stream = torch.Tensor.record_stream

    @functools.wraps(record_stream)
    def record(self, stream):
        return _streams.record_stream(self, stream) if _C.is_fake(self) else record_stream(self, stream)

    torch.Tensor.record_stream = record


def _patch_class(original, simulated):
    """Lets original(...) return a `simulated` instance while a mode is active on this thread."""
    make = original.__new__

    def new(cls, *args, **kwargs):
        return simulated(*args, **kwargs) if _C.is_active() else make(cls, *args, **kwargs)

    original.__new__ = staticmethod(new)


def _checked_index(device):
    """Returns the index of a device, or of the current one. Raises Error if there is no such simulated device."""
    index = _C.current_device() if device is None else _streams.index_of(device)
    _C.check_device(index)
    return index


def _of_device(function):
    def call(device=None):
        _checked_index(device)
        return function()

    return call


class Properties:
    """Result of torch.cuda.get_device_properties for the simulated device."""

    def __init__(self):
        self.name = _C.device_name()
        self.major, self.minor = _C.device_capability()
        self.total_memory = _C.device_memory()
        self.multi_processor_count = _C.device_multiprocessors()
        self.warp_size = 32

    def __getattr__(self, name):
        raise AttributeError(
            f"torch.cuda.get_device_properties().{name} is not available: the simulated device only has "
            f"{', '.join(sorted(vars(self)))}"
        )

    def __repr__(self):
        properties = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"_CudaDeviceProperties({properties})"


def _is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def visible_devices():
    """Returns the number of devices in CUDA_VISIBLE_DEVICES, or None if it is unset.

    Ignored in a process group, whose machines are simulated, too.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or _is_distributed():
        return None
    names = [name.strip() for name in visible.split(",")] if visible.strip() else []
    # CUDA ignores everything from the first invalid entry on.
    return next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))


_explicit_count: dict[int, bool] = {}  # {address of a mode: True if the user gave the number of devices}


def register_mode(mode, is_explicit):
    _explicit_count[mode] = is_explicit


def unregister_mode(mode):
    _explicit_count.pop(mode, None)


def has_explicit_count(mode):
    return _explicit_count.get(mode, False)


def _count():
    """Returns the requested number of devices, else 1, or all of them in a process group.

    Eight devices exist by default, so that programs can address them by index, but only one is reported: trainers
    that see several use all of them (DataParallel).
    """
    count = _C.device_count()
    # Modes entered by DeferredInit and C++ are not registered here.
    is_explicit = _explicit_count.get(_C.detect_fake_mode(()), count != _DEFAULT_DEVICE_COUNT)
    return count if is_explicit or _is_distributed() else min(count, 1)


def _lazy_init():
    _checked_index(None)


def _is_bf16_supported(including_emulation=True):
    return _C.device_count() > 0 and (_C.device_capability() >= (8, 0) or including_emulation)


def _exchange_device(device):
    before = _checked_index(None) if device is None else _C.current_device()
    if device is not None and device >= 0:
        _C.set_current_device(device)
    return before


def _unavailable(name):
    def refuse(*args, **kwargs):
        raise _C.DataDependentError(
            f"torch.cuda.{name}() is not available: the simulated device has no memory; use shadowgraph.profile, whose "
            "report contains the memory in bytes"
        )

    return refuse
