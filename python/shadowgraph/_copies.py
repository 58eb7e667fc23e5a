"""copy.deepcopy of fake tensors: every average of a model begins with one."""

import functools

import torch

from . import _shadowgraph as _C


def copy_fake_storages():
    """Tensors that are no parameters copy their storages, which say nothing of the device that is pretended."""
    original = torch.Tensor.__deepcopy__

    @functools.wraps(original)
    def deepcopy(self, memo):
        # A subclass has its own copy of it, or copies its storage as a plain tensor does.
        if self.is_leaf and id(self) not in memo and _C.is_fake(self) and _C.is_active():
            _copy_storage(self, memo)
        return original(self, memo)

    torch.Tensor.__deepcopy__ = deepcopy


def _copy_storage(tensor, memo):
    """Leaves the copy where torch looks before it makes one; tensors of one storage find the same."""
    storage = tensor.untyped_storage()
    copied = memo.setdefault("torch", {})
    if storage._cdata in copied:
        return
    dtype = tensor.dtype if storage.nbytes() % tensor.itemsize == 0 else torch.uint8
    with torch.no_grad():
        sizes = (storage.nbytes() // dtype.itemsize,)
        whole = torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, sizes)
        copied[storage._cdata] = whole.clone().untyped_storage()
