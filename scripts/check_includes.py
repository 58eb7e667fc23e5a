#!/usr/bin/env python3
"""Holds the include directions: support <- ir <- core <- passes <- codegen <- kernels <- profiler <- sharding <-
operators <- parallel <- viz <- cli and python; models beside them.

    scripts/check_includes.py [ROOT]     prints every violation as file:line and fails if there is one
    scripts/check_includes.py --test     proves that it fails on a tree with each kind of violation

The rules: a layer includes itself and what is below it. models/ is included by cli/, tests/, bench/ and examples/ only;
tests/ is included by nobody else. Inside core/ the rooms stand one upon the other (ROOMS); in no layer do rooms include
one another in a circle. Public headers of graphs, profiles, layouts and pictures do not bring ATen or torch along, but
for those that speak libtorch (SPEAK_LIBTORCH). The layers from passes/ on reach core by one face (FACE_OF_CORE).

A public header (include/shadowgraph) belongs to a layer too (PUBLIC). It includes public headers alone, for no other is
installed. models/, cli/ and examples/ are written as users would: with public headers alone. A project header is named
from the root ("ir/text/words.h") or as users name it ("shadowgraph/graph/graph.h"). Examples, projects of their own,
name the headers beside them. No header includes <torch/torch.h>, and headers outside models/ include nothing of the C++
frontend that pulls it in.
"""

import fnmatch
import pathlib
import re
import sys

import cases

LAYERS = [
    "support", "ir", "core", "passes", "codegen", "kernels", "profiler", "sharding", "operators", "parallel", "viz",
]
# Where a public header's declarations are defined; the first pattern that fits counts.
PUBLIC = {
    "support": ["error", "export", "graph/ids", "names", "options", "units"],
    "ir": ["graph/*"],
    "core": ["capture/*", "deferred/*"],
    "passes": ["passes/*"],
    "codegen": ["codegen/*"],
    "kernels": ["kernels/*"],
    "operators": ["profile/operator_card"],
    "profiler": ["profile/*"],
    "sharding": ["shard/*"],
    "parallel": ["plan/*"],
    "viz": ["draw/*"],
    "umbrella": ["shadowgraph"],
}
# The folders of core/, each with those below it that it includes.
ROOMS = {
    "libtorch": [],
    "fake": ["libtorch"],
    "fake/rules": ["libtorch", "fake"],
    "fake/dispatch": ["libtorch", "fake", "fake/rules"],
    "fake/mode": ["libtorch", "fake", "fake/rules", "fake/dispatch"],
}
ROOMS["calls"] = [*ROOMS]
ROOMS["replay"] = ROOMS["capture"] = [*ROOMS]
ROOMS["deferred"] = [*ROOMS]
ROOMS["capture/exported"] = [room for room in ROOMS if room != "deferred"]
# The rooms of core's public headers that have another name, or another folder, than their room.
ROOM_OF_PUBLIC = {
    "capture/fake": "fake",
    "capture/attention_kernel": "fake",
    "capture/process_group": "fake",
    "capture/shape_rules": "fake/rules",
    "capture/functions": "calls",
    "capture/replay": "replay",
    "capture/graph_module": "replay",
}
# By what the layers above reach core: nodes called again on fakes, and functions that graphs call by name.
FACE_OF_CORE = re.compile(
    r"core/(calls/|replay/(body_function|replay_program)\.h|fake/(pretended_devices|process_groups)\.h|"
    r"libtorch/kernels\.h)"
)
THROUGH_THE_FACE = {"passes", "codegen", "profiler", "sharding", "parallel", "viz"}
# Asks every table of the tree what it knows of an operator.
BEHIND_THE_FACE = "operators/"
MAY_INCLUDE = {layer: set(LAYERS[: index + 1]) for index, layer in enumerate(LAYERS)}
# Public headers alone, but for those of their own folder.
MAY_INCLUDE["models"] = {"models"}
MAY_INCLUDE["cli"] = {"models", "cli", "support"}
MAY_INCLUDE["examples"] = {"models", "examples"}
MAY_INCLUDE["python"] = {"python", "cli"}
MAY_INCLUDE["bench"] = {"models", "bench"}
MAY_INCLUDE["tests"] = {*LAYERS, "models", "cli", "examples", "tests"}
MAY_INCLUDE["include"] = set()
MAY_INCLUDE_PUBLIC = {layer: set(LAYERS[: index + 1]) for index, layer in enumerate(LAYERS)}
MAY_INCLUDE_PUBLIC["models"] = {"support", "ir", "core"}
for user in ("cli", "examples", "python", "bench", "tests"):
    MAY_INCLUDE_PUBLIC[user] = {*LAYERS, "umbrella"}
MAY_INCLUDE_PUBLIC["umbrella"] = set(LAYERS)
# Public headers of these layers include nothing of ATen or torch, directly or not, but for those that are there for it.
FREE_OF_LIBTORCH = ["support", "ir", "profiler", "sharding", "parallel", "viz"]
SPEAK_LIBTORCH = ["graph/libtorch", "profile/register_operator", "shard/simulate"]
LIBTORCH = re.compile(r"(ATen|torch)/(?!headeronly/)")
# Headers of the frontend that include most or all of <torch/torch.h>.
FRONTEND = re.compile(r"torch/(all|data|extension|nn|optim|torch)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of_public(name):
    """The layer of include/shadowgraph/NAME, or None."""
    for layer, patterns in PUBLIC.items():
        if any(fnmatch.fnmatchcase(name.removesuffix(".h"), pattern) for pattern in patterns):
            return layer
    return None


def room_of(path):
    """The room of core that the file, or the public header, `path` is in; None if it is not core's."""
    if path.startswith("shadowgraph/"):
        name = path.removeprefix("shadowgraph/").removesuffix(".h")
        room = ROOM_OF_PUBLIC.get(name, name.split("/")[0])
        return room if layer_of_public(name) == "core" else None
    return str(pathlib.PurePath(path).parent).removeprefix("core/") if path.startswith("core/") else None


def room_violation(name, target):
    """What is wrong with core's file `name` including `target`, or None."""
    own, room = room_of(str(name)), room_of(target)
    if own is None or room is None:
        return None
    if own not in ROOMS:
        return f"core/{own} has no place in the order of rooms; give it one in ROOMS"
    if room in ROOMS and room != own and room not in ROOMS[own]:
        return f"core/{own} must not include core's room {room} ({target})"
    return None


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match


def way_to_libtorch(root, header):
    """The headers by which `header` includes something of ATen or torch, and that; empty if it does not."""
    pending, seen = [[header]], {header}
    while pending:
        way = pending.pop()
        for _, match in includes(root / way[-1]):
            target = match[2]
            if LIBTORCH.match(target):
                return [*way[1:], target]
            for name in (f"include/{target}", target):
                if name not in seen and (root / name).is_file():
                    seen.add(name)
                    pending.append([*way, name])
    return []


def heavy_headers(root):
    for path in sorted((root / "include").rglob("*.h")):
        name = str(path.relative_to(root / "include" / "shadowgraph"))
        free = layer_of_public(name) in FREE_OF_LIBTORCH and name.removesuffix(".h") not in SPEAK_LIBTORCH
        if free and (way := way_to_libtorch(root, str(path.relative_to(root)))):
            yield f"include/shadowgraph/{name}: brings libtorch along: {' > '.join(way)}"


def circles_of_rooms(root):
    """Rooms of one layer that include one another, directly or by others."""
    for layer in LAYERS:
        below = {}
        for path in sorted((root / layer).rglob("*")):
            own = path.relative_to(root).parts
            if path.suffix not in (".h", ".cpp") or len(own) < 3:
                continue
            for _, match in includes(path):
                other = match[2].split("/")
                if other[0] == layer and len(other) > 2 and other[1] != own[1]:
                    below.setdefault(own[1], set()).add(other[1])
        for room in below:
            reached, pending = set(), [room]
            while pending:
                for other in below.get(pending.pop(), ()):
                    if other not in reached:
                        reached.add(other)
                        pending.append(other)
            if room in reached:
                yield f"{layer}/{room}: is in a circle of rooms that include one another"


def violations(root):
    yield from heavy_headers(root)
    yield from circles_of_rooms(root)
    folders = [root / name for name in MAY_INCLUDE if (root / name).is_dir()]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".h", ".cpp")]
    for path in sorted(files):
        name = path.relative_to(root)
        own = name.parts[0]
        public_layer = own
        if own == "include":
            public_layer = layer_of_public(str(pathlib.PurePath(*name.parts[2:])))
            if public_layer is None:
                yield f"{name}: a public header of no layer; name its layer in PUBLIC"
                continue
        for number, match in includes(path):
            quote, target = match.groups()
            where = f"{name}:{number}"
            if path.suffix == ".h" and target == "torch/torch.h" and not path.name.startswith("precompiled"):
                yield f"{where}: a header includes <torch/torch.h>; use the smallest ATen, c10 or torch/nn header"
            elif path.suffix == ".h" and own in {*LAYERS, "include"} and FRONTEND.search(target):
                yield f"{where}: <{target}> pulls in the C++ frontend; use the header of the one class"
            through = own in THROUGH_THE_FACE and not str(name).startswith(BEHIND_THE_FACE)
            if through and target.startswith("core/") and not FACE_OF_CORE.match(target):
                yield f"{where}: {own} reaches core by core/calls alone, not by {target}"
            if problem := room_violation(name, target):
                yield f"{where}: {problem}"
            folder = target.split("/")[0]
            if folder == "shadowgraph":
                layer = layer_of_public(target.removeprefix("shadowgraph/"))
                if layer is None:
                    yield f"{where}: <{target}> is no public header"
                elif layer not in MAY_INCLUDE_PUBLIC[public_layer]:
                    yield f"{where}: {name.parent} must not include what is declared in {target} (layer {layer})"
                elif not (root / "include" / target).is_file():
                    yield f"{where}: there is no include/{target}"
            elif folder in MAY_INCLUDE and "/" in target and folder not in MAY_INCLUDE[own]:
                yield f"{where}: {name.parent} must not include {folder}/ ({target})"
            elif own == "examples" and (path.parent / target).is_file():
                continue  # a project of its own, copied out of the tree
            elif quote == '"' and not (root / target).is_file():
                yield f'{where}: "{target}" is not a file of this project, named from its root'


# Each must be refused: a tree of one bad file and the headers it names.
BAD = {
    "upwards": ("ir/a.h", '#include "core/b.h"'),
    "far upwards": ("core/a.cpp", '#include "viz/b.h"'),
    "upwards by a public header": ("ir/a.h", '#include "shadowgraph/capture/capture.h"'),
    "a public header upwards": ("include/shadowgraph/graph/graph.h", '#include "shadowgraph/capture/fake.h"'),
    "a public header on an internal one": ("include/shadowgraph/graph/graph.h", '#include "ir/b.h"'),
    "a public header of no layer": ("include/shadowgraph/other.h", '#include "shadowgraph/graph/graph.h"'),
    "what is not public": ("examples/a.cpp", "#include <shadowgraph/other.h>"),
    "a layer on models": ("profiler/a.cpp", '#include "models/b.h"'),
    "models on the profiler": ("models/a.cpp", '#include "shadowgraph/profile/profile.h"'),
    "the tool on internals": ("cli/a.cpp", '#include "ir/b.h"'),
    "an example on internals": ("examples/a.cpp", '#include "core/b.h"'),
    "the library on its tests": ("core/a.cpp", '#include "tests/b.h"'),
    "torch.h in a header": ("core/a.h", "#include <torch/torch.h>"),
    "torch.h in a public header": ("include/shadowgraph/capture/fake.h", "#include <torch/torch.h>"),
    "torch.h in a header of models": ("models/a.h", " # include <torch/torch.h>"),
    "nn.h in a layer's header": ("core/a.h", "#include <torch/nn.h>"),
    "relative": ("ir/a.h", '#include "b.h"'),
    "a room upwards": ("core/fake/rules/a.cpp", '#include "core/fake/dispatch/b.h"'),
    "a room upwards by a public header": ("core/fake/a.h", '#include "shadowgraph/capture/shape_rules.h"'),
    "a room on the one beside it": ("core/replay/a.cpp", '#include "core/capture/b.h"'),
    "a room without a place": ("core/other/a.cpp", '#include "core/fake/b.h"'),
    "the umbrella from within": ("core/a.cpp", '#include "shadowgraph/shadowgraph.h"'),
    "libtorch in a header of graphs": ("include/shadowgraph/graph/graph.h", "#include <ATen/core/Tensor.h>"),
    "libtorch behind a header of profiles": (
        "include/shadowgraph/profile/profile.h",
        '#include "shadowgraph/capture/replay.h"',
    ),
    "a pass behind core's face": ("passes/a.cpp", '#include "core/fake/fake_tensor_impl.h"'),
    "a circle of rooms": ("passes/a/a.h", '#include "passes/b/b.h"'),
}
# What the headers that a case names hold, where that matters.
CONTENTS = {
    "include/shadowgraph/capture/replay.h": "#include <ATen/core/Tensor.h>",
    "passes/b/b.h": '#include "passes/a/a.h"',
}
GOOD = {
    "itself": ("ir/a.cpp", '#include "ir/b.h"'),
    "downwards": ("viz/a.cpp", '#include "profiler/b.h"'),
    "downwards by a public header": ("viz/a.cpp", '#include "shadowgraph/graph/graph.h"'),
    "a public header on another": ("include/shadowgraph/capture/fake.h", '#include "shadowgraph/error.h"'),
    "all of it from an example": ("examples/a.cpp", "#include <shadowgraph/shadowgraph.h>"),
    "an example's header from its test": ("tests/a.cpp", '#include "examples/b.h"'),
    "models from the tool": ("cli/a.cpp", '#include "models/b.h"'),
    "nn.h in models": ("models/a.h", "#include <torch/nn.h>"),
    "torch.h in a source": ("core/a.cpp", "#include <torch/torch.h>"),
    "a room downwards": ("core/deferred/a.cpp", '#include "core/fake/mode/b.h"'),
    "a room downwards by a public header": ("core/fake/mode/a.cpp", '#include "shadowgraph/capture/fake.h"'),
    "libtorch where it is spoken": ("include/shadowgraph/graph/libtorch.h", "#include <ATen/core/Tensor.h>"),
    "a pass by core's face": ("passes/a.cpp", '#include "core/calls/node_calls.h"'),
    "a room upon another": ("passes/c/a.h", '#include "passes/d/b.h"'),
    "in a comment": ("ir/a.h", '// #include "core/b.h"'),
}


def small_tree(title, name, line):
    target = INCLUDE.search(line.lstrip("/ "))
    public = target[2].startswith("shadowgraph/")
    outside = target[1] == "<" and not public
    made = [] if outside or title == "relative" else ["include/" * public + target[2]]
    contents = {name: line, **{other: CONTENTS.get(other, "") for other in made}}
    return {path: f"#pragma once\n{text}\n" for path, text in contents.items()}


def self_test():
    return cases.prove("check_includes", BAD, GOOD, small_tree, lambda root, _: violations(root))


def main():
    if sys.argv[1:] == ["--test"]:
        sys.exit(self_test())
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(violations(root))
    print("\n".join(found) or "check_includes: the arrows hold")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
