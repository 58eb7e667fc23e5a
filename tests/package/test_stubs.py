"""The type stubs list exactly the names of the extension module."""

import ast
import importlib.util
import pathlib

import pytest

import shadowgraph as sg
from shadowgraph import _shadowgraph

STUB = pathlib.Path(sg.__file__).parent / "_shadowgraph.pyi"
PYTHON_ADDS = {"__eq__", "__hash__"}  # defined by pybind11 and also by object


def named_in(body):
    """Returns {name: names inside a class, or None}."""
    names = {}
    for item in body:
        if isinstance(item, ast.ClassDef):
            names[item.name] = set(named_in(item.body))
        elif isinstance(item, ast.FunctionDef):
            names[item.name] = None
        elif isinstance(item, ast.AnnAssign):
            names[item.target.id] = None
    return names


def test_the_stub_has_what_the_module_has():
    stub = dict(named_in(ast.parse(STUB.read_text()).body))
    module = {name for name in dir(_shadowgraph) if not name.startswith("_")}
    assert set(stub) - module == set(), "only in the stub"
    assert module - set(stub) == set(), "only in the module"
    for name, inside in stub.items():
        entry = getattr(_shadowgraph, name)
        if isinstance(entry, type):
            has = {key for key in vars(entry) if not key.startswith("_") or key == "_repr_html_"}
            public = {key for key in inside if not key.startswith("_") or key == "_repr_html_"}
            assert public == has, name
            special = {key for key in inside if key.startswith("__")} - PYTHON_ADDS
            assert special <= set(vars(entry)), name


def test_properties_and_methods_are_what_the_stub_says():
    for item in ast.parse(STUB.read_text()).body:
        for member in item.body if isinstance(item, ast.ClassDef) else ():
            if isinstance(member, (ast.FunctionDef, ast.AnnAssign)):
                name = member.name if isinstance(member, ast.FunctionDef) else member.target.id
                entry = vars(getattr(_shadowgraph, item.name)).get(name)
                assert isinstance(entry, property) == isinstance(member, ast.AnnAssign), (item.name, name)


def test_what_follows_from_the_rows_of_figures_is_written():
    path = pathlib.Path(__file__).resolve().parents[2] / "scripts/write_profile_metrics.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert not script.main(check=True)


def test_the_package_is_typed_and_what_is_public_is_documented():
    assert (STUB.parent / "py.typed").exists()
    for name in sg.__all__:
        if callable(getattr(sg, name)):
            assert getattr(sg, name).__doc__, name


@pytest.mark.parametrize("name", ["Node", "Value", "Storage", "Region", "Graph"])
def test_classes_say_what_they_are(name):
    assert getattr(sg, name).__doc__
