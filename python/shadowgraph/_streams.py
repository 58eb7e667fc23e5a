"""Streams and events of torch.cuda on a simulated device. Nothing runs on them, but captures record them."""

import torch

from . import _shadowgraph as _C


def index_of(device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return 0 if index is None else index


class Stream:
    """Simulated torch.cuda.Stream. Streams with equal device and id are equal."""

    def __init__(self, device=None, priority=0, **kwargs):
        index = _C.current_device() if device is None else index_of(device)
        _C.check_device(index)
        self._begin(index, _C.new_stream(index), priority)

    def _begin(self, index, number, priority=0):
        self.device, self.device_index = torch.device("cuda", index), index
        self.stream_id = self.cuda_stream = number
        self.device_type = 1  # c10::DeviceType::CUDA
        self.priority = priority
        self._outer: list[StreamContext] = []

    def __eq__(self, other):
        return isinstance(other, Stream) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        return (self.device_index, self.stream_id)

    def __enter__(self):
        self._outer.append(StreamContext(self))
        self._outer[-1].__enter__()
        return self

    def __exit__(self, *exception):
        self._outer.pop().__exit__(*exception)

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def synchronize(self):
        return None

    def query(self):
        return True


def known_stream(index, number):
    stream = Stream.__new__(Stream)
    stream._begin(index, number)
    return stream


def current_stream(device=None):
    index = _C.current_device() if device is None else index_of(device)
    return known_stream(index, _C.current_stream(index))


def default_stream(device=None):
    return known_stream(_C.current_device() if device is None else index_of(device), 0)


def set_stream(stream):
    if stream is not None:
        _C.set_current_device(stream.device_index)
        _C.exchange_stream(stream.device_index, stream.stream_id)


class StreamContext:
    """Simulated torch.cuda.stream(stream), which also sets the current device."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self._device = _C.current_device()
            _C.set_current_device(self.stream.device_index)
            self._before = _C.exchange_stream(self.stream.device_index, self.stream.stream_id)

    def __exit__(self, *exception):
        if self.stream is not None:
            _C.exchange_stream(self.stream.device_index, self._before)
            _C.set_current_device(self._device)


class Event:
    """Simulated torch.cuda.Event: marks the work submitted to a stream so far. Always complete from the host's view."""

    def __init__(self, *args, **kwargs):
        self._number = 0

    def record(self, stream=None):
        stream = current_stream() if stream is None else stream
        self._number = _C.record_event(stream.device_index, stream.stream_id)

    def wait(self, stream=None):
        stream = current_stream() if stream is None else stream
        _C.wait_for_event(stream.device_index, stream.stream_id, self._number)

    def synchronize(self):
        return None

    def query(self):
        return True

    def elapsed_time(self, other):
        raise _C.DataDependentError("Event.elapsed_time() is not available on a simulated device, which runs nothing")


def record_stream(tensor, stream):
    _C.record_stream(tensor, stream.device_index, stream.stream_id)
