"""Streams and events of torch.cuda on a simulated device. Nothing runs on them, but captures record them.

They are torch.Stream and torch.Event, whose methods call the simulated device's guard (C++).
"""

import torch

from . import _shadowgraph as _C

CUDA = 1  # c10::DeviceType::CUDA


def index_of(device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return 0 if index is None else index


def checked_index(device):
    """Returns the index of a device, or of the current one. Raises Error if there is no such simulated device."""
    index = _C.current_device() if device is None else index_of(device)
    _C.check_device(index)
    return index


class Stream(torch.Stream):
    """Simulated torch.cuda.Stream. isinstance() takes it for one, too."""

    __class__ = property(lambda self: torch.cuda.Stream)

    def __new__(cls, device=None, priority=0, *, stream_id=None, device_index=None, device_type=CUDA, stream_ptr=None):
        if stream_id is None and stream_ptr is None:
            stream = super().__new__(cls, torch.device("cuda", checked_index(device)))
        else:  # an existing stream, such as that of torch.cuda.ExternalStream
            stream = super().__new__(
                cls,
                stream_id=stream_ptr if stream_id is None else stream_id,
                device_index=checked_index(device if device_index is None else device_index),
                device_type=device_type,
            )
        stream.cuda_stream, stream.priority = stream.stream_id, priority
        return stream

    def __init__(self, *args, **kwargs):
        pass

    def __repr__(self):
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event


class Event(torch.Event):
    """Simulated torch.cuda.Event: marks the work submitted to a stream so far. Always complete from the host's view."""

    __class__ = property(lambda self: torch.cuda.Event)

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls, device="cuda", enable_timing=enable_timing, blocking=blocking)

    def __init__(self, *args, **kwargs):
        pass

    def record(self, stream=None):
        super().record(torch.cuda.current_stream() if stream is None else stream)

    def wait(self, stream=None):
        super().wait(torch.cuda.current_stream() if stream is None else stream)

    def elapsed_time(self, end_event):
        raise _C.DataDependentError("Event.elapsed_time() is not available on a simulated device, which runs nothing")

    def ipc_handle(self):
        raise _C.UnsupportedError("Event.ipc_handle() is not available on a simulated device, which has no handles")
