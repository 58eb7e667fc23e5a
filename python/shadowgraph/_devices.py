"""torch.cuda on a machine without a GPU, while a mode is active on the thread that asks."""

import functools
import os

import torch

from . import _shadowgraph as _C
from . import _streams

_UNLESS_ASKED = 8  # as include/shadowgraph/capture/fake.h has it


def _while_active(owner, name, answer):
    """owner.name answers with `answer` while a mode is active on this thread."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def ask(*args, **kwargs):
        return answer(*args, **kwargs) if _C.is_active() else original(*args, **kwargs)

    setattr(owner, name, ask)


def what_initializing_raises():
    """The error of torch.cuda on this machine, asked before anything is changed."""
    try:
        torch.cuda._lazy_init()
    except (AssertionError, RuntimeError) as error:
        return error
    return None


def pretend_cuda(without_gpu):
    """without_gpu: what torch.cuda raises here; a CUDA build would now ask pretended hooks, and take CUDA for ready."""
    cuda = torch.cuda
    if without_gpu is not None:

        def refuse():
            raise type(without_gpu)(*without_gpu.args)

        cuda._lazy_init = refuse
    answers = {
        "is_available": lambda: _C.device_count() > 0,
        "device_count": _count,
        "current_device": lambda: _there(None),
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
        "memory_allocated": _no_figures("memory_allocated"),
        "max_memory_allocated": _no_figures("max_memory_allocated"),
        "memory_reserved": _no_figures("memory_reserved"),
        "max_memory_reserved": _no_figures("max_memory_reserved"),
        "mem_get_info": _no_figures("mem_get_info"),
        "get_device_properties": _of_device(Properties),
        "reset_peak_memory_stats": _of_device(lambda: None),
    }
    for name, answer in answers.items():
        _while_active(cuda, name, answer)
    _made_while_active(cuda.Stream, _streams.Stream)
    _made_while_active(cuda.Event, _streams.Event)
    record_stream = torch.Tensor.record_stream

    @functools.wraps(record_stream)
    def record(self, stream):
        return _streams.record_stream(self, stream) if _C.is_fake(self) else record_stream(self, stream)

    torch.Tensor.record_stream = record


def _made_while_active(original, pretended):
    """original(...) makes a `pretended` while a mode is active on this thread."""
    make = original.__new__

    def new(cls, *args, **kwargs):
        return pretended(*args, **kwargs) if _C.is_active() else make(cls, *args, **kwargs)

    original.__new__ = staticmethod(new)


def _there(device):
    """The index of a device, or the current one's; raises Error if the pretended machine has none such."""
    index = _C.current_device() if device is None else _streams.index_of(device)
    _C.check_device(index)
    return index


def _of_device(answer):
    def ask(device=None):
        _there(device)
        return answer()

    return ask


class Properties:
    """torch.cuda.get_device_properties of the pretended device, by its specification and capability."""

    def __init__(self):
        self.name = _C.device_name()
        self.major, self.minor = _C.device_capability()
        self.total_memory = _C.device_memory()
        self.multi_processor_count = _C.device_multiprocessors()
        self.warp_size = 32

    def __getattr__(self, name):
        raise AttributeError(
            f"torch.cuda.get_device_properties().{name}: the device is pretended, and its specification says "
            f"{', '.join(sorted(vars(self)))} alone"
        )

    def __repr__(self):
        figures = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"_CudaDeviceProperties({figures})"


def _is_one_of_several():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def visible_devices():
    """How many devices CUDA_VISIBLE_DEVICES leaves to a process; None where it does not say.

    It says nothing of the machines of a process group, which are pretended, too.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or _is_one_of_several():
        return None
    names = [name.strip() for name in visible.split(",")] if visible.strip() else []
    wrong = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return wrong  # CUDA takes those before the first that is none


_told: dict[int, bool] = {}  # by the address of a mode: whether somebody said how many devices there are


def tell_count(mode, asked):
    _told[mode] = asked


def forget_count(mode):
    _told.pop(mode, None)


def count_is_asked(mode):
    return _told.get(mode, False)


def _count():
    """As many as were asked for. Otherwise one, unless this is a process of several.

    Eight exist, so programs that name them find them. Trainers that see several take them all (DataParallel).
    """
    there = _C.device_count()
    # Those of DeferredInit and of C++ are not told of here.
    asked = _told.get(_C.detect_fake_mode(()), there != _UNLESS_ASKED)
    return there if asked or _is_one_of_several() else min(there, 1)


def _lazy_init():
    _there(None)


def _is_bf16_supported(including_emulation=True):
    return _C.device_count() > 0 and (_C.device_capability() >= (8, 0) or including_emulation)


def _exchange_device(device):
    before = _there(None) if device is None else _C.current_device()
    if device is not None and device >= 0:
        _C.set_current_device(device)
    return before


def _no_figures(name):
    def refuse(*args, **kwargs):
        raise _C.DataDependentError(
            f"torch.cuda.{name}(): the device is pretended and has no memory to ask about; the report of "
            "shadowgraph.profile has the bytes"
        )

    return refuse
