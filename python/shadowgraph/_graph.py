"""Python methods of Graph: tables, pictures in notebooks, replay, code generation."""

import html
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import IO, NamedTuple

import torch

from . import _shadowgraph as _C
from . import _wrappers
from ._shadowgraph import Graph

_COLUMNS = ("name", "operator", "args", "results", "module", "phase")
_WIDTHS = (None, None, 72, 60, None, None)  # characters; longer cells are cut


def tabular(graph: Graph) -> str:
    """Returns the graph as a table with one row per node: name, operator, arguments, results, module path, phase."""
    rows = [_COLUMNS, *_C.table_rows(graph)]
    cells = [[_cut(cell, width) for cell, width in zip(row, _WIDTHS)] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)


def _cut(cell: str, width: int | None) -> str:
    cell = cell.replace("\n", "\\n")
    return cell if width is None or len(cell) <= width else cell[: width - 3] + "..."


def print_tabular(graph: Graph, file: IO[str] | None = None) -> None:
    """Prints `tabular()` to `file` or standard output, like torch.fx's Graph.print_tabular."""
    print(tabular(graph), file=file)


def repr_html(graph: Graph) -> str:
    """Returns the notebook display: a summary and the picture, or without Graphviz the text of the first nodes."""
    head = f"<p>{html.escape(repr(graph))}</p>"
    try:
        picture = graph.svg()
    except _C.Error as error:
        lines = str(graph).split("\n")
        shown = "\n".join(lines[:200]) + ("\n..." if len(lines) > 200 else "")
        return f"{head}<pre>{html.escape(shown)}</pre><p>no picture: {html.escape(str(error))}</p>"
    return head + picture[max(picture.find("<svg"), 0) :]


class ReplayResult(NamedTuple):
    """Result of running a compiled graph: its outputs, and gradients by parameter name."""

    outputs: tuple[torch.Tensor | None, ...]
    gradients: dict[str, torch.Tensor]


class CompiledGraph:
    """A graph as a callable on real tensors, returned by `Graph.compile`. Not thread safe."""

    def __init__(self, graph: Graph, module: torch.nn.Module | None = None, *, device: str | torch.device | None = None,
                 autograd: bool = False, copy_inputs: bool = False, check_results: bool = False,
                 kernels: bool | str = False, generators: Mapping[str, torch.Generator] | None = None):  # fmt: skip
        device = None if device is None else str(device)
        if kernels and autograd:
            raise ValueError("kernels do not support autograd; pass either kernels= or autograd=True")
        self.kernels = _groups_of(graph, kernels)
        self._executor = _C.Executor(graph, device, autograd, copy_inputs, check_results, self.kernels,
                                     dict(generators or {}))  # fmt: skip
        self._module = module
        self.graph = graph
        # Names need not be unique: tensors that were not declared as inputs are also called input0, input1, ...
        placeholders = [node for node in graph if node.is_placeholder and node.target != "sg::constant"]
        self._all_names = self._executor.input_names
        self._argument_indices = [
            i for i, node in enumerate(placeholders) if module is None or node.target == "sg::input"
        ]
        self.input_names: tuple[str, ...] = tuple(self._all_names[i] for i in self._argument_indices)

    def __repr__(self) -> str:
        return _C.printable(f"<shadowgraph.CompiledGraph of {', '.join(self.input_names)}>")

    def __call__(self, /, *inputs: torch.Tensor | Mapping[str, torch.Tensor],
                 **named: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        """Runs the graph with one tensor per name in `input_names`, by position, by name, or as one mapping.

        Returns the outputs as a flat tuple. Tensors that the program mutates (parameters in an optimizer step, buffers)
        are mutated unless the graph was compiled with copy_inputs.

        Raises ReplayError for a missing tensor, or one whose dtype, shape, strides or device differs from the capture.
        """
        return self.run(*inputs, **named).outputs

    def run(self, /, *inputs: torch.Tensor | Mapping[str, torch.Tensor], **named: torch.Tensor) -> ReplayResult:
        """Like calling the graph, but also returns the gradients that the program left in .grad, by parameter name."""
        takes = f"the graph takes {', '.join(self.input_names)}"
        if len(inputs) > len(self.input_names):
            raise _C.ReplayError(f"got {len(inputs)} tensors, expected {len(self.input_names)}: {takes}")
        given: dict[int, torch.Tensor] = {}
        by_name = dict(named)
        for i, tensor in zip(self._argument_indices, inputs):
            if isinstance(tensor, Mapping):
                by_name.update(tensor)
            else:
                given[i] = tensor
        for name, tensor in by_name.items():
            matches = [i for i in self._argument_indices if self._all_names[i] == name]
            if len(matches) != 1:
                problem = "no input is" if not matches else f"{len(matches)} inputs are"
                raise _C.ReplayError(f"{problem} called {name}: {takes}; pass it by position")
            given[matches[0]] = tensor
        missing = [self._all_names[i] for i in self._argument_indices if i not in given]
        if missing:
            raise _C.ReplayError(
                f"no tensor for {', '.join(missing)}; {takes}; to take parameters from a module, pass it to compile()"
            )
        if self._module is not None:
            rest = [name for i, name in enumerate(self._all_names) if i not in given]
            of_module = _tensors_of(self._module, rest)
            given.update({i: of_module[name] for i, name in enumerate(self._all_names) if i not in given})
        outputs, gradients = self._executor.run([given[i] for i in range(len(self._all_names))])
        return ReplayResult(tuple(outputs), gradients)


def _tensors_of(module: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    own = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    # The local shard of a DTensor is detached, because the program mutates it below autograd.
    has = {name + suffix: part.detach() if part is not tensor else tensor
           for name, tensor in own for suffix, part in _wrappers.inner(tensor)}  # fmt: skip
    missing = [name for name in names if name not in has]
    if missing:
        raise _C.ReplayError(
            f"{type(module).__name__} has no parameter or buffer {', '.join(missing)}, which the graph requires; pass "
            "the captured module to compile()"
        )
    return {name: has[name] for name in names}


def compile(graph: Graph, module: torch.nn.Module | None = None, *, device: str | torch.device | None = None,
            autograd: bool = False, copy_inputs: bool = False, check_results: bool = False,
            kernels: bool | str = False,
            generators: Mapping[str, torch.Generator] | None = None) -> CompiledGraph:  # fmt: skip
    """Returns the graph as a callable on real tensors, which runs the captured operators in order, bitwise as in eager.

        step = sg.capture_training_step(net, "f32[8,16]", optimizer=torch.optim.SGD).compile(net)
        (loss,) = step(x)                                  # also updates the parameters of net

    module: provides parameters and buffers at each call (local shards for DTensors). Without it, calls take all of
      them as arguments. Collectives use the process groups of torch.distributed with the captured names.
    device: replaces every device in the graph, for example to run a graph captured for CUDA on the CPU.
    autograd: record a graph for backward; for forward graphs only. Activation checkpoints are not applied (a
      UserWarning); generated code and torch.fx modules apply them.
    copy_inputs: copy inputs that the program mutates, so that the given tensors are unchanged.
    check_results: compare dtype, sizes and strides of each result with the graph.
    kernels: compile groups of nodes into fused kernels in the background and cache them on disk. The first runs
      alternate between kernels and libtorch, and the faster one is used. True: reductions and transcendental functions
      are accurate to a few ulps; "exact": these use libtorch. `compiled.kernels` has report(), summary() and wait().
      See docs/kernels.md.
    generators: replacements for the generators that the program created, by name in notes["generator"]. By default,
      the program's own generators are used and advanced, as in eager; in another process they are recreated in the
      captured state for each run.

    Raises ReplayError, here or at a call, for a node that cannot run.
    """
    if autograd and any(region.kind == "checkpoint" for region in graph.regions):
        warnings.warn("compile(autograd=True) ignores activation checkpoints, so all activations are kept; use "
                      "emit_python, emit_cpp or to_fx to apply them", stacklevel=2)  # fmt: skip
    return CompiledGraph(graph, module, device=device, autograd=autograd, copy_inputs=copy_inputs,
                         check_results=check_results, kernels=kernels, generators=generators)  # fmt: skip


def _emit(language, graph, folder, name, only, device, autograd, functions, min_function_nodes, max_function_items,
          max_embedded_elements, groups=None):  # fmt: skip
    folder = pathlib.Path(folder)
    files = _C.emit_code(graph, language, os.fspath(folder), name, list(only), None if device is None else str(device),
                         autograd, dict(functions or {}), min_function_nodes, max_function_items,
                         max_embedded_elements, groups)  # fmt: skip
    return [folder / file for file in files]


def emit_cpp(graph: Graph, folder: str | os.PathLike, *, name: str = "graph", only: Iterable[str] = (),
             device: str | torch.device | None = None, autograd: bool = False,
             functions: Mapping[str, tuple[str, str]] | None = None, min_function_nodes: int = 6,
             max_function_items: int = 250, max_embedded_elements: int = 32,
             kernels: bool | str | CompiledGraph = False) -> list[pathlib.Path]:  # fmt: skip
    """Generates C++ code that only depends on libtorch. Returns the files: a source, a header and a CMakeLists.txt.

    folder: output folder, created if missing.
    name: namespace and file name.
    only: names of values to compute, with wildcards * and ?: "output0", "gradient.layer.weight", "%12". Default: all.
    device: replaces every device in the graph.
    autograd: generate differentiable code; for forward graphs only.
    functions: custom operators that are not torch operators: {"my::op": ("name to call", "header or module")}.
    min_function_nodes: modules with fewer operators are inlined.
    max_function_items: longer functions are split.
    max_embedded_elements: larger constants are written to a separate file.
    kernels: generate fused loops for groups of nodes, in two more files; True or "exact" as in compile(), or this graph
      compiled with kernels, which excludes the groups that were measured to be slower.

    Raises UnsupportedError for a node that cannot be expressed; FileError. See docs/weights-and-code.md.
    """
    groups = _groups_of(graph, kernels)
    return _emit("cpp", graph, folder, name, only, device, autograd, functions, min_function_nodes, max_function_items,
                 max_embedded_elements, groups)  # fmt: skip


def _groups_of(graph, kernels):
    if isinstance(kernels, CompiledGraph):
        if kernels.graph is not graph or kernels.kernels is None:
            raise ValueError("kernels= is a CompiledGraph of another graph, or one compiled without kernels")
        return kernels.kernels
    if kernels not in (False, True, "exact"):
        raise ValueError(f"kernels={kernels!r}: expected False, True, 'exact' or a CompiledGraph")
    return _C.group_kernels(graph, kernels == "exact", True) if kernels else None


def emit_python(graph: Graph, folder: str | os.PathLike, *, name: str = "graph", only: Iterable[str] = (),
                device: str | torch.device | None = None, autograd: bool = False,
                functions: Mapping[str, tuple[str, str]] | None = None, min_function_nodes: int = 6,
                max_function_items: int = 250, max_embedded_elements: int = 32) -> list[pathlib.Path]:  # fmt: skip
    """Generates a Python module that calls torch.ops and returns the files. Arguments and errors are those of emit_cpp.

    Its forward(tensors) takes a dict of all placeholders by name and returns a dict: "output0", "gradient.NAME".
    """
    return _emit("python", graph, folder, name, only, device, autograd, functions, min_function_nodes,
                 max_function_items, max_embedded_elements)  # fmt: skip


for _name, _function in {"tabular": tabular, "print_tabular": print_tabular, "_repr_html_": repr_html,
                         "compile": compile, "emit_cpp": emit_cpp, "emit_python": emit_python}.items():  # fmt: skip
    setattr(Graph, _name, _function)
