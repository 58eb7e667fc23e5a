# ruff: noqa: E402
"""What every file has that applies a plan (shadowgraph shard ... --emit-python): its second part is written as it is.

Nothing here is imported from shadowgraph: the file needs torch alone.
"""

from typing import Any

MESH: dict[str, int] = {}
DATA_AXES: tuple[str, ...] = ()
PARAMETERS: dict[str, tuple[str, ...]] = {}
USES: dict[str, tuple[str, ...]] = {}
INPUTS: dict[str, tuple[str, ...]] = {}
MODULES: dict[str, tuple[Any, Any]] = {}
UNITS: tuple[str, ...] = ()

# ---- From here on as it is in the file
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard

TENSOR_AXES = tuple(axis for axis in MESH if axis not in DATA_AXES)


def make_mesh(device_type="cuda"):
    """The mesh of the plan, over the processes of torch.distributed."""
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def scope():
    """Around forward and backward: tensors that the model makes itself are the same on all ranks of the tensor axes."""
    return implicit_replication()


def place(model, mesh, loss="mean"):
    """Lays a model out as the plan says, in place, and gives it back. Every rank has the same whole model before.

    mesh: what make_mesh() gives. loss: "mean" or "sum", what the loss is over the batch. Each rank of the data axes
    computes it of its own part, and gradients are averaged or added up. Make the optimizer afterwards.
    """
    if tuple(mesh.mesh_dim_names or ()) != tuple(MESH) or tuple(mesh.shape) != tuple(MESH.values()):
        raise ValueError(f"the plan is for the mesh {MESH}; this one is {mesh}")
    if loss not in ("mean", "sum"):
        raise ValueError(f"loss={loss!r}: it is a mean or a sum over the batch")
    names = _names(model)
    unknown = [name for name in names.values() if _of(PARAMETERS, name) is None]
    if unknown:
        raise ValueError(f"the plan does not know {', '.join(sorted(unknown)[:5])}; it was made of another model")
    lies = {name: _of(PARAMETERS, name) for name in names.values()}
    if TENSOR_AXES:
        _distribute(model, mesh[TENSOR_AXES], names, lies)
    if DATA_AXES:
        names = _names(model)
        _fully_shard(model, mesh, names, lies, 1 if loss == "sum" else _size(DATA_AXES))
    return model


def inputs(mesh, /, *given, **named):
    """This rank's part of a whole batch: of tensors by position, a tuple; by name, a dict."""
    if given and named:
        raise ValueError("give inputs by position or by name")
    placed = {}
    for name, tensor in (named or dict(zip(INPUTS, given))).items():
        if name not in INPUTS:
            raise ValueError(f"the plan has no input {name}: it knows {', '.join(INPUTS)}")
        layout = dict(zip(MESH, INPUTS[name]))
        for axis in DATA_AXES:
            if layout[axis] != "R":
                tensor = tensor.chunk(MESH[axis], _placement(layout[axis]).dim)[mesh.get_local_rank(axis)]
        if TENSOR_AXES:
            over = [_placement(layout[axis]) for axis in TENSOR_AXES]
            tensor = distribute_tensor(tensor.contiguous(), mesh[TENSOR_AXES], over)
        placed[name] = tensor
    return placed if named else tuple(placed.values())


def _names(model):
    """By id; of tied parameters the name that the plan knows."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in names or (_of(PARAMETERS, names[id(parameter)]) is None and _of(PARAMETERS, name)):
            names[id(parameter)] = name
    return names


def _size(axes):
    size = 1
    for axis in axes:
        size *= MESH[axis]
    return size


def _placement(text):
    """ "S(0,3)": dimension 0 is 3 stretches, each of which is cut."""
    if text == "R":
        return Replicate()
    kind, inside = text[0], text[2:-1]
    if kind == "P":
        return Partial(inside)
    dim, _, stretches = inside.partition(",")
    return _StridedShard(int(dim), split_factor=int(stretches)) if stretches else Shard(int(dim))


def _of(table, name):
    """The row of a path: * stands for a number."""
    if name in table:
        return table[name]
    return table.get(".".join("*" if word.isdigit() else word for word in name.split(".")))


def _over(layout, axes):
    places = dict(zip(MESH, layout))
    return [_placement(places[axis]) for axis in axes]


# ---- The tensor axes: parameters, and what modules take and give, are DTensors


def _distribute(model, mesh, names, lies):
    made = {}  # tied parameters stay tied

    def partition(path, module, mesh):
        for key, parameter in list(module._parameters.items()):
            if parameter is None or isinstance(parameter, DTensor):
                continue
            if id(parameter) not in made:
                placements = _over(lies[names[id(parameter)]], TENSOR_AXES)
                whole = distribute_tensor(parameter.detach(), mesh, placements)
                new = nn.Parameter(whole, requires_grad=parameter.requires_grad)
                if new.requires_grad:
                    new.register_post_accumulate_grad_hook(_lay_gradient)
                made[id(parameter)] = (new, parameter)
            module._parameters[key] = made[id(parameter)][0]

    distribute_module(model, mesh, partition)
    for path, module in model.named_modules():
        uses = {}
        for key, parameter in module.named_parameters(recurse=False):
            wanted = _of(USES, f"{path}.{key}" if path else key)
            if wanted is not None and list(parameter.placements) != _over(wanted, TENSOR_AXES):
                uses[key] = _over(wanted, TENSOR_AXES)
        if uses:
            _gather_around(module, uses)
        takes, gives = _of(MODULES, path) or (None, None)
        if takes is not None:
            module.register_forward_pre_hook(_laying(mesh, _over(takes, TENSOR_AXES), first=True))
        if gives is not None:
            hook = _laying(mesh, _over(gives, TENSOR_AXES), first=False)
            module.register_forward_hook(lambda module, given, result, hook=hook: hook(module, result))


def _lay_gradient(parameter):
    """The gradient of a parameter lies as it does."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _laying(mesh, placements, first):
    def lay(tensor):
        if not isinstance(tensor, DTensor):
            tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return tensor if list(tensor.placements) == placements else tensor.redistribute(placements=placements)

    def before(module, given):
        return (lay(given[0]), *given[1:]) if given and isinstance(given[0], torch.Tensor) else given

    def after(module, result):
        return lay(result) if isinstance(result, torch.Tensor) else result

    return before if first else after


def _gather_around(module, uses):
    """While forward runs the module's parameters lie as it uses them; their gradients go back as they came."""

    def before(module, given):
        for key, placements in uses.items():
            module.__dict__[key] = module._parameters[key].redistribute(placements=placements)

    def after(module, given, result):
        for key in uses:
            module.__dict__.pop(key, None)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)


# ---- The data axes: fully_shard where parameters are cut, averages of gradients where they are whole


def _fully_shard(model, mesh, names, lies, divisor):
    def cut(parameter):
        layout = dict(zip(MESH, lies[names[id(parameter)]]))
        return tuple(axis for axis in DATA_AXES if layout[axis] != "R")

    def placed(parameter):
        layout = dict(zip(MESH, lies[names[id(parameter)]]))
        return Shard(_placement(layout[cut(parameter)[0]]).dim)

    whole = {parameter for parameter in model.parameters() if not cut(parameter)}
    group = _flat(mesh, DATA_AXES).get_group()
    for parameter in whole:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_averaging(group, divisor))
    taken = set(whole)
    modules = dict(model.named_modules())
    units = {}
    for path in [path for path in modules if path and _is_unit(path)] + [""]:
        units[path] = [parameter for parameter in modules[path].parameters() if parameter not in taken]
        taken.update(units[path])
    if taken == whole:
        return
    for path, own in units.items():
        # Most elements decide over which of the axes; NOT_EXPRESSED has the others.
        elements: dict[tuple[str, ...], int] = {}
        for parameter in own:
            elements[cut(parameter)] = elements.get(cut(parameter), 0) + parameter.numel()
        axes = max(elements, key=elements.__getitem__) if own else DATA_AXES
        fully_shard(modules[path], mesh=_data_mesh(mesh, axes), ignored_params=whole, shard_placement_fn=placed)
        if divisor != _size(DATA_AXES):
            modules[path].set_gradient_divide_factor(float(divisor))


def _is_unit(path):
    return any(re.fullmatch(unit.replace(".", r"\.").replace("*", r"\d+"), path) for unit in UNITS)


def _flat(mesh, axes):
    return mesh[axes[0]] if len(axes) == 1 else mesh[axes]._flatten("_and_".join(axes))


def _data_mesh(mesh, axes):
    """What fully_shard takes: one axis to cut over, or one to copy over before it."""
    rest = tuple(axis for axis in DATA_AXES if axis not in axes)
    if not rest:
        return _flat(mesh, axes)
    if len(rest) == 1 and len(axes) == 1 and DATA_AXES.index(rest[0]) < DATA_AXES.index(axes[0]):
        return mesh[rest[0], axes[0]]
    return _flat(mesh, DATA_AXES)


def _averaging(group, divisor):
    def average(parameter):
        _lay_gradient(parameter)
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(gradient, group=group)
        gradient.div_(divisor)

    return average
