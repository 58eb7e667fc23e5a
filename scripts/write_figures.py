#!/usr/bin/env python3
"""Generates docs/figures.md from the measurements in docs/figures/*.json.

    scripts/write_figures.py           writes the page
    scripts/write_figures.py --check   fails if the page is out of date

Each file is a section, in the order of file names:

    {"title": ..., "about": what is measured and the baseline,
     "measured": date, "machine": ..., "command": command that measures,
     "reading": [sentences about the results],
     "tables": [{"about": ..., "columns": [...], "rows": [[...], ...]}, ...]}

A table may override "measured" and "command". With "data_only" the page refers to the file instead of showing rows. To
update a section, run the command, edit the file, and run this script.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/figures.md"
KEYS = {"title", "about", "measured", "machine", "command", "reading", "tables"}
TABLE_KEYS = {"about", "columns", "rows", "measured", "command", "data_only"}
HEAD = """# Figures
`scripts/write_figures.py` writes this page from `docs/figures/`. Each section names the date, the machine and the
command. An *aim* is the project's target on such a machine. Machines are shared and noisy, so only ratios
carry over to another one. `make bench` runs all benchmarks; `bench/README.md` says what each measures. Where no
machine is named, it is {machine}.
"""
# Default machine, which sections do not repeat.
MACHINE = "two cores of a shared x86-64 virtual machine, libtorch 2.13.0 CPU build, g++ 12.2, Release, one thread"


class FiguresError(Exception):
    """Raised for a file that does not follow the format described at the top of this script."""


def source_lines(part):
    """Returns the line with date, machine and command."""
    commands = ", ".join(f"`{command.strip()}`" for command in part.get("command", "").split(";") if command)
    machine = part.get("machine")
    facts = [part.get("measured"), f"on {machine}" if machine not in (None, MACHINE) else None,
            commands and f"by {commands}"]  # fmt: skip
    return [f"- *Measured* {'; '.join(filter(None, facts))}"] if any(facts) else []


def table(path, part):
    if unknown := set(part) - TABLE_KEYS:
        raise FiguresError(f"{path}: unknown keys in a table: {', '.join(sorted(unknown))}")
    columns, rows = part["columns"], part["rows"]
    for row in rows:
        if len(row) != len(columns):
            raise FiguresError(f"{path}: row has {len(row)} cells, expected {len(columns)}: {row}")
    if part.get("data_only"):
        return [f"{part['about']}: {len(rows)} rows in `docs/figures/{path.name}`.", ""]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    out = [part["about"], ""] if "about" in part else []
    if source := source_lines(part):
        out += [*source, ""]
    return [*out, *lines, ""]


def write(path, document):
    """Writes a file of measurements, with one line per table row or sentence."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    path.write_text(re.sub(r'(?<!"reading": )\[\s*((?:"(?:[^"\\]|\\.)*",?\s*)+)\]',
                           lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]).strip() + "]", text) + "\n")


def section(path):
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise FiguresError(f"{path} is not valid JSON: {error}") from error
    if set(document) != KEYS:
        raise FiguresError(f"{path}: the keys must be {', '.join(sorted(KEYS))}")
    out = [f"## {document['title']}", document["about"], ""]
    for part in document["tables"]:
        out += table(path, part)
    out += [f"- {sentence}" for sentence in document["reading"]]
    return [*out, *source_lines(document), ""]


def page():
    lines = HEAD.format(machine=MACHINE).splitlines() + [""]
    for path in sorted((ROOT / "docs/figures").glob("*.json")):
        lines += section(path)
    return "\n".join(lines)


def main():
    try:
        text = page()
    except FiguresError as error:
        sys.exit(f"write_figures.py: {error}")
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/figures.md is out of date; run scripts/write_figures.py")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
