"""Loads files inside a mode: reads real tensors, then converts them to fake tensors.

In deferred initialization, the result is a deferred copy of the real tensor, which the recording keeps. So the program
may write to it. Tensors that share a storage in the file share the storage of the copy.
"""

import functools
import inspect
import os
import threading
import zipfile
from collections.abc import Mapping

import torch
import torch.utils.data

from . import _shadowgraph as _C
from ._shared import replaces
from ._unfake import unfake

_thread = threading.local()


def patch_loading():
    """Patches torch.load, pickle, safetensors and DataLoader. Called once per process."""
    torch.load = torch.serialization.load = _loading(torch.load)
    for name in ("_rebuild_tensor", "_rebuild_tensor_v3"):  # pickle's
        setattr(torch._utils, name, _from_storage(getattr(torch._utils, name), _C.is_deferring))
    torch.asarray = _from_storage(torch.asarray, _C.is_active)  # that of safetensors.safe_open
    _check_state_dicts(torch.nn.Module.load_state_dict)
    _read_batches(torch.utils.data.DataLoader.__iter__)
    try:
        import safetensors.torch
    except ImportError:
        return
    for name in ("load_file", "load"):
        _load_safetensors(safetensors.torch, name)


def keep_copies(context):
    """Keeps the map from real storages to their deferred copies, per thread, until the context ends."""
    context.on_exit(setattr, _thread, "copies", getattr(_thread, "copies", None))
    _thread.copies = {}


def fakes_of(value, device=None, made=None):
    """Returns the nested structure with each real tensor replaced by its fake tensor.

    device: device of the fake tensors, or a function from the real tensor to a device. Defaults to the real device.
    made: {id of a real tensor: (its fake tensor, itself)}; preserves sharing.
    """
    made = {} if made is None else made
    if isinstance(value, torch.Tensor):
        if not _C.is_fake(value) and id(value) not in made:
            made[id(value)] = (_fake_on(value, device(value) if callable(device) else device), value)
        return value if _C.is_fake(value) else made[id(value)][0]
    if isinstance(value, torch.nn.Module):
        for module in value.modules():
            for entries in (module._parameters, module._buffers):
                for name, tensor in entries.items():
                    if tensor is not None:
                        entries[name] = fakes_of(tensor, device, made)
        return value
    if isinstance(value, dict):
        fakes = {key: fakes_of(each, device, made) for key, each in value.items()}
        if type(value) is dict:
            return fakes
        value.update(fakes)  # an OrderedDict with its _metadata
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(fakes_of(each, device, made) for each in value))
    if type(value) in (list, tuple):
        return type(value)(fakes_of(each, device, made) for each in value)
    return value


def _fake_on(tensor, device):
    if isinstance(tensor, torch.nn.Parameter):
        with unfake():
            data = tensor.detach()
        return torch.nn.Parameter(_fake_on(data, device), tensor.requires_grad)
    if _C.is_deferring() and _is_plain(tensor):
        return _copy_of(tensor, tensor.device if device is None else torch.device(device))
    return _C.from_real(tensor, None if device is None else str(device))


def _is_plain(tensor):
    """Returns True for dense tensors; others are rejected like any real tensor of their kind."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    return dense and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _copy_of(real, device):
    """Returns a deferred copy of a real tensor. Copies of tensors that share a storage share one, too."""
    storage = real.untyped_storage()
    whole = real.is_contiguous() and real.numel() * real.element_size() == storage.nbytes()
    copies = _thread.copies
    known = copies.get((storage._cdata, device))
    with torch.no_grad():
        if known is None:
            with unfake():
                dtype = real.dtype if storage.nbytes() % real.element_size() == 0 else torch.uint8
                source = real.detach() if whole else torch.empty(0, dtype=dtype).set_(storage)
            # Without from_real, a one-element tensor would be computed eagerly.
            copy = _C.from_real(source).to(device, copy=True)
            copies[storage._cdata, device] = copy.untyped_storage(), source
        if known is not None or not whole:
            place = (known[0] if known is not None else copy.untyped_storage(), real.storage_offset())
            copy = torch.empty(0, dtype=real.dtype, device=device).set_(*place, real.shape, real.stride())
            torch._C._set_conj(copy, real.is_conj())
            torch._C._set_neg(copy, real.is_neg())
    return copy.requires_grad_(real.requires_grad)


def _loading(load):
    @functools.wraps(load)
    def load_fakes(f, map_location=None, *args, **kwargs):
        if not _C.is_active():
            return load(f, map_location, *args, **kwargs)
        places = {}

        def to_cpu(storage, location):
            if callable(map_location):
                moved = map_location(storage, location)
                location = location if moved is None else str(moved.device)
            elif isinstance(map_location, dict):
                location = map_location.get(location, location)
            elif map_location is not None:
                location = str(map_location)
            places[storage.data_ptr()] = location
            return storage

        if kwargs.get("mmap") is None and isinstance(f, (str, os.PathLike)) and zipfile.is_zipfile(f):
            kwargs["mmap"] = True  # reads only data that is accessed
        with unfake():
            value = load(f, to_cpu, *args, **kwargs)

        def place(tensor):
            return places.get(tensor.untyped_storage().data_ptr(), "cpu") if _is_plain(tensor) else None

        return fakes_of(value, place)

    return load_fakes


def _from_storage(create, is_wanted):
    """Wraps a function that creates a tensor from a storage, if is_wanted()."""

    @functools.wraps(create)
    def create_fake(source, *args, **kwargs):
        storage = getattr(source, "_untyped_storage", source) if is_wanted() else None
        if not isinstance(storage, torch.UntypedStorage) or storage.device.type == "meta":
            return create(source, *args, **kwargs)
        with unfake():
            real = create(source, *args, **kwargs)
        return _fake_on(real, None)

    return create_fake


def _check_state_dicts(load_state_dict):
    """Checks tensors before Module.load_state_dict, which turns every error into a plain RuntimeError."""

    @replaces(torch.nn.Module, "load_state_dict")
    def load(self, state_dict, *args, **kwargs):
        if _C.is_deferring() and isinstance(state_dict, Mapping):
            for name, tensor in state_dict.items():
                if isinstance(tensor, torch.Tensor):
                    _C.check_recordable(tensor, f"load_state_dict of '{name}'")
        return load_state_dict(self, state_dict, *args, **kwargs)


def _read_batches(iterate):
    @replaces(torch.utils.data.DataLoader, "__iter__")
    def iterate_real(self):
        return _batches(self) if _C.is_active() else iterate(self)

    def _batches(loader):
        with unfake():
            batches = iterate(loader)
        while True:
            with unfake():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield fakes_of(batch)


def _load_safetensors(module, name):
    function = getattr(module, name)
    signature = inspect.signature(function)

    @replaces(module, name)
    def load(*args, **kwargs):
        if not _C.is_active():
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        device = given.arguments.pop("device", "cpu")
        with unfake():
            value = function(*given.args, **given.kwargs)
        return fakes_of(value, f"cuda:{device}" if isinstance(device, int) else device)
