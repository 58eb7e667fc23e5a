"""docs/cpp-in-python.md: what its rows name is in the package. scripts/python_names.py holds it against the headers."""

import functools
import pathlib

import pytest

import shadowgraph as sg

SCRIPTS = pathlib.Path(__file__).parent.parent.parent / "scripts"


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
