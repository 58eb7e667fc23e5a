"""Shapes: rules for operators, and a graph's shapes for other inputs, without running the model again."""

from collections.abc import Callable
from typing import Any

import torch

from . import _process
from . import _shadowgraph as _C
from ._fake import fake
from ._shadowgraph import Graph, ShapePropagation, Value, operators_with_rule

__all__ = ["operators_with_rule", "propagate", "register_composite_rule", "register_rule"]


def propagate(graph: Graph, *inputs: Any, mode: fake | None = None, **named: Any) -> ShapePropagation:
    """Runs the graph's operators again on fakes, with other inputs, and says what every value then is.

        shapes = graph.propagate("f32[64,3,224,224]")      # recorded with a batch of 8
        shapes.outputs[0].shape, shapes.tensor(node.outputs[0]).stride()
        shapes.baked                                       # recorded sizes that still stand in arguments
        shapes.apply()                                     # writes all of it into the graph

    inputs: by position, for the graph's inputs. named: for parameters, buffers and "constant0", ... too.
        A tensor, whose geometry is taken, and of a fake one the device; a text; or sizes alone, (64, 3, 224, 224), of
        the recorded dtype. What is not given is as recorded.
    mode: a `fake`, whose profile and data_sizes by name count; without one an H100, and sizes as recorded.

    A number that the program computed from a size stays: capture again, or `fit`. With the recorded inputs nothing
    changes.

    Raises UnsupportedError, which names the node that does not fit; Error for another device's mode.
    """
    placeholders = {str(node.argument("name")): node.outputs[0] for node in graph
                    if node.is_placeholder and node.target != "sg::constant"}  # fmt: skip
    names = [str(node.argument("name")) for node in graph.find("sg::input")]
    if len(inputs) > len(names):
        raise _C.Error(f"{len(inputs)} inputs, but the graph has {len(names)}: {', '.join(names)}")
    twice = [name for name in names[: len(inputs)] if name in named]
    if twice:
        raise _C.Error(f"{', '.join(twice)} is given twice: by position and by name")
    given = {name: _geometry(name, value, placeholders.get(name))
             for name, value in [*zip(names, inputs), *named.items()]}  # fmt: skip
    return _C.propagate(graph, given, *_of_mode(graph, mode))


def _geometry(name: str, given: Any, recorded: Value | None) -> torch.Tensor | str:
    if isinstance(given, (torch.Tensor, str)):
        return given
    if isinstance(given, (tuple, list)) and all(type(size) is int for size in given):
        dtype = recorded.dtype if recorded is not None else torch.float32
        return torch.empty(given, dtype=dtype, device="meta")
    raise _C.Error(f"input '{name}' is {type(given).__name__}; it takes a tensor, sizes, or a text such as 'f32[8,16]'")


def _of_mode(graph, mode):
    """(device profile, data sizes by name)."""
    if mode is None:
        return "", {}
    if not isinstance(mode, fake):
        raise _C.Error(f"mode takes a shadowgraph.fake, not {type(mode).__name__}")
    recorded, data_sizes = graph.metadata.get("device"), mode._made_with["data_sizes"]
    if recorded is not None and torch.device(mode._device).type != torch.device(recorded).type:
        raise _C.Error(f"the mode is of {mode._device}; the graph was captured for {recorded}: capture there")
    if mode._made_with["host_reads"] is not None or not isinstance(data_sizes, (dict, type(None))):
        raise _C.Error("propagation takes data_sizes by name; what the program read is answered as recorded")
    return mode._made_with["profile"], data_sizes or {}


def register_rule(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """What the results of an operator look like: a function in place of its kernel, called on fakes.

        @sg.register_rule("aten::gelu")
        def _(x, *, approximate):
            return torch.empty_like(x)

    name: "aten::add.Tensor", with the overload.
    function: takes all that the operator's schema says, keyword-only arguments by name, and gives what the schema says.
        Fakes tell the pretended device (`x.is_cuda`). A result is where the function makes it; what it makes on "meta"
        is where the operator's results are (`register_devices`). It must not read data, and what it calls is in no
        capture.

    Registering again replaces any earlier rule, built-in ones too, for the whole process.

    Raises Error for an operator that torch does not know. What the function raises, the operator's call raises.
    """
    return _register(name, function, register_rule, False)


def register_composite_rule(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function in place of a composite operator's decomposition, above autograd, on fakes on a pretended GPU.

    For composites that pick a kernel by asking the device. Arguments and errors are those of `register_rule`.
    """
    return _register(name, function, register_composite_rule, True)


def _register(name, function, register, composite):
    if function is None:
        return lambda decorated: register(name, decorated)
    _process.install()
    _C.register_rule(name, function, composite)
    return function
