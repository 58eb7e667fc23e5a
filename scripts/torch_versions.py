#!/usr/bin/env python3
"""The versions of PyTorch that this tree is for (cmake/torch_versions.txt), and which of them is the default.

    scripts/torch_versions.py            lists them
    scripts/torch_versions.py default    asks the registry which should be the default, and fails if it is another one

Also gives the wheel its requirement and version (pyproject.toml): the very torch that it is built for. A source
distribution, for which none is installed, takes the whole range.
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
    """All versions, the oldest first."""
    rows = [line.split() for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [Version(row[0], row[1], int(row[2]), row[3:] == ["default"]) for row in rows]


def default():
    (row,) = [row for row in supported() if row.default]
    return row


def best_of(offered, rows):
    """Returns the newest supported version of which `offered` has a CPU build, else the newest of them."""
    rows = [row for row in reversed(rows) if {row.text, row.text + "+cpu"} & set(offered)]
    of_cpu = [row for row in rows if row.text + "+cpu" in offered]
    return (of_cpu or rows or [None])[0]


def offered_by_the_registry():
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True)
    found = re.search(r"Available versions: (.*)", done.stdout)
    if found is None:
        raise SystemExit(f"torch_versions: pip says of no torch: {done.stderr.strip()}")
    return found[1].split(", ")


def requirement(installed):
    """What a wheel built for torch `installed` needs; None for a source distribution."""
    if installed is None:
        first, last = supported()[0].minor, supported()[-1].minor
        major, minor = last.split(".")
        return f"torch>={first},<{major}.{int(minor) + 1}"
    return f"torch=={installed.split('+')[0]}"


def version_of_project(torch):
    """As CMakeLists.txt has it; with `torch` as the local part, by which wheels for several torches differ."""
    found = re.search(r"project\(shadowgraph VERSION ([0-9.]+)", (FILE.parent.parent / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1] + (f"+torch{torch}" if torch else "")


class Provider:
    """What pyproject.toml calls dynamic; scikit-build-core asks. scripts/make_wheel.sh says what its wheel is of."""

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
        """The requirement of a source distribution is not that of the wheel made of it."""
        return {"dependencies": True}


def main(arguments):
    if arguments == ["default"]:
        best = best_of(offered_by_the_registry(), supported())
        print(f"{best.text} should be the default, {default().text} is" if best else "the registry has none of them")
        return 0 if best is not None and best.default else 1
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for row in supported():
        print(f"{row.text}  CUDA {row.cuda}  cuDNN {row.cudnn}{'  default' if row.default else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
