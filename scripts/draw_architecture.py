#!/usr/bin/env python3
"""Draws the C++ folders and the includes between them into docs/pictures/architecture.svg.

    scripts/draw_architecture.py           draws the picture
    scripts/draw_architecture.py --check   fails if the picture is out of date

The public headers of a layer belong to its top-level folder. An arrow leads down from a folder to one that its files
include. Arrows implied by longer paths are omitted (transitive reduction). Upward arrows are part of a cycle, and red.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_includes
from check_includes import INCLUDE, layer_of_public

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/architecture.svg"
LAYERS = [*check_includes.LAYERS, "models", "cli"]
MARGIN, BOX, ROW, GAP, LETTER = 16, 26, 58, 18, 7.3  # margin, box height, row and box distance, letter width


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
    """Returns the transitive reduction of the edges."""
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


def ranks(found, edges):
    """Returns {folder: row within its layer}, 0 at the bottom. A folder is above those it includes, except cycles."""
    below = {room: [b for a, b in edges if a == room and a.split("/")[0] == b.split("/")[0]] for room in found}
    rank, open_rooms = {}, set()

    def of(room):
        if room not in rank:
            open_rooms.add(room)
            rank[room] = 1 + max((of(other) for other in below[room] if other not in open_rooms), default=-1)
            open_rooms.discard(room)
        return rank[room]

    for room in sorted(found):
        of(room)
    for layer in LAYERS:  # public headers are in the top row
        if layer in found:
            rank[layer] = max([0, *(rank[room] for room in found if room.startswith(layer + "/"))])
    return rank


def label_of(room):
    if "/" in room:
        return room.split("/", 1)[1]
    return room if room in ("models", "cli") else "public headers"


def placed(found, edges):
    """Returns (rows of folders with their layer, bottom first; {folder: x}; {folder: width}; total width)."""
    rank = ranks(found, edges)
    width = {room: round(LETTER * len(label_of(room))) + 22 for room in found}
    rows = []
    for layer in LAYERS:
        rooms = [room for room in found if room.split("/")[0] == layer]
        rows += [(layer, [room for room in rooms if rank[room] == row]) for row in sorted({rank[r] for r in rooms})]
    # Public headers have a separate column, since most folders include them.
    column = max(width[layer] for layer in LAYERS if layer in found) + 3 * GAP
    extent = column + max(sum(width[room] + GAP for room in row if "/" in room) for _, row in rows)
    x = {layer: (column - 3 * GAP - width[layer]) // 2 for layer in LAYERS if layer in found}
    for _, row in rows:
        # Place each near the center of the folders that it includes.
        def wanted(room):
            under = [x[b] + width[b] / 2 for a, b in edges if a == room and b in x and "/" in b]
            return (sum(under) / len(under) if under else extent / 2, room)

        inner = sorted((room for room in row if "/" in room), key=wanted)
        left = column + (extent - column - sum(width[room] + GAP for room in inner)) / 2
        for room in inner:
            x[room] = round(left)
            left += width[room] + GAP
    return rows, x, width, round(extent)


def picture():
    found = rooms()
    edges = reduced(includes(found))
    rows, x, width, extent = placed(found, edges)
    left = MARGIN + 92
    height = 2 * MARGIN + ROW * len(rows)
    y = {room: height - MARGIN - ROW * (number + 1) + (ROW - BOX) // 2 for number, (_, row) in enumerate(rows)
         for room in row}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + extent + MARGIN} {height}" '
           'font-family="sans-serif" font-size="13">',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0 L8 4 L0 8 z" fill="context-stroke"/></marker></defs>',
           f'<rect width="{left + extent + MARGIN}" height="{height}" fill="#fff"/>']
    for number, layer in enumerate(LAYERS):
        of_layer = [y[room] for room in found if room.split("/")[0] == layer]
        if not of_layer:
            continue
        top, bottom = min(of_layer) - (ROW - BOX) // 2 + 3, max(of_layer) + BOX + (ROW - BOX) // 2 - 3
        out.append(f'<rect x="{MARGIN}" y="{top}" width="{left + extent - MARGIN}" height="{bottom - top}" rx="8" '
                   f'fill="{("#f1f4f9", "#e6ebf3")[number % 2]}"/>')
        out.append(f'<text x="{MARGIN + 10}" y="{(top + bottom) // 2 + 5}" font-weight="bold" fill="#334">'
                   f'{layer}/</text>')
    for a, b in edges:
        begin, end = left + x[a] + width[a] // 2, left + x[b] + width[b] // 2
        down = y[a] < y[b]
        start, stop = (y[a] + BOX, y[b]) if down else (y[a], y[b] + BOX) if y[a] > y[b] else (y[a] + BOX, y[b] + BOX)
        first, last = (start + (stop - start) // 2,) * 2 if start != stop else (start + ROW // 3, stop + ROW // 3)
        color = "#7b8cab" if down else "#c0392b"
        out.append(f'<path d="M{begin} {start} C{begin} {first} {end} {last} {end} {stop}" fill="none" '
                   f'stroke="{color}" stroke-width="1.2" marker-end="url(#tip)"/>')
    for room in found:
        out.append(f'<rect x="{left + x[room]}" y="{y[room]}" width="{width[room]}" height="{BOX}" rx="5" fill="#fff" '
                   'stroke="#556"/>')
        out.append(f'<text x="{left + x[room] + width[room] // 2}" y="{y[room] + 17}" text-anchor="middle" fill="#112">'
                   f'{label_of(room)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    drawn = picture()
    if "--check" in sys.argv[1:]:
        if not PICTURE.exists() or PICTURE.read_text() != drawn:
            sys.exit("docs/pictures/architecture.svg is out of date; run scripts/draw_architecture.py")
        return
    PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
