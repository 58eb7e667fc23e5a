"""Exports the sharding of a graph to a Python file that applies it to the eager model, by module path.

A mesh axis that shards only the batch is a data axis, where fully_shard gathers sharded parameters and averages
gradients. On all other axes tensors are DTensors. Parameters, and inputs and outputs of modules with parameters, get
the planned layouts; DTensor chooses the layouts between modules.
"""

import math
import re
from collections import Counter
from typing import Any

import torch

from . import _shadowgraph as _C

_Layouts = dict[str, tuple[str, ...]]


class EagerPlan:
    """Tables of layouts by path for the eager model; `not_expressed` lists parts of the plan that are not applied."""

    def __init__(self, graph, plan, parallelism=""):
        self.mesh = {axis["name"]: axis["size"] for axis in plan["mesh"]}
        self._axes = list(self.mesh)
        self._operands, self._results = {}, {}
        for entry in plan["nodes"]:
            name = f"n{entry['node']}"
            self._operands[name] = [_placements(layout) for layout in entry["operands"]]
            self._results[name] = [_placements(layout) for layout in entry["results"]]
        self._whole = ("R",) * len(self._axes)
        self.not_expressed = []
        self._read(graph)
        self.data_axes = tuple(axis for i, axis in enumerate(self._axes) if self._is_data_axis(i, parallelism))
        self._tensor = [i for i, axis in enumerate(self._axes) if axis not in self.data_axes]
        if len(self._tensor) + min(len(self.data_axes), 2) > 4:
            self._miss("axes", "", "fully_shard supports at most two other axes; all axes use DTensor")
            self.data_axes, self._tensor = (), list(range(len(self._axes)))
        self._find_uses()
        self._find_boundaries()
        self._find_units()
        self._list_misses()
        for region in graph.regions:
            if region.kind == "checkpoint" and region.class_name == "recompute":
                self._miss("recompute", region.name, "recomputed in the plan; wrap it in torch.utils.checkpoint")

    def _read(self, graph):
        self.parameters: _Layouts = {}
        self.inputs: _Layouts = {}
        self._buffers: _Layouts = {}
        self._name_of = {}  # of parameters and their views, casts and transposes
        self._batch = set()  # values that depend on inputs
        self._nodes = []
        for node in graph:
            operands = [v for v in node.inputs if v.is_tensor]
            results = [v for v in node.outputs if v.is_tensor]
            if node.is_placeholder:
                layout = self._results.get(node.name, [None])[0]
                if layout is None or node.target == "sg::constant":
                    continue
                name = node.argument("name")
                if node.target == "sg::input" and all(user.phase != "forward" for user in results[0].users):
                    continue  # optimizer state
                into = {"sg::parameter": self.parameters, "sg::buffer": self._buffers}.get(node.target, self.inputs)
                into[name] = layout
                if node.target == "sg::parameter":
                    self._name_of[results[0]] = name
                elif node.target == "sg::input":
                    self._batch.add(results[0])
                continue
            if node.target.startswith("sg::") or node.phase != "forward":
                continue
            if operands and all(v in self._name_of for v in operands):
                names = {self._name_of[v] for v in operands}
                if len(names) == 1:
                    self._name_of.update(dict.fromkeys(results, names.pop()))
                    continue
            if any(v in self._batch for v in operands):
                self._batch.update(results)
            self._nodes.append((node, operands, results))
        # {path: nodes} of modules that own parameters, without the nodes of submodules.
        self._modules: dict[str, list[Any]] = {}
        owners = {name.rpartition(".")[0] for name in self.parameters} - {""}
        for entry in self._nodes:
            if entry[0].module in owners:
                self._modules.setdefault(entry[0].module, []).append(entry)

    def _is_data_axis(self, axis, parallelism):
        """Returns True if ranks along the axis run the same program on different parts of the batch.

        For a manual plan this follows from its kind.
        """
        cuts = [layout[axis] for layout in self.inputs.values()]
        if "S(0)" not in cuts or any(cut not in ("S(0)", "R") for cut in cuts) or self.mesh[self._axes[axis]] < 2:
            return False
        strays = [node for node, operands, _ in self._nodes if self._strays(node, operands, axis)]
        if axis < _DATA_AXES_BY_HAND.get(parallelism, lambda axes: 0)(len(self._axes)):
            for node in strays:
                self._miss("operator", node.module, f"{node.target}: sharded over the batch here, as by hand")
            return True
        names = {node.name for node in strays}
        if len(strays) * 10 > len(self._nodes) or any(
            user.name in names for node in strays for value in node.outputs for user in value.users
        ):
            return False
        paths = [path for path, nodes in self._modules.items() if any(n.name not in names for n, _, _ in nodes)]
        layouts = (layout for path in paths for layout in self._boundary(path) if layout is not None)
        if any(layout[axis] != "S(0)" for layout in layouts):
            return False
        for node in strays:
            for value in node.inputs:
                if value in self._name_of:
                    self._miss("parameter", self._name_of[value], "used sharded in the plan; fully_shard gathers it")
        return True

    def _strays(self, node, operands, axis):
        """Returns True if an operator uses a sharded parameter or an unsharded batch.

        A few may, such as an embedding lookup, if their results are sharded over the batch for all users.
        """
        for value, layout in zip(operands, self._operands[node.name]):
            if value in self._name_of and layout[axis] != "R":
                return True
            if value in self._batch and math.prod(value.shape) > 1 and not layout[axis].startswith("S"):
                return True
        return False

    def _boundary(self, path):
        """Returns the (input, output) layouts of a module; None unless there is exactly one such tensor."""
        nodes = self._modules[path]
        calls = {_call_of(node, path) for node, _, _ in nodes}
        if len(calls) > 1:
            return None, None
        inside = {value for _, _, results in nodes for value in results}
        taken: dict[Any, tuple[str, ...]] = {}
        given: dict[Any, tuple[str, ...]] = {}
        for node, operands, _ in nodes:
            for value, layout in zip(operands, self._operands[node.name]):
                if value not in inside and value not in self._name_of:
                    taken.setdefault(value, layout)
        for node, _, results in nodes:
            for value, layout in zip(results, self._results[node.name]):
                users = [user for user in value.users if user.phase == "forward" and user.name in self._operands]
                outside = [user for user in users if not any(user == other for other, _, _ in nodes)]
                if outside:
                    given[value] = self._given_as(value, layout, outside)
        return [next(iter(found.values())) if len(found) == 1 else None for found in (taken, given)]

    def _given_as(self, value, layout, users):
        """Returns the layout that the users expect if they agree, or if the value is a partial sum."""
        wanted = []
        for user in users:
            tensors = [v for v in user.inputs if v.is_tensor]
            wanted += [w for v, w in zip(tensors, self._operands[user.name]) if v == value]
        if len(set(wanted)) == 1 or (wanted and any(p.startswith("P") for p in layout)):
            return wanted[0]
        return layout

    def _find_boundaries(self):
        self.modules = {}
        if not self._tensor:
            return
        for path in self._modules:
            # Partial sums cannot be requested as input or output layouts.
            takes, gives = (layout and (None if self._is_partial(layout) else layout)
                            for layout in self._boundary(path))  # fmt: skip
            sides = [side for side, layout in (("input", takes), ("output", gives)) if not layout]
            if sides:
                self._miss("module", path, f"{' and '.join(sides)} layout is chosen by DTensor")
            if len(sides) < 2:
                self.modules[path] = (takes, gives)

    def _is_partial(self, layout):
        return any(layout[i].startswith("P") for i in self._tensor)

    def _find_uses(self):
        """Finds parameters that forward uses in another layout than they are stored in, on tensor axes."""
        self.uses: _Layouts = {}
        for node, operands, _ in self._nodes:
            for value, layout in zip(operands, self._operands[node.name]):
                name = self._name_of.get(value)
                if name is None or name in self.uses:
                    continue
                stored = self.parameters[name]
                layout = self._of_parameter(value, layout)
                if layout is None:
                    self._miss("parameter", name, "sharded through a view or computation; DTensor chooses the layout")
                    continue
                if any(layout[i] != stored[i] for i in self._tensor):
                    used = tuple(layout[i] if i in self._tensor else stored[i] for i in range(len(stored)))
                    if self._is_partial(used):
                        self._miss("parameter", name, "used as a partial sum")
                    else:
                        self.uses[name] = used
        for name in self.uses:
            self._miss("parameter", name, "gathered in forward and kept for backward; the plan gathers it twice")

    def _of_parameter(self, value, layout):
        """Returns the layout of the parameter that a value is a view or function of, for a layout of the value.

        Returns None if no layout of the parameter corresponds.
        """
        while not value.producer.is_placeholder:
            node = value.producer
            source = next(v for v in node.inputs if v.is_tensor)
            planned = dict(zip((v for v in node.outputs if v.is_tensor), self._results.get(node.name, ()))).get(value)
            if planned is not None and all(planned[i] == layout[i] for i in self._tensor):
                layout = self._operands[node.name][0]
            else:
                dims = _dims_of_source(node, source, value)
                layout = tuple(p if i not in self._tensor else _moved(p, dims, source.shape, self.mesh[axis])
                               for i, (axis, p) in enumerate(zip(self._axes, layout)))  # fmt: skip
                if None in layout:
                    return None
            value = source
        return layout

    def _find_units(self):
        """Finds the outermost numbered modules, the units of fully_shard."""
        self.units: list[str] = []
        if not self.data_axes:
            return
        for name in self.parameters:
            found = re.match(r"((?:[^.]+\.)*?\d+)\.", name)
            if found and found[1] not in self.units:
                self.units.append(found[1])
        data = [self._axes.index(axis) for axis in self.data_axes]
        cuts_of: dict[str, Counter[tuple[int, ...]]] = {}
        for name, layout in self.parameters.items():
            cut = tuple(i for i in data if layout[i] != "R")
            if not cut:
                continue
            dims = {layout[i] for i in cut}
            if len(dims) > 1:
                self._miss("parameter", name, f"layout {','.join(layout)}: fully_shard shards one dimension")
            if any("," in layout[i] for i in cut):
                self._miss("parameter", name, f"layout {','.join(layout)}: fully_shard shards contiguously")
            unit = next((unit for unit in self.units if name.startswith(unit + ".")), "")
            cuts_of.setdefault(_starred(unit), Counter())[cut] += 1
            if any(layout[i].startswith(f"S({dim}") for i in self._tensor for dim in [layout[cut[0]][2:-1]]):
                self._miss(
                    "parameter", name, "one dimension is sharded over data and other axes: order of rows differs"
                )
        for unit, cuts in cuts_of.items():
            if len(cuts) > 1:
                self._miss("unit", unit, "sharded over different data axes: fully_shard uses the most common one")
            for cut in cuts:
                rest = [i for i in data if i not in cut]
                if len(rest) > 1 or (rest and (len(cut) > 1 or rest[0] > cut[0])):
                    self._miss("unit", unit, "sharded over some data axes: fully_shard uses all of them")

    def _list_misses(self):
        for name, layout in self._buffers.items():
            if layout != self._whole and name:
                self._miss("buffer", name, f"layout {','.join(layout)} in the plan, replicated here")
        if not self._tensor:
            return
        for node, _, _ in self._nodes:
            if node.module in self.modules:
                continue
            layouts = self._operands[node.name] + self._results[node.name]
            if any(layout[i] != "R" for layout in layouts for i in self._tensor):
                self._miss("operator", node.module, f"{node.target}: DTensor chooses the layouts")
        self._miss("backward", "", "DTensor chooses the layouts; gradients of parameters are laid out like parameters")

    def _miss(self, kind, where, what):
        entry = next((each for each in self.not_expressed if (each["kind"], each["what"]) == (kind, what)), None)
        if entry is None:
            self.not_expressed.append(entry := {"kind": kind, "what": what, "where": []})
        if where and _starred(where) not in entry["where"]:
            entry["where"].append(_starred(where))

    def source(self, title):
        """Returns the file: the tables of this plan, then the runtime that all such files share."""
        lines = [f"MESH = {self.mesh!r}",
                 "# Axes that only shard the batch: fully_shard. All other axes: DTensors.",
                 f"DATA_AXES = {self.data_axes!r}",
                 "# Layout of each parameter per mesh axis; * matches any number.",
                 *_table("PARAMETERS", _folded(self.parameters)),
                 "# Layouts in forward, where they differ.", *_table("USES", _folded(self.uses)),
                 *_table("INPUTS", self.inputs),
                 "# (input layout, output layout) of modules, on tensor axes.",
                 *_table("MODULES", _folded(self.modules)),
                 "# Units of fully_shard; the rest of the model is the last unit.",
                 f"UNITS = {tuple(dict.fromkeys(map(_starred, self.units)))!r}",
                 "# Parts of the plan that are not applied, or differently: (kind, what, where).",
                 "NOT_EXPRESSED = (",
                 *(f"    {(miss['kind'], miss['what'], tuple(miss['where']))!r}," for miss in self.not_expressed),
                 ")", ""]  # fmt: skip
        about = f"{title}, applied to the eager model. Generated by `shadowgraph shard`."
        return _C._layouts_script(about, "\n".join(lines))


# Number of leading axes that only shard the batch.
_DATA_AXES_BY_HAND = {
    "data parallel": lambda axes: axes,
    "fully sharded": lambda axes: axes,
    "data + tensor parallel": lambda axes: axes - 1,
    "fully sharded + tensor parallel": lambda axes: axes - 1,
}


def _placements(layout):
    """Parses "S(0),R" into ("S(0)", "R")."""
    return tuple(re.findall(r"R|[SP]\([^)]*\)", layout))


def _dims_of_source(node, source, value):
    """Returns {dimension of a view: (dimension of its source, ranges)}.

    With one range, equal chunks of a dimension are equal chunks of the source's. With more, they are chunks of each of
    that many ranges of the source's dimension, as of the last dimension of `w.unflatten(0, (ranges, -1))`. Dimensions
    of a function of a tensor are its own if it is elementwise.
    """
    if value.storage != source.storage:
        return {d: (d, 1) for d in range(len(value.shape))} if _is_elementwise(node, source, value) else {}
    if value.elements != source.elements and not any(stride == 0 for stride in value.stride):
        return {}  # a slice
    dims = {}
    for d, (size, stride) in enumerate(zip(value.shape, value.stride)):
        for e, (whole, step) in enumerate(zip(source.shape, source.stride)):
            if size == 1 or whole == 1 or stride == 0:
                continue
            if stride * size == step * whole:  # the dimension, its outer part, or several; `e` is the outermost
                dims[d] = (e, 1)
            elif stride == step and size < whole and whole % size == 0:  # the inner part
                dims[d] = (e, whole // size)
    return dims


def _is_elementwise(node, source, value):
    if value.shape != source.shape:
        return False
    name, _, overload = node.target.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
    copies = ("_to_copy", "clone", "contiguous", "detach")
    return name in copies or torch.Tag.pointwise in getattr(operator, "tags", ())


def _moved(placement, dims, shape, ranks):
    """Returns the placement of a source, given that of its view; None if there is none."""
    found = re.fullmatch(r"S\((\d+)(?:,(\d+))?\)", placement)
    if found is None:
        return placement
    dim, ranges = dims.get(int(found[1]), (None, 1))
    if dim is None or (found[2] and ranges > 1) or shape[dim] % ranks:
        return None
    ranges = ranges if ranges > 1 else int(found[2] or 1)
    return f"S({dim},{ranges})" if ranges > 1 else f"S({dim})"


def _call_of(node, path):
    region = node.region
    while region is not None and (region.kind, region.name) != ("module", path):
        region = region.parent
    return region and region.call


def _starred(path):
    return ".".join("*" if word.isdigit() else word for word in path.split("."))


def _folded(table):
    """Merges rows whose paths differ only in numbers if their values are equal."""
    alike: dict[str, dict[str, Any]] = {}
    for name, row in table.items():
        alike.setdefault(_starred(name), {})[name] = row
    folded: dict[str, Any] = {}
    for star, rows in alike.items():
        folded.update({star: next(iter(rows.values()))} if len(set(rows.values())) == 1 else rows)
    return folded


def _table(name, rows):
    if not rows:
        return [f"{name} = {{}}"]
    return [f"{name} = {{", *(f"    {key!r}: {row!r}," for key, row in rows.items()), "}"]


def eager_plan(graph, plan, parallelism=""):
    try:
        return EagerPlan(graph, plan, parallelism)
    except KeyError as error:
        raise _C.Error(f"the plan has no layouts for {error}; it was made for another graph") from None
