"""Runs the examples of README.md and docs/ that show output, and compares their output.

A section that contains a text block is executed: its sh and python blocks run in order, in one folder. A text block
has lines that the preceding block prints, in this order; `...` matches anything. A block with a title is a file of
that name. Titled blocks before the first section of a page are written for all of its sections.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import shadowgraph as sg

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## ", re.MULTILINE)
PREPARE = "import sys, types; sys.modules.setdefault('torchvision._meta_registrations', types.ModuleType('t'))\n"


def sections():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before, *bodies = HEADING.split(page.read_text())
        files = "".join(block[0] + "\n" for block in BLOCK.finditer(before) if block[2])
        for body in [before, *bodies]:
            if any(kind == "text" and not title for kind, title, _ in BLOCK.findall(body)):
                title = body.partition("\n")[0].removeprefix("# ")
                yield pytest.param(body if body is before else files + body, id=f"{page.stem}: {title}")


def test_names_in_the_pages_exist():
    headers = "".join(path.read_text() for path in (ROOT / "include").rglob("*.h"))
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        for name in re.findall(r"\bsg\.(\w+)", text):
            assert hasattr(sg, name), f"{page.name}: sg.{name}"
        for name in re.findall(r"\bsg::(\w+)", text):
            assert re.search(rf"\b{name}\b", headers), f"{page.name}: sg::{name}"


def test_all_pages_are_read():
    pages = {parameter.id.partition(":")[0] for parameter in sections()}
    assert {"README", "index", "coming-from", "how-to-one-gpu", "how-to-many-devices", "how-to-graphs"} <= pages


@pytest.mark.parametrize("body", list(sections()))
def test_examples_print_what_the_page_shows(body, tmp_path):
    environment = prepared(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    output = ""
    for kind, title, text in BLOCK.findall(body):
        if title:
            (work / title).write_text(text)
        elif kind == "text":
            expect_lines(text, output)
        elif kind in ("sh", "python"):
            words = ["bash", "-e", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
            done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
            output = done.stdout + done.stderr
            assert done.returncode == 0, f"{text}\n{output}"


def prepared(folder):
    """Returns environment variables that select this session's `shadowgraph`, `python` and `pytest`."""
    commands = folder / "bin"
    commands.mkdir()
    modules = {"shadowgraph": "-m _shadowgraph_tool", "python": "", "pytest": "-m pytest -p _shadowgraph_pytest"}
    for name, words in modules.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (commands / name).chmod(0o755)
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(PREPARE)
    paths = [str(site), *(path for path in sys.path if path)]
    return {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONWARNINGS": "ignore"}  # fmt: skip


def expect_lines(text, output):
    lines = iter(output.splitlines())
    for line in text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        assert any(re.fullmatch(pattern, other.strip()) for other in lines), f"not printed: {line}\n{output}"


def test_a_missing_line_is_an_error():
    expect_lines("a ... c\n...\nd", "x\na b c\ny\nd\n")
    for text, output in (("a", "b"), ("a\nb", "b\na"), ("a", "a b")):
        with pytest.raises(AssertionError):
            expect_lines(text, output)
