"""Programs of many devices, all ranks of them: which do the same, and what each kind holds and takes."""

import collections
import html
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from . import _models, _pipelines, _schedules, _wrappers
from . import _shadowgraph as _C
from ._distributed import as_rank, in_world
from ._fake import fake
from ._shadowgraph import Graph

__all__ = ["Ranks", "Role", "of_ranks"]


class Role(NamedTuple):
    """Ranks that do the same: `rank` was captured for all of them."""

    name: Any
    rank: int
    ranks: list[int]
    report: Any

    @property
    def graph(self) -> Graph:
        return self.report.graph

    @property
    def seconds(self) -> float | None:
        """What a step of such a rank takes by itself: it waits for no other rank."""
        found: float | None = self.report.dict().get("time", {}).get("seconds")
        return found


class Ranks:
    """What the ranks of a program hold and take, by `sg.profile(..., ranks="all")`; prints as a table.

    size: how many ranks there are. roles: a `Role` for each kind of rank. graphs, reports: by the role's name.
    """

    def __init__(self, size: int, roles: list[Role]):
        self.size, self.roles = size, roles
        self.graphs = {role.name: role.graph for role in roles}
        self.reports = {role.name: role.report for role in roles}
        self._role_of = {rank: role.name for role in roles for rank in role.ranks}

    def role_of(self, rank: int) -> Any:
        """The name of the role of a rank. Raises Error for one that was not asked for."""
        if rank not in self._role_of:
            raise _C.Error(f"rank {rank} of {self.size} is in no role")
        return self._role_of[rank]

    @property
    def worst(self) -> Role:
        """The role with the largest peak."""
        return max(self.roles, key=lambda role: role.report.peak_bytes)

    @property
    def why(self) -> str:
        """What the worst role holds at its peak beyond the role that holds least."""
        worst, least = self.worst, min(self.roles, key=lambda role: role.report.peak_bytes)
        excess = worst.report.peak_bytes - least.report.peak_bytes
        if excess == 0:
            return f"every role peaks at {_C.human_bytes(worst.report.peak_bytes)}"
        at, there = (role.report.dict()["peak"] for role in (worst, least))
        more = {kind: count - there["by_kind"].get(kind, 0) for kind, count in at["by_kind"].items()}
        parts = [f"{kind.replace('_', ' ')} {_C.human_bytes(count)} more"
                 for kind, count in collections.Counter(more).most_common(2) if count > 0]  # fmt: skip
        return (f"{worst.name} peaks in {at['phase']}, {_C.human_bytes(excess)} above {least.name}: "
                + ", ".join(parts))  # fmt: skip

    def run(self, spec: str = "", interconnect: str = "") -> _C.RanksRun:
        """The ranks against each other: what each waits for, and how long the step takes.

            run = ranks.run(spec="h100")
            print(run)                         # by rank: seconds of computing, and of waiting by cause
            run.seconds, run.dict(), run.chrome_trace()

        Raises Error where ranks wait for ever, do not meet, or communicate with one that is in no role.
        """
        graphs = [role.graph for role in self.roles]
        return _C.RanksRun(graphs, [role.ranks for role in self.roles], spec, interconnect)

    def dict(self) -> list[dict[str, Any]]:
        """The rows of the table as dicts, as pandas.DataFrame takes them."""
        return [{"role": role.name, "rank": role.rank, "ranks": len(role.ranks),
                 "parameters": role.report.dict()["parameters"], "peak_bytes": role.report.peak_bytes,
                 "seconds": role.seconds} for role in self.roles]  # fmt: skip

    def __str__(self) -> str:
        width = max([4, *(len(str(role.name)) for role in self.roles)])
        lines = [f"{'ROLE':<{width}} {'RANK':>6} {'RANKS':>6} {'PARAMETERS':>12} {'PEAK':>12} {'SECONDS':>10}"]
        for row in self.dict():
            seconds = "-" if row["seconds"] is None else f"{row['seconds']:.4g}"
            mark = "  worst" if row["role"] == self.worst.name and len(self.roles) > 1 else ""
            lines.append(f"{row['role']!s:<{width}} {row['rank']:>6} {row['ranks']:>6} "
                         f"{_C.human_count(row['parameters']):>12} {_C.human_bytes(row['peak_bytes']):>12} "
                         f"{seconds:>10}{mark}")  # fmt: skip
        return "\n".join([*lines, self.why])

    def __repr__(self) -> str:
        return f"<shadowgraph.Ranks: {self.size} ranks in {len(self.roles)} roles>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


# ---- Which ranks do the same -----------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    stride: int
    size: int


def _axes(size: int) -> list[_Axis] | None:
    """The mesh that this rank's groups make, outermost axis first; None if they do not make one."""
    import torch.distributed.distributed_c10d as c10d

    groups = set()
    for members in c10d._pg_group_ranks.values():
        ranks = sorted(members)
        if len(ranks) > 1 and ranks[0] == 0 and ranks == list(range(0, len(ranks) * ranks[1], ranks[1])):
            groups.add(_Axis(ranks[1], len(ranks)))
    axes: list[_Axis] = []
    stride = 1
    while stride < size:
        here = [axis.size for axis in groups if axis.stride == stride]
        if not here:
            return None
        axes.append(_Axis(stride, min(here)))
        stride *= min(here)
    return axes[::-1] if stride == size else None


class _Making:
    """The program's function, run as one rank after the other, and what it makes there."""

    def __init__(self, make: Callable[[], Any], device: Any, dtype: torch.dtype | None):
        self._make, self._device, self._dtype = make, device, dtype
        self._signatures: dict[int, tuple] = {}

    def model(self, rank: int) -> torch.nn.Module:
        with as_rank(rank):
            made = _models.made(self._make, self._device, self._dtype)
        self._signatures[rank] = _signature(made)
        return made

    def signature(self, rank: int) -> tuple:
        if rank not in self._signatures:
            self.model(rank)
        return self._signatures[rank]


def _signature(model: torch.nn.Module) -> tuple:
    """Names, local sizes and dtypes of all that a model holds."""
    named = (*model.named_parameters(), *model.named_buffers())
    return tuple((name + suffix, tuple(part.shape), part.dtype, part.requires_grad)
                 for name, tensor in named for suffix, part in _wrappers.inner(tensor))  # fmt: skip


def _runs(making: _Making, rank: int, axis: _Axis) -> list[range]:
    """Stretches of an axis, seen from `rank` at its beginning, whose ranks make the same."""

    def same(a: int, b: int) -> bool:
        return making.signature(rank + a * axis.stride) == making.signature(rank + b * axis.stride)

    ends = []  # the last of each stretch
    waiting = [(0, axis.size - 1)]
    while waiting:
        first, last = waiting.pop()
        if same(first, last):
            continue
        if last - first == 1:
            ends.append(first)
            continue
        middle = (first + last) // 2
        waiting += [(first, middle), (middle, last)]
    cuts = [0, *(end + 1 for end in sorted(ends)), axis.size]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


def _roles(making: _Making, axes: list[_Axis]) -> list[list[int]]:
    """Ranks of each role, the first of which stands for all."""
    # The position of an axis is decided after those of the axes outside it.
    roles = [[0]]
    for axis in axes:
        roles = [[rank + place * axis.stride for place in run for rank in role]
                 for role in roles for run in _runs(making, role[0], axis)]  # fmt: skip
    return [sorted(role) for role in roles]


def _names(making: _Making, roles: list[list[int]], is_pipeline: bool) -> list[str]:
    """By the stages of a role's ranks, and by its first rank where that is not enough."""
    if len(roles) == 1:
        return ["all"]
    stages = [_stages(making.signature(role[0])) if is_pipeline else "" for role in roles]
    again = collections.Counter(stages)
    return [name if name and again[name] == 1 else f"{name} like rank {role[0]}".strip()
            for name, role in zip(stages, roles)]  # fmt: skip


def _stages(signature: tuple) -> str:
    numbers = sorted({int(name.split(".")[0].removeprefix("stage")) for name, *_ in signature})
    return f"stage{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else ""


def _stated(roles: Any, size: int) -> dict[Any, list[int]]:
    """Ranks by the role that the user gives each."""
    found: dict[Any, list[int]] = {}
    if isinstance(roles, Mapping):
        found = {name: sorted(ranks) for name, ranks in roles.items()}
    elif callable(roles):
        for rank in range(size):
            found.setdefault(roles(rank), []).append(rank)
    else:
        raise _C.Error(f"roles is {type(roles).__name__}: give a function from a rank to its role's name, or a dict "
                       "from names to ranks")  # fmt: skip
    given = collections.Counter(rank for ranks in found.values() for rank in ranks)
    if sorted(given.elements()) != list(range(size)):
        wrong = [rank for rank in {*given, *range(size)} if given[rank] != 1 or not 0 <= rank < size]
        raise _C.Error(f"roles must have each of the {size} ranks once; look at {sorted(wrong)[:8]}")
    return found


def _found(making: _Making, first: torch.nn.Module, axes: list[_Axis] | None, size: int) -> dict[Any, list[int]]:
    if axes is None:
        if isinstance(first, _schedules.PipelineRank):
            raise _C.Error("the groups of rank 0 are no axes of one mesh, so roles cannot be found: say which ranks do "
                           "the same, roles=lambda rank: ...")  # fmt: skip
        axes = [_Axis(1, size)] if size > 1 else []
    found = _roles(making, axes)
    return dict(zip(_names(making, found, isinstance(first, _schedules.PipelineRank)), found))


def _calls_of(graph: Graph) -> collections.Counter[tuple]:
    """What must be equal in graphs of one role: operators and their results.

    Numbers of ranks differ, and so does the order where torch goes through sets: weight gradients of zero bubbles.
    """

    def values(found: Iterable) -> tuple:
        return tuple(values(value) if isinstance(value, list) else (value.shape, value.dtype, value.device)
                     if value is not None and value.is_tensor else None for value in found)  # fmt: skip

    return collections.Counter((node.target, node.phase, values(node.results)) for node in graph)


def _check_last(name: Any, ranks: list[int], graph: Graph, of_rank: Callable[[int], Any]) -> None:
    mine, last = _calls_of(graph), _calls_of(of_rank(ranks[-1]).graph)
    if mine != last:
        excess = {ranks[0]: mine - last, ranks[-1]: last - mine}
        who, (target, phase, _) = next((rank, call) for rank, calls in excess.items() for call in calls)
        raise _C.Error(
            f"rank {ranks[-1]} makes the same model as rank {ranks[0]}, so both are in the role '{name}', but they do "
            f"not do the same: rank {who} alone has such a {target} in {phase}. Say which ranks do the same, "
            "roles=lambda rank: ..."
        )


# ---- All of them -----------------------------------------------------------------------------------------------------


def of_ranks(make: Any, of_rank: Callable[[], Any], ranks: Any, *, world: int | None, roles: Any, inputs: Any,
             target: Any, device: Any, dtype: torch.dtype | None, train: bool, options: dict) -> Ranks:  # fmt: skip
    """A report for each role, of which of_rank() makes one as the rank that it runs as."""
    if isinstance(make, torch.nn.Module) or not callable(make):
        raise _C.Error(f"ranks= takes a function that makes what a rank runs, and got {type(make).__name__}")
    if ranks != "all" and roles is not None:
        raise _C.Error("roles= is of ranks='all'")

    def profiled(rank: int) -> Any:
        with as_rank(rank):
            return of_rank()

    with in_world(world) as size:
        making = _Making(make, device, dtype)
        with fake(device, **options):
            with as_rank(0):
                first = _models.made(make, device, dtype)
                axes = _axes(size)
            if ranks != "all":
                by_role = {f"rank {rank}": [rank] for rank in ranks}
            else:
                by_role = _found(making, first, axes, size) if roles is None else _stated(roles, size)
        with _pipelines.known_to_all(make, first, inputs, target, device, dtype, train, options):
            found: list[Role] = []
            for name, members in by_role.items():
                report = profiled(members[0])
                if not found and roles is None and len(members) > 1:
                    _check_last(name, members, report.graph, profiled)
                found.append(Role(name, members[0], members, report))
    return Ranks(size, found)
