"""Reads of tensor data and addresses that bypass the dispatcher: return known values or raise an error.

Also patches copy.deepcopy of fake tensors, which AveragedModel uses.
"""

import functools

import torch
import torch._tensor_str

from . import _shadowgraph as _C
from ._shared import replaces
from ._unfake import unfake

_ADVICE = "remove this line from the captured program, or use a real tensor under shadowgraph.unfake()"
_MAX_PRINTED_BYTES = 1 << 30  # limit of the storage that is computed to print a deferred tensor


def patch_reads():
    """Patches all functions that read a tensor through its data pointer. Called once per process."""
    tensor = torch.Tensor
    tensor.tolist = _of_known(tensor.tolist)
    tensor.numpy = _numpy(tensor.numpy)
    tensor.__array__ = _array(tensor.__array__)
    _patch_text(tensor.__repr__)
    advice = dict.fromkeys(("__dlpack__", "share_memory_", "apply_", "map_", "map2_"), _ADVICE)
    advice["__reduce_ex__"] = "a fake tensor cannot be pickled or saved; save the real one, or the graph (Graph.save)"
    for name in advice:
        setattr(tensor, name, _refusing(getattr(tensor, name), f"Tensor.{name}", advice[name]))
    interface = _refusing(tensor.__cuda_array_interface__.__get__, "Tensor.__cuda_array_interface__", _ADVICE)
    tensor.__cuda_array_interface__ = property(interface)
    for owner, name in ((torch._C, "_to_dlpack"), (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")):
        if hasattr(owner, name):
            setattr(owner, name, _refusing(getattr(owner, name), name, _ADVICE))
    _patch_addresses(tensor.data_ptr, torch.UntypedStorage.data_ptr)
    _patch_storages()


def _value_of(fake):
    """Returns the values as a new real tensor, computed if the tensor is deferred, or None if they are unknown."""
    value = _C.deferred_value(fake)
    return _C.known_contents(fake) if value is None else value


def _error(name, fake, advice):
    if _C.is_deferred(fake):
        advice = f"it is deferred; call sg.materialize_tensor to materialize it or sg.save_weights to save it; {advice}"
    return _C.DataDependentError(f"{name}() on a tensor without data ({_C.describe(fake)}): {advice}")


def _of_known(original):
    @functools.wraps(original)
    def read(self, *args, **kwargs):
        if not _C.is_fake(self):
            return original(self, *args, **kwargs)
        value = _value_of(self)
        if value is None:
            raise _error(f"Tensor.{original.__name__}", self, _ADVICE)
        with torch._C._DisableTorchDispatch(), unfake():
            if value.is_floating_point() or value.is_complex():
                value.requires_grad_(self.requires_grad)  # so that numpy() raises torch's error
            return original(value, *args, **kwargs)

    return read


def _numpy(original):
    read_known = _of_known(original)

    @functools.wraps(original)
    def numpy(self, *, force=False):
        if not _C.is_fake(self):
            return original(self, force=force)
        is_deferred = _C.is_deferred(self)
        if is_deferred and not force and self.device.type != "cpu":
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        array = read_known(self, force=force)
        if is_deferred:  # unlike in eager, writes to the array would not change the tensor
            array.flags.writeable = False
        return array

    return numpy


def _array(original):
    read_known = _of_known(original)

    @functools.wraps(original)
    def array(self, *args, **kwargs):
        # For a deferred tensor, the original calls numpy() above.
        return original(self, *args, **kwargs) if _C.is_deferred(self) else read_known(self, *args, **kwargs)

    return array


def _patch_text(original):
    @replaces(torch.Tensor, "__repr__")
    def text(self, *, tensor_contents=None):
        if not _C.is_fake(self):
            return original(self, tensor_contents=tensor_contents)
        what = f"<{_C.describe(self)}>"
        if not _C.is_deferred(self) or self.untyped_storage().nbytes() > _MAX_PRINTED_BYTES:
            return what
        try:
            value = _C.deferred_value(self)
        except _C.Error as error:  # a debugger that shows variables must not fail
            return f"<{_C.describe(self)}, whose values cannot be computed: {error}>"
        if value is None:
            return what
        with torch._C._DisableTorchDispatch(), unfake():
            contents = torch._tensor_str._tensor_str(value, indent=len("tensor("))
        return original(self, tensor_contents=contents)


def _refusing(function, name, advice):
    @functools.wraps(function)
    def call(tensor, *args, **kwargs):
        if isinstance(tensor, torch.Tensor) and _C.is_fake(tensor):
            raise _error(name, tensor, advice)
        return function(tensor, *args, **kwargs)

    return call


def _patch_addresses(of_tensor, of_storage):
    """Gives each storage a unique made-up address, since programs identify tensors by address."""

    @replaces(torch.Tensor, "data_ptr")
    def data_ptr(self):
        return _C.fake_address(self) if _C.is_fake(self) else of_tensor(self)

    @replaces(torch.UntypedStorage, "data_ptr")
    def data_ptr_of_storage(self):
        address = _C.fake_storage_address(self) if self.device.type == "meta" else None
        return of_storage(self) if address is None else address


def _patch_storages():
    """Rejects reads of the meta storages of fake tensors, which torch does not always check."""

    def guarded(name):
        original = getattr(torch.UntypedStorage, name)

        @replaces(torch.UntypedStorage, name)
        def read(self, *args, **kwargs):
            if self.device.type == "meta" and self.nbytes() != 0:
                raise _C.DataDependentError(
                    f"UntypedStorage.{name}() on the storage of a fake or meta tensor, which has no data; {_ADVICE}"
                )
            return original(self, *args, **kwargs)

    for name in (
        "__getitem__", "__reduce__", "__setitem__", "byteswap", "cpu", "pin_memory", "share_memory_", "tolist",
        "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_", "_write_file",
    ):  # fmt: skip
        if hasattr(torch.UntypedStorage, name):
            guarded(name)


def patch_deepcopy():
    """Keeps the simulated device when tensors other than parameters copy their (meta) storages."""
    original = torch.Tensor.__deepcopy__

    @replaces(torch.Tensor, "__deepcopy__")
    def deepcopy(self, memo):
        # Subclasses define their own __deepcopy__ or copy the storage like plain tensors.
        if self.is_leaf and id(self) not in memo and _C.is_fake(self):
            _copy_storage(self, memo)
        return original(self, memo)


def _copy_storage(tensor, memo):
    """Adds the copied storage to torch's memo; tensors that share the storage share the copy."""
    storage = tensor.untyped_storage()
    copied = memo.setdefault("torch", {})
    if storage._cdata in copied:
        return
    dtype = tensor.dtype if storage.nbytes() % tensor.itemsize == 0 else torch.uint8
    with torch.no_grad():
        sizes = (storage.nbytes() // dtype.itemsize,)
        # new_empty: outside of a mode, torch.empty would not be a fake of the tensor's recording.
        whole = tensor.new_empty(0, dtype=dtype).set_(storage, 0, sizes)
        copied[storage._cdata] = whole.clone().untyped_storage()
