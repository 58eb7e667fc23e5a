"""What Python adds to graphs: tables, pictures in notebooks, running them again, code."""

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

__all__ = ["CompiledGraph", "Replay"]

_COLUMNS = ("name", "operator", "args", "results", "module", "phase")
_WIDTHS = (None, None, 72, 60, None, None)  # characters; longer cells are cut


def tabular(graph: Graph) -> str:
    """The graph as a table, a row a node: name, operator, arguments, results (dtype and sizes), module path, phase."""
    rows = [_COLUMNS, *_C.table_rows(graph)]
    cells = [[_cut(cell, width) for cell, width in zip(row, _WIDTHS)] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)


def _cut(cell: str, width: int | None) -> str:
    return cell if width is None or len(cell) <= width else cell[: width - 3] + "..."


def print_tabular(graph: Graph, file: IO[str] | None = None) -> None:
    """Prints `tabular()`, as torch.fx's Graph.print_tabular does, to `file` or standard output."""
    print(tabular(graph), file=file)


def repr_html(graph: Graph) -> str:
    """In a notebook: a line and the picture; without Graphviz' library the text of the first nodes."""
    head = f"<p>{html.escape(repr(graph))}</p>"
    try:
        picture = graph.svg()
    except _C.Error as error:
        lines = str(graph).split("\n")
        shown = "\n".join(lines[:200]) + ("\n..." if len(lines) > 200 else "")
        return f"{head}<pre>{html.escape(shown)}</pre><p>no picture: {html.escape(str(error))}</p>"
    return head + picture[max(picture.find("<svg"), 0) :]


class Replay(NamedTuple):
    """What a run of a compiled graph gave."""

    outputs: tuple[torch.Tensor | None, ...]
    gradients: dict[str, torch.Tensor]


class CompiledGraph:
    """A graph as a function of real tensors, made by `Graph.compile`. Prepared once; for one thread at a time."""

    def __init__(self, graph: Graph, module: torch.nn.Module | None = None, *, device: str | torch.device | None = None,
                 autograd: bool = False, copy_inputs: bool = False, check_results: bool = False,
                 kernels: bool | str = False, generators: Mapping[str, torch.Generator] | None = None):  # fmt: skip
        device = None if device is None else str(device)
        if kernels and autograd:
            raise ValueError("kernels record no history: leave out kernels or autograd")
        self.kernels = _groups_of(graph, kernels)
        self._executor = _C.Executor(graph, device, autograd, copy_inputs, check_results, self.kernels,
                                     dict(generators or {}))  # fmt: skip
        self._module = module
        self.graph = graph
        # Names need not be unique: what a capture met without being told of it is called input0, input1, ... too.
        placeholders = [node for node in graph if node.is_placeholder and node.target != "sg::constant"]
        self._all_names = self._executor.input_names
        self._asked = [i for i, node in enumerate(placeholders) if module is None or node.target == "sg::input"]
        self.input_names: tuple[str, ...] = tuple(self._all_names[i] for i in self._asked)

    def __repr__(self) -> str:
        return f"<shadowgraph.CompiledGraph of {', '.join(self.input_names)}>"

    def __call__(self, /, *inputs: torch.Tensor | Mapping[str, torch.Tensor],
                 **named: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        """Runs it: one tensor for each of `input_names`, by position, by name, or one mapping of names to tensors.

        Gives what the program returned, flat, as a tuple. Tensors that the program writes (parameters in an optimizer
        step, buffers) are written, unless it was compiled with copy_inputs.

        Raises ReplayError for a tensor that is missing, or of another dtype, shape, strides or device than captured.
        """
        return self.run(*inputs, **named).outputs

    def run(self, /, *inputs: torch.Tensor | Mapping[str, torch.Tensor], **named: torch.Tensor) -> Replay:
        """As a call, and the gradients that the program left in .grad, by parameter name."""
        takes = f"the graph takes {', '.join(self.input_names)}"
        if len(inputs) > len(self.input_names):
            raise _C.ReplayError(f"{len(inputs)} tensors, but {len(self.input_names)} are wanted: {takes}")
        given: dict[int, torch.Tensor] = {}
        by_name = dict(named)
        for i, tensor in zip(self._asked, inputs):
            if isinstance(tensor, Mapping):
                by_name.update(tensor)
            else:
                given[i] = tensor
        for name, tensor in by_name.items():
            places = [i for i in self._asked if self._all_names[i] == name]
            if len(places) != 1:
                trouble = "no input is" if not places else f"{len(places)} inputs are"
                raise _C.ReplayError(f"{trouble} called {name}: {takes}; by position there is no doubt")
            given[places[0]] = tensor
        missing = [self._all_names[i] for i in self._asked if i not in given]
        if missing:
            raise _C.ReplayError(
                f"no tensor for {', '.join(missing)}; {takes}, and parameters come from the module given to compile()"
            )
        if self._module is not None:
            rest = [name for i, name in enumerate(self._all_names) if i not in given]
            of_module = _tensors_of(self._module, rest)
            given.update({i: of_module[name] for i, name in enumerate(self._all_names) if i not in given})
        outputs, gradients = self._executor.run([given[i] for i in range(len(self._all_names))], {})
        return Replay(tuple(outputs), gradients)


def _tensors_of(module: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    own = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    # What a DTensor has here, without its history: it is written as the program wrote it.
    has = {name + suffix: part.detach() if part is not tensor else tensor
           for name, tensor in own for suffix, part in _wrappers.inner(tensor)}  # fmt: skip
    missing = [name for name in names if name not in has]
    if missing:
        raise _C.ReplayError(
            f"{type(module).__name__} has no parameter or buffer {', '.join(missing)}, which the graph takes: give the "
            "module that was captured"
        )
    return {name: has[name] for name in names}


def compile(graph: Graph, module: torch.nn.Module | None = None, *, device: str | torch.device | None = None,
            autograd: bool = False, copy_inputs: bool = False, check_results: bool = False,
            kernels: bool | str = False,
            generators: Mapping[str, torch.Generator] | None = None) -> CompiledGraph:  # fmt: skip
    """The graph as a function that runs it on real tensors, operator by operator, as the program did: the same bits.

        step = sg.capture_training_step(net, "f32[8,16]", optimizer=torch.optim.SGD).compile(net)
        (loss,) = step(x)                                  # and the parameters of net are those after the step

    module: where parameters and buffers come from, at each call; of DTensors what this rank has. Without one, calls
      take all of them. What the graph sends goes through torch.distributed's groups of those names.
    device: takes the place of every device in the graph, to run on the CPU what was captured for CUDA.
    autograd: record a history, so that outputs can be differentiated; for graphs of a forward alone. It keeps all that
      autograd keeps: checkpoints are carried out by emitted code and torch.fx (a UserWarning).
    copy_inputs: leave the given tensors as they are, whatever the program writes.
    check_results: compare each result's dtype, sizes and strides with the graph's.
    kernels: groups of nodes run as kernels that are compiled meanwhile, and kept for the next process. The first runs
      go both ways in turn, and the faster way is kept. True: sums and transcendental functions to some ulps; "exact":
      those stay libtorch's. `compiled.kernels` then has report(), summary() and wait(). docs/kernels.md.
    generators: in place of those that the program made, by the name that a node has in notes["generator"]. Otherwise
      the program's own are drawn from and moved, as in eager. In another process those are made in the state that they
      had, for each run anew.

    Raises ReplayError, here or when called, for what cannot run; it names the node.
    """
    if autograd and any(region.kind == "checkpoint" for region in graph.regions):
        warnings.warn("a replay carries out no checkpoints, so autograd keeps all that it would keep without them; "
                      "emit_python, emit_cpp and to_fx do", stacklevel=2)  # fmt: skip
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
    """Writes the graph as C++ that needs libtorch alone, and gives the files: a source, a header, a CMakeLists.txt.

    folder: made if it is not there. name: the namespace and the files' name.
    only: what to compute, by name: "output0", "gradient.layer.weight", "%12", with * and ?; nothing: all.
    device: takes the place of every device in the graph.
    autograd: code that autograd differentiates, of a graph of a forward alone.
    functions: operators of your own that are no operators of torch: {"my::op": ("name to call", "header or module")}.
    min_function_nodes, max_function_items: modules with fewer operators are no functions; longer ones are cut.
    max_embedded_elements: larger constants go to a file beside the source.
    kernels: groups of nodes as loops, in two more files; True or "exact" as in compile(). Or this graph compiled with
      kernels: what its runs found to be slower stays as it is.

    Raises UnsupportedError that names the node which has no such form; FileError. docs/weights-and-code.md tells the
    rest.
    """
    groups = _groups_of(graph, kernels)
    return _emit("cpp", graph, folder, name, only, device, autograd, functions, min_function_nodes, max_function_items,
                 max_embedded_elements, groups)  # fmt: skip


def _groups_of(graph, kernels):
    if isinstance(kernels, CompiledGraph):
        if kernels.graph is not graph or kernels.kernels is None:
            raise ValueError("the compiled graph is of another graph, or was compiled without kernels")
        return kernels.kernels
    if kernels not in (False, True, "exact"):
        raise ValueError(f"kernels is False, True, 'exact' or a compiled graph, not {kernels!r}")
    return _C.group_kernels(graph, kernels == "exact", True) if kernels else None


def emit_python(graph: Graph, folder: str | os.PathLike, *, name: str = "graph", only: Iterable[str] = (),
                device: str | torch.device | None = None, autograd: bool = False,
                functions: Mapping[str, tuple[str, str]] | None = None, min_function_nodes: int = 6,
                max_function_items: int = 250, max_embedded_elements: int = 32) -> list[pathlib.Path]:  # fmt: skip
    """Writes the graph as a Python module over torch.ops, and gives the files; arguments and errors are emit_cpp's.

    The module's forward(tensors) takes a dict of all placeholders by name and gives a dict: "output0", "gradient.NAME".
    """
    return _emit("python", graph, folder, name, only, device, autograd, functions, min_function_nodes,
                 max_function_items, max_embedded_elements)  # fmt: skip


for _name, _function in {"tabular": tabular, "print_tabular": print_tabular, "_repr_html_": repr_html,
                         "compile": compile, "emit_cpp": emit_cpp, "emit_python": emit_python}.items():  # fmt: skip
    setattr(Graph, _name, _function)
