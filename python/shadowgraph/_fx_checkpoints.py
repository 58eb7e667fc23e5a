"""Activation checkpoints of torch.fx graphs: node.meta["activation_checkpoint"] and modules that apply it.

The annotation follows ColossalAI: a list of the ids of enclosing checkpoints, outermost first, such as [0, 2]. A single
id needs no list, and None terminates the list. Nodes with the same id must be contiguous. Names of checkpoints are in
node.meta["activation_checkpoint_names"], an extension.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint

from . import _shadowgraph as _C

KEY = "activation_checkpoint"
NAMES = "activation_checkpoint_names"


@dataclass
class Run:
    """Nodes and nested checkpoints of one checkpoint, in program order."""

    label: object
    name: str
    items: list = field(default_factory=list)

    def nodes(self):
        for item in self.items:
            yield from item.nodes() if isinstance(item, Run) else [item]


def labels_of(node):
    """Returns the ids of the checkpoints that enclose a torch.fx node, outermost first."""
    given = node.meta.get(KEY)
    if given is None:
        return ()
    if isinstance(given, (list, tuple)):
        labels = tuple(given)
        labels = labels[: labels.index(None)] if None in labels else labels
    else:
        labels = (given,)
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise _C.Error(f"meta[{KEY!r}] of the torch.fx node {node.name} is {given!r}; expected an id, or a list "
                           "of the ids of enclosing checkpoints, outermost first")  # fmt: skip
    return labels


def runs_of(nodes):
    """Returns the nodes with those of each checkpoint grouped into a Run. Placeholders and outputs are in none.

    Raises Error for a checkpoint whose nodes are not contiguous.
    """
    root = Run(None, "")
    open_runs = [root]
    known: set[tuple] = set()
    for node in nodes:
        labels = () if node.op in ("placeholder", "output") else labels_of(node)
        if node.op == "get_attr":  # belongs to the current checkpoint
            labels = tuple(run.label for run in open_runs[1:])
        same = 0
        while same < min(len(labels), len(open_runs) - 1) and open_runs[same + 1].label == labels[same]:
            same += 1
        del open_runs[same + 1 :]
        for depth in range(same, len(labels)):
            path = labels[: depth + 1]
            if path in known:
                raise _C.Error(f"the nodes of checkpoint {list(path)} in meta[{KEY!r}] are not contiguous: it "
                               f"continues at the torch.fx node {node.name}; use a separate id for each "
                               "run of nodes")  # fmt: skip
            known.add(path)
            names = node.meta.get(NAMES) or ()
            run = Run(labels[depth], names[depth] if depth < len(names) else f"checkpoint {labels[depth]}")
            open_runs[-1].items.append(run)
            open_runs.append(run)
        open_runs[-1].items.append(node)
    return root.items


def checkpoint_fx(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Applies the activation checkpoints in meta["activation_checkpoint"] of a torch.fx.GraphModule and returns it.

    The generated code calls torch.utils.checkpoint.checkpoint, nested like the ids. Copies and recompiled modules keep
    this; torch.fx.Interpreter, which does not run the code, ignores checkpoints.

    Raises Error if no node is annotated, if the nodes of a checkpoint are not contiguous, or if the graph has a custom
    code generator.
    """
    if not isinstance(module, torch.fx.GraphModule):
        raise _C.Error(f"checkpoint_fx() expects a torch.fx.GraphModule, got {type(module).__name__}")
    if type(module.graph._codegen) not in (torch.fx.graph.CodeGen, CheckpointCodeGen):
        raise _C.Error(f"the graph has the code generator {type(module.graph._codegen).__name__}, which does not "
                       "support checkpoints")  # fmt: skip
    if not any(isinstance(item, Run) for item in runs_of(module.graph.nodes)):
        raise _C.Error(f"no node has meta[{KEY!r}], so there is no checkpoint to apply")
    module.graph.set_codegen(CheckpointCodeGen())
    module.recompile()
    return module


class CheckpointCodeGen(torch.fx.graph.CodeGen):
    """Generates torch.fx code in which each checkpoint is a nested function called by checkpoint()."""

    def _gen_python_code(self, nodes, *args, **kwargs):
        nodes = list(nodes)
        users: Any = vars(self)["_body_transformer"]  # set by Graph.on_generate_code
        self._body_transformer = lambda body: _Nesting(nodes, users(body) if users else body).text()
        try:
            return super()._gen_python_code(nodes, *args, **kwargs)
        finally:
            self._body_transformer = users


_CALL = "torch.utils.checkpoint.checkpoint"  # torch is a global of all torch.fx code
_COUNTER = re.compile(r"# COUNTER: (\d+)")


class _Nesting:
    def __init__(self, nodes, body):
        self._nodes = nodes
        self._position = {node: i for i, node in enumerate(nodes)}
        # torch.fx writes "# COUNTER: 3" before the code of the third node.
        self._head: list[str] = []
        self._lines: dict[int, list[str]] = {}
        lines = self._head
        for line in "".join(body).splitlines(keepends=True):
            counter = _COUNTER.search(line)
            if counter is not None:
                lines = self._lines.setdefault(int(counter.group(1)), [])
            lines.append(line)
        self._functions = 0

    def text(self):
        return [*self._head, *self._of_items(runs_of(self._nodes), "")]

    def _of_items(self, items, indent):
        for item in items:
            if isinstance(item, Run):
                yield from self._of_run(item, indent)
            else:
                yield from (indent + line for line in self._lines.get(self._position[item], ()))

    def _of_run(self, run, indent):
        nodes = list(run.nodes())
        inside = set(nodes)
        end = self._position[nodes[-1]]
        given = list(dict.fromkeys(argument for node in nodes for argument in node.all_input_nodes
                                   if argument not in inside))  # fmt: skip
        returned = [node for node in nodes if any(user not in inside for user in node.users)]
        # Values without later uses are freed, as after any other statement.
        dropped = [node for node in given if all(self._position[user] <= end for user in node.users)]
        function = f"_checkpointed_{self._functions}"
        self._functions += 1
        # checkpoint() rejects mutated inputs; buffers, such as running statistics, are bound as default arguments.
        bound = [node for node in given if node.op == "placeholder" and node.meta.get("kind") == "buffer"]
        given = [node for node in given if node not in bound]
        arguments = ", ".join([*map(repr, given), *(f"{node!r}={node!r}" for node in bound)])
        yield f"{indent}def {function}({arguments}):\n"
        yield from self._of_items(run.items, indent + "    ")
        together = repr(returned[0]) if len(returned) == 1 else f"({', '.join(map(repr, returned))})"
        yield f"{indent}    return {together}\n"
        call = f"{_CALL}({', '.join([function, *map(repr, given)])}, use_reentrant=False)"
        targets = ", ".join(repr(node) for node in returned)
        line = f"{targets} = {call}" if returned else call
        yield indent + line + (f";  {' = '.join(map(repr, dropped))} = None\n" if dropped else "\n")
