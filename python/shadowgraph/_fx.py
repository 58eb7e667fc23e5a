"""Converts graphs to torch.fx.GraphModule and back."""

import contextlib
import functools
import itertools
import operator
import re
from collections import OrderedDict
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from . import _capture, _fx_checkpoints, _inputs, _models
from . import _shadowgraph as _C
from ._fake import fake
from ._keywords import keywords_apart
from ._shadowgraph import Graph
from ._unfake import unfake

_NOTE = "fx"  # note that keeps the name of the torch.fx node
_STOPS = "stops_gradient"  # marks a detach inserted by to_fx
_CHECKPOINT_KEYS = (_fx_checkpoints.KEY, _fx_checkpoints.NAMES)


def to_fx(graph: Graph, *, device: str | torch.device | None = None,
          model: torch.nn.Module | None = None) -> torch.fx.GraphModule:  # fmt: skip
    """Converts the graph to a torch.fx.GraphModule with one call of an ATen operator per node, in program order.

    Placeholders are the parameters, buffers and inputs of the graph, in order and under their names ('.' becomes '_').
    The module takes tensors for all of them and returns the outputs as a tuple. Constants become buffers. Nodes have
    meta["module"], meta["nn_module_stack"], meta["phase"], meta["source"] and meta["shadowgraph_node"]; placeholders
    and constants also meta["kind"] and meta["name"]. `from_fx` converts back.

    meta["val"] is a FakeTensor, as in torch.export, and meta["tensor_meta"] a torch.fx TensorMetadata, or a tuple or
    list of them for operators with several results. All share one FakeTensorMode (see torch._guards.detect_fake_mode),
    and views share the storage of their base. Numbers and sparse tensors have neither.

    Forward nodes in activation checkpoints have meta["activation_checkpoint"], the ids of the enclosing checkpoints,
    outermost first. The module of a forward graph calls torch.utils.checkpoint.checkpoint (see `checkpoint_fx`).
    Results computed under no_grad are detached.

    device: replaces every device in the graph, for example to run a graph captured for CUDA on the CPU.
    model: the captured module. With it, the result is called like the model: it has the model's parameters and buffers
        (the same objects, under the same names), takes only the inputs, and returns a single output as such. Inputs of
        other shapes raise Error, because sizes are constants in the graph: capture again for another batch size.

    Raises Error for nodes that do not call a torch operator, such as custom Python functions, for a parameter that the
    model does not have or has in another shape, and for `model` with a graph of a training step.
    """
    return _Converter(graph, device, model).run()


class _Converter:
    def __init__(self, graph, device, model):
        self._graph, self._device, self._model = graph, device, model
        self._fx = torch.fx.Graph()
        self._root = torch.nn.Module()
        self._of = {}
        self._names = set()
        self._input_shapes = {}  # of placeholders; None: not a tensor
        self._constants = 0
        self._values = FakeValues(device)
        self._checkpoints = []  # enclosing checkpoints: (region, id)
        self._checkpoint_count = 0
        self._is_forward = not any(node.phase in ("backward", "optimizer") for node in graph)
        # Inference disables gradients everywhere, so nothing needs to be detached.
        self._stops_gradients = self._is_forward and any("grad_mode" in node.modes for node in graph)
        if model is not None and not self._is_forward:
            raise _C.Error("to_fx(model=) converts a forward graph, but this one has a backward pass or an optimizer; "
                           "capture with train=False, or omit model=")  # fmt: skip

    def run(self):
        of_model = self._placeholder if self._model is None else self._of_model
        own = {"sg::parameter": of_model, "sg::buffer": of_model, "sg::input": self._placeholder,
               "sg::constant": self._constant, "sg::output": self._output,
               "sg::gradient": lambda node: None}  # only marks a value as gradient  # fmt: skip
        for node in self._graph:
            own.get(node.target, self._call)(node)
        if not any(node.op == "output" for node in self._fx.nodes):
            self._fx.output(())
        if self._model is not None:
            self._adopt(self._root)
        self._fx.lint()
        module = torch.fx.GraphModule(self._root, self._fx)
        if self._is_forward and self._checkpoint_count:
            module = _fx_checkpoints.checkpoint_fx(module)
        if self._model is not None:
            self._adopt(module)  # torch.fx copies only what the graph reads
            module.register_forward_pre_hook(functools.partial(_check_shapes, self._input_shapes), with_kwargs=True)
        return module

    def _adopt(self, root):
        """Registers the parameters and buffers of the model under the same names."""
        for path, part in self._model.named_modules(remove_duplicate=False):
            holder = root
            for name in filter(None, path.split(".")):
                if name not in holder._modules:
                    holder.add_module(name, torch.nn.Module())
                holder = holder._modules[name]
            for name, parameter in part._parameters.items():
                holder.register_parameter(name, parameter)
            for name, buffer in part._buffers.items():
                holder.register_buffer(name, buffer, name not in part._non_persistent_buffers_set)

    def _placeholder(self, node):
        name = re.sub(r"\W", "_", str(node.argument("name"))) or "input"
        name = name if not name[0].isdigit() else "_" + name
        count, unique = 1, name
        while unique in self._names:
            count, unique = count + 1, f"{name}_{count}"
        self._names.add(unique)
        made = self._fx.placeholder(unique)
        made.meta.update(kind=node.target.removeprefix("sg::"), name=str(node.argument("name")))
        (value,) = node.outputs
        self._input_shapes[unique] = tuple(value.shape) if value.is_tensor else None
        self._bind(node, made)

    def _of_model(self, node):
        name, (value,) = str(node.argument("name")), node.outputs
        path, _, last = name.rpartition(".")
        try:
            tensor = getattr(self._model.get_submodule(path), last)
        except AttributeError:
            raise _C.Error(f"the graph has {name}, which the given {type(self._model).__name__} has not; pass the "
                           "model that was captured") from None  # fmt: skip
        if tensor.shape != tuple(value.shape):
            raise _C.Error(f"{name} has shape {tuple(tensor.shape)}, but {tuple(value.shape)} in the graph; pass the "
                           "model that was captured")  # fmt: skip
        made = self._fx.get_attr(name)
        made.meta.update(kind=node.target.removeprefix("sg::"), name=name)
        self._bind(node, made)

    def _constant(self, node):
        self._bind(node, self._attribute(node.argument("data")))

    def _output(self, node):
        values = tuple(self._argument(value) for value in node.argument("values"))
        self._fx.output(values[0] if self._model is not None and len(values) == 1 else values)

    def _call(self, node):
        if node.target.startswith("sg_random::get_state") and not any(value.users for value in node.outputs):
            return  # from a checkpoint without backward; checkpoint() saves its own RNG state
        space, _, name = node.target.partition("::")
        base, _, overload = name.partition(".")
        try:
            function = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except AttributeError:
            function = None
        if not isinstance(function, torch._ops.OpOverload):  # torch.ops has other attributes
            raise _C.Error(f"{node!r} does not call a torch operator and cannot be converted to torch.fx")
        if "generator" in node.notes:
            raise _C.Error(f"{node!r} uses a torch.Generator of the program, which torch.fx cannot represent")
        positional, keywords = [], {}
        for formal, argument in zip(function._schema.arguments, node.args, strict=True):
            value = self._argument(argument, formal)
            if formal.kwarg_only:
                keywords[formal.name] = value
            else:
                positional.append(value)
        self._bind(node, self._fx.create_node("call_function", function, tuple(positional), keywords,
                                              node.notes.get(_NOTE)))  # fmt: skip

    def _bind(self, node, made):
        made.meta.update(module=node.module, phase=node.phase, source=node.source, shadowgraph_node=node,
                         nn_module_stack=_module_stack(node))  # fmt: skip
        self._annotate(made, node)
        results = node.results
        self._values.describe(made, results)
        self._bind_result(results[0] if len(results) == 1 else results, made)

    def _element(self, made, i, result):
        element = self._fx.call_function(operator.getitem, (made, i))
        element.meta.update({key: made.meta[key] for key in _CHECKPOINT_KEYS if key in made.meta})
        self._values.describe(element, [result])
        return element

    def _annotate(self, made, node):
        """Annotates the node with its enclosing forward checkpoints. Each entry of a checkpoint gets a new id."""
        regions = [region for region in _regions_around(node)
                   if region.kind == "checkpoint" and node.phase == "forward"]  # fmt: skip
        open_ones = [region for region, _ in self._checkpoints]
        same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(open_ones, regions))])
        del self._checkpoints[same:]
        for region in regions[same:]:
            self._checkpoints.append((region, self._checkpoint_count))
            self._checkpoint_count += 1
        if regions:
            made.meta[_fx_checkpoints.KEY] = [label for _, label in self._checkpoints]
            made.meta[_fx_checkpoints.NAMES] = [region.name for region in regions]

    def _bind_result(self, result, made):
        if isinstance(result, list):
            for i, element in enumerate(result):
                if element is not None:
                    self._bind_result(element, self._element(made, i, element))
        elif result is not None:
            self._of[result] = self._without_gradient(made) if self._loses_gradient(result) else made

    def _loses_gradient(self, result):
        """Returns True if the result was computed under no_grad, which torch.fx cannot represent."""
        node = result.producer
        is_factory = "_like" in node.target or "::new_" in node.target  # not differentiable anyway
        if not self._stops_gradients or not result.users or is_factory or node.target == "aten::detach":
            return False
        floating = result.is_tensor and (result.dtype.is_floating_point or result.dtype.is_complex)
        had = any(value.requires_grad for value in node.outputs if value.is_tensor)
        return floating and not had and any(value.requires_grad for value in node.inputs if value.is_tensor)

    def _without_gradient(self, made):
        stopped = self._fx.call_function(torch.ops.aten.detach.default, (made,))
        stopped.meta.update({key: made.meta[key] for key in _CHECKPOINT_KEYS if key in made.meta}, **{_STOPS: True})
        return stopped

    def _argument(self, argument, formal=None):
        if isinstance(argument, _C.Value):
            return self._of[argument]
        if isinstance(argument, torch.Tensor):
            return self._attribute(argument)
        if isinstance(argument, list):
            return [self._argument(element) for element in argument]
        if formal is not None and "Generator" in str(formal.type):
            return None  # the default generator
        if formal is not None and argument is not None and "Device" in str(formal.type):
            return torch.device(self._device if self._device is not None else argument)
        return argument

    def _attribute(self, tensor):
        name = f"_constant{self._constants}"
        self._constants += 1
        self._root.register_buffer(name, tensor)
        made = self._fx.get_attr(name)
        made.meta.update(kind="constant", name=name)
        self._values.describe_constant(made, tensor)
        return made


def _check_shapes(captured, module, args, kwargs):
    """Forward hook that rejects inputs of other shapes, for which constants of the graph would be wrong."""
    given = dict(zip(captured, args)) | kwargs
    for name, shape in captured.items():
        value = given.get(name)
        if isinstance(value, torch.Tensor) and shape is not None and tuple(value.shape) != shape:
            raise _C.Error(f"input {name} has shape {tuple(value.shape)}, but the graph was captured for {shape} and "
                           "its sizes are constants; capture the model again with the new shape")  # fmt: skip


class FakeValues:
    """Creates torch FakeTensors for values of a graph, with their geometry, device and storage aliasing.

    None of them requires grad, since the operators run below autograd; meta["tensor_meta"] has the original flag.
    Without CUDA, libtorch aborts the process when a FakeTensor on "cuda:0" gets a grad_fn.
    """

    def __init__(self, device):
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._device = None if device is None else torch.device(device)
        self._storages, self._values = {}, {}

    def describe(self, made, results):
        """Sets meta["val"] and meta["tensor_meta"] of a node, nested like its results.

        results: values, lists of values, or None. Numbers and non-strided tensors get neither.
        """
        if not results:
            return
        structure = results[0] if len(results) == 1 else tuple(results)
        fakes = self._mapped(self._fake, structure)
        if fakes is not None:
            made.meta.update(val=fakes, tensor_meta=self._mapped(self._metadata, structure))

    def describe_constant(self, made, tensor):
        with _outside():
            fake = self._mode.from_tensor(tensor.detach(), static_shapes=True)
        made.meta.update(val=fake, tensor_meta=_extract_tensor_metadata(fake))

    def _mapped(self, leaf, structure):
        if isinstance(structure, (list, tuple)):
            return type(structure)(self._mapped(leaf, element) for element in structure)
        return leaf(structure) if isinstance(structure, _C.Value) else None

    def _fake(self, value):
        if not value.is_tensor or value.layout != "Strided":
            return None
        if value not in self._values:
            with _outside():
                if value.storage not in self._storages:
                    self._storages[value.storage] = torch.UntypedStorage(value.storage.nbytes, device="meta")
                meta = torch.empty(0, dtype=value.dtype, device="meta")
                meta.set_(self._storages[value.storage], value.offset, value.shape, value.stride)
                device = torch.device(value.device) if self._device is None else self._device
                self._values[value] = FakeTensor(self._mode, meta, device)
        return self._values[value]

    def _metadata(self, value):
        fake = self._fake(value)
        return None if fake is None else _extract_tensor_metadata(fake)._replace(requires_grad=value.requires_grad)


class _outside(_C.Cleanup):
    """Disables fake modes and autograd during a conversion."""

    def _enter(self):
        self.enter_context(unfake())
        self.enter_context(torch.no_grad())


def _module_stack(node):
    """Returns nn_module_stack of the node in torch's format: {key: (path, class)}, outermost first."""
    modules = (region for region in _regions_around(node) if region.kind == "module")
    return OrderedDict((region.name if region.call == 0 else f"{region.name}@{region.call}",
                        (region.name, region.class_name)) for region in modules)  # fmt: skip


def _regions_around(node):
    """Returns the regions that enclose the node, outermost first."""
    regions, region = [], node.region
    while region is not None:
        regions.append(region)
        region = region.parent
    return regions[::-1]


@keywords_apart
def from_fx(module: torch.fx.GraphModule, /, *inputs: Any, device: str | torch.device = "cpu", **named: Any) -> Graph:
    """Runs a torch.fx.GraphModule on fake tensors, node by node, and returns the captured graph.

    inputs, named: a tensor or string ("f32[8,16]") for each placeholder, by position or name. Missing ones are created
        from the node's meta ("val", "tensor_meta", or that of `to_fx`), or take the placeholder's default.
    device: device of the module and the inputs.

    Each node keeps the name of its torch.fx node in notes["fx"], and the module regions of meta["nn_module_stack"].
    meta["activation_checkpoint"], an id or a list of the ids of enclosing checkpoints, becomes checkpoint regions.
    `graph.to_fx()` restores the same program: operators, shapes, modules and phases. Information that torch.fx does not
    have is missing: gradients accumulated into .grad, tensors saved for backward, and lifetimes (tensors are freed
    after their last use).

    Raises Error for a placeholder without an input or a checkpoint whose nodes are not contiguous, and the errors of
    the nodes.
    """
    if not isinstance(module, torch.fx.GraphModule):
        raise _C.Error(f"from_fx() expects a torch.fx.GraphModule, got {type(module).__name__}; use capture() instead")
    return _Runner(module, str(device)).run(inputs, named)


class _Scope(torch.nn.Module):
    """Placeholder for an inlined module, so that its nodes are captured in a module region."""

    def forward(self, body, *arguments):
        body(*arguments)


class _Runner:
    def __init__(self, module, device):
        self._module, self._device = module, device
        self._nodes = list(module.graph.nodes)
        self._values = {}
        self._classes, self._scopes = {}, {}
        # {node: values to free after it}. Inputs are kept for the whole run, as in capture(), because the capture
        # identifies them by address.
        last = {argument: node for node in self._nodes for argument in node.all_input_nodes
                if argument.op != "placeholder"}  # fmt: skip
        self._last_used_by: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for argument, user in last.items():
            self._last_used_by.setdefault(user, []).append(argument)

    def run(self, inputs, named):
        module, device = self._module, self._device
        constants = {node.target: operator.attrgetter(node.target)(module) for node in self._nodes
                     if node.op == "get_attr" and node.meta.get("kind") == "constant"}  # fmt: skip
        # The module without its constants, which stay real tensors.
        rest = torch.nn.Module()
        rest._parameters, rest._modules = module._parameters, module._modules
        rest._buffers = {name: buffer for name, buffer in module._buffers.items() if name not in constants}
        with fake(device) as mode, _models.Converted(rest, mode, device, None):
            given = self._given(inputs, named, mode)
            with _capture._ModelCapture(device) as session:
                self._name(session, given, rest)
                _C.name_nodes()
                for node in self._nodes:
                    if node.op == "get_attr":
                        constant = constants.get(node.target)
                        self._values[node] = operator.attrgetter(node.target)(rest) if constant is None else constant
                self._session = session
                self._stacks = self._all_stacks()
                body = [node for node in self._nodes if node.op not in ("placeholder", "get_attr", "output")]
                self._run_some(_fx_checkpoints.runs_of(body), 0)
                (output,) = [node for node in self._nodes if node.op == "output"] or [None]
                result = self._filled(output.args[0]) if output is not None else ()
                graph = session.finish(_inputs.tensors_of(result))
        _C.take_node_names(graph, _NOTE)
        graph.set_metadata("device", _capture.canonical(device))
        return graph

    def _name(self, session, given, rest):
        name_by_kind = {"parameter": session._active().name_parameter, "buffer": session._active().name_buffer}
        for node, (value, keep_contents) in given.items():
            if isinstance(value, torch.Tensor):
                name = node.meta.get("name", node.target)
                if node.meta.get("kind") in name_by_kind:
                    name_by_kind[node.meta["kind"]](value, name)
                else:
                    session.name_input(value, name, keep_contents)
            self._values[node] = value
        for name, parameter in rest.named_parameters():
            session._active().name_parameter(parameter, name)
        for name, buffer in rest.named_buffers():
            session._active().name_buffer(buffer, name)
        for path, part in self._module.named_modules():
            session._active().name_module(part, path)

    def _given(self, inputs, named, mode):
        """Returns {placeholder: (fake tensor, True if the program may read its values)}."""
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        names = [node.target for node in placeholders]
        if len(inputs) > len(names):
            raise _C.Error(f"got {len(inputs)} inputs, but the module takes {', '.join(names) or 'none'}")
        unknown = [name for name in named if name not in names]
        if unknown:
            raise _C.Error(f"the module has no input {', '.join(unknown)}; it takes {', '.join(names) or 'none'}")
        by_name = dict(zip(names, inputs)) | named
        given = {}
        for node in placeholders:
            if node.target not in by_name and not node.args:
                given[node] = (_of_meta(node, self._device), False)
                continue
            value = by_name[node.target] if node.target in by_name else node.args[0]
            keep = isinstance(value, torch.Tensor) and not value.is_floating_point()
            if _inputs.is_spec(value):
                value = _inputs.from_spec(value, self._device)
            elif isinstance(value, torch.Tensor) and not _C.is_fake(value):
                value = mode.from_real(value, self._device)
            given[node] = (value, keep)
        return given

    def _all_stacks(self):
        """Returns for each node its enclosing modules, ((path, class, key), ...).

        A node without nn_module_stack gets that of the previous node.
        """
        stacks: dict[torch.fx.Node, tuple[tuple[str, str, str], ...]] = {}
        before: tuple[tuple[str, str, str], ...] = ()
        for node in self._nodes:
            stack = node.meta.get("nn_module_stack")
            if stack is not None:
                before = tuple(
                    (
                        re.sub(r"^L\['self'\]\.?", "", path),
                        getattr(kind, "__name__", str(kind).rpartition(".")[2]),
                        str(key),
                    )
                    for key, (path, kind) in stack.items()
                )
                if node.op == "call_module" and before and before[-1][0] == node.target:
                    before = before[:-1]  # the called module itself
            stacks[node] = before
        return stacks

    def _stack_of(self, item):
        """Returns the enclosing modules of a node, or those common to all nodes of a checkpoint."""
        if isinstance(item, torch.fx.Node):
            return self._stacks[item]
        first, *others = [self._stacks[node] for node in item.nodes()]
        same = [all(other[:depth] == first[:depth] for other in others) for depth in range(1, len(first) + 1)]
        return first[: sum(same)]

    def _run_some(self, items, depth):
        begin = 0
        while begin < len(items):
            stack = self._stack_of(items[begin])
            if len(stack) <= depth:
                if isinstance(items[begin], torch.fx.Node):
                    self._run_node(items[begin])
                else:
                    self._run_checkpoint(items[begin], depth)
                begin += 1
                continue
            end = begin + 1
            while end < len(items) and self._stack_of(items[end])[: depth + 1] == stack[: depth + 1]:
                end += 1
            self._scope(*stack[depth])(self._run_some, items[begin:end], depth + 1)
            begin = end

    def _run_checkpoint(self, run, depth):
        """Runs the nodes inside torch.utils.checkpoint, so that autograd saves the same tensors as the program."""
        nodes = set(run.nodes())
        read = dict.fromkeys(argument for node in run.nodes() for argument in node.all_input_nodes)
        given = [node for node in read if node in self._values]
        made = [node for node in run.nodes() if any(user not in nodes for user in node.users)]

        def function(*values):
            self._values.update(zip(given, values, strict=True))
            self._run_some(run.items, depth)
            return tuple(self._values[node] for node in made)

        function.__name__ = run.name
        torch.utils.checkpoint.checkpoint(function, *(self._values[node] for node in given), use_reentrant=False)

    def _scope(self, path, class_name, key):
        if key not in self._scopes:
            kind = self._classes.setdefault(class_name, type(class_name, (_Scope,), {}))
            self._scopes[key] = kind()
            self._session._active().name_module(self._scopes[key], path)
        return self._scopes[key]

    def _run_node(self, node):
        if _STOPS in node.meta:
            self._values[node] = self._filled(node.args[0])
            return
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        _C.set_node_name(node.name, _source(node))
        if node.op == "call_function":
            call = node.target
        elif node.op == "call_method":
            call, args = getattr(args[0], node.target), args[1:]
        else:
            call = self._module.get_submodule(node.target)
        phase = node.meta.get("phase", "forward")
        with contextlib.nullcontext() if phase == "forward" else _C.Phase(phase):
            self._values[node] = call(*args, **kwargs)
        for unused in self._last_used_by.get(node, ()):
            del self._values[unused]

    def _filled(self, structure):
        return torch.fx.node.map_arg(structure, lambda node: self._values[node])


def _of_meta(node, device):
    """Returns a tensor with the geometry that a placeholder's meta describes."""
    of_graph = node.meta.get("shadowgraph_node")
    if of_graph is not None:
        (value,) = of_graph.outputs  # captured below autograd
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
    known = node.meta.get("val", node.meta.get("example_value", node.meta.get("tensor_meta")))
    if hasattr(known, "shape"):
        strides = known.stride() if callable(known.stride) else known.stride
        shape, stride = [int(size) for size in known.shape], [int(step) for step in strides]
        made = torch.empty_strided(shape, stride, dtype=known.dtype, device=device)
        return made.requires_grad_(bool(known.requires_grad))
    raise _C.Error(f"no input for placeholder {node.target}; pass a tensor or a string such as 'f32[8,16]'")


def _source(node):
    if "source" in node.meta:
        return node.meta["source"]
    places = re.findall(r'File "(.+?)", line (\d+)', node.stack_trace or "")
    return ":".join(places[-1]) if places else ""
