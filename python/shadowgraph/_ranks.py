"""Profiles every rank of a distributed program: groups identical ranks into roles and reports costs per role."""

import collections
import functools
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


class Role(NamedTuple):
    """Ranks that run the same program. `rank` was captured on behalf of all of them."""

    name: Any
    rank: int
    ranks: list[int]
    profile: Any

    @property
    def graph(self) -> Graph:
        return self.profile.graph

    @property
    def seconds(self) -> float | None:
        """Estimated time of a step in seconds, without waiting for other ranks."""
        seconds: float | None = self.profile.dict().get("time", {}).get("seconds")
        return seconds


class RankProfiles:
    """Memory and time of all ranks, returned by `sg.profile(..., ranks="all")`; prints as a table.

    size: number of ranks. roles: list of `Role`. graphs, profiles: by name of role.
    """

    def __init__(self, size: int, roles: list[Role]):
        self.size, self.roles = size, roles
        self.graphs = {role.name: role.graph for role in roles}
        self.profiles = {role.name: role.profile for role in roles}
        self._role_of = {rank: role.name for role in roles for rank in role.ranks}

    def role_of(self, rank: int) -> Any:
        """Returns the name of the role of a rank. Raises Error for a rank that was not profiled."""
        if rank not in self._role_of:
            raise _C.Error(f"rank {rank} of {self.size} was not profiled; pass ranks='all'")
        return self._role_of[rank]

    @property
    def worst(self) -> Role:
        """Role with the highest peak memory."""
        return max(self.roles, key=lambda role: role.profile.peak_bytes)

    @property
    def why(self) -> str:
        """Explains the difference between the highest and the lowest peak memory of the roles."""
        worst, least = self.worst, min(self.roles, key=lambda role: role.profile.peak_bytes)
        excess = worst.profile.peak_bytes - least.profile.peak_bytes
        if excess == 0:
            return f"every role peaks at {_C.human_bytes(worst.profile.peak_bytes)}"
        high, low = (role.profile.dict()["peak"] for role in (worst, least))
        more = {kind: count - low["by_kind"].get(kind, 0) for kind, count in high["by_kind"].items()}
        parts = [f"{kind.replace('_', ' ')} {_C.human_bytes(count)} more"
                 for kind, count in collections.Counter(more).most_common(2) if count > 0]  # fmt: skip
        return (f"{worst.name} peaks in {high['phase']}, {_C.human_bytes(excess)} above {least.name}: "
                + ", ".join(parts))  # fmt: skip

    def run(self, spec: str = "", interconnect: str = "") -> _C.DistributedRun:
        """Simulates a step of all ranks with their communication.

            run = ranks.run(spec="h100")
            print(run)                         # per rank: compute time, and waiting time by cause
            run.seconds, run.dict(), run.chrome_trace()

        Raises Error for deadlocks, mismatched collectives, and communication with a rank that was not profiled.
        """
        graphs = [role.graph for role in self.roles]
        return _C.DistributedRun(graphs, [role.ranks for role in self.roles], spec, interconnect)

    def dict(self) -> list[dict[str, Any]]:
        """Returns the rows of the table as dicts, as accepted by pandas.DataFrame."""
        return [{"role": role.name, "rank": role.rank, "ranks": len(role.ranks),
                 "parameters": role.profile.dict()["parameters"], "peak_bytes": role.profile.peak_bytes,
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
        return f"<shadowgraph.RankProfiles: {self.size} ranks in {len(self.roles)} roles>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class _Axis(NamedTuple):
    stride: int
    size: int


def _axes(size: int) -> list[_Axis] | None:
    """Returns the mesh axes implied by the process groups of rank 0, outermost first; None if they are not a mesh."""
    import torch.distributed.distributed_c10d as c10d

    groups = set()
    for members in c10d._pg_group_ranks.values():
        ranks = sorted(members)
        if len(ranks) > 1 and ranks[0] == 0 and ranks == list(range(0, len(ranks) * ranks[1], ranks[1])):
            groups.add(_Axis(ranks[1], len(ranks)))
    axes: list[_Axis] = []
    stride = 1
    while stride < size:
        sizes = [axis.size for axis in groups if axis.stride == stride]
        if not sizes:
            return None
        axes.append(_Axis(stride, min(sizes)))
        stride *= min(sizes)
    return axes[::-1] if stride == size else None


_SignatureOfRank = Callable[[int], tuple]


def _signatures(make: Callable[[], Any], device: Any, dtype: torch.dtype | None) -> _SignatureOfRank:
    """Returns a function from a rank to the signature of its model, which it creates once."""

    @functools.cache
    def signature(rank: int) -> tuple:
        with as_rank(rank):
            return _signature(_models.create(make, device, dtype))

    return signature


def _signature(model: torch.nn.Module) -> tuple:
    """Returns names, local sizes, dtypes and requires_grad of parameters and buffers."""
    named = (*model.named_parameters(), *model.named_buffers())
    return tuple((name + suffix, tuple(part.shape), part.dtype, part.requires_grad)
                 for name, tensor in named for suffix, part in _wrappers.inner(tensor))  # fmt: skip


def _runs(signature: _SignatureOfRank, rank: int, axis: _Axis) -> list[range]:
    """Returns the ranges of positions on an axis, starting at `rank`, whose models are equal. Bisects the axis."""

    def same(a: int, b: int) -> bool:
        return signature(rank + a * axis.stride) == signature(rank + b * axis.stride)

    ends = []  # last position of each range
    pending = [(0, axis.size - 1)]
    while pending:
        first, last = pending.pop()
        if same(first, last):
            continue
        if last - first == 1:
            ends.append(first)
            continue
        middle = (first + last) // 2
        pending += [(first, middle), (middle, last)]
    cuts = [0, *(end + 1 for end in sorted(ends)), axis.size]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


def _roles(signature: _SignatureOfRank, axes: list[_Axis]) -> list[list[int]]:
    """Returns the ranks of each role; the first one represents the role."""
    roles = [[0]]
    for axis in axes:
        roles = [[rank + place * axis.stride for place in run for rank in role]
                 for role in roles for run in _runs(signature, role[0], axis)]  # fmt: skip
    return [sorted(role) for role in roles]


def _names(signature: _SignatureOfRank, roles: list[list[int]], is_pipeline: bool) -> list[str]:
    """Names roles after their pipeline stages, and their first rank if that is ambiguous."""
    if len(roles) == 1:
        return ["all"]
    stages = [_stages(signature(role[0])) if is_pipeline else "" for role in roles]
    counts = collections.Counter(stages)
    return [name if name and counts[name] == 1 else f"{name} like rank {role[0]}".strip()
            for name, role in zip(stages, roles)]  # fmt: skip


def _stages(signature: tuple) -> str:
    numbers = sorted({int(name.split(".")[0].removeprefix("stage")) for name, *_ in signature})
    return f"stage{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else ""


def _given_roles(roles: Any, size: int) -> dict[Any, list[int]]:
    """Returns {role: ranks} from the user's `roles` argument."""
    found: dict[Any, list[int]] = {}
    if isinstance(roles, Mapping):
        found = {name: sorted(ranks) for name, ranks in roles.items()}
    elif callable(roles):
        for rank in range(size):
            found.setdefault(roles(rank), []).append(rank)
    else:
        raise _C.Error("roles= must be a function from a rank to the name of its role, or a dict from names to ranks, "
                       f"not {type(roles).__name__}")  # fmt: skip
    given = collections.Counter(rank for ranks in found.values() for rank in ranks)
    if sorted(given.elements()) != list(range(size)):
        wrong = [rank for rank in {*given, *range(size)} if given[rank] != 1 or not 0 <= rank < size]
        raise _C.Error(f"roles= must contain each of the {size} ranks once; check {sorted(wrong)[:8]}")
    return found


def _found_roles(
    signature: _SignatureOfRank, first: torch.nn.Module, axes: list[_Axis] | None, size: int
) -> dict[Any, list[int]]:
    if axes is None:
        if isinstance(first, _schedules.PipelineRank):
            raise _C.Error("cannot find roles, because the process groups of rank 0 are not the axes of one mesh; pass "
                           "roles=lambda rank: ... to group identical ranks")  # fmt: skip
        axes = [_Axis(1, size)] if size > 1 else []
    found = _roles(signature, axes)
    return dict(zip(_names(signature, found, isinstance(first, _schedules.PipelineRank)), found))


def _calls_of(graph: Graph) -> collections.Counter[tuple]:
    """Returns the operators with their results, which must be equal for all ranks of a role.

    Excludes rank numbers, and the order, which depends on set iteration in torch for zero-bubble weight gradients.
    """

    def values(found: Iterable) -> tuple:
        return tuple(values(value) if isinstance(value, list) else (value.shape, value.dtype, value.device)
                     if value is not None and value.is_tensor else None for value in found)  # fmt: skip

    return collections.Counter((node.target, node.phase, values(node.results)) for node in graph)


def _check_last(name: Any, ranks: list[int], graph: Graph, of_rank: Callable[[int], Any]) -> None:
    mine, last = _calls_of(graph), _calls_of(of_rank(ranks[-1]).graph)
    if mine != last:
        excess = {ranks[0]: mine - last, ranks[-1]: last - mine}
        rank, (target, phase, _) = next((rank, call) for rank, calls in excess.items() for call in calls)
        raise _C.Error(
            f"ranks {ranks[0]} and {ranks[-1]} create the same model, so both are in the role '{name}', but their "
            f"programs differ: only rank {rank} has this {target} in {phase}. Pass roles=lambda rank: ... to group "
            "identical ranks"
        )


def of_ranks(make: Any, of_rank: Callable[[], Any], ranks: Any, *, world: int | None, roles: Any, inputs: Any,
             target: Any, device: Any, dtype: torch.dtype | None, train: bool, options: dict
             ) -> RankProfiles:  # fmt: skip
    """Returns a report per role; of_rank() profiles the current rank."""
    if isinstance(make, torch.nn.Module) or not callable(make):
        raise _C.Error(f"ranks= requires a function that returns the model of a rank, got {type(make).__name__}")
    if ranks != "all" and roles is not None:
        raise _C.Error("roles= requires ranks='all'")

    def profiled(rank: int) -> Any:
        with as_rank(rank):
            return of_rank()

    with in_world(world) as size:
        signature = _signatures(make, device, dtype)
        with fake(device, **options):
            with as_rank(0):
                first = _models.create(make, device, dtype)
                axes = _axes(size)
            if ranks != "all":
                by_role = {f"rank {rank}": [rank] for rank in ranks}
            else:
                by_role = _found_roles(signature, first, axes, size) if roles is None else _given_roles(roles, size)
        with _pipelines.shared_shapes(make, first, inputs, target, device, dtype, train, options):
            found: list[Role] = []
            for name, members in by_role.items():
                report = profiled(members[0])
                if not found and roles is None and len(members) > 1:
                    _check_last(name, members, report.graph, profiled)
                found.append(Role(name, members[0], members, report))
    return RankProfiles(size, found)
