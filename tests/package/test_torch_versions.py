"""The list of torch versions with builds, and the scripts that read it."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import _shadowgraph_build
import _shadowgraph_tool
import pytest
import tomllib
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import compatibility  # noqa: E402
import torch_versions  # noqa: E402


def test_this_build_is_for_the_torch_that_runs_it():
    assert torch.__version__.split("+")[0] == _shadowgraph_build.TORCH_VERSION
    assert tuple(row.text for row in torch_versions.supported()) == _shadowgraph_build.TORCH_VERSIONS


def test_the_list_is_of_four_minors_in_order_and_one_default():
    numbers = [tuple(map(int, row.text.split("."))) for row in torch_versions.supported()]
    assert numbers == sorted(numbers) and len({number[:2] for number in numbers}) == len(numbers) == 4
    assert torch_versions.default().text in {row.text for row in torch_versions.supported()}


def test_the_range_of_the_project_is_that_of_the_list():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert torch_versions.requirement(None) in project["build-system"]["requires"]
    assert torch_versions.requirement("2.15.0+cu132") == "torch==2.15.0"


@pytest.mark.parametrize(
    "offered, best",
    [
        (["2.15.0", "2.14.1", "2.13.0+cpu", "2.13.0"], "2.13.0"),
        (["2.15.0", "2.15.0+cpu", "2.13.0+cpu"], "2.15.0"),
        (["2.16.0+cpu", "2.15.0", "2.14.1"], "2.15.0"),
        (["2.11.0"], None),
    ],
)
def test_the_default_is_the_newest_of_the_cpu_builds_else_the_newest(offered, best):
    row = torch_versions.best_of(offered, torch_versions.supported())
    assert best == (row and row.text)


def test_version_says_all_versions():
    for command in ("_shadowgraph_tool", "shadowgraph"):
        done = subprocess.run([sys.executable, "-m", command, "--version"], check=True, capture_output=True, text=True)
        assert done.stdout == _shadowgraph_tool.versions() + "\n"
    said = done.stdout
    installed = importlib.metadata.version("torch")
    assert re.search(r"^shadowgraph \d+\.\d+\.\d+$", said, re.M) and f"installed torch: {installed}" in said
    assert ", ".join(_shadowgraph_build.TORCH_VERSIONS) in said and f"Python {sys.version_info.major}." in said


def test_an_environment_with_torch_alone_gets_what_the_tests_need(tmp_path, monkeypatch):
    """CI installs its second torch without torchvision, into the folder that `make compatibility` uses."""
    packages = tmp_path / "env/lib/python3.11/site-packages"
    build = compatibility.Build("2.15.0", tmp_path, tmp_path / "env")
    asked = []

    def pip_install(_, *what, **options):
        asked.append(what)
        for name in ("torch-2.15.0", *(f"{name}-1.0" for name in what if name == "torchvision")):
            (packages / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)
            (packages / f"{name}.dist-info/RECORD").touch()

    monkeypatch.setattr(compatibility.Build, "run", lambda *_, **options: build.python.parent.mkdir(exist_ok=True))
    monkeypatch.setattr(compatibility.Build, "pip_install", pip_install)
    packages.mkdir(parents=True)
    for more in ((), (), ("torchvision",), ("torchvision",)):
        build.install(*more)
        build.python.touch()
    assert asked == [("torch==2.15.0", "numpy"), ("torch==2.15.0", "numpy", "torchvision")]
