"""Finds layouts for all tensors of a training step on a device mesh, and applies them to eager models."""

import json
import os
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import _keywords
from . import _shadowgraph as _C
from ._eager_plan import eager_plan
from ._shadowgraph import Graph

_Json = dict[str, Any]  # inside the class, dict is a method
_Strings = dict[str, str]
_Solution = str | os.PathLike | Mapping[str, Any] | Iterable[int]


class Sharding:
    """Layouts for all tensors of a graph, returned by `shadowgraph.shard`. Prints like the command line tool."""

    def __init__(self, found: Any, shard_random: bool = False):
        self._found = found
        self._shard_random = shard_random
        self._eager: Any = None

    @property
    def graph(self) -> Graph:
        """The sharded graph: a copy of the given one, with mean losses split into sum and division."""
        return self._found.graph

    def dict(self) -> _Json:
        """Returns time, bounds, peak memory, layouts of parameters and inputs, redistributions, and manual plans."""
        return self._found.dict()

    def graph_layouts(self) -> _Json:
        """Returns the plan in the format of plan.json: layouts of the operands and results of every node."""
        return self._found.graph_layouts()

    def text(self, rows: int = 40) -> str:
        return self._found.text(rows)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        costs = self.dict()
        return _C.printable(f"<shadowgraph.Sharding of {costs['title']}: {_C.human_bytes(costs['peak'])} per device>")

    def layouts(self) -> _Strings:
        """Returns {name: layout} of parameters, buffers and inputs, with layouts such as "S(0),R"."""
        return {tensor["name"]: tensor["layout"] for tensor in self.dict()["tensors"]}

    def graph_of_rank(self, rank: int) -> Graph:
        """Returns the graph of one rank, with local sizes and `_c10d_functional` operators.

        Raises UnsupportedError for operators that cannot run sharded as planned.
        """
        return self._found.graph_of_rank(rank, self._shard_random)

    def _eager_plan(self) -> Any:
        if self._eager is None:
            self._eager = eager_plan(self.graph, self.graph_layouts(), self.dict().get("parallelism", ""))
        return self._eager

    @property
    def not_expressed(self) -> list[_Strings]:
        """Parts of the plan that `to_python` does not apply, or differently, as {"kind", "where", "what"}."""
        return list(self._eager_plan().not_expressed)

    def to_python(self, path: str | os.PathLike | None = None) -> str:
        """Returns Python code that shards the eager model using DTensor and fully_shard; it only depends on torch.

        Defines place(model, mesh), inputs(mesh, ...), make_mesh(device_type) and scope(); see docs/many-devices.md.
        Also writes the code to `path`, if given.
        """
        text = self._eager_plan().source(self.dict()["title"])
        if path is not None:
            _C.write_file(os.fspath(path), text)
        return text

    def module(self) -> types.ModuleType:
        """Executes the code of `to_python()` and returns it as a module."""
        module = types.ModuleType("shadowgraph_plan")
        exec(compile(self.to_python(), "<shadowgraph plan>", "exec"), module.__dict__)
        return module

    def apply(self, model: torch.nn.Module, mesh: Any, loss: str = "mean") -> torch.nn.Module:
        """Shards an eager model in place, with place() of `to_python`."""
        return self.module().place(model, mesh, loss)


def _text_of_solution(solution: _Solution | None) -> tuple[str, str]:
    """Returns (JSON, name for messages) of an external solution."""
    if solution is None:
        return "", "the solution"
    if isinstance(solution, str | os.PathLike):
        try:
            return pathlib.Path(solution).read_text(), os.fspath(solution)
        except OSError as error:
            raise _C.FileError(f"cannot read {os.fspath(solution)}: {error.strerror}") from None
    return json.dumps(solution if isinstance(solution, Mapping) else list(solution)), "the solution"


def shard(
    graph: Graph,
    mesh: str | Mapping[str, int],
    *,
    spec: str = "",
    interconnect: str = "",
    pins: Mapping[str, str] | None = None,
    solution: _Solution | None = None,
    **how: Any,
) -> Sharding:
    """Finds the layouts of all tensors of a graph on a device mesh that minimize the estimated step time.

        step = sg.capture_training_step(Net, "f32[64,256]", loss=torch.mean, optimizer=torch.optim.AdamW)
        sharding = sg.shard(step, {"dp": 2, "tp": 4}, spec="h100", memory=20 << 30, pins={"head.weight": "R,S(0)"})
        print(sharding)
        sharding.to_python("plan.py")                          # for the eager model, on real devices

    mesh: axis sizes by name, or a string such as "8x8" or "dp=2,tp=4".
    spec, interconnect: device and links, by name or file. Default to those of the graph's device.
    pins: fixed layouts, by name of a placeholder or node ("n329").
    solution: external solution to evaluate instead of solving: a plan as returned by plan(), a solution of the exported
      problem or its list of strategies, layouts by name, or a file with one of these.

    Raises InfeasibleError if no layout fits in memory; Error for invalid arguments.
    """
    if not isinstance(mesh, str):
        mesh = ",".join(f"{name}={size}" for name, size in mesh.items())
    found = _C.Sharding(graph, mesh, spec, interconnect, *_text_of_solution(solution), {"pin": pins, **how})
    return Sharding(found, how.get("shard_random") or False)


_keywords.list_options(shard, but=("pin",))
