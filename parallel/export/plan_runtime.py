"""Applies a shadowgraph plan to an eager model. Requires only torch.

# -- with training
    torchrun --nproc-per-node 8 train.py --model mine:make --random-tokens 32000 --steps 3
    torchrun --nnodes 8 --nproc-per-node 8 ... train.py --model mine:make --data mine:batches --save checkpoint

--model: function that returns the model, identical on all ranks, with the module names used below.
--data: function of (samples, sequence) that yields (inputs, targets) of global batches, identical on all ranks.
--loss: function of (output, targets) that returns the mean over a micro-batch (default: next-token cross entropy).
        With context parallelism it receives a rank's part of both: an early and a late chunk of each sequence.
--meta: build the model on the meta device and materialize the modules of a rank's stages one by one, with
        reset_parameters or _init_weights under a seed derived from the module name, or with the values of --resume.
# -- end with
# -- with layouts
    mesh = make_mesh("cuda")                   # after torch.distributed.init_process_group
    place(model, mesh)                         # the full model must be identical on all ranks
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with scope():
        loss = model(**inputs(mesh, input_ids=..., labels=...)).loss
        loss.backward()
    optimizer.step()

On data axes, each rank computes the loss of its part of the batch. NOT_EXPRESSED lists parts of the plan that this file
cannot express.
# -- end with
"""

import argparse  # with training
import collections
import contextlib  # with training
import copy  # with training
import functools  # with training
import importlib  # with training
import inspect  # with context
import itertools  # with training
import math  # with layouts
import os  # with training
import re
import sys  # with training
import tempfile  # with training
import weakref  # with training
import zlib  # with training

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp  # with training
from torch import nn
from torch.autograd.graph import saved_tensors_hooks  # with training
from torch.distributed import _functional_collectives as funcol  # with experts, context
from torch.distributed.checkpoint import state_dict as states  # with training
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules  # with training
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication  # with layouts
from torch.distributed.tensor.placement_types import _StridedShard
from torch.overrides import TorchFunctionMode  # with experts, grouped, context, fused
from torch.utils._pytree import tree_leaves, tree_map_only  # with training
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # with training

# -- the plan
# For training. A * in a name matches a number.
MESH = {"pipeline": 1, "data": 1, "context": 1, "tensor": 1}
STAGES_PER_RANK, EXPERTS, MICRO_BATCH, MICROBATCHES, SEQUENCE, ZERO = 1, 1, 1, 1, 128, 0
SCHEDULE, SCHEDULE_CLASS, SCHEDULE_ROWS, V_SHAPED, SPLITS_BACKWARD = "1f1b", "Schedule1F1B", "", False, False
ORDER, STAGES = ["layers.*"], [""]
TIED, RECOMPUTED, SELECTIVE, IN_PART, OFFLOADED = [], [], [], [], []
OPTIMIZER_ON_HOST, ATTENTION = False, ""
CUT, FUSED, GROUPED = {}, {}, {}
# For layouts.
DATA_AXES, UNITS = (), ()
PARAMETERS, USES, INPUTS, MODULES = {}, {}, {}, {}
# -- end of the plan


def _of(table, name):
    """Returns the row of `table` that matches a path, or None."""
    return table[name] if name in table else next((row for like, row in table.items() if _is_like(like, name)), None)


def _is_like(like, path):
    return re.fullmatch(re.escape(like).replace(r"\*", r"\d+"), path) is not None


def _placement(text):
    """Parses a placement. "S(0,3)": dimension 0 consists of 3 ranges, each of which is sharded."""
    if text == "R":
        return Replicate()
    kind, inside = text[0], text[2:-1]
    if kind == "P":
        return Partial(inside)
    dim, _, stretches = inside.partition(",")
    return _StridedShard(int(dim), split_factor=int(stretches)) if stretches else Shard(int(dim))


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _laid(parameter, mesh, placements, source=None):
    """Shards a full parameter, with the values of rank `source` or with its own."""
    laid = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=source)
    return nn.Parameter(laid, requires_grad=parameter.requires_grad)


def _lay_around(module, mesh, takes, gives, given=None, local=False):
    """Redistributes a module's input and output. `given`: layout of plain tensors; `local`: return plain tensors."""

    def lay(tensor, placements):
        if not isinstance(tensor, DTensor):
            tensor = DTensor.from_local(tensor, mesh, given or [Replicate()] * mesh.ndim, run_check=False)
        laid = list(tensor.placements) == placements
        return tensor if laid else tensor.redistribute(placements=placements, async_op=local)

    def before(_, args):
        return (lay(args[0], takes), *args[1:]) if args and isinstance(args[0], torch.Tensor) else args

    def after(_, args, result):
        result = lay(result, gives) if isinstance(result, torch.Tensor) else result
        return _local(result) if local else result

    if takes is not None:
        module.register_forward_pre_hook(before)
    if gives is not None:
        module.register_forward_hook(after)


def _average(parameter, group, divisor):
    """Averages the gradient of a replicated parameter."""
    dist.all_reduce(_local(parameter.grad).div_(divisor), group=group)


# -- with layouts
TENSOR_AXES = tuple(axis for axis in MESH if axis not in DATA_AXES)


def make_mesh(device_type="cuda"):
    """Creates the mesh of the plan over the processes of torch.distributed."""
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def scope():
    """Context for forward and backward: treats tensors created by the model as replicated over the tensor axes."""
    return implicit_replication()


def place(model, mesh, loss="mean"):
    """Shards a model in place as planned, and returns it. The full model must be identical on all ranks.

    mesh: from make_mesh(). loss: reduction of the loss over the batch, "mean" or "sum". Each rank of the data axes
    computes the loss of its part, and gradients are averaged or summed. Create the optimizer afterwards.
    """
    if tuple(mesh.mesh_dim_names or ()) != tuple(MESH) or tuple(mesh.shape) != tuple(MESH.values()):
        raise ValueError(f"the plan needs the mesh {MESH}, not {mesh}; create it with make_mesh()")
    if loss not in ("mean", "sum"):
        raise ValueError(f"loss={loss!r} is not one of 'mean', 'sum'")
    layouts = _layouts(model)
    if TENSOR_AXES:
        _distribute(model, mesh[TENSOR_AXES], layouts)
    if DATA_AXES:
        _fully_shard(model, mesh, _layouts(model), 1 if loss == "sum" else math.prod(MESH[axis] for axis in DATA_AXES))
    return model


def inputs(mesh, /, *given, **named):
    """Returns this rank's part of a global batch: a tuple for positional tensors, a dict for keywords."""
    if given and named:
        raise ValueError("give all inputs by position, or all by name")
    placed = {}
    for name, tensor in (named or dict(zip(INPUTS, given))).items():
        if name not in INPUTS:
            raise ValueError(f"the plan has no input {name}; expected {', '.join(INPUTS)}")
        for axis, code in _cuts(INPUTS[name]).items():
            tensor = tensor.chunk(MESH[axis], _placement(code).dim)[mesh.get_local_rank(axis)]
        if TENSOR_AXES:
            tensor = distribute_tensor(tensor.contiguous(), mesh[TENSOR_AXES], _over(INPUTS[name]))
        placed[name] = tensor
    return placed if named else tuple(placed.values())


def _layouts(model):
    """Layouts of parameters over each axis, by id. Tied parameters use the name that occurs in the plan."""
    known = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first, row = known.get(id(parameter), (name, None))
        known[id(parameter)] = (first, row or _of(PARAMETERS, name))
    unknown = [name for name, row in known.values() if row is None]
    if unknown:
        raise ValueError(f"the plan has no layout of {', '.join(sorted(unknown)[:5])}; it was made for another model")
    return {parameter: row for parameter, (_, row) in known.items()}


def _over(layout):
    """Returns the placements over the tensor axes."""
    return [_placement(code) for axis, code in zip(MESH, layout) if axis in TENSOR_AXES]


def _cuts(layout):
    """Returns the data axes that shard a tensor, with their placements."""
    return {axis: code for axis, code in zip(MESH, layout) if axis in DATA_AXES and code != "R"}


# ---- Tensor axes: parameters and activations between modules are DTensors


def _distribute(model, mesh, layouts):
    made = {}  # keeps tied parameters tied

    def partition(path, module, mesh):
        for key, parameter in list(module._parameters.items()):
            if parameter is None or isinstance(parameter, DTensor):
                continue
            if id(parameter) not in made:
                new = _laid(parameter, mesh, _over(layouts[id(parameter)]), source=0)
                if new.requires_grad:
                    new.register_post_accumulate_grad_hook(_lay_gradient)
                made[id(parameter)] = (new, parameter)
            module._parameters[key] = made[id(parameter)][0]

    distribute_module(model, mesh, partition)
    for path, module in model.named_modules():
        uses = {}
        for key, parameter in module.named_parameters(recurse=False):
            wanted = _of(USES, f"{path}.{key}" if path else key)
            if wanted is not None and list(parameter.placements) != _over(wanted):
                uses[key] = _over(wanted)
        if uses:
            _redistribute_reads(module, mesh, uses)
        takes, gives = (row and _over(row) for row in _of(MODULES, path) or (None, None))
        _lay_around(module, mesh, takes, gives)


def _lay_gradient(parameter):
    """Redistributes a gradient to the layout of its parameter."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _redistribute_reads(module, mesh, uses):
    """Redistributes parameters where they are read; autograd redistributes the gradients back.

    Other modules may read them without a call of this one, as Mamba's mixer reads conv1d.weight. fully_shard also reads
    parameters, sharded over the data axes; these stay.
    """

    def read(key):
        def get(self):
            parameter = self._parameters[key]
            return parameter.redistribute(placements=uses[key]) if parameter.device_mesh == mesh else parameter

        return property(get)

    kind = type(module)
    members = {key: read(key) for key in uses}
    module.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **members})


# ---- Data axes: fully_shard for sharded parameters, averaged gradients for replicated ones


def _fully_shard(model, mesh, layouts, divisor):
    def cut(parameter):
        return tuple(_cuts(layouts[id(parameter)]))

    def placed(parameter):
        return Shard(_placement(next(iter(_cuts(layouts[id(parameter)]).values()))).dim)

    whole = {parameter for parameter in model.parameters() if not cut(parameter)}
    group = _flat(mesh, DATA_AXES).get_group()

    def average(parameter):
        _lay_gradient(parameter)
        _average(parameter, group, divisor)

    for parameter in whole:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
    taken = set(whole)
    modules = dict(model.named_modules())
    units = {}
    for path in [path for path in modules if any(_is_like(unit, path) for unit in UNITS)] + [""]:
        units[path] = [parameter for parameter in modules[path].parameters() if parameter not in taken]
        taken.update(units[path])
    if taken == whole:
        return
    for path, own in units.items():
        # Uses the axes that shard the most elements; NOT_EXPRESSED lists the others.
        elements = collections.Counter()
        for parameter in own:
            elements[cut(parameter)] += parameter.numel()
        axes = max(elements, key=elements.__getitem__) if own else DATA_AXES
        fully_shard(modules[path], mesh=_data_mesh(mesh, axes), ignored_params=whole, shard_placement_fn=placed)
        if divisor == 1:
            modules[path].set_gradient_divide_factor(float(divisor))


def _flat(mesh, axes):
    return mesh[axes[0]] if len(axes) == 1 else mesh[axes]._flatten("_and_".join(axes))


def _data_mesh(mesh, axes):
    """Returns a mesh for fully_shard: the sharded axis, optionally after a replicated one."""
    rest = tuple(axis for axis in DATA_AXES if axis not in axes)
    if not rest:
        return _flat(mesh, axes)
    if len(rest) == 1 and len(axes) == 1 and DATA_AXES.index(rest[0]) < DATA_AXES.index(axes[0]):
        return mesh[rest[0], axes[0]]
    return _flat(mesh, DATA_AXES)


# -- end with
# -- with training
AXES = ("pipeline", "data", "context", "tensor")
PIPELINE, DATA, CONTEXT, TENSOR = (MESH[axis] for axis in AXES)
REPLICAS = DATA * CONTEXT  # ranks with the same weights
SAMPLES = MICRO_BATCH * MICROBATCHES  # of a replica and step


class CannotRunError(Exception):
    """Raised if the plan was made for another model, or the forward cannot be split as planned."""


# -- with fused
def _cut_in_three(module, mesh):
    """Shards a fused QKV layer.

    The weight gets an additional dimension of size three. Each rank holds the part of its own heads of each.
    """
    outputs = 0 if isinstance(module, nn.Linear) else 1  # transformers' Conv1D
    for name, whole in list(module.named_parameters(recurse=False)):
        dim = outputs if name == "weight" else 0
        three = nn.Parameter(whole.detach().unflatten(dim, (3, -1)), requires_grad=whole.requires_grad)
        setattr(module, name, _laid(three, mesh, [Shard(dim + 1)]))

    def forward(x):
        weight, bias = _local(module.weight).flatten(outputs, outputs + 1), _local(getattr(module, "bias", None))
        x = DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        bias = None if bias is None else bias.flatten()
        made = nn.functional.linear(x, weight if outputs == 0 else weight.mT, bias)
        made.is_three = True
        return made

    module.forward = forward


class OwnHeads(TorchFunctionMode):
    """Adapts the forward of a module with a fused QKV layer to a rank's own heads."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def __torch_function__(self, called, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if called is nn.functional.scaled_dot_product_attention and args[0].shape[-1] != self.width:
            raise CannotRunError(f"head size is {args[0].shape[-1]}, not {self.width}: forward hard-codes the number")
        if args and getattr(args[0], "is_three", False):
            if called in (torch.split, torch.Tensor.split):
                size = args[1]
                size = size // TENSOR if isinstance(size, int) else [each // TENSOR for each in size]
                args = (args[0], size, *args[2:])
            elif called.__name__ not in ("chunk", "size", "dim", "__get__"):
                raise CannotRunError(
                    f"unsupported {called.__name__} of fused queries, keys, values; use split or chunk"
                )
        return called(*args, **kwargs)


# -- end with
# Placements of weight, bias, the given input, the required input, and the output.
STYLES = {
    "columns": ("S(0)", "S(0)", "R", "R", "S(-1)"),
    "columns, gathered": ("S(0)", "S(0)", "R", "R", "R"),
    "rows": ("S(1)", "R", "S(-1)", "S(-1)", "R"),
    "rows of a whole input": ("S(1)", "R", "R", "S(-1)", "R"),
    "columns of Conv1D": ("S(1)", "S(0)", "R", "R", "S(-1)"),
    "rows of Conv1D": ("S(0)", "R", "S(-1)", "S(-1)", "R"),
}


def _cut(module, style, mesh):
    """Shards a layer by tensor parallelism. Its inputs and outputs are plain tensors."""
    if style == "columns of three":  # with fused
        return _cut_in_three(module, mesh)  # with fused
    weight, bias, given, takes, gives = ([_placement(code)] for code in STYLES[style])
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, _laid(parameter, mesh, weight if name == "weight" else bias))
    return _lay_around(module, mesh, takes, gives, given, local=True)


class _Leave(Exception):
    """Raised to leave forward at the beginning of the next stage, with the tensor to send."""


def _refuse_gradient(_):
    raise CannotRunError("backward of a stage reaches an earlier stage other than through the tensor that is sent")


def _first_tensor(args, kwargs):
    return next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))


def _own(module):
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _holds_nan(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def _fill(model, prefix, device, seed):
    """Materializes and initializes modules under a prefix, with the same values on every rank."""
    for name, module in model.get_submodule(prefix).named_modules(prefix=prefix):
        if not any(tensor.is_meta for tensor in _own(module).values()):
            continue
        torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        with torch.no_grad():
            module.to_empty(device=device, recurse=False)
            empty = {tensor: tensor._version for tensor in _own(module).values()}
            for tensor in empty:
                tensor.data.fill_(torch.nan if _holds_nan(tensor) else 0)
            if hasattr(model, "_init_weights"):
                model._init_weights(module)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
        for own, tensor in _own(module).items():
            if tensor.isnan().any() if _holds_nan(tensor) else empty.get(tensor) == tensor._version:
                raise CannotRunError(f"--meta: {name}.{own} is not initialized; initialize it in reset_parameters")


# -- with grouped
class GroupedOnMeta(TorchFunctionMode):
    """Grouped matmuls on the meta device, which torch supports only for bfloat16."""

    def __torch_function__(self, called, types, args=(), kwargs=None):
        if called is torch._grouped_mm:
            return args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        return called(*args, **(kwargs or {}))


# -- end with
# -- with context
def next_token_of_chunks(logits, labels):
    """A rank's part of next_token(), for labels that were shifted before they were sharded."""
    total = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
    return total * CONTEXT / (labels.shape[0] * (labels.shape[1] * CONTEXT - 1))


def _attend(queries, keys, values, causal, scale):
    """Returns the output of flash attention and the log-sum-exp of its scores."""
    flash = "_scaled_dot_product_flash_attention" + ("" if queries.is_cuda else "_for_cpu")
    return getattr(torch.ops.aten, flash)(queries, keys, values, 0.0, causal, scale=scale)[:2]


def _attend_backward(gradient, queries, keys, values, out, sums, causal, scale):
    given = (gradient, queries, keys, values, out, sums.contiguous())
    if not queries.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal, scale=scale)
    lengths, seed = (None, None, queries.shape[2], keys.shape[2]), sums.new_zeros(2, dtype=torch.int64)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward
    return flash(*given, *lengths, 0.0, causal, seed, seed, scale=scale)


class CausalAttention(torch.autograd.Function):
    """Causal attention with context parallelism: attends to local chunks while the chunks of other ranks are gathered.

    Rank r of R has chunks r and 2 R - 1 - r of a sequence. All queries attend to the early chunks of lower ranks, those
    of the late chunk also to both chunks of higher ranks. Keys and values are gathered again in backward.
    """

    @staticmethod
    def forward(ctx, queries, keys, values, scale, group):
        ctx.scale, ctx.group = scale, group
        arriving = [_gather(each, group) for each in (keys, values)]
        out, sums = _attend(queries, keys, values, True, scale)
        arrived = [_heads_first(funcol.wait_tensor(each)) for each in arriving]
        for late, others in _parts(group, queries.shape[2]):
            more, of_more = _attend(queries[:, :, late:], *(others(all).flatten(2, 3) for all in arrived), False, scale)
            share = (of_more - sums[:, :, late:]).sigmoid().unsqueeze(-1)
            both = out[:, :, late:].to(share.dtype).lerp(more.to(share.dtype), share).to(out.dtype)
            out = torch.cat((out[:, :, :late], both), 2)
            sums = torch.cat((sums[:, :, :late], sums[:, :, late:].logaddexp(of_more)), 2)
        ctx.save_for_backward(queries, keys, values, out, sums)
        return out

    @staticmethod
    def backward(ctx, gradient):
        queries, keys, values, out, sums = ctx.saved_tensors
        arriving = [_gather(each, ctx.group) for each in (keys, values)]
        found = _attend_backward(gradient, queries, keys, values, out, sums, True, ctx.scale)
        arrived = [_heads_first(funcol.wait_tensor(each)) for each in arriving]
        of_all = [torch.zeros_like(each) for each in arriving]
        for late, others in _parts(ctx.group, queries.shape[2]):
            mine = [each[:, :, late:] for each in (gradient, queries, out, sums)]
            theirs = [others(all).flatten(2, 3) for all in arrived]
            more = _attend_backward(*mine[:2], *theirs, *mine[2:], False, ctx.scale)
            found[0][:, :, late:].add_(more[0])
            for all, each in zip(of_all, more[1:], strict=True):
                place = others(_heads_first(all))
                place.copy_(each.view_as(place))
        for mine, all in zip(found[1:], of_all, strict=True):
            mine.add_(_heads_first(funcol.wait_tensor(funcol.reduce_scatter_tensor(all, "sum", 0, ctx.group))))
        return *found, None, None


def _gather(heads, group):
    return funcol.all_gather_tensor(heads.permute(2, 0, 1, 3).contiguous(), 0, group)


def _heads_first(tokens):
    return tokens.permute(1, 2, 0, 3)


def _parts(group, tokens):
    """Yields the first query index, and a view of the chunks of other ranks that the queries attend to."""
    rank, ranks = group.rank(), group.size()
    if rank > 0:
        yield 0, lambda all: all.unflatten(2, (ranks, 2, -1))[:, :, :rank, 0]
    if rank + 1 < ranks:
        yield tokens // 2, lambda all: all.unflatten(2, (ranks, -1))[:, :, rank + 1 :]


class OnChunks(TorchFunctionMode):
    """Runs forward on a rank's chunks of the sequences, with attention over all chunks and their true positions."""

    def __init__(self, group):
        super().__init__()
        self.group, self.attends, self.counts = group, False, False

    def cut(self, sequences):
        if sequences.shape[1] % (2 * CONTEXT) != 0:
            raise CannotRunError(f"{sequences.shape[1]} tokens do not divide into {2 * CONTEXT} equal chunks")
        chunks = sequences.chunk(2 * CONTEXT, 1)
        return torch.cat((chunks[self.group.rank()], chunks[-1 - self.group.rank()]), 1)

    def of(self, stage):
        forward = stage.forward

        def run(received, inputs=None):
            ids = received if inputs is None else inputs
            self.positions = self.cut(torch.arange(ids.shape[1] * CONTEXT, device=ids.device)[None])[0]
            self.buffers = {id(buffer): name for name, buffer in stage.model.named_buffers()}
            with self:
                output = forward(received, inputs)
            if not stage.ends and not (self.attends and self.counts):
                missing = "torch.arange for positions" if self.attends else "scaled_dot_product_attention"
                raise CannotRunError(f"context parallelism requires that the model calls {missing}")
            return output

        stage.forward = run

    def __torch_function__(self, called, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if called is nn.functional.scaled_dot_product_attention:
            self.attends = True
            return (called if args[0].is_meta else self._attention)(*args, **kwargs)
        made, tokens = called(*args, **kwargs), len(self.positions)
        if called is torch.arange and args in ((tokens,), (0, tokens)) and not {"start", "end", "step"} & set(kwargs):
            self.counts = True
            return self.positions.to(made)
        if called is torch.Tensor.__getitem__:
            owned = isinstance(args[0], nn.Parameter) or id(args[0]) in self.buffers
            if owned and any(here == tokens < whole for here, whole in zip(made.shape, args[0].shape)):
                name = self.buffers.get(id(args[0]), "a parameter")
                raise CannotRunError(f"the model slices {name} by length instead of indexing it with token positions")
        return made

    def _attention(self, queries, keys, values, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
        if attn_mask is not None or dropout_p > 0 or not is_causal or not queries.shape[2] == keys.shape[2]:
            raise CannotRunError("context parallelism supports only causal attention without mask and dropout")
        return CausalAttention.apply(queries, keys, values, scale, self.group)


# -- end with
class StandIn(nn.Module):
    """Placeholder for a module of another stage: returns tensors of the same shapes, without parameters."""

    def __init__(self, module, dtype):
        super().__init__()
        self.__dict__["_module"] = module.to("meta", dtype)
        self.__dict__["_results"] = {}

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_module"], name)

    def forward(self, *args, **kwargs):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in self._results:
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("meta"), (args, kwargs))
            with contextlib.ExitStack() as around:
                around.enter_context(torch.no_grad())
                around.enter_context(GroupedOnMeta())  # with grouped
                self._results[key] = self._module(*args, **kwargs)
        device = tensors[0].device if tensors else "cpu"

        def value(meta):
            one = torch.zeros((), dtype=meta.dtype, device=device)
            if one.is_floating_point():
                one.requires_grad_().register_hook(_refuse_gradient)
            return one.expand(meta.shape)

        return tree_map_only(torch.Tensor, value, self._results[key])


def modules_in_order(model):
    """Names of the modules in forward order: layers, and modules before and after them."""
    names = []
    for name in ORDER:
        layers = model.get_submodule(name[:-2]).named_children() if name.endswith(".*") else [("", None)]
        names += [f"{name[:-2]}.{child}" if child else name for child, _ in layers]
    return names


def modules_of_stages(model):
    """Names of the modules of each stage."""
    names = modules_in_order(model)
    missing = [name for name in [*STAGES[1:], *RECOMPUTED] if name not in dict(model.named_modules())]
    if missing or any(begin not in names for begin in STAGES[1:]):
        raise CannotRunError(
            f"the plan begins stages at {STAGES[1:]}, but the model has the modules {names}; missing: {missing}"
        )
    begins = [0, *(names.index(begin) for begin in STAGES[1:]), len(names)]
    if begins != sorted(set(begins)):
        raise CannotRunError(f"forward calls {names}, but the plan's stages begin at {STAGES[1:]}, in another order")
    for name, _ in model.named_parameters():
        if not any(name.startswith(part + ".") for part in names) and len(STAGES) > 1:
            raise CannotRunError(f"the parameter {name} is outside of the modules that form the stages: {names}")
    return [names[begin:end] for begin, end in itertools.pairwise(begins)]


def tied_over_stages(model, parts):
    """Returns the name per stage of each parameter that is tied over several stages."""
    names = collections.defaultdict(dict)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for stage, modules in enumerate(parts):
            if any(name.startswith(module + ".") for module in modules):
                names[parameter].setdefault(stage, name)
    tied = [of for of in names.values() if len(of) > 1]
    if (first := [next(iter(of.values())) for of in tied]) != TIED:
        raise CannotRunError(f"the model ties the parameters {first} over stages, but the plan ties {TIED}")
    return tied


class Stage(nn.Module):
    """A stage: the part of the model's forward from its first module to the beginning of the next stage.

    Runs the whole forward with placeholders for the modules of other stages, so that masks and positions are computed.
    """

    def __init__(self, model, parts, index, dtype):
        super().__init__()
        self.begins = parts[index][0] if index > 0 else None
        self.ends = parts[index + 1][0] if index + 1 < len(parts) else None
        self.received = None
        for other, names in enumerate(parts):
            for name in names if other != index else ():
                model.set_submodule(name, StandIn(model.get_submodule(name), dtype))
        self.model = model

    def connect(self):
        """Registers the hooks that receive and return tensors at the stage boundaries, before all other hooks."""
        if self.begins:
            self.model.get_submodule(self.begins).register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True)
        if self.ends:
            self.model.get_submodule(self.ends).register_forward_pre_hook(self._leave, prepend=True, with_kwargs=True)

    def _enter(self, _, args, kwargs):
        replaced, self.received = self.received, None
        if replaced is None:
            raise CannotRunError(f"{self.begins} is called twice, so a stage cannot begin there")
        stood_in = _first_tensor(args, kwargs)
        rest = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf is not stood_in]
        if any(tensor.requires_grad for tensor in rest):
            raise CannotRunError(f"{self.begins} takes more than one tensor of earlier stages; only one can be sent")
        return tree_map_only(torch.Tensor, lambda leaf: replaced if leaf is stood_in else leaf, (args, kwargs))

    def _leave(self, _, args, kwargs):
        raise _Leave(_first_tensor(args, kwargs))

    def forward(self, received, inputs=None):
        self.received = received if self.begins else None
        inputs, more = received if inputs is None else inputs, {}
        # -- with context
        # Without a mask, transformers treats the chunks as separate sequences.
        if "attention_mask" in inspect.signature(self.model.forward).parameters:
            more["attention_mask"] = torch.ones_like(inputs)
        # -- end with
        try:
            output = self.model(inputs, **more)
        except _Leave as left:
            return left.args[0]
        if self.ends or self.received is not None:
            raise CannotRunError(f"forward does not call {self.ends or self.begins}, where a stage begins")
        return output if isinstance(output, torch.Tensor) else output.logits


class PipelinedStage(PipelineStage):
    """Allocates receive buffers per micro-batch, and frees them after backward.

    torch's PipelineStage allocates buffers for all micro-batches, keeps outputs during backward, and keeps inputs alive
    through the graphs of losses until the step ends.
    """

    def _setup_forward_recv_info(self, microbatches, has_backward):
        super()._setup_forward_recv_info(1, has_backward)
        _without_memory(self.args_recv_info, microbatches)

    def _setup_backward_recv_info(self, microbatches):
        super()._setup_backward_recv_info(1)
        _without_memory(self.grad_recv_info, microbatches)
        self.chunks = microbatches

    def _get_recv_ops(self, infos):
        for info in infos:
            made_by_torch = hasattr(info, "allocate_buffer")  # since 2.15
            if (meta := info.tensor_meta) is not None and not info.is_root_arg and not made_by_torch:
                info.buffer = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=self.device)
        return super()._get_recv_ops(infos)

    def _retrieve_recv_activations(self, microbatch):
        return _handed_out(super()._retrieve_recv_activations(microbatch), self.args_recv_info[microbatch])

    def _retrieve_recv_grads(self, microbatch):
        return _handed_out(super()._retrieve_recv_grads(microbatch), self.grad_recv_info[microbatch])

    def forward_one_chunk(self, microbatch, *args, **kwargs):
        output = super().forward_one_chunk(microbatch, *args, **kwargs)
        if not self.is_last:
            return output
        if hasattr(self, "fwd_cache"):  # until 2.14
            self.fwd_cache[microbatch] = ((), self.fwd_cache[microbatch][1])
        else:
            state = self._forward_chunk_states[microbatch]
            state.live_outputs, state.output_grad_edges = [], ()
        return [output]  # emptied by loss()

    def backward_one_chunk(self, microbatch, loss=None, full_backward=True, **kwargs):
        super().backward_one_chunk(microbatch, loss=loss, full_backward=full_backward, **kwargs)
        if loss is not None and full_backward:
            loss.detach_()


def _without_memory(infos, microbatches):
    for info in infos[0]:
        info.buffer = None
    infos.update({microbatch: tuple(map(copy.copy, infos[0])) for microbatch in range(1, microbatches)})


def _handed_out(tensors, infos):
    for info in infos:
        info.buffer = None
    return tensors


def stages_of_rank(rank):
    return [rank, 2 * PIPELINE - 1 - rank] if V_SHAPED else [rank + PIPELINE * part for part in range(STAGES_PER_RANK)]


def next_token(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


# Results kept by layers of SELECTIVE: matmuls with weights, convolutions, attention, reductions over ranks.
KEPT = ("mm", "addmm", "linear", "_grouped_mm", "convolution", "_scaled_dot_product", "_flash_attention",
        "_efficient_attention", "reduce_scatter", "all_reduce")  # fmt: skip


def _keep(_, operator, *args, **kwargs):
    kept = operator.__name__.startswith(KEPT)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts_that_keep(keeps):
    """Checkpoint contexts that keep the listed results: "aten::mm#2" is the result of the third aten::mm in forward."""
    calls = collections.defaultdict(collections.Counter)

    def keep(context, operator, *args, **kwargs):
        seen, name = calls[context.is_recompute], operator.name()
        seen[name] += 1
        kept = f"{name}#{seen[name] - 1}" in keeps
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


def _recompute(module, **how):
    module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, **how)


LEAST_ON_HOST = 1 << 20  # smallest tensor that is offloaded, in bytes


def _storage_of(tensor):
    return _local(tensor).untyped_storage()


class OnHost:
    """A storage offloaded to pinned host memory. Copies out and back use separate streams."""

    def __init__(self, storage, leaving, coming):
        self.back, self.device, self.coming = None, storage.device, coming
        self.source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self.host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=leaving is not None)
        self.done = self._copy(self.host, self.source, leaving)

    @staticmethod
    def _copy(to, source, stream):
        if stream is None:
            to.copy_(source)
            return None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
        return stream.record_event()

    def _wait(self):
        if self.done is not None:
            torch.cuda.current_stream().wait_event(self.done)

    def has_left(self):
        self._wait()
        self.source = None

    def fetch(self):
        if self.back is None:
            self.back = torch.empty_like(self.host, device=self.device)
            self.done = self._copy(self.back, self.host, self.coming)

    def storage(self):
        self._wait()
        return self.back.untyped_storage()


class Offload:
    """Offloads the activations of layers in OFFLOADED to CPU between forward and backward.

    Device memory is freed when forward of the next layer ends; the copy back starts when backward of that layer begins.
    """

    def __init__(self, device):
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(2)]
        self.before, self.leaving = (), []  # of the most recent layer

    def end_of_stage(self):
        self._leave([])
        self.before = ()

    def _leave(self, kept):
        for one in self.leaving:
            one.has_left()
        self.leaving = kept

    def around(self, module):
        module.forward = functools.partial(self._run, module, module.forward)

    def _run(self, module, forward, /, *args, **kwargs):
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # Keeps parameters, buffers, and inputs shared with other layers on the device.
        stays = (*module.parameters(), *module.buffers(), *given[1:])
        stays = {_storage_of(tensor).data_ptr() for tensor in stays}
        kept, mine, before = {}, weakref.WeakSet(), self.before

        def pack(tensor):
            storage = _storage_of(tensor)
            if storage.nbytes() < LEAST_ON_HOST or storage.data_ptr() in stays:
                return tensor
            if storage.data_ptr() not in kept:
                mine.add(kept.setdefault(storage.data_ptr(), OnHost(storage, *self.streams)))
            cut = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
            local = _local(tensor)
            place = (local.storage_offset(), local.shape, local.stride())
            return kept[storage.data_ptr()], local.dtype, place, cut, tensor.shape, tensor.stride()

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            one, dtype, place, cut, shape, stride = packed
            for other in (*mine, *before):
                other.fetch()
            local = torch.empty(0, dtype=dtype, device=one.device).set_(one.storage(), *place)
            return DTensor.from_local(local, *cut, run_check=False, shape=shape, stride=stride) if cut else local

        with saved_tensors_hooks(pack, unpack):
            output = forward(*args, **kwargs)
        self._leave(list(kept.values()))
        kept.clear()
        self.before = mine
        return output


# -- with experts
class Exchange(TorchFunctionMode):
    """One forward of a module with grouped matmuls: sends rows to the ranks of their experts, and the results back.

    All matmuls except the last read the rows that are sent. Operators between matmuls run on the ranks of the experts.
    """

    def __init__(self, products, group):
        super().__init__()
        self.products, self.group, self.given, self.ends = products, group, None, None

    def __torch_function__(self, called, types, args=(), kwargs=None):
        return (self._product if called is torch._grouped_mm else called)(*args, **(kwargs or {}))

    def _product(self, rows, weights, offs, bias=None, **how):
        if self.ends is None:
            self._count(offs)
        self.products -= 1
        if self.products > 0 or self.given is None:
            if rows is not self.given:
                self.given = rows
                self.there = self._exchange(rows.contiguous(), self.received, self.sent)[self.order]
            rows = self.there
        made = torch._grouped_mm(rows, weights.to_local(), self.ends, bias, **how)
        return made if self.products > 0 else self._exchange(made[self.order.argsort()], self.sent, self.received)

    def _count(self, ends):
        counts = ends.diff(prepend=ends.new_zeros(1)).long()
        arriving = funcol.all_to_all_single(counts, None, None, self.group)  # by rank, then by expert
        self.sent, self.received = (each.view(EXPERTS, -1).sum(1).tolist() for each in (counts, arriving))
        here = arriving.view(EXPERTS, -1)
        self.ends = here.sum(0).cumsum(0, dtype=torch.int32)
        experts = torch.arange(here.shape[1], device=here.device).repeat(EXPERTS)
        self.order = experts.repeat_interleave(arriving).argsort(stable=True)

    def _exchange(self, rows, received, sent):
        return funcol.wait_tensor(funcol.all_to_all_single_autograd(rows, received, sent, self.group))


def _put_experts_on_ranks(module, products, mesh):
    for name, whole in list(module.named_parameters(recurse=False)):
        setattr(module, name, _laid(whole, mesh, [Shard(0)]))
    forward = module.forward

    def run(*args, **kwargs):
        with Exchange(products, mesh.get_group()) as exchange:
            output = forward(*args, **kwargs)
        if exchange.products != 0:
            raise CannotRunError(f"the plan expects {products} grouped matmuls in a module; forward calls others")
        return output

    module.forward = run


# -- end with
# -- with context, fused
def _within(mode, forward, /, *args, **kwargs):
    with mode:
        return forward(*args, **kwargs)


# -- end with
class Training:
    """The stages of this rank and their optimizers. Constructed collectively by all ranks."""

    def __init__(
        self, make, device, loss=next_token, precision=torch.float32, optimizer=torch.optim.AdamW, meta=None
    ):  # meta: seed for materialization, or None
        count = PIPELINE * REPLICAS * TENSOR
        if dist.get_world_size() != count:
            raise CannotRunError(f"the plan needs {count} processes, not {dist.get_world_size()}")
        ranks = torch.arange(count).view(list(MESH.values())).permute([list(MESH).index(axis) for axis in AXES])

        def mesh(replicas, **more):
            # ZeRO 0 replicates everything: one part per replica.
            cut = {"replicas": replicas, "parts": 1} if ZERO == 0 else {"replicas": 1, "parts": replicas}
            shape = {"pipeline": PIPELINE, **cut, **more, "tensor": TENSOR}
            return DeviceMesh(device.type, ranks.reshape(tuple(shape.values())), mesh_dim_names=tuple(shape))

        self.mesh = mesh(REPLICAS)
        # -- with experts
        # Replicas and parts among ranks with the same experts.
        self.expert_mesh = mesh(REPLICAS // EXPERTS, experts=EXPERTS)
        # -- end with
        # -- with context
        sequences = DeviceMesh(device.type, ranks, mesh_dim_names=AXES)["context"].get_group()
        self.chunks = OnChunks(sequences)
        loss = next_token_of_chunks if loss is next_token else loss
        # -- end with
        for kernel in ("flash", "mem_efficient", "cudnn", "math") if ATTENTION else ():
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == ATTENTION)
        self.device, self.loss, self.precision, self.meta = device, loss, precision, meta
        self.sharded = ZERO > 0 or precision != torch.float32 or OPTIMIZER_ON_HOST
        self.offload = Offload(device)
        if self.sharded and PIPELINE > 1 and SPLITS_BACKWARD:
            raise CannotRunError(f"{SCHEDULE} splits backward, which leaves FSDP2 parameters without gradients")
        self.numbers = stages_of_rank(self.mesh["pipeline"].get_local_rank())
        self.stages = [self._stage(make, number) for number in self.numbers]
        # -- with tied
        self.groups = [self._group_of(tied) for tied in self.tied]
        # -- end with
        how = {"fused": True} if OPTIMIZER_ON_HOST else {"foreach": False}
        self.optimizers = [optimizer(list(stage.parameters()), **how) for stage in self.stages]
        self.schedule = self._schedule() if PIPELINE > 1 else None

    def _stage(self, make, number):
        with torch.device("meta") if self.meta is not None else contextlib.nullcontext():
            model = make()
        if hasattr(model, "config") and hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        parts = modules_of_stages(model)
        self.tied = tied_over_stages(model, parts)
        stage = Stage(model, parts, number, self.precision)
        if self.meta is None:
            stage.to(self.device)
        elif self.tied or len({*model.parameters()}) < len([*model.named_parameters(remove_duplicate=False)]):
            raise CannotRunError("--meta does not support modules that share a parameter")
        # Prepares layers one by one, so that at most one is unsharded.
        waiting = [name for name, module in model.named_modules() if not isinstance(module, StandIn)]
        for prefix in [*modules_in_order(model), ""]:
            if isinstance(model.get_submodule(prefix), StandIn):
                continue
            now = [name for name in waiting if name == prefix or name.startswith(prefix + ".") or not prefix]
            waiting = [name for name in waiting if name not in now]
            self._prepare(model, prefix, now)
        if self.sharded:
            fully_shard(stage, **self._sharding())
        stage.connect()
        self.chunks.of(stage)  # with context
        stage.register_forward_hook(lambda *_: self.offload.end_of_stage())
        return stage

    def _prepare(self, model, prefix, names):
        if self.meta is not None:
            _fill(model, prefix, self.device, self.meta)
        is_layer = prefix.rpartition(".")[2].isdigit()
        for name in names:
            module = model.get_submodule(name)
            if style := _of(CUT, name):
                _cut(module, style, self.mesh["tensor"])
            # -- with fused
            if width := _of(FUSED, name):
                module.forward = functools.partial(_within, OwnHeads(width), module.forward)
            # -- end with
            # -- with experts
            if products := _of(GROUPED, name):
                _put_experts_on_ranks(module, products, self.expert_mesh["experts"])
                if self.sharded:
                    fully_shard(module, **self._sharding_of_experts())
            # -- end with
            # -- with context
            if is_layer and name == prefix:  # also for recompute after forward
                module.forward = functools.partial(_within, self.chunks, module.forward)
            # -- end with
            if name in RECOMPUTED:
                _recompute(module)
            elif name in SELECTIVE:
                _recompute(module, context_fn=functools.partial(create_selective_checkpoint_contexts, _keep))
            for part in IN_PART:
                if name in part["layers"]:
                    _recompute(module, context_fn=functools.partial(_contexts_that_keep, part["keeps"]))
            if name in OFFLOADED:  # wraps the checkpoint: offloads what it keeps
                self.offload.around(module)
        if self.sharded and is_layer:
            fully_shard(model.get_submodule(prefix), **self._sharding())

    def _sharding(self):
        mesh = self.mesh["replicas", "parts"] if ZERO == 0 else self.mesh["parts"]
        policy = MixedPrecisionPolicy(param_dtype=self.precision, reduce_dtype=torch.float32)
        # Offloads float32 parameters, gradients and optimizer state, and runs the optimizer step on the CPU.
        host = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if OPTIMIZER_ON_HOST else OffloadPolicy()
        how = {"mesh": mesh, "mp_policy": policy, "offload_policy": host, "reshard_after_forward": ZERO == 3}
        # -- with fused
        how["shard_placement_fn"] = self._place_of_three
        # -- end with
        return how

    # -- with fused
    def _place_of_three(self, parameter):
        """Shards fused QKV weights along dimension 2, since dimension 0 has only three elements."""
        is_three = isinstance(parameter, DTensor) and parameter.ndim == 3 and parameter.shape[0] == 3
        return Shard(2) if is_three and parameter.shape[2] % self.mesh["parts"].size() == 0 else None

    # -- end with
    # -- with experts
    def _sharding_of_experts(self):
        mesh = self.expert_mesh["replicas", "parts"] if ZERO == 0 else self.expert_mesh["parts"]
        policy = MixedPrecisionPolicy(self.precision, torch.float32, cast_forward_inputs=False)
        parts = self.expert_mesh["parts"].size()

        def place(parameter):
            return Shard(0 if parameter.to_local().shape[0] % parts == 0 else 1)

        return {**self._sharding(), "mesh": mesh, "mp_policy": policy, "shard_placement_fn": place}

    # -- end with
    def _schedule(self):
        group, count = self.mesh["pipeline"].get_group(), len(STAGES)
        stages = [
            PipelinedStage(stage, number, count, self.device, group=group)
            for stage, number in zip(self.stages, self.numbers, strict=True)
        ]

        def loss(output, target):
            return self.loss(output.pop() if isinstance(output, list) else output, target) / MICROBATCHES

        if SCHEDULE_ROWS:
            schedule = schedules._PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss, scale_grads=False)
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                file.write(SCHEDULE_ROWS)
                file.flush()
                schedule._load_csv(file.name)
            return schedule
        kind = getattr(schedules, SCHEDULE_CLASS)
        one = issubclass(kind, schedules.PipelineScheduleSingle)
        return kind(stages[0] if one else stages, MICROBATCHES, loss_fn=loss, scale_grads=False)

    def backward(self, inputs, target):
        """Computes the gradients of a step and returns its mean loss. `inputs` and `target` are the global batch."""
        replica = (self.mesh["replicas"].get_local_rank() + self.mesh["parts"].get_local_rank()) // CONTEXT
        mine = slice(replica * SAMPLES, (replica + 1) * SAMPLES)
        inputs, target = (tensor[mine].to(self.device) for tensor in (inputs, target))
        # -- with context
        if self.loss is next_token_of_chunks:
            target = nn.functional.pad(target[:, 1:], (0, 1), value=-100)  # ignored by cross_entropy
        inputs, target = self.chunks.cut(inputs), self.chunks.cut(target)
        # -- end with
        loss = self._pipeline(inputs, target) if self.schedule else self._accumulate(inputs, target)
        if not self.sharded and REPLICAS > 1:
            self._average_gradients()
        # -- with experts
        for parameter in self._of_experts() if self.sharded else ():
            parameter.grad.to_local().div_(EXPERTS)  # FSDP2 divides only by the ranks that hold them
        # -- end with
        # -- with tied
        for tied, group in zip(self.tied, self.groups, strict=True):
            self._sum_gradients(tied, group)
        # -- end with
        dist.all_reduce(loss, group=self.mesh["pipeline"].get_group())
        for axis in ("replicas", "parts"):
            dist.all_reduce(loss, group=self.mesh[axis].get_group())
        return loss.item() / REPLICAS

    def _pipeline(self, inputs, target):
        losses = [] if len(STAGES) - 1 in self.numbers else None
        given = [inputs] if 0 in self.numbers else []
        target = None if losses is None else target
        self.schedule.step(*given, target=target, losses=losses, return_outputs=False, inputs=inputs)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.device)

    def _accumulate(self, inputs, target):
        (stage,), total = self.stages, torch.zeros((), device=self.device)
        for index, (one, wanted) in enumerate(zip(inputs.split(MICRO_BATCH), target.split(MICRO_BATCH), strict=True)):
            last = index == MICROBATCHES - 1
            if self.sharded:
                stage.set_is_last_backward(last)
                stage.set_requires_gradient_sync(last or ZERO >= 2)
                stage.set_reshard_after_backward(last or ZERO == 3)
            loss = self.loss(stage(one), wanted) / MICROBATCHES
            loss.backward()
            total += loss.detach()
        return total

    # -- with tied
    def _group_of(self, tied):
        """Creates the group of ranks in this rank's pipeline that hold a tied parameter."""
        owners = [rank for rank in range(PIPELINE) if not tied.keys().isdisjoint(stages_of_rank(rank))]
        return dist.new_subgroups_by_enumeration(self.mesh.mesh.flatten(1)[owners].T.tolist())[0]

    def _sum_gradients(self, tied, group):
        """Reduces gradients of a tied parameter, so that the optimizer updates all copies equally."""
        grads = [self.parameters()[tied[number]].grad for number in self.numbers if number in tied]
        grads = [_local(grad) for grad in grads if grad is not None]
        if grads:
            dist.all_reduce(functools.reduce(torch.Tensor.add_, grads), group=group)
        for other in grads[1:]:
            other.copy_(grads[0])

    # -- end with
    def _average_gradients(self):
        group, groups = self.mesh["replicas"].get_group(), {}
        # -- with experts
        groups = dict.fromkeys(self._of_experts(), self.expert_mesh["replicas"].get_group())
        # -- end with
        for parameter in self.parameters().values():
            if parameter.grad is not None:
                _average(parameter, groups.get(parameter, group), REPLICAS)

    # -- with experts
    def _of_experts(self):
        named = self.parameters().items()
        return [parameter for name, parameter in named if _of(GROUPED, name.rpartition(".")[0])]

    # -- end with
    def parameters(self):
        return {name: parameter for stage in self.stages for name, parameter in stage.model.named_parameters()}

    def step(self, inputs, target):
        loss = self.backward(inputs, target)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def state(self):
        options = states.StateDictOptions(flatten_optimizer_state_dict=True)
        return [
            {
                "model": states.get_model_state_dict(stage.model),
                "optimizer": states.get_optimizer_state_dict(stage.model, own, options=options),
            }
            for stage, own in zip(self.stages, self.optimizers, strict=True)
        ]

    def save(self, folder):
        every = self.state()
        merged = {kind: {name: one for part in every for name, one in part[kind].items()} for kind in every[0]}
        dcp.save(merged, checkpoint_id=folder)

    def resume(self, folder):
        options = states.StateDictOptions(flatten_optimizer_state_dict=True, strict=False)
        for stage, own, state in zip(self.stages, self.optimizers, self.state(), strict=True):
            dcp.load(state, checkpoint_id=folder)
            states.set_model_state_dict(stage.model, state["model"], options=options)
            states.set_optimizer_state_dict(stage.model, own, state["optimizer"], options=options)


def function_of(text):
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def random_tokens(words, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = torch.randint(words, (DATA * SAMPLES, SEQUENCE), generator=generator)
        yield ids, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=function_of, metavar="MODULE:FUNCTION")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=function_of, metavar="MODULE:FUNCTION")
    data.add_argument("--random-tokens", type=int, metavar="VOCABULARY")
    parser.add_argument("--loss", type=function_of, default=next_token, metavar="MODULE:FUNCTION")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--meta", action="store_true")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", metavar="FOLDER")
    parser.add_argument("--resume", metavar="FOLDER")
    options = parser.parse_args()
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if options.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    on_cuda = "cpu:gloo,cuda:nccl" if OPTIMIZER_ON_HOST else "nccl"
    dist.init_process_group(on_cuda if device.type == "cuda" else "gloo")

    def make():
        torch.manual_seed(options.seed)
        return options.model()

    optimizer = functools.partial(torch.optim.AdamW, lr=options.lr)
    seed = options.seed if options.meta else None
    training = Training(make, device, options.loss, getattr(torch, options.precision), optimizer, seed)
    if options.resume:
        training.resume(options.resume)
    tokens = random_tokens(options.random_tokens, options.seed)
    batches = options.data(DATA * SAMPLES, SEQUENCE) if options.data else tokens
    for step, (inputs, target) in enumerate(itertools.islice(batches, options.steps)):
        loss = training.step(inputs, target)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)
    if options.save:
        training.save(options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
# -- end with
