#!/usr/bin/env python3
"""Draws the rooms of the tree, and which includes which, into docs/architecture.md (a Mermaid picture between two
markers).

    scripts/draw_architecture.py           writes it anew
    scripts/draw_architecture.py --check   fails if the page shows another tree than the one that is here

A room is a folder with C++ in it; the public headers of a layer are with the files on its top. An arrow leads from a
room to one that its files include. Where a room reaches another also by a longer way, the direct arrow is left out, so
that the picture shows the layers.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_includes import INCLUDE, layer_of_public

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/architecture.md"
LAYERS = ["ir", "core", "passes", "kernels", "profiler", "sharding", "viz", "models", "cli"]
BEGIN, END = "<!-- drawn by scripts/draw_architecture.py -->", "<!-- end of the drawing -->"


def rooms():
    found = {}
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                found.setdefault(str(path.parent.relative_to(ROOT)), []).append(path)
    for path in sorted((ROOT / "include/shadowgraph").rglob("*.h")):
        layer = layer_of_public(str(path.relative_to(ROOT / "include/shadowgraph")))
        if layer in LAYERS:
            found.setdefault(layer, []).append(path)
    return found


def includes(found):
    edges = set()
    for room, files in found.items():
        for path in files:
            for line in path.read_text().splitlines():
                match = INCLUDE.match(line)
                if not match:
                    continue
                target = match[2]
                if target.startswith("shadowgraph/"):
                    target = layer_of_public(target.removeprefix("shadowgraph/"))
                    target = target if target in found else None
                else:
                    target = str(pathlib.PurePath(target).parent)
                if target in found and target != room and not room.startswith(target + "/"):
                    edges.add((room, target))
    return edges


def reduced(edges):
    """Without the arrows that a longer way stands for."""
    nexts = {}
    for a, b in edges:
        nexts.setdefault(a, set()).add(b)

    def reaches(start, goal, without):
        seen, todo = set(), [n for n in nexts.get(start, ()) if (start, n) != without]
        while todo:
            room = todo.pop()
            if room == goal:
                return True
            if room not in seen:
                seen.add(room)
                todo.extend(nexts.get(room, ()))
        return False

    return sorted(edge for edge in edges if not reaches(edge[0], edge[1], edge))


def picture():
    found = rooms()
    name = lambda room: room.replace("/", "_")  # noqa: E731
    lines = ["```mermaid", "flowchart BT"]
    for layer in LAYERS:
        lines.append(f'  subgraph {layer}_layer["{layer}/"]')
        for room in found:
            if room.split("/")[0] == layer:
                public = layer not in ("models", "cli")
                label = room.removeprefix(layer + "/") if room != layer else "public headers" if public else layer
                lines.append(f'    {name(room)}["{label}"]')
        lines.append("  end")
    for a, b in reduced(includes(found)):
        lines.append(f"  {name(a)} --> {name(b)}")
    return "\n".join([*lines, "```"])


def main():
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    drawn = f"{text[:begin]}\n{picture()}\n{text[end:]}"
    if "--check" in sys.argv[1:]:
        if drawn != text:
            print("docs/architecture.md shows another tree; scripts/draw_architecture.py draws it anew")
        sys.exit(drawn != text)
    PAGE.write_text(drawn)


if __name__ == "__main__":
    main()
