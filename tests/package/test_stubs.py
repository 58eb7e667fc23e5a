"""The type stubs that the build writes, and what is generated from the rows of figures."""

import ast
import importlib.util
import pathlib

import pytest

import shadowgraph as sg
from shadowgraph import _shadowgraph

STUB = pathlib.Path(sg.__file__).parent / "_shadowgraph.pyi"


def test_the_stubs_have_the_types_of_the_signatures():
    classes = {item.name: {ast.unparse(member) for member in item.body}
               for item in ast.parse(STUB.read_text()).body if isinstance(item, ast.ClassDef)}  # fmt: skip
    assert {name for name, entry in vars(_shadowgraph).items() if isinstance(entry, type)} == set(classes)
    assert {"region: Final[Region | None]", "inputs: Final[list[Value]]", "notes: Final[dict[str, str]]",
            "def set_note(self, key: str, value: str) -> None:\n    ..."} <= classes["Node"]  # fmt: skip
    assert {"shape: Final[tuple[int, ...]]", "dtype: Final[torch.dtype]"} <= classes["Value"]
    assert {"parameters: Final[int]", "time_seconds: Final[float | None]"} <= classes["Profile"]
    assert {"to_fx = shadowgraph._fx.to_fx"} <= classes["Graph"]
    assert "@staticmethod\ndef parse(text: str) -> Graph:\n    ..." in classes["Graph"]


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
