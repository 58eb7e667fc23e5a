#!/usr/bin/env python3
"""Generates files from the table in profiler/profile/figures.cpp and from --help. Requires build/python (make python).

    scripts/write_profile_figures.py           updates the files
    scripts/write_profile_figures.py --check   fails if a file is out of date

Generates the properties and required keys of docs/profile.schema.json, the attributes of Profile in the type stubs, the
table of report lines in docs/memory.md, and docs/options.md with the options of all verbs.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = {"count": "int", "bytes": "int", "seconds": "float", "ratio": "float"}


def object_of(lines, path):
    """Returns (first line, last line, indent) of the object at `path` in the schema of a profile."""
    begin, end, indent = 0, len(lines) - 1, 2
    for key in ["$defs", "profile", *(part for name in path for part in ("properties", name))]:
        head, tail = f'{" " * indent}"{key}": {{', f'{" " * indent}}}'
        begin = next(i for i in range(begin, end) if lines[i].startswith(head))
        end = next(i for i in range(begin + 1, end + 1) if lines[i].startswith(tail))
        indent += 2
    return begin, end, indent


def schema(text, figures):
    lines = text.split("\n")
    after = {}  # {object: property after which to insert new ones}
    for figure in figures:
        *path, key = figure["key"].split(".")
        begin, end, indent = object_of(lines, path)
        properties = next(i for i in range(begin, end) if lines[i] == f'{" " * indent}"properties": {{')
        what = json.dumps({"$ref": f"#/$defs/{figure['unit']}", "description": figure["doc"]}, ensure_ascii=False)
        line = f'{" " * (indent + 2)}{json.dumps(key)}: {what}'
        at = next((i for i in range(properties, end) if lines[i].startswith(line[:line.index(":") + 1])), None)
        if at is None:
            before = after.get(tuple(path))
            at = properties + 1 if before is None else 1 + next(i for i in range(properties, end) if before in lines[i])
            lines.insert(at, line + ",")
        else:
            lines[at] = line + ("," if lines[at].endswith(",") else "")
        after[tuple(path)] = f'{" " * (indent + 2)}{json.dumps(key)}:'
        at = next(i for i in range(begin, properties) if lines[i].startswith(f'{" " * indent}"required":'))
        required = json.loads(lines[at].split(":", 1)[1].rstrip(","))
        if (key in required) != figure["required"]:
            required = [*required, key] if figure["required"] else [name for name in required if name != key]
            lines[at] = f'{" " * indent}"required": {json.dumps(required)},'
    return "\n".join(lines)


def between(text, begin, end, lines):
    """Replaces the lines between those that contain `begin` and `end`."""
    return re.sub(rf"({re.escape(begin)}[^\n]*\n).*?([^\n]*{re.escape(end)})",
                  lambda match: match[1] + "".join(line + "\n" for line in lines) + match[2], text, flags=re.DOTALL)


def stub(text, figures):
    lines = []
    for figure in figures:
        optional = "" if figure["always"] else " | None"
        lines.append(f"    {figure['name']}: Final[{TYPES[figure['unit']]}{optional}]")
    return between(text, "# Figures:", "# end of figures", lines)


def page(text, figures):
    rows = ["", "| line of the report | JSON | in Python | what |", "|---|---|---|---|"]
    rows += [f"| {f['label']} | `{f['key']}` | `report.{f['name']}` | {f['doc']} |" for f in figures
             if f["label"]]  # fmt: skip
    return between(text, "<!-- figures", "<!-- end of figures", [*rows, ""])


def tables_of(tool, *words):
    """Yields (heading, [(option, description)]) from --help."""
    text = subprocess.run([tool.path(), *words, "--help"], env=tool.environment(tool.folder_of("torch")), check=True,
                          capture_output=True, text=True).stdout
    for heading, lines in re.findall(r"^(\S[^\n]*):\n((?:  +\S[^\n]*\n)+)", text, re.MULTILINE):
        rows = re.findall(r"^  (\S+(?: \S+)*?)(?:\n {10,}|  +)(\S[^\n]*)\n", lines, re.MULTILINE)
        if heading != "Examples":
            yield heading, [(name.removesuffix(" ..."), what) for name, what in rows if not name.startswith("-h,")]


def options(text, _):
    import _shadowgraph_tool as tool

    verbs = dict(tables_of(tool))["Verbs"]
    lines = [text.partition("\n## ")[0].rstrip()]
    for verb, what in verbs:
        lines += ["", f"## {verb}", f"{what}.", "", "| option | what |", "|---|---|"]
        for heading, rows in tables_of(tool, verb):
            lines += [f"| **{heading}** | |"] if heading != "Positionals" else []
            lines += ["| `{}` | {} |".format(name.replace("|", r"\|"), re.sub(r"([|*_<\[])", r"\\\1", what))
                      for name, what in rows]  # fmt: skip
    return "\n".join(lines) + "\n"


OUTPUTS = {"docs/profile.schema.json": schema, "python/shadowgraph/_shadowgraph.pyi": stub, "docs/memory.md": page,
           "docs/options.md": options}


def main(check):
    sys.path.insert(0, str(ROOT / "build/python"))
    from shadowgraph import _shadowgraph

    stale = []
    for name, write in OUTPUTS.items():
        text = (ROOT / name).read_text()
        if (written := write(text, _shadowgraph.profile_figures())) != text:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(written)
    return f"{', '.join(stale)} out of date; run scripts/write_profile_figures.py" if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
