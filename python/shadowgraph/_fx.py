"""Graphs as torch.fx: a GraphModule that runs."""

import operator
import re

import torch

from . import _shadowgraph as _C

__all__ = ["to_fx"]


def to_fx(graph, *, device=None):
    """The graph as a torch.fx.GraphModule: one call of an aten operator a node, in program order.

    Its placeholders are the graph's, in their order: parameters, buffers, inputs, under their names ('.' as '_'); call it
    with tensors for all of them. It gives what the graph gives, as a tuple. Constants are its buffers. Nodes carry
    meta["module"], meta["phase"], meta["source"] and meta["shadowgraph_node"].

    device: takes the place of every device that the program names, to run on the CPU what was captured for CUDA.

    Raises Error for nodes that call no operator of torch (functions of one's own).
    """
    return _Converter(graph, device).run()


class _Converter:
    def __init__(self, graph, device):
        self._graph, self._device = graph, device
        self._fx = torch.fx.Graph()
        self._root = torch.nn.Module()
        self._of = {}
        self._names = set()
        self._constants = 0

    def run(self):
        own = {"sg::parameter": self._placeholder, "sg::buffer": self._placeholder, "sg::input": self._placeholder,
               "sg::constant": self._constant, "sg::gradient": self._gradient, "sg::output": self._output}  # fmt: skip
        for node in self._graph:
            own.get(node.target, self._call)(node)
        if not any(node.op == "output" for node in self._fx.nodes):
            self._fx.output(())
        self._fx.lint()
        return torch.fx.GraphModule(self._root, self._fx)

    # ---- The graph's own nodes

    def _placeholder(self, node):
        name = re.sub(r"\W", "_", str(node.argument("name"))) or "input"
        name = name if not name[0].isdigit() else "_" + name
        count, unique = 1, name
        while unique in self._names:
            count, unique = count + 1, f"{name}_{count}"
        self._names.add(unique)
        self._bind(node, self._fx.placeholder(unique))

    def _constant(self, node):
        self._bind(node, self._attribute(node.argument("data")))

    def _gradient(self, node):
        """Says which value a gradient is; nothing to run."""

    def _output(self, node):
        self._fx.output(tuple(self._argument(value) for value in node.argument("values")))

    # ---- Operators

    def _call(self, node):
        space, _, name = node.target.partition("::")
        base, _, overload = name.partition(".")
        try:
            function = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except AttributeError:
            raise _C.Error(f"{node!r} calls no operator of torch, so torch.fx has no call for it") from None
        positional, keywords = [], {}
        for formal, argument in zip(function._schema.arguments, node.args, strict=True):
            value = self._argument(argument, formal)
            if formal.kwarg_only:
                keywords[formal.name] = value
            else:
                positional.append(value)
        self._bind(node, self._fx.call_function(function, tuple(positional), keywords))

    def _bind(self, node, made):
        made.meta.update(module=node.module, phase=node.phase, source=node.source, shadowgraph_node=node)
        results = node.results
        if len(results) == 1:
            self._bind_result(results[0], made)
        else:
            for i, result in enumerate(results):
                if result is not None:
                    self._bind_result(result, self._fx.call_function(operator.getitem, (made, i)))

    def _bind_result(self, result, made):
        if isinstance(result, list):
            for i, element in enumerate(result):
                if element is not None:
                    self._bind_result(element, self._fx.call_function(operator.getitem, (made, i)))
        elif result is not None:
            self._of[result] = made

    def _argument(self, argument, formal=None):
        if isinstance(argument, _C.Value):
            return self._of[argument]
        if isinstance(argument, torch.Tensor):
            return self._attribute(argument)
        if isinstance(argument, list):
            return [self._argument(element) for element in argument]
        if formal is not None and argument is not None and "Device" in str(formal.type):
            return torch.device(self._device if self._device is not None else argument)
        return argument

    def _attribute(self, tensor):
        name = f"_constant{self._constants}"
        self._constants += 1
        self._root.register_buffer(name, tensor)
        return self._fx.get_attr(name)
