#!/usr/bin/env python3
"""Holds the include directions: ir <- core <- passes <- profiler <- viz <- cli, python; models beside them.

    scripts/check_includes.py [ROOT]     prints every violation as file:line and fails if there is one
    scripts/check_includes.py --test     proves that it fails on a tree with each kind of violation

The rules: a layer includes itself and what is below it. models/ includes ir/ and core/ and is included by cli/, tests/,
bench/ and examples/ only; tests/ is included by nobody else. A project header is named from the root ("ir/graph.h"). No
header includes <torch/torch.h>, and headers outside models/ include nothing of the C++ frontend that pulls it in.
"""

import pathlib
import re
import sys
import tempfile

LAYERS = ["ir", "core", "passes", "profiler", "viz"]
MAY_INCLUDE = {layer: set(LAYERS[: index + 1]) for index, layer in enumerate(LAYERS)}
MAY_INCLUDE["models"] = {"models", "ir", "core"}
MAY_INCLUDE["cli"] = {*LAYERS, "models", "cli"}
MAY_INCLUDE["python"] = {*LAYERS, "python"}
MAY_INCLUDE["bench"] = {*LAYERS, "models", "bench"}
MAY_INCLUDE["tests"] = {*LAYERS, "models", "cli", "tests"}
# shadowgraph.h, the umbrella, is for users and for the programs that show how they use it.
MAY_INCLUDE["examples"] = {*LAYERS, "models", "examples", "shadowgraph"}
MAY_INCLUDE["tests"].add("shadowgraph")
MAY_INCLUDE["umbrella"] = set(LAYERS)
# Headers of the frontend that include most or all of <torch/torch.h>.
FRONTEND = re.compile(r"torch/(all|data|extension|nn|optim|torch)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def violations(root):
    folders = [root / name for name in MAY_INCLUDE if (root / name).is_dir()]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".h", ".cpp")]
    umbrella = root / "shadowgraph.h"
    files += [umbrella] if umbrella.is_file() else []
    for path in sorted(files):
        name = path.relative_to(root)
        own = "umbrella" if path == umbrella else name.parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, target = match.groups()
            where = f"{name}:{number}"
            if path.suffix == ".h" and target == "torch/torch.h":
                yield f"{where}: a header includes <torch/torch.h>; use the smallest ATen, c10 or torch/nn header"
            elif path.suffix == ".h" and own in LAYERS and FRONTEND.search(target):
                yield f"{where}: <{target}> pulls in the C++ frontend; use the header of the one class"
            target = target.removeprefix("shadowgraph/")
            folder = target.split("/")[0].removesuffix(".h")
            if folder in MAY_INCLUDE and folder not in MAY_INCLUDE[own] and "/" in target:
                yield f"{where}: {own}/ must not include {folder}/ ({target})"
            elif folder == "shadowgraph" and folder not in MAY_INCLUDE[own]:
                yield f"{where}: the umbrella header is for users; include what is needed"
            elif quote == '"' and not (root / target).is_file():
                yield f'{where}: "{target}" is not a file of this project, named from its root'


# Each must be refused: a tree of one bad file and the headers it names.
BAD = {
    "upwards": ("ir/a.h", '#include "core/b.h"'),
    "far upwards": ("core/a.cpp", '#include "viz/b.h"'),
    "spelled as an outside project would": ("ir/a.h", "#include <shadowgraph/core/b.h>"),
    "a layer on models": ("profiler/a.cpp", '#include "models/b.h"'),
    "models on the profiler": ("models/a.cpp", '#include "profiler/b.h"'),
    "the library on its tests": ("core/a.cpp", '#include "tests/b.h"'),
    "torch.h in a header": ("core/a.h", "#include <torch/torch.h>"),
    "torch.h in a header of models": ("models/a.h", " # include <torch/torch.h>"),
    "nn.h in a layer's header": ("core/a.h", "#include <torch/nn.h>"),
    "relative": ("ir/a.h", '#include "b.h"'),
    "the umbrella from within": ("core/a.cpp", '#include "shadowgraph.h"'),
}
GOOD = {
    "itself": ("ir/a.cpp", '#include "ir/b.h"'),
    "downwards": ("viz/a.cpp", '#include "profiler/b.h"'),
    "models from the tool": ("cli/a.cpp", '#include "models/b.h"'),
    "nn.h in models": ("models/a.h", "#include <torch/nn.h>"),
    "torch.h in a source": ("core/a.cpp", "#include <torch/torch.h>"),
    "in a comment": ("ir/a.h", '// #include "core/b.h"'),
}


def self_test():
    wrong = []
    for expected, cases in ((True, BAD), (False, GOOD)):
        for title, (name, line) in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                target = INCLUDE.search(line.lstrip("/ "))
                made = [] if "torch" in line or title == "relative" else [target[2].removeprefix("shadowgraph/")]
                for path, text in [(name, f"#pragma once\n{line}\n"), *((other, "#pragma once\n") for other in made)]:
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_text(text)
                found = list(violations(root))
                if bool(found) != expected:
                    wrong.append(f"{title}: {name} with {line} gives {found}")
    print("\n".join(wrong) or f"check_includes: {len(BAD)} bad trees refused, {len(GOOD)} good ones accepted")
    return bool(wrong)


def main():
    if sys.argv[1:] == ["--test"]:
        sys.exit(self_test())
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(violations(root))
    print("\n".join(found) or "check_includes: the arrows hold")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
