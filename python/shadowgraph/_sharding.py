"""Layouts for all tensors of a step on many devices, and what they are good for from Python."""

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

__all__ = ["Sharding", "shard"]

_Json = dict[str, Any]  # inside the class, dict is a method
_Strings = dict[str, str]
_Answer = str | os.PathLike | Mapping[str, Any] | Iterable[int]


class Sharding:
    """A plan for a graph. Made by `shadowgraph.shard`; prints what the tool prints."""

    def __init__(self, found: Any, cut_random: bool = False):
        self._found = found
        self._cut_random = cut_random
        self._eager: Any = None

    @property
    def graph(self) -> Graph:
        """What the plan is of: a copy of what was given, whose losses that are means are split."""
        return self._found.graph

    def dict(self) -> _Json:
        """Seconds, bounds, peak, layouts of parameters and inputs, redistributions, plans by hand."""
        return self._found.dict()

    def plan(self) -> _Json:
        """The plan as plan.json has it: layouts of every node's operands and results."""
        return self._found.plan()

    def text(self, rows: int = 40) -> str:
        return self._found.text(rows)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        figures = self.dict()
        return f"<shadowgraph.Sharding of {figures['title']}: {_C.human_bytes(figures['peak'])} a device>"

    def layouts(self) -> _Strings:
        """ "S(0),R" by name of parameter, buffer or input."""
        return {tensor["name"]: tensor["layout"] for tensor in self.dict()["tensors"]}

    def graph_of_rank(self, rank: int) -> Graph:
        """The graph that one device runs: local sizes, `_c10d_functional` operators. Raises UnsupportedError."""
        return self._found.graph_of_rank(rank, self._cut_random)

    def _told(self) -> Any:
        if self._eager is None:
            self._eager = eager_plan(self.graph, self.plan(), self.dict().get("by_hand", ""))
        return self._eager

    @property
    def not_expressed(self) -> list[_Strings]:
        """What `to_python` cannot say, or says otherwise, as {"kind", "where", "what"}."""
        return list(self._told().not_expressed)

    def to_python(self, path: str | os.PathLike | None = None) -> str:
        """The plan as a file that lays the eager model out by DTensor and fully_shard, and needs torch alone.

        place(model, mesh), inputs(mesh, ...), make_mesh(device_type), scope(); docs/many-devices.md. Also written to
        `path`, if one is given.
        """
        title = self.dict()["title"]
        text = self._told().source(title)
        if path is not None:
            write_text(path, text)
        return text

    def module(self) -> types.ModuleType:
        """`to_python()`, run: its functions."""
        module = types.ModuleType("shadowgraph_plan")
        exec(compile(self.to_python(), "<shadowgraph plan>", "exec"), module.__dict__)
        return module

    def apply(self, model: torch.nn.Module, mesh: Any, loss: str = "mean") -> torch.nn.Module:
        """Lays an eager model out, in place: place() of the file that `to_python` gives."""
        return self.module().place(model, mesh, loss)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Aside, then renamed: nobody finds half a file."""
    path = pathlib.Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise _C.FileError(f"cannot write {path}: {error.strerror}") from None


def _text_of_answer(answer: _Answer | None) -> tuple[str, str]:
    """(JSON, what messages call it) of an answer from elsewhere."""
    if answer is None:
        return "", "the answer"
    if isinstance(answer, str | os.PathLike):
        try:
            return pathlib.Path(answer).read_text(), os.fspath(answer)
        except OSError as error:
            raise _C.FileError(f"cannot read {os.fspath(answer)}: {error.strerror}") from None
    return json.dumps(answer if isinstance(answer, Mapping) else list(answer)), "the answer"


def shard(graph: Graph, mesh: str | Mapping[str, int], *, spec: str = "", interconnect: str = "",
          pins: Mapping[str, str] | None = None, answer: _Answer | None = None, **how: Any) -> Sharding:
    """How the tensors of a graph are best laid out over the devices of a mesh, by the time model's seconds.

        step = sg.capture_training_step(Net, "f32[64,256]", loss=torch.mean, optimizer=torch.optim.AdamW)
        sharding = sg.shard(step, {"dp": 2, "tp": 4}, spec="h100", memory=20 << 30, pins={"head.weight": "R,S(0)"})
        print(sharding)
        sharding.to_python("plan.py")                          # for the eager model, on real devices

    mesh: sizes by name, or a text as the tool takes it: "8x8", "dp=2,tp=4".
    spec, interconnect: a device and its links by name or file; by default those of the graph's device.
    pins: layouts that are given, of placeholders by name or of "n329".
    answer: one from elsewhere, which is measured. It is a plan as plan() gives it, a solution of the exported
    problem, or its list of strategies. Or layouts by name, or a file with one of these.

    Raises NoPlanError where nothing fits; Error for what cannot be.
    """
    if not isinstance(mesh, str):
        mesh = ",".join(f"{name}={size}" for name, size in mesh.items())
    found = _C.Sharding(graph, mesh, spec, interconnect, *_text_of_answer(answer), {"pin": pins, **how})
    return Sharding(found, how.get("cut_random") or False)


_keywords.list_options(shard, but=("pin",))
