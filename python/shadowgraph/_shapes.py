"""Shape rules for operators, and shape propagation: the shapes of a graph for other inputs, without another capture."""

from collections.abc import Callable
from typing import Any

import torch

from . import _process
from . import _shadowgraph as _C
from ._fake import fake
from ._shadowgraph import Graph, ShapePropagation, Value


def propagate(graph: Graph, *inputs: Any, mode: fake | None = None, **named: Any) -> ShapePropagation:
    """Propagates the shapes of other inputs through the graph by running its operators on fake tensors.

        shapes = graph.propagate("f32[64,3,224,224]")      # captured with a batch size of 8
        shapes.outputs[0].shape, shapes.tensor(node.outputs[0]).stride()
        shapes.baked                                       # captured sizes that remain in arguments
        shapes.apply()                                     # updates the graph

    inputs: the graph's inputs, by position.
    named: inputs, parameters, buffers and constants ("constant0") by name.
        Each is a tensor, whose geometry is used (and device, if fake); a string such as "f32[64,8]"; or a shape
        (64, 3, 224, 224) of the captured dtype. Others keep their captured shapes.
    mode: a `fake` whose profile and data_sizes (by name) apply. Defaults to "h100" and the captured sizes.

    Integers that the program computed from sizes stay constant; use `fit` or another capture if they matter.

    Raises UnsupportedError with the node whose operands do not fit; Error for a mode of another device.
    """
    placeholders = {str(node.argument("name")): node.outputs[0] for node in graph
                    if node.is_placeholder and node.target != "sg::constant"}  # fmt: skip
    names = [str(node.argument("name")) for node in graph.find("sg::input")]
    if len(inputs) > len(names):
        raise _C.Error(f"got {len(inputs)} inputs, but the graph has {len(names)}: {', '.join(names)}")
    twice = [name for name in names[: len(inputs)] if name in named]
    if twice:
        raise _C.Error(f"got multiple values for {', '.join(twice)}: by position and by name")
    given = {name: _geometry(name, value, placeholders.get(name))
             for name, value in [*zip(names, inputs), *named.items()]}  # fmt: skip
    return _C.propagate(graph, given, *_of_mode(graph, mode))


def _geometry(name: str, given: Any, recorded: Value | None) -> torch.Tensor | str:
    if isinstance(given, (torch.Tensor, str)):
        return given
    if isinstance(given, (tuple, list)) and all(type(size) is int for size in given):
        dtype = recorded.dtype if recorded is not None else torch.float32
        return torch.empty(given, dtype=dtype, device="meta")
    raise _C.Error(f"input '{name}' must be a tensor, a shape, or a string such as 'f32[8,16]', not "
                   f"{type(given).__name__}")  # fmt: skip


def _of_mode(graph, mode):
    """Returns (device profile, data sizes by name)."""
    if mode is None:
        return "", {}
    if not isinstance(mode, fake):
        raise _C.Error(f"mode= must be a shadowgraph.fake, not {type(mode).__name__}")
    recorded, data_sizes = graph.metadata.get("device"), mode._options["data_sizes"]
    if recorded is not None and torch.device(mode._device).type != torch.device(recorded).type:
        raise _C.Error(f"the mode is for {mode._device}, but the graph was captured on {recorded}; use that device")
    if mode._options["host_reads"] is not None or not isinstance(data_sizes, (dict, type(None))):
        raise _C.Error("propagate() supports data_sizes as a dict by name, and no host_reads: reads are as captured")
    return mode._options["profile"], data_sizes or {}


def register_rule(name: str | torch._ops.OpOverload, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Registers a shape rule for an operator: a function that computes its results on fake tensors.

        @sg.register_rule("aten::gelu")
        def _(x, *, approximate):
            return torch.empty_like(x)

    name: operator with overload, "aten::add.Tensor" or torch.ops.aten.add.Tensor.
    function: called with the arguments of the operator's schema, keyword-only ones by name; returns its results. Fake
        tensors report the simulated device (`x.is_cuda`). Results keep the device on which the function creates them;
        those on "meta" get the operator's device (see `register_devices`). The function must not read data. Operators
        that it calls are not captured.

    Replaces any earlier rule, including built-in ones, for the whole process.

    Raises Error for an unknown operator, and for a plain Python function as `name`: captures run it on fake tensors. To
    give one its own rule, make it an operator with torch.library.custom_op. Exceptions of the rule propagate to the
    caller of the operator.
    """
    return _register(name, function, register_rule, False)


def register_composite_rule(
    name: str | torch._ops.OpOverload, function: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Registers a replacement for the decomposition of a composite operator, above autograd, on a simulated GPU.

    For composite operators that select a kernel by device. Arguments and errors are those of `register_rule`.
    """
    return _register(name, function, register_composite_rule, True)


def _register(name, function, register, composite):
    if isinstance(name, torch._ops.OpOverload):
        name = name.name()
    if not isinstance(name, str):
        shown = getattr(name, "__name__", None) or repr(name)
        raise _C.Error(f"{register.__name__}: expected an operator with overload, \"aten::add.Tensor\" or "
                       f"torch.ops.aten.add.Tensor, not {shown}. A plain Python function needs no rule: a capture runs "
                       "it on fake tensors and records the operators that it calls. To give it its own rule, make it "
                       f"an operator with torch.library.custom_op(\"my::{shown}\", {shown}, mutates_args=()), call "
                       f"that instead, and register the rule for \"my::{shown}\"")  # fmt: skip
    if function is None:
        return lambda decorated: register(name, decorated)
    _process.install()
    _C.register_rule(name, function, composite)
    return function
