#!/usr/bin/env python3
"""Supported versions of PyTorch (cmake/torch_versions.txt) and the default one.

    scripts/torch_versions.py            lists the versions
    scripts/torch_versions.py default    fails unless the default is the best version on PyPI

Also sets version and requirements of the wheel (pyproject.toml): it requires exactly the torch that it was built for. A
source distribution accepts the whole range.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

FILE = pathlib.Path(__file__).resolve().parent.parent / "cmake/torch_versions.txt"


@dataclasses.dataclass
class Version:
    """A row of the file."""

    text: str
    cuda: str
    cudnn: int
    default: bool

    @property
    def minor(self):
        return self.text.rpartition(".")[0]


def supported():
    """Returns all versions, oldest first."""
    rows = [line.split() for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [Version(row[0], row[1], int(row[2]), row[3:] == ["default"]) for row in rows]


def default():
    (row,) = [row for row in supported() if row.default]
    return row


def best_of(offered, rows):
    """Returns the newest supported version with a CPU build in `offered`, else the newest one in `offered`."""
    rows = [row for row in reversed(rows) if {row.text, row.text + "+cpu"} & set(offered)]
    of_cpu = [row for row in rows if row.text + "+cpu" in offered]
    return (of_cpu or rows or [None])[0]


def registry_versions():
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True)
    found = re.search(r"Available versions: (.*)", done.stdout)
    if found is None:
        raise SystemExit(f"torch_versions: pip found no versions of torch: {done.stderr.strip()}")
    return found[1].split(", ")


def requirement(installed):
    """Returns the torch requirement of a wheel built for `installed`, or of a source distribution if None."""
    if installed is None:
        first, last = supported()[0].minor, supported()[-1].minor
        major, minor = last.split(".")
        return f"torch>={first},<{major}.{int(minor) + 1}"
    return f"torch=={installed.split('+')[0]}"


def version_of_project(torch):
    """Returns the version in CMakeLists.txt, with `torch` as local version if given."""
    found = re.search(r"project\(shadowgraph VERSION ([0-9.]+)", (FILE.parent.parent / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1] + (f"+torch{torch}" if torch else "")


class Provider:
    """Dynamic metadata of pyproject.toml for scikit-build-core. scripts/make_wheel.sh sets environment variables."""

    def __init__(self):
        self.state = "wheel"

    def build_state(self, state):
        self.state = state

    def dynamic_metadata(self, settings, project):
        given = os.environ.get("SHADOWGRAPH_FOR_TORCH")
        version = version_of_project(given if os.environ.get("SHADOWGRAPH_LOCAL_VERSION") else None)
        if given is None and self.state != "sdist":
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                given = importlib.metadata.version("torch")
        return {"version": version, "dependencies": [requirement(given)]}

    def dynamic_wheel(self, settings):
        """Wheels built from a source distribution have different requirements from the source distribution."""
        return {"dependencies": True}


def main(arguments):
    if arguments == ["default"]:
        best = best_of(registry_versions(), supported())
        print(f"best version: {best.text}; default: {default().text}" if best else "PyPI has no supported version")
        return 0 if best is not None and best.default else 1
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for row in supported():
        print(f"{row.text}  CUDA {row.cuda}  cuDNN {row.cudnn}{'  default' if row.default else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
