"""Arguments of a program: nested structures of tensors, or strings such as "f32[8,3,224,224]" in their place."""

import re
from typing import NamedTuple

import torch

from . import _shadowgraph as _C

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
_SPEC = re.compile(r"(\w+)\[([\d,\s]*)\]")


def is_spec(value):
    """Returns whether the value is a string such as "f32[8,16]"; raises Error if it is meant as one but malformed."""
    if not isinstance(value, str):
        return False
    found = _SPEC.fullmatch(value.strip())
    if found is None and "[" in value and value.split("[")[0].strip() in DTYPES:
        raise _malformed(value)
    return found is not None


def _malformed(spec):
    return _C.Error(f"input '{spec}': expected a dtype and sizes, such as 'f32[8,16]'")


def from_spec(spec, device):
    """Returns a tensor of zeros with the dtype and shape of a string such as "i64[4,512]"."""
    found = _SPEC.fullmatch(spec.strip())
    assert found is not None  # is_spec(spec)
    dtype, sizes = found.groups()
    if dtype not in DTYPES:
        raise _C.Error(f"input '{spec}': unknown dtype '{dtype}'; expected one of {', '.join(DTYPES)}")
    return torch.zeros([int(size) for size in sizes.split(",") if size.strip()], dtype=DTYPES[dtype], device=device)


def on_device(structure, device, dtype=None):
    """Returns the structure with fake tensors for its strings and tensors. Call inside a mode."""

    def leaf(path, value):
        value = from_spec(value, device) if isinstance(value, str) else value.to(device)
        return value.to(dtype) if dtype is not None and value.is_floating_point() else value

    return mapped(structure, leaf)


class Call(NamedTuple):
    """Positional and keyword arguments."""

    args: tuple
    kwargs: dict


def _spec_of(shape):
    """Returns "f32[8,3]" for the shape (8, 3), and None for other values."""
    is_shape = isinstance(shape, (tuple, list)) and len(shape) > 0 and all(type(size) is int for size in shape)
    return f"f32[{','.join(map(str, shape))}]" if is_shape else None


def as_call(inputs):
    """Returns (args, kwargs) for a tensor, a sequence of arguments, or a dict of keyword arguments.

    A shape such as (8, 3, 224, 224), or a sequence of only shapes, becomes float32 tensors.
    """
    if isinstance(inputs, Call):
        return inputs
    for shapes in ([inputs], inputs if isinstance(inputs, (tuple, list)) else []):
        args = tuple(map(_spec_of, shapes))
        if args and all(args):
            return args, {}
    if hasattr(inputs, "items"):
        return (), dict(inputs.items())
    if isinstance(inputs, torch.Tensor) or is_spec(inputs):
        return (inputs,), {}
    if isinstance(inputs, str):
        raise _malformed(inputs)
    return tuple(inputs), {}


def mapped(structure, leaf):
    """Maps leaf(path, value) over tensors and specs of the structure; preserves named tuple and dict classes."""

    def walk(path, value):
        def each(items):
            return {key: walk(f"{path}.{key}" if path else str(key), item) for key, item in items}

        if isinstance(value, torch.Tensor) or is_spec(value):
            return leaf(path, value)
        if isinstance(value, dict):
            return each(value.items()) if type(value) is dict else type(value)(**each(value.items()))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*each(zip(value._fields, value)).values())
        return type(value)(each(enumerate(value)).values()) if isinstance(value, (list, tuple)) else value

    return walk("", structure)


def tensors_of(structure):
    """Returns the tensors of a nested structure of lists, tuples, dicts and Hugging Face outputs, in order."""
    if isinstance(structure, torch.Tensor):
        return [structure]
    if hasattr(structure, "items"):
        structure = list(structure.values())
    parts = structure if isinstance(structure, (list, tuple)) else ()
    return [tensor for value in parts for tensor in tensors_of(value)]
