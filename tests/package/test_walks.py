"""The walks in docs/walks-*.md, run as they are written, in order; each says what its commands print.

A block with a title is written to that file; those before the first walk of a page are there in all of them. Blocks of
sh and python run in one folder a walk. A block of text holds lines that the block before printed, in this order; `...`
stands for anything.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PREPARE = "import sys, types; sys.modules.setdefault('torchvision._meta_registrations', types.ModuleType('t'))\n"


def walks():
    for page in sorted(FOLDER.glob("walks-*.md")):
        before, *sections = page.read_text().split("\n## ")
        for section in sections:
            title, _, body = section.partition("\n")
            yield pytest.param(before + body, id=f"{page.stem}: {title}")


def test_there_are_27_and_more():
    assert len(list(walks())) == 31


@pytest.mark.parametrize("body", list(walks()))
def test_a_walk(body, tmp_path):
    blocks = BLOCK.findall(body)
    assert any(kind == "text" for kind, _, _ in blocks), "it promises nothing"
    environment = prepared(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    said = ""
    for kind, title, text in blocks:
        if title:
            (work / title).write_text(text)
        elif kind == "text":
            promised(text, said)
        else:
            assert kind in ("sh", "python"), kind
            words = ["bash", "-e", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
            done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
            said = done.stdout + done.stderr
            assert done.returncode == 0, f"{text}\n{said}"


def prepared(folder):
    """Variables in which `shadowgraph`, `python` and `pytest` are those of this session."""
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


def promised(text, said):
    lines = iter(said.splitlines())
    for line in text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        assert any(re.fullmatch(pattern, other.strip()) for other in lines), f"not printed: {line}\n{said}"


def test_a_promise_that_is_not_kept_is_noticed():
    promised("a ... c\n...\nd", "x\na b c\ny\nd\n")
    for text, said in (("a", "b"), ("a\nb", "b\na"), ("a", "a b")):
        with pytest.raises(AssertionError):
            promised(text, said)
