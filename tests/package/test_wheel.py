"""The wheel: its contents, supported environments, and refusals. Much of this is skipped in a checkout."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from _shadowgraph_build import TORCH_VERSION, TORCH_VERSIONS

import shadowgraph as sg

WHEELS = os.environ.get("WHEELS")
installed = pytest.mark.skipif(WHEELS is None, reason="not out of a wheel")


@installed
def test_this_is_the_installed_package():
    folder = pathlib.Path(sg.__file__).resolve().parent
    assert folder.is_relative_to(pathlib.Path(sys.prefix).resolve()), folder
    (mapped,) = set(re.findall(r"\S+/libshadowgraph\.so\S*", pathlib.Path("/proc/self/maps").read_text()))
    assert pathlib.Path(mapped).parent == folder
    assert len(set(re.findall(r"\S+/libtorch_cpu\.so", pathlib.Path("/proc/self/maps").read_text()))) == 1


@installed
def test_what_is_in_the_wheel():
    (path,) = pathlib.Path(WHEELS).glob("shadowgraph-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (metadata,) = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
    libraries = {name for name in names if ".so" in name}
    assert {name.split("/")[1].split(".")[0] for name in libraries} == {"libshadowgraph", "_shadowgraph"}
    assert len(libraries) == 2 and "shadowgraph/libshadowgraph.so.0" in libraries
    expected = {"py.typed", "_shadowgraph.pyi", "__main__.py", "bin/shadowgraph"}
    assert {f"shadowgraph/{name}" for name in expected} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".cpp", ".h"))]
    assert f"Requires-Dist: torch=={TORCH_VERSION}" in metadata and f"Version: {sg.__version__}" in metadata
    assert path.stat().st_size < 20 << 20


@installed
def test_libraries_are_found_beside_one_another_and_torch_by_whoever_imported_it():
    folder = pathlib.Path(sg.__file__).parent
    for file in (*folder.glob("*.so*"), folder / "bin" / "shadowgraph"):
        dynamic = subprocess.run(["readelf", "-dW", file], check=True, capture_output=True, text=True).stdout
        own_folder = "$ORIGIN" if ".so" in file.name else "$ORIGIN/.."
        assert re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic) == [own_folder]
        needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", dynamic))
        versions = subprocess.run(["readelf", "-VW", file], check=True, capture_output=True, text=True).stdout
        assert max(map(int, re.findall(r"GLIBCXX_3\.4\.(\d+)", versions)), default=0) <= 29, "RHEL 9 has GCC 11's"
        assert not {name for name in needed if "gvc" in name or "graph" in name} - {"libshadowgraph"}, needed


@installed
def test_the_tool_is_there(tmp_path):
    tool = pathlib.Path(sys.prefix) / "bin" / "shadowgraph"
    (tmp_path / "mine.py").write_text("import torch\ndef net(): return torch.nn.Linear(16, 4)\n")
    done = subprocess.run([tool, "profile", "mine:net", "--input", "f32[8,16]", "--json"], cwd=tmp_path,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and '"parameters": 68' in done.stdout, done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    calls = ((["list", "models"], "llama3_8b"), (["profile", "resnet18", "--batch", "1"], "temporary"),
             (["list", "passes"], "dce"))  # fmt: skip
    for arguments, said in calls:
        done = subprocess.run([tool, *arguments], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0 and said in done.stdout, done.stderr


def imported_again():
    """Re-executes the package's own code as `import shadowgraph` does, with its submodules already imported."""
    spec = importlib.util.spec_from_file_location("shadowgraph", sg.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("version", ["2.11.1", f"{TORCH_VERSION}1+cu130", "2.14.0a0"])
def test_another_torch_is_refused_in_one_sentence(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError) as refused:
        imported_again()
    said = str(refused.value)
    assert version in said and f"torch=={TORCH_VERSION}" in said and ", ".join(TORCH_VERSIONS) in said
    assert "\n" not in said and not said.endswith(".")


def test_a_build_for_another_system_is_the_same_torch(monkeypatch):
    for version in (TORCH_VERSION, f"{TORCH_VERSION}+cu130"):
        monkeypatch.setattr(torch, "__version__", version)
        imported_again()
