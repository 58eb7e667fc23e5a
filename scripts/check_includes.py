#!/usr/bin/env python3
"""Checks the layering of includes: support <- ir <- core <- passes <- codegen <- kernels <- profiler <- sharding <-
operators <- parallel <- viz <- cli and python. models is separate.

    scripts/check_includes.py [ROOT]     prints violations as file:line; fails if there are any
    scripts/check_includes.py --test     checks that each kind of violation is found

- A layer includes itself and lower layers. Only cli/, tests/, bench/ and examples/ include models/; only tests/
  includes tests/. The folders of core/ are layered, too (ROOMS). Folders of a layer must not form an include cycle.
- Layers above core only use its internal interface (CORE_INTERFACE).
- A public header (include/shadowgraph) belongs to a layer (PUBLIC) and only includes public headers, because others are
  not installed. models/, cli/ and examples/ only include public headers, like users.
- Public headers of graphs, profiles, layouts and pictures do not include ATen or torch, even indirectly, except for
  those that convert from and to libtorch (USES_LIBTORCH).
- Paths are relative to the root ("ir/text/words.h") or to include/ ("shadowgraph/graph/graph.h"). Examples, which are
  separate projects, include their own headers by name.
- No header includes <torch/torch.h>, and headers outside models/ do not include headers of the C++ frontend.
"""

import fnmatch
import pathlib
import re
import sys

import cases

LAYERS = [
    "support", "ir", "core", "passes", "codegen", "kernels", "profiler", "sharding", "operators", "parallel", "viz",
]
# {layer: patterns of public headers whose declarations it defines}; the first match applies.
PUBLIC = {
    "support": ["error", "export", "graph/ids", "names", "options", "units"],
    "ir": ["graph/*", "interrupt"],
    "core": ["capture/*", "deferred/*"],
    "passes": ["passes/*"],
    "codegen": ["codegen/*"],
    "kernels": ["kernels/*"],
    "operators": ["profile/operator_support"],
    "profiler": ["profile/*"],
    "sharding": ["shard/*"],
    "parallel": ["plan/*"],
    "viz": ["draw/*"],
    "umbrella": ["shadowgraph"],
}
# {folder of core/: folders that it may include}.
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
# {public header of core: folder of core/}, where their names differ.
ROOM_OF_PUBLIC = {
    "capture/fake": "fake",
    "capture/attention_kernel": "fake",
    "capture/language_bindings": "fake",
    "capture/process_group": "fake",
    "capture/shape_rules": "fake/rules",
    "capture/functions": "calls",
    "capture/replay": "replay",
    "capture/graph_module": "replay",
}
# Internal headers of core for higher layers: calling nodes on fake tensors, and functions that graphs call by name.
CORE_INTERFACE = re.compile(
    r"core/(calls/|replay/(body_function|replay_program)\.h|fake/(simulated_devices|process_groups)\.h|"
    r"libtorch/(kernels|error_text)\.h)"
)
USES_CORE_INTERFACE = {"passes", "codegen", "profiler", "sharding", "parallel", "viz"}
# Collects the entries of all tables for an operator.
EXEMPT_FROM_INTERFACE = "operators/"
MAY_INCLUDE = {layer: set(LAYERS[: index + 1]) for index, layer in enumerate(LAYERS)}
# These only include public headers and those of the same folder.
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
# Public headers of these layers do not include ATen or torch, directly or indirectly, except for USES_LIBTORCH.
FREE_OF_LIBTORCH = ["support", "ir", "profiler", "sharding", "parallel", "viz"]
USES_LIBTORCH = ["graph/libtorch", "profile/register_operator", "shard/simulate"]
LIBTORCH = re.compile(r"(ATen|torch)/(?!headeronly/)")
# Frontend headers that include most of <torch/torch.h>.
FRONTEND = re.compile(r"torch/(all|data|extension|nn|optim|torch)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of_public(name):
    """Returns the layer of include/shadowgraph/NAME, or None."""
    for layer, patterns in PUBLIC.items():
        if any(fnmatch.fnmatchcase(name.removesuffix(".h"), pattern) for pattern in patterns):
            return layer
    return None


def room_of(path):
    """Returns the folder of core/ of a file or public header, or None if it is not in core."""
    if path.startswith("shadowgraph/"):
        name = path.removeprefix("shadowgraph/").removesuffix(".h")
        room = ROOM_OF_PUBLIC.get(name, name.split("/")[0])
        return room if layer_of_public(name) == "core" else None
    return str(pathlib.PurePath(path).parent).removeprefix("core/") if path.startswith("core/") else None


def room_violation(name, target):
    """Returns the violation of a file of core that includes `target`, or None."""
    own, room = room_of(str(name)), room_of(target)
    if own is None or room is None:
        return None
    if own not in ROOMS:
        return f"core/{own} is not in ROOMS; add it"
    if room in ROOMS and room != own and room not in ROOMS[own]:
        return f"core/{own} must not include core/{room} ({target})"
    return None


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match


def path_to_libtorch(root, header):
    """Returns the chain of includes from `header` to a header of ATen or torch, or []."""
    pending, seen = [[header]], {header}
    while pending:
        path = pending.pop()
        for _, match in includes(root / path[-1]):
            target = match[2]
            if LIBTORCH.match(target):
                return [*path[1:], target]
            for name in (f"include/{target}", target):
                if name not in seen and (root / name).is_file():
                    seen.add(name)
                    pending.append([*path, name])
    return []


def heavy_headers(root):
    for path in sorted((root / "include").rglob("*.h")):
        name = str(path.relative_to(root / "include" / "shadowgraph"))
        free = layer_of_public(name) in FREE_OF_LIBTORCH and name.removesuffix(".h") not in USES_LIBTORCH
        if free and (chain := path_to_libtorch(root, str(path.relative_to(root)))):
            yield f"include/shadowgraph/{name}: must not include libtorch: {' > '.join(chain)}"


def cyclic_folders(root):
    """Yields folders of a layer that include each other in a cycle, directly or indirectly."""
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
                yield f"{layer}/{room}: is in a cycle of includes between folders"


def violations(root):
    yield from heavy_headers(root)
    yield from cyclic_folders(root)
    folders = [root / name for name in MAY_INCLUDE if (root / name).is_dir()]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".h", ".cpp")]
    for path in sorted(files):
        name = path.relative_to(root)
        own = name.parts[0]
        public_layer = own
        if own == "include":
            public_layer = layer_of_public(str(pathlib.PurePath(*name.parts[2:])))
            if public_layer is None:
                yield f"{name}: public header without a layer; add it to PUBLIC"
                continue
        for number, match in includes(path):
            quote, target = match.groups()
            where = f"{name}:{number}"
            if path.suffix == ".h" and target == "torch/torch.h" and not path.name.startswith("precompiled"):
                yield f"{where}: header includes <torch/torch.h>; use the smallest ATen, c10 or torch/nn header"
            elif path.suffix == ".h" and own in {*LAYERS, "include"} and FRONTEND.search(target):
                yield f"{where}: <{target}> includes the C++ frontend; use the header of the class"
            restricted = own in USES_CORE_INTERFACE and not str(name).startswith(EXEMPT_FROM_INTERFACE)
            if restricted and target.startswith("core/") and not CORE_INTERFACE.match(target):
                yield f"{where}: {own} must not include {target}; use the headers in CORE_INTERFACE"
            if problem := room_violation(name, target):
                yield f"{where}: {problem}"
            folder = target.split("/")[0]
            if folder == "shadowgraph":
                layer = layer_of_public(target.removeprefix("shadowgraph/"))
                if layer is None:
                    yield f"{where}: <{target}> is not a public header"
                elif layer not in MAY_INCLUDE_PUBLIC[public_layer]:
                    yield f"{where}: {name.parent} must not include {target} (layer {layer})"
                elif not (root / "include" / target).is_file():
                    yield f"{where}: include/{target} does not exist"
            elif folder in MAY_INCLUDE and "/" in target and folder not in MAY_INCLUDE[own]:
                yield f"{where}: {name.parent} must not include {folder}/ ({target})"
            elif own == "examples" and (path.parent / target).is_file():
                continue  # a separate project, built outside of the tree
            elif quote == '"' and not (root / target).is_file():
                yield f'{where}: "{target}" does not exist; includes are relative to the root'


# Violations that must be found: {title: (file, line)}. The tree also has the included headers.
BAD = {
    "upwards": ("ir/a.h", '#include "core/b.h"'),
    "far upwards": ("core/a.cpp", '#include "viz/b.h"'),
    "upwards by a public header": ("ir/a.h", '#include "shadowgraph/capture/capture.h"'),
    "a public header upwards": ("include/shadowgraph/graph/graph.h", '#include "shadowgraph/capture/fake.h"'),
    "a public header on an internal one": ("include/shadowgraph/graph/graph.h", '#include "ir/b.h"'),
    "a public header without a layer": ("include/shadowgraph/other.h", '#include "shadowgraph/graph/graph.h"'),
    "a header that is not public": ("examples/a.cpp", "#include <shadowgraph/other.h>"),
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
    "a folder upwards": ("core/fake/rules/a.cpp", '#include "core/fake/dispatch/b.h"'),
    "a folder upwards by a public header": ("core/fake/a.h", '#include "shadowgraph/capture/shape_rules.h"'),
    "a folder on its neighbor": ("core/replay/a.cpp", '#include "core/capture/b.h"'),
    "a folder that is not in ROOMS": ("core/other/a.cpp", '#include "core/fake/b.h"'),
    "the umbrella from within": ("core/a.cpp", '#include "shadowgraph/shadowgraph.h"'),
    "libtorch in a header of graphs": ("include/shadowgraph/graph/graph.h", "#include <ATen/core/Tensor.h>"),
    "libtorch behind a header of profiles": (
        "include/shadowgraph/profile/profile.h",
        '#include "shadowgraph/capture/replay.h"',
    ),
    "a pass on internals of core": ("passes/a.cpp", '#include "core/fake/fake_tensor_impl.h"'),
    "a cycle of folders": ("passes/a/a.h", '#include "passes/b/b.h"'),
}
# Contents of included headers, empty by default.
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
    "a folder downwards": ("core/deferred/a.cpp", '#include "core/fake/mode/b.h"'),
    "a folder downwards by a public header": ("core/fake/mode/a.cpp", '#include "shadowgraph/capture/fake.h"'),
    "libtorch where it is allowed": ("include/shadowgraph/graph/libtorch.h", "#include <ATen/core/Tensor.h>"),
    "a pass on the interface of core": ("passes/a.cpp", '#include "core/calls/node_calls.h"'),
    "a folder on another": ("passes/c/a.h", '#include "passes/d/b.h"'),
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
    print("\n".join(found) or "check_includes: no violations")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
