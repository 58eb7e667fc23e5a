"""Finds and replaces tensors in attributes of parameters and modules, which state dicts do not contain.

bitsandbytes stores its quantization state there: `weight.SCB`, `weight.quant_state.absmax`, `layer.state.CB`.
"""

import copy

import torch

_MAX_DEPTH = 4


def _is_record(value):
    """Returns True for a plain object with attributes: not a module, tensor, class, callable or torch object."""
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (torch.nn.Module, torch.Tensor, type))
        and not callable(value)
        and type(value).__module__.partition(".")[0] not in ("torch", "builtins", "shadowgraph")
    )


def tensors_of(holder, but=()):
    """Yields (".name.name", tensor) for each tensor in the attributes of `holder` and of plain objects in them."""

    def walk(path, value, depth):
        if isinstance(value, torch.Tensor):
            yield path, value
        elif depth == 0:
            return
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(f"{path}.{key}", item, depth - 1)
        elif isinstance(value, (list, tuple)):
            for place, item in enumerate(value):
                yield from walk(f"{path}.{place}", item, depth - 1)
        elif _is_record(value):
            yield from walk(path, vars(value), depth - 1)

    for name, value in list(vars(holder).items()):
        if name not in but:
            yield from walk(f".{name}", value, _MAX_DEPTH)


def changed(attributes, change, made):
    """Returns a copy of the attributes with each tensor replaced by change(tensor).

    made: {id: (object, its replacement)}; preserves sharing between objects.
    """

    def walk(value, depth):
        if id(value) in made:
            return made[id(value)][1]
        new = value
        if isinstance(value, torch.Tensor):
            new = change(value)
        elif depth == 0:
            return value
        elif type(value) is dict:
            new = {key: walk(item, depth - 1) for key, item in value.items()}
        elif type(value) in (list, tuple):
            new = type(value)(walk(item, depth - 1) for item in value)
        elif _is_record(value):
            new = made[id(value)] = (value, copy.copy(value))
            new = new[1]
            for name, item in list(vars(new).items()):
                setattr(new, name, walk(item, depth - 1))
        if new is not value:
            made[id(value)] = (value, new)
        return new

    return {name: walk(value, _MAX_DEPTH) for name, value in attributes.items()}


def rebuilt(tensor, change, made=None):
    """Returns a tensor of the same subclass with change(tensor) as data and with `change` applied to its attributes."""
    made = {} if made is None else made
    data = change(tensor)
    new = torch.Tensor._make_subclass(type(tensor), data.detach(), tensor.requires_grad)
    made[id(tensor)] = (tensor, new)
    vars(new).update(changed(vars(tensor), change, made))
    return new
