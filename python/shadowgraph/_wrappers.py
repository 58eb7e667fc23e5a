"""Traceable wrapper subclasses (__tensor_flatten__), such as DTensor and torchao's quantized tensors.

Their memory is that of the inner tensors, so a capture names, converts and counts the inner tensors.
"""

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _attributes
from . import _shadowgraph as _C

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_wrapper(tensor):
    return type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor)


def inner(tensor):
    """Returns [(suffix, inner tensor)] of a wrapper, or [("", tensor)] for other tensors.

    The suffix is "" if there is only one inner tensor, such as the local tensor of a DTensor; otherwise ".name".
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
    return isinstance(part, torch.Tensor)  # DTensor also lists its mesh


def parts(wrapper):
    """Returns the inner tensors of a wrapper, [] for other tensors. Called from C++."""
    return [part for _, part in inner(wrapper)] if is_wrapper(wrapper) else []


def is_fake(tensor):
    """Returns True if all inner tensors are fake."""
    if is_subclass(tensor) and not all(_C.is_fake(part) for _, part in _attributes.tensors_of(tensor)):
        return False
    return all(_C.is_fake(part) for _, part in inner(tensor))


def rebuilt(tensor, change):
    """Returns the tensor with each inner tensor replaced by change(inner); other fields of wrappers are kept."""
    if is_subclass(tensor):
        return _attributes.rebuilt(tensor, change)
    if not is_wrapper(tensor):
        return change(tensor)
    names, context = tensor.__tensor_flatten__()
    parts = {name: rebuilt(part, change) if _holds_data(part := getattr(tensor, name)) else part for name in names}
    new = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return new.requires_grad_(tensor.requires_grad) if new.is_leaf and new.is_floating_point() else new


def is_subclass(tensor):
    """Returns True for a third-party subclass that is not a wrapper, as in bitsandbytes.

    Raises Error for one with __torch_dispatch__ but without __tensor_flatten__, whose memory is unknown.
    """
    kind = type(tensor)
    if kind in _PLAIN or kind.__module__.partition(".")[0] == "torch" or is_wrapper(tensor):
        return False
    if kind.__torch_dispatch__ not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl):
        raise _C.Error(
            f"{kind.__module__}.{kind.__qualname__} defines __torch_dispatch__ but not __tensor_flatten__, so its "
            "memory is unknown; define __tensor_flatten__ and __tensor_unflatten__ in the class"
        )
    return True


def layout_of(tensor):
    """Returns layout and global sizes of a DTensor as node notes (docs/many-devices.md); {} for other tensors."""
    placements = getattr(tensor, "placements", None)
    if placements is None or tensor.dim() == 0:
        return {}
    return {"layout": ",".join(map(str, placements)), "whole_sizes": ",".join(map(str, tensor.shape))}
