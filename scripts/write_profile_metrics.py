#!/usr/bin/env python3
"""Generates files from the table in profiler/profile/metrics.cpp and from --help. Requires build/python (make python).

    scripts/write_profile_metrics.py           updates the files
    scripts/write_profile_metrics.py --check   fails if a file is out of date

Generates the properties and required keys of docs/profile.schema.json, the table of report lines in docs/memory.md, and
docs/options.md with the options of all verbs.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


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


def page(text, figures):
    rows = ["", "| line of the report | JSON | meaning |", "|---|---|---|"]
    rows += [f"| {f['label']} | `{f['key']}` | {f['doc']} |" for f in figures if f["label"]]
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
    """Lists the options of every verb; options with the same text in at least SHARED verbs are listed once."""
    import _shadowgraph_tool as tool

    verbs = dict(tables_of(tool))["Verbs"]
    tables = {verb: [(heading, name, what) for heading, rows in tables_of(tool, verb)
                     for name, what in rows] for verb, _ in verbs}  # fmt: skip
    count = collections.Counter((name, what) for rows in tables.values() for _, name, what in rows)
    group = {}  # of each shared option: the heading where it comes first
    for rows in tables.values():
        for heading, name, what in rows:
            if count[name, what] >= SHARED:
                group.setdefault((name, what), heading.replace("Positionals", "Arguments"))
    lines = [text.partition("\n## ")[0].rstrip(), "", "## Shared options"]
    for heading in dict.fromkeys(group.values()):
        lines += ["", f"**{heading}**", "", *(option_line(*option) for option in group if group[option] == heading)]
    for verb, what in verbs:
        options = [(name, what) for _, name, what in tables[verb]]
        lines += ["", f"## {verb}", f"{what}.", "", *(option_line(*each) for each in options if each not in group)]
        shared = [shared_line(heading, [each for each in group if group[each] == heading], options)
                  for heading in dict.fromkeys(group[each] for each in options if each in group)]  # fmt: skip
        lines += ["", f"Shared: {'; '.join(shared)}."] if shared else []
    return "\n".join(lines) + "\n"


def shared_line(heading, group, options):
    """Names the options of a group that a verb has: all, all except a few, or a few."""
    names = {name.split(" ")[0] for name, _ in options}
    there = [f"`{short(name)}`" for name, what in group if (name, what) in options]
    absent = dict.fromkeys(f"`{short(name)}`" for name, _ in group if name.split(" ")[0] not in names)
    if len(there) < len(absent):
        return ", ".join(there)
    return heading + (f" except {', '.join(absent)}" if absent else "")


SHARED = 3  # verbs


def option_line(name, what):
    """Writes `--batch INT` as `--batch=INT`, and `--depth INT=0` as `--depth=0`."""
    name = re.sub(r" \w+=| ", "=", re.sub(r" REQUIRED|:FILE|\s+Excludes:.*", "", name))
    return f"- `{name}`: " + re.sub(r"([|*_<\[])", r"\\\1", what)


def short(name):
    """Shortens `-o,--output TEXT` to `--output`."""
    return name.split(" ")[0].split(",")[-1].partition("=")[0]


OUTPUTS = {"docs/profile.schema.json": schema, "docs/memory.md": page, "docs/options.md": options}


def main(check):
    sys.path.insert(0, str(ROOT / "build/python"))
    from shadowgraph import _shadowgraph

    stale = []
    for name, write in OUTPUTS.items():
        text = (ROOT / name).read_text()
        if (written := write(text, _shadowgraph.profile_metrics())) != text:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(written)
    return f"{', '.join(stale)} out of date; run scripts/write_profile_metrics.py" if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
