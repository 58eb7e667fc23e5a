"""docs/cpp-in-python.md: each public function of C++ has a row, and what the rows name is there."""

import functools
import pathlib
import subprocess
import sys

import pytest

import shadowgraph as sg

SCRIPTS = pathlib.Path(__file__).parent.parent.parent / "scripts"


def test_each_public_function_has_a_row_and_the_page_is_current():
    for arguments in (["--test"], ["--check"]):
        run = subprocess.run([sys.executable, SCRIPTS / "python_names.py", *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def test_what_the_rows_name_is_in_the_package(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    names = pytest.importorskip("python_names")
    missing = []
    for row in names.rows_of(names.ROWS.read_text()):
        for name in row.in_python:
            try:
                functools.reduce(getattr, name.removeprefix("sg.").split("."), sg)
            except AttributeError:
                missing.append((row.header, name))
    assert missing == []
