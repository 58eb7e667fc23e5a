"""Tensors that hold other tensors: DTensor, torchao's quantised ones, and whatever has __tensor_flatten__.

What a device holds is the tensors inside, so these are what a capture names, converts and counts.
"""

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _attributes
from . import _shadowgraph as _C

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_wrapper(tensor):
    return type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor)


def inner(tensor):
    """The tensors that `tensor` is made of, as (suffix, tensor): itself, ("", tensor), if it holds no others.

    The suffix is "" where a wrapper holds one tensor, as a DTensor its local part; otherwise it is ".name".
    """
    if not is_wrapper(tensor):
        return [("", tensor)]
    parts = [(name, part) for name in tensor.__tensor_flatten__()[0] if _holds_data(part := getattr(tensor, name))]
    return [
        (f".{name}{suffix}" if len(parts) > 1 else suffix, found)
        for name, part in parts
        for suffix, found in inner(part)
    ]


def _holds_data(part):
    return isinstance(part, torch.Tensor)  # a DTensor has its mesh among its parts


def parts(wrapper):
    """The tensors inside a wrapper, for C++; none for a tensor of a class with __torch_dispatch__ alone."""
    return [part for _, part in inner(wrapper)] if is_wrapper(wrapper) else []


def is_fake(tensor):
    """Whether all that the tensor holds is fake."""
    if is_subclass(tensor) and not all(_C.is_fake(part) for _, part in _attributes.tensors_of(tensor)):
        return False
    return all(_C.is_fake(part) for _, part in inner(tensor))


def rebuilt(tensor, change):
    """The tensor with change(part) in place of each part; a wrapper is made anew, with what it says besides kept."""
    if is_subclass(tensor):
        return _attributes.rebuilt(tensor, change)
    if not is_wrapper(tensor):
        return change(tensor)
    names, about = tensor.__tensor_flatten__()
    parts = {name: rebuilt(part, change) if _holds_data(part := getattr(tensor, name)) else part for name in names}
    made = type(tensor).__tensor_unflatten__(parts, about, tensor.size(), tensor.stride())
    return made.requires_grad_(tensor.requires_grad) if made.is_leaf and made.is_floating_point() else made


def is_subclass(tensor):
    """Whether a library made its class, as bitsandbytes does, and it is no wrapper. Raises Error for one that hides."""
    kind = type(tensor)
    if kind in _PLAIN or kind.__module__.partition(".")[0] == "torch" or is_wrapper(tensor):
        return False
    if kind.__torch_dispatch__ not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl):
        raise _C.Error(
            f"{kind.__module__}.{kind.__qualname__} runs operators itself (__torch_dispatch__) and does not say which "
            "tensors it holds, so its bytes are not known: give the class __tensor_flatten__ and __tensor_unflatten__"
        )
    return True


def layout_of(tensor):
    """What a DTensor's local part is a part of, as notes of a graph: docs/many-devices.md. Empty for other tensors."""
    placements = getattr(tensor, "placements", None)
    if placements is None or tensor.dim() == 0:
        return {}
    return {"layout": ",".join(map(str, placements)), "whole_sizes": ",".join(map(str, tensor.shape))}
