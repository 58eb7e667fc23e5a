"""The command `shadowgraph`: the program at once, or the same in shadowgraph.__main__ where Python is needed.

Not in the package, whose import takes torch and two seconds, ten times what the tool does.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys

from _shadowgraph_build import TORCH_VERSION, TORCH_VERSIONS, VERSION

MADE_IN_PYTHON = re.compile(r"hf:.*|[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(versions())
        return 0
    asks_python = any(word.startswith("--emit-python") or MADE_IN_PYTHON.fullmatch(word) for word in arguments)
    tool, torch = None if asks_python else path(), folder_of("torch")
    if tool is None or torch is None or not is_torch_right():
        from shadowgraph.__main__ import main as main_of_package

        return main_of_package()
    sys.stdout.flush()
    os.execve(tool, [tool, *arguments], environment(torch))


def versions():
    """What is installed and what it is made for."""
    installed = installed_torch() or "none"
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"shadowgraph {VERSION}\ntorch {TORCH_VERSION}, which this build is for; installed: {installed}\n"
        f"Python {python}\nthere are builds for torch {', '.join(TORCH_VERSIONS)}"
    )


def installed_torch():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def is_torch_right():
    return (installed_torch() or "").split("+")[0] == TORCH_VERSION


def folder_of(package):
    """Where a package lies, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else os.path.dirname(os.path.abspath(spec.origin))


def path():
    """Returns the path of the C++ tool; None if the package was built without it."""
    package = folder_of("shadowgraph")
    tool = None if package is None else os.path.join(package, "bin", "shadowgraph")
    return tool if tool is not None and os.path.exists(tool) else None


def environment(torch):
    """What the tool runs in, so that it finds libtorch in the folder of torch."""
    paths = [os.path.join(torch, "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    sys.exit(main())
