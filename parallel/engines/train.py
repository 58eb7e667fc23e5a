"""Trains a model on a plan with torch alone.

    torchrun --nproc-per-node 8 train.py --model mine:make --random-tokens 32000 --steps 3
    torchrun --nnodes 8 --nproc-per-node 8 ... train.py --model mine:make --data mine:batches --save checkpoint

--model: a function that gives the model, the same on each rank; its modules have the names below.
--data: a function of (samples, sequence) that yields (inputs, targets) of whole steps, the same on each rank.
--loss: a function of (output, targets) that gives a micro-batch's mean; without it, the next token's cross entropy.
--meta: the model is made without memory, and a rank fills in the modules of its own stages one by one: first values are
        what reset_parameters or _init_weights give under a seed of the module's name, or those of --resume.
"""

import argparse
import collections
import contextlib
import copy
import fnmatch
import functools
import importlib
import itertools
import os
import sys
import tempfile
import weakref
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# -- the plan
TENSOR, DATA, PIPELINE, STAGES_PER_RANK = 1, 1, 1, 1
MICRO_BATCH, MICROBATCHES, SEQUENCE = 1, 1, 128
ZERO = 0
SCHEDULE, SCHEDULE_ROWS = "1f1b", ""
MESH = ("pipeline", "data", "tensor")
ORDER = ["layers.*"]
STAGES = [""]
RECOMPUTED: list[str] = []
SELECTIVE: list[str] = []
IN_PART: list[dict[str, list[str]]] = []
OFFLOADED: list[str] = []
OPTIMIZER_ON_HOST = False
ATTENTION = ""
CUT: dict[str, str] = {}
# -- end of the plan

STYLES = {
    "columns": ColwiseParallel,
    "columns, gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rows": RowwiseParallel,
    "rows of a whole input": lambda: RowwiseParallel(input_layouts=Replicate()),
}
CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}


class CannotRunError(Exception):
    """The model is not the one that the plan was made for, or its forward cannot be cut so."""


class _Leave(Exception):
    """Leaves forward where the next stage begins, with what that is given."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor


def _refuse_gradient(_):
    raise CannotRunError("backward of a stage reaches a module of an earlier one beside the tensor that is sent")


def _first_tensor(args, kwargs):
    return next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))


def _own(module):
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _holds_nan(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def _fill(model, prefix, device, seed):
    """Gives modules below a name memory and first values: the same on each rank, whatever else it has."""
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
                raise CannotRunError(f"--meta: nothing gives {name}.{own} a first value; reset_parameters can")


class StandIn(nn.Module):
    """A module of another stage. It gives values of the module's shapes, and has no parameters."""

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
            with torch.no_grad():
                self._results[key] = self._module(*args, **kwargs)
        device = tensors[0].device if tensors else "cpu"

        def value(meta):
            one = torch.zeros((), dtype=meta.dtype, device=device)
            if one.is_floating_point():
                one.requires_grad_().register_hook(_refuse_gradient)
            return one.expand(meta.shape)

        return tree_map_only(torch.Tensor, value, self._results[key])


def modules_in_order(model):
    """Names of modules as forward calls them: layers, and what comes before and behind them."""
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
            f"the plan begins stages at {STAGES[1:]}; the model's modules are {names}, without {missing}"
        )
    begins = [0, *(names.index(begin) for begin in STAGES[1:]), len(names)]
    if begins != sorted(set(begins)):
        raise CannotRunError(f"forward calls {names}, and the plan's stages begin at {STAGES[1:]} in another order")
    for name, _ in model.named_parameters():
        if not any(name.startswith(part + ".") for part in names) and len(STAGES) > 1:
            raise CannotRunError(f"the parameter {name} is in none of the modules that are cut: {names}")
    return [names[begin:end] for begin, end in itertools.pairwise(begins)]


class Stage(nn.Module):
    """A stretch of the model's forward: from where it is given a tensor to where the next stage begins.

    Forward runs from its beginning. Modules of other stages stand in, so masks and positions come out as in the whole.
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
        """Takes and leaves tensors at its edges, before any other hook does."""
        if self.begins:
            self.model.get_submodule(self.begins).register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True)
        if self.ends:
            self.model.get_submodule(self.ends).register_forward_pre_hook(self._leave, prepend=True, with_kwargs=True)

    def _enter(self, _, args, kwargs):
        replaced, self.received = self.received, None
        if replaced is None:
            raise CannotRunError(f"{self.begins} is called twice: a stage cannot begin there")
        stood_in = _first_tensor(args, kwargs)
        rest = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf is not stood_in]
        if any(tensor.requires_grad for tensor in rest):
            raise CannotRunError(f"{self.begins} takes more than one tensor that earlier stages compute")
        return tree_map_only(torch.Tensor, lambda leaf: replaced if leaf is stood_in else leaf, (args, kwargs))

    def _leave(self, _, args, kwargs):
        raise _Leave(_first_tensor(args, kwargs))

    def forward(self, received, inputs=None):
        self.received = received if self.begins else None
        try:
            output = self.model(received if inputs is None else inputs)
        except _Leave as left:
            return left.tensor
        if self.ends or self.received is not None:
            raise CannotRunError(f"forward does not call {self.ends or self.begins}")
        return output if isinstance(output, torch.Tensor) else output.logits


class PipelinedStage(PipelineStage):
    """Has memory for what it is sent of a micro-batch from when that comes until backward has read it.

    torch's own stage has memory for all micro-batches at once. It keeps what comes out while backward runs, and by the
    graphs of losses what came in until the step ends.
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
        return [output]  # that the loss empties

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
    """Which stages a rank of the pipeline has."""
    if SCHEDULE in ("zbv", "dualpipe_v", "v_half", "v_min"):
        return [rank, 2 * PIPELINE - 1 - rank]
    return [rank + PIPELINE * part for part in range(STAGES_PER_RANK)]


def next_token(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


# What a layer of SELECTIVE keeps: products with weights, convolutions, attention, sums over ranks.
KEPT = ("mm", "addmm", "linear", "_grouped_mm", "convolution", "_scaled_dot_product", "_flash_attention",
        "_efficient_attention", "reduce_scatter", "all_reduce")  # fmt: skip


def _keep(_, operator, *args, **kwargs):
    kept = operator.__name__.startswith(KEPT)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts_that_keep(keeps):
    """What a layer of IN_PART keeps: "aten::mm#2" is what the third call of that operator in its forward gives."""
    calls = collections.defaultdict(collections.Counter)

    def keep(context, operator, *args, **kwargs):
        seen, name = calls[context.is_recompute], operator.name()
        seen[name] += 1
        kept = f"{name}#{seen[name] - 1}" in keeps
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


def _recompute(module, **how):
    forward = module.forward
    module.forward = lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **how, **kwargs)


LEAST_ON_HOST = 1 << 20  # bytes of a tensor that a layer of OFFLOADED keeps; smaller ones stay


def _storage_of(tensor):
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def _bytes(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class OnHost:
    """The bytes of a storage that wait on the host: they leave on one stream, and come back on another."""

    def __init__(self, storage, leaving, coming):
        self.source, self.back, self.device, self.coming = _bytes(storage), None, storage.device, coming
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
    """What layers of OFFLOADED keep for backward waits on the host.

    It has left when forward of the layer behind ends, and comes back when backward of that one begins.
    """

    def __init__(self, device):
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(2)]
        self.before, self.leaving = (), []  # of the layer that ran last

    def end_of_stage(self):
        self._leave([])
        self.before = ()

    def _leave(self, kept):
        for one in self.leaving:
            one.has_left()
        self.leaving = kept

    def around(self, module):
        forward = module.forward
        module.forward = lambda *args, **kwargs: self._run(module, forward, args, kwargs)

    def _run(self, module, forward, args, kwargs):
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # Parameters and buffers stay, and so does what other layers are given, too.
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
            local = tensor.to_local() if cut else tensor
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


class Training:
    """The stages of this rank, in place, and their optimizers. All ranks make theirs at the same time."""

    def __init__(
        self, make, device, loss=next_token, precision=torch.float32, optimizer=torch.optim.AdamW, meta=None
    ):  # meta: the seed of a model that is made without memory
        sizes = {"pipeline": PIPELINE, "data": DATA, "tensor": TENSOR}
        if dist.get_world_size() != PIPELINE * DATA * TENSOR:
            raise CannotRunError(f"the plan is of {PIPELINE * DATA * TENSOR} processes, not of {dist.get_world_size()}")
        shape = [(axis, sizes[axis]) for axis in MESH]
        # ZeRO 0 keeps all on each rank: replicas of parts of one.
        at = MESH.index("data")
        shape[at : at + 1] = [("replicas", DATA), ("parts", 1)] if ZERO == 0 else [("replicas", 1), ("parts", DATA)]
        self.mesh = init_device_mesh(
            device.type, tuple(size for _, size in shape), mesh_dim_names=tuple(axis for axis, _ in shape)
        )
        for kernel in ("flash", "mem_efficient", "cudnn", "math") if ATTENTION else ():
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == ATTENTION)
        self.device, self.loss, self.precision, self.meta = device, loss, precision, meta
        self.sharded = ZERO > 0 or precision != torch.float32 or OPTIMIZER_ON_HOST
        self.offload = Offload(device)
        if self.sharded and PIPELINE > 1 and SCHEDULE not in ("gpipe", "1f1b", "interleaved", "looped_bfs"):
            raise CannotRunError(f"{SCHEDULE} with FSDP2: backward in two pieces leaves parameters without gradients")
        self.numbers = stages_of_rank(self.mesh["pipeline"].get_local_rank())
        self.stages = [self._stage(make, number) for number in self.numbers]
        how = {"fused": True} if OPTIMIZER_ON_HOST else {"foreach": False}
        self.optimizers = [optimizer(list(stage.parameters()), **how) for stage in self.stages]
        self.schedule = self._schedule() if PIPELINE > 1 else None

    def _stage(self, make, number):
        with torch.device("meta") if self.meta is not None else contextlib.nullcontext():
            model = make()
        if hasattr(model, "config") and hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        stage = Stage(model, modules_of_stages(model), number, self.precision)
        if self.meta is None:
            stage.to(self.device)
        elif len({id(one) for one in model.parameters()}) < len([*model.named_parameters(remove_duplicate=False)]):
            raise CannotRunError("--meta: modules that share a parameter would each be given their own")
        # Layers one by one, so that a rank never has two of them whole.
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
        stage.register_forward_hook(lambda *_: self.offload.end_of_stage())
        return stage

    def _prepare(self, model, prefix, names):
        if self.meta is not None:
            _fill(model, prefix, self.device, self.meta)
        styles = {name: STYLES[style]() for name in names if (style := _style(name))}
        if TENSOR > 1 and styles:
            parallelize_module(model, self.mesh["tensor"], styles)
        for name in names:
            if name in RECOMPUTED:
                _recompute(model.get_submodule(name))
            elif name in SELECTIVE:
                contexts = functools.partial(create_selective_checkpoint_contexts, _keep)
                _recompute(model.get_submodule(name), context_fn=contexts)
            for part in IN_PART:
                if name in part["layers"]:
                    contexts = functools.partial(_contexts_that_keep, part["keeps"])
                    _recompute(model.get_submodule(name), context_fn=contexts)
            if name in OFFLOADED:  # around a checkpoint, what that keeps
                self.offload.around(model.get_submodule(name))
        if self.sharded and prefix.rpartition(".")[2].isdigit():
            fully_shard(model.get_submodule(prefix), **self._sharding())

    def _sharding(self):
        mesh = self.mesh["replicas", "parts"] if ZERO == 0 else self.mesh["parts"]
        policy = MixedPrecisionPolicy(param_dtype=self.precision, reduce_dtype=torch.float32)
        # Parameters in float32, their gradients and the optimizer's state are on the host, and its step runs there.
        host = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if OPTIMIZER_ON_HOST else OffloadPolicy()
        return {"mesh": mesh, "mp_policy": policy, "offload_policy": host, "reshard_after_forward": ZERO == 3}

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
        kind = getattr(schedules, CLASSES[SCHEDULE])
        one = issubclass(kind, schedules.PipelineScheduleSingle)
        return kind(stages[0] if one else stages, MICROBATCHES, loss_fn=loss, scale_grads=False)

    def replica(self):
        return self.mesh["replicas"].get_local_rank() + self.mesh["parts"].get_local_rank()

    def backward(self, inputs, target):
        """Gradients of a whole step; gives its mean loss. `inputs` and `target` are of all replicas."""
        mine = slice(self.replica() * MICRO_BATCH * MICROBATCHES, (self.replica() + 1) * MICRO_BATCH * MICROBATCHES)
        inputs, target = (tensor[mine].to(self.device) for tensor in (inputs, target))
        loss = self._pipeline(inputs, target) if self.schedule else self._accumulate(inputs, target)
        if not self.sharded and DATA > 1:
            self._average_gradients()
        dist.all_reduce(loss, group=self.mesh["pipeline"].get_group())
        for axis in ("replicas", "parts"):
            dist.all_reduce(loss, group=self.mesh[axis].get_group())
        return loss.item() / DATA

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

    def _average_gradients(self):
        for parameter in self.parameters().values():
            if parameter.grad is not None:
                grad = parameter.grad
                local = grad.to_local() if isinstance(grad, DTensor) else grad
                dist.all_reduce(local.div_(DATA), group=self.mesh["replicas"].get_group())

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
        of_stages = [
            (
                states.get_model_state_dict(stage.model),
                states.get_optimizer_state_dict(stage.model, own, options=options),
            )
            for stage, own in zip(self.stages, self.optimizers, strict=True)
        ]
        return [{"model": model, "optimizer": own} for model, own in of_stages]

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


def _style(name):
    return next((style for pattern, style in CUT.items() if fnmatch.fnmatchcase(name, pattern)), None)


def function_of(text):
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def random_tokens(words, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = torch.randint(words, (DATA * MICRO_BATCH * MICROBATCHES, SEQUENCE), generator=generator)
        yield ids, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=function_of, metavar="MODULE:FUNCTION")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=function_of, metavar="MODULE:FUNCTION")
    data.add_argument("--random-tokens", type=int, metavar="WORDS")
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

    def optimizer(parameters, **how):
        return torch.optim.AdamW(parameters, lr=options.lr, **how)

    seed = options.seed if options.meta else None
    training = Training(make, device, options.loss, getattr(torch, options.precision), optimizer, seed)
    if options.resume:
        training.resume(options.resume)
    samples = DATA * MICRO_BATCH * MICROBATCHES
    batches = options.data(samples, SEQUENCE) if options.data else random_tokens(options.random_tokens, options.seed)
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
