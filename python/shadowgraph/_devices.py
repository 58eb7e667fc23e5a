"""Simulates torch.cuda on a machine without a GPU while a fake mode is active on the calling thread."""

import os
import sys
import threading
import types

import torch
import torch.nn.parallel
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from . import _shadowgraph as _C
from . import _streams
from ._shared import replaces
from ._streams import checked_index

_DEFAULT_DEVICE_COUNT = 8  # must match include/shadowgraph/capture/fake.h

_MEMORY_ADVICE = "use shadowgraph.profile, whose report contains the memory in bytes"
_SNAPSHOT_ADVICE = 'save the report of shadowgraph.profile, which can write one: report.save(folder, ["snapshot"])'
_LEAVE_OUT = "is not available on a simulated device; leave the call out of the captured program"
_NO_GRAPHS = (
    "CUDA graphs are not simulated, because a replay runs no operators; run the captured program without "
    "torch.cuda.CUDAGraph, torch.cuda.graph and torch.cuda.make_graphed_callables"
)
_NO_POOLS = "memory pools are not simulated; run the captured program without torch.cuda.MemPool, in the default pool"


def _patch(owner, name, simulated, is_active=_C.is_active):
    """Replaces owner.name by `simulated` while a mode is active on this thread."""
    original = getattr(owner, name)

    @replaces(owner, name)
    def call(*args, **kwargs):
        return simulated(*args, **kwargs) if is_active() else original(*args, **kwargs)


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
        "current_device": lambda: checked_index(None),
        "set_device": lambda device: _C.set_current_device(_streams.index_of(device)),
        "_lazy_init": _of_device(lambda: None),
        "init": _of_device(lambda: None),
        "is_initialized": lambda: _C.device_count() > 0,
        "get_device_capability": _of_device(lambda: _C.device_capability()),
        "get_device_name": _of_device(lambda: _C.device_name()),
        "synchronize": _of_device(lambda: None),
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": _is_bf16_supported,
        "get_rng_state": _rng_state,
        "set_rng_state": _set_rng_state,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_properties": _of_device(Properties),
        "graph_pool_handle": _refusal(_NO_GRAPHS),
        "_get_pynvml_handler": _unavailable("this measurement", "it runs nothing"),
    }
    for name, function in simulated.items():
        _patch(cuda, name, function)
    # The modules below imported these functions before they were patched.
    _patch(cuda.memory, "is_initialized", simulated["is_initialized"])
    _patch(cuda.random, "device_count", _count)
    for name in ("get_rng_state", "set_rng_state"):
        _patch(cuda.random, name, simulated[name])
    _patch(cuda.graphs, "graph_pool_handle", simulated["graph_pool_handle"])
    cuda.default_generators = _Generators(cuda.default_generators)
    cuda.nvtx._nvtx = _Nvtx(cuda.nvtx._nvtx)
    if cuda._cudart is None:
        cuda._cudart = _Cudart()
    _simulate_bindings()
    _patch_class(cuda.Stream, _streams.Stream)
    _patch_class(cuda.Event, _streams.Event)
    _patch_class(cuda.CUDAGraph, _refusal(_NO_GRAPHS))
    _patch_class(cuda.MemPool, _refusal(_NO_POOLS))
    if hasattr(torch.accelerator, "Graph"):
        _patch_class(torch.accelerator.Graph, _refusal(_NO_GRAPHS))
    # DataParallel runs one thread for each device, but modes are per thread.
    same_thread = types.SimpleNamespace(Thread=_SameThread, Lock=threading.Lock)
    vars(sys.modules["torch.nn.parallel.parallel_apply"])["threading"] = same_thread
    record_stream = torch.Tensor.record_stream

    @replaces(torch.Tensor, "record_stream")
    def record(self, stream):
        if not _C.is_fake(self):
            return record_stream(self, stream)
        return _C.record_stream(self, stream.device_index, stream.stream_id)


def simulate_xpu():
    """Patches torch.xpu for modes whose default device is an XPU."""
    accelerator = torch.accelerator
    simulated = {
        "is_available": lambda: _C.device_count() > 0,
        "device_count": _count,
        "current_device": accelerator.current_device_index,
        "set_device": accelerator.set_device_index,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "memory_stats": _unavailable("torch.xpu.memory_stats()"),
        "mem_get_info": _unavailable("torch.xpu.mem_get_info()"),
        **{
            name: _refusal(f"torch.xpu.{name} {_LEAVE_OUT}, or use that of torch.accelerator")
            for name in ("current_stream", "set_stream", "stream", "get_device_properties", "get_device_name")
        },
    }

    def is_active():
        return _C.is_active() and accelerator.current_accelerator() == torch.device("xpu")

    for name, function in simulated.items():
        _patch(torch.xpu, name, function, is_active)
    for name in ("memory_stats", "mem_get_info"):
        _patch(torch.xpu.memory, name, simulated[name], is_active)


def _patch_class(original, simulated):
    """Lets original(...) return a `simulated` instance while a mode is active on this thread."""
    make = original.__new__

    def new(cls, *args, **kwargs):
        return simulated(*args, **kwargs) if _C.is_active() else make(cls, *args, **kwargs)

    original.__new__ = staticmethod(new)


def _of_device(function):
    def call(device=None):
        checked_index(device)
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


explicit_count: dict[int, bool] = {}  # {address of a mode: True if the user gave the number of devices}


def _count():
    """Returns the requested number of devices, else 1, or all of them in a process group.

    Eight devices exist by default, so that programs can address them by index, but only one is reported: trainers
    that see several use all of them (DataParallel).
    """
    count = _C.device_count()
    # Modes entered by DeferredInit and C++ are not registered here.
    is_explicit = explicit_count.get(_C.detect_fake_mode(()), count != _DEFAULT_DEVICE_COUNT)
    return count if is_explicit or _is_distributed() else min(count, 1)


def _is_bf16_supported(including_emulation=True):
    return _C.device_count() > 0 and (_C.device_capability() >= (8, 0) or including_emulation)


def _exchange_device(device):
    before = checked_index(None) if device is None else _C.current_device()
    if device is not None and device >= 0:
        _C.set_current_device(device)
    return before


def _rng_state(device="cuda"):
    return _C.default_generator(checked_index(device)).get_state()


def _set_rng_state(new_state, device="cuda"):
    if not _C.is_fake(new_state):  # such as one from a file
        _C.default_generator(checked_index(device)).set_state(new_state)


def _unavailable(name, because="it has no memory", advice=_MEMORY_ADVICE):
    def refuse(*args, **kwargs):
        raise _C.DataDependentError(f"{name} is not available on a simulated device: {because}; {advice}")

    return refuse


def _refusal(message):
    def refuse(*args, **kwargs):
        raise _C.UnsupportedError(message)

    return refuse


class _Generators:
    """torch.cuda.default_generators."""

    def __init__(self, real):
        self._real = real

    def __len__(self):
        return _C.device_count() if _C.is_active() else len(self._real)

    def __getitem__(self, index):
        if not _C.is_active():
            return self._real[index]
        if not 0 <= index < len(self):
            raise IndexError("list index out of range")
        return _C.default_generator(index)


class _Nvtx:
    """Bindings of torch.cuda.nvtx. Ranges behave as without a profiler."""

    _NOT_TRACKED = -2  # NVTX_NO_PUSH_POP_TRACKING

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        if not _C.is_active():
            return getattr(self._real, name)
        return lambda *args: self._NOT_TRACKED if name in ("rangePushA", "rangePop") else 0


class _Cudart:
    """Result of torch.cuda.cudart()."""

    cudaError = types.SimpleNamespace(success=0)
    cudaMemGetInfo = staticmethod(_unavailable("torch.cuda.mem_get_info()"))

    def __getattr__(self, name):
        if name in ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"):
            return lambda *args: self.cudaError.success
        return _refusal(f"torch.cuda.cudart().{name} {_LEAVE_OUT}")


class _SameThread(threading.Thread):
    """Runs its function on the starting thread while a mode is active there."""

    def start(self):
        if _C.is_active():  # without a frame of threading.py, which would be the source of its calls
            target, args, kwargs = (vars(self)[name] for name in ("_target", "_args", "_kwargs"))
            target(*args, **kwargs)
        else:
            super().start()

    def join(self, timeout=None):
        if self.ident is not None:
            super().join(timeout)


# Functions of torch._C that do nothing on a simulated device.
_WITHOUT_EFFECT = (
    "_cuda_init", "_cuda_synchronize", "_cuda_sleep", "_cuda_ipc_collect", "_cuda_clearCublasWorkspaces",
    "_cuda_set_sync_debug_mode", "_cuda_emptyCache", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats", "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy", "_accelerator_emptyCache", "_accelerator_emptyHostCache",
    "_accelerator_resetAccumulatedStats", "_accelerator_resetPeakStats",
)  # fmt: skip


def _simulate_bindings():
    """Simulates the functions of torch._C behind torch.cuda, torch.accelerator and DataParallel.

    Python functions that a program imported before the first mode call them, too. A CPU build has no `_cuda_`
    functions: those that are missing here raise an error with their name.
    """
    simulated = {
        **dict.fromkeys(_WITHOUT_EFFECT, lambda *args, **kwargs: None),
        "_cuda_getDeviceCount": _count,
        "_cuda_getDevice": lambda: checked_index(None),
        "_cuda_setDevice": _C.set_current_device,
        "_cuda_getCurrentRawStream": _C.current_stream,
        "_cuda_getArchFlags": lambda: "sm_{}{}".format(*_C.device_capability()),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_getCurrentStream": lambda index: (_C.current_stream(index), index, _streams.CUDA),
        "_cuda_getDefaultStream": lambda index: (0, index, _streams.CUDA),
        "_cuda_getStreamFromExternal": lambda pointer, index: (pointer, index, _streams.CUDA),
        "_cuda_setStream": _set_stream,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryFraction": lambda fraction, device: setattr(_memory_fractions, f"of{device}", fraction),
        "_cuda_getMemoryFraction": lambda device: getattr(_memory_fractions, f"of{device}", 1.0),
        "_cuda_memoryStats": _unavailable("torch.cuda.memory_stats()"),
        "_cuda_hostMemoryStats": _unavailable("torch.cuda.host_memory_stats()"),
        "_cuda_memorySnapshot": _unavailable("a memory snapshot of torch.cuda", advice=_SNAPSHOT_ADVICE),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": _unavailable("torch.accelerator.memory_stats()"),
        "_accelerator_getMemoryInfo": _unavailable("torch.accelerator.get_memory_info()"),
        "_broadcast": _broadcast,
        "_broadcast_out": _copy_to_all,
        "_broadcast_coalesced": _broadcast_coalesced,
        "_scatter": _scatter,
        "_scatter_out": _scatter_out,
        "_gather": _gather,
        "_gather_out": _gather_out,
        "_nccl_reduce": _nccl_reduce,
    }
    for name, function in simulated.items():
        if hasattr(torch._C, name):
            _patch(torch._C, name, function)

    def find(name):  # called for names that torch._C lacks
        if (name in simulated or name.startswith(("_cuda_", "_nccl_"))) and _C.is_active():
            return simulated.get(name) or _refusal(f"torch._C.{name} {_LEAVE_OUT}")
        raise AttributeError(f"module 'torch._C' has no attribute '{name}'")

    torch._C.__getattr__ = find


def _set_stream(stream_id, device_index, device_type):
    _C.set_current_device(device_index)
    _C.exchange_stream(device_index, stream_id)


_memory_fractions = threading.local()  # an attribute per device


def _copy_to_all(tensor, out):
    for each in out:
        each.copy_(tensor, non_blocking=True)
    return out


def _broadcast(tensor, devices):
    return [tensor.to(torch.device("cuda", device), non_blocking=True) for device in devices]


def _broadcast_coalesced(tensors, devices, buffer_size):
    copies = [{id(tensor): tensor for tensor in tensors}] + [{} for _ in devices[1:]]
    for chunk in _take_tensors(tensors, buffer_size):
        flat = _flatten_dense_tensors(chunk)
        for copied, device in zip(copies[1:], devices[1:]):
            parts = _unflatten_dense_tensors(flat.to(torch.device("cuda", device), non_blocking=True), chunk)
            copied.update((id(tensor), part.data) for tensor, part in zip(chunk, parts))
    return [[copied[id(tensor)] for tensor in tensors] for copied in copies]


def _scatter(tensor, devices, chunk_sizes=None, dim=0, streams=None):
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
    copies = []
    for place, (chunk, device) in enumerate(zip(chunks, devices)):
        stream = streams[place] if streams is not None else None
        with torch.cuda.stream(stream):
            copies.append(chunk.to(torch.device("cuda", device), non_blocking=True))
    return copies


def _scatter_out(tensor, out, dim=0, streams=None):
    for chunk, to in zip(tensor.split([each.size(dim) for each in out], dim), out):
        to.copy_(chunk, non_blocking=True)
    return out


def _gather(tensors, dim=0, destination=None):
    sizes = list(tensors[0].shape)
    sizes[dim] = sum(each.size(dim) for each in tensors)
    device = "cpu" if destination == -1 else torch.device("cuda", checked_index(destination))
    return _gather_out(tensors, torch.empty(sizes, dtype=tensors[0].dtype, device=device), dim)


def _gather_out(tensors, out, dim=0):
    for part, each in zip(out.split([each.size(dim) for each in tensors], dim), tensors):
        part.copy_(each, non_blocking=True)
    return out


def _nccl_reduce(inputs, output, root=0, op=0, streams=None, comms=None):
    for place, each in enumerate(inputs):
        if place != root:
            output.copy_(each, non_blocking=True)
