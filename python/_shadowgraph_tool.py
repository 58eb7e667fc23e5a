"""Entry point of the command `shadowgraph`. Executes the C++ tool, or shadowgraph.__main__ if a model is in Python.

A module outside the package, because importing the package imports torch (about two seconds).
"""

import importlib.metadata
import importlib.util
import os
import re
import signal
import sys

from _shadowgraph_build import TORCH_VERSION, TORCH_VERSIONS, VERSION

PYTHON_MODEL = re.compile(r"hf:.*|[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*")


def exit_on_interrupt():
    """Makes Ctrl-C end the process with one line, before C++ can: importing torch takes seconds."""

    def end(number, frame):
        print("\n" * sys.stderr.isatty() + "shadowgraph: interrupted", file=sys.stderr, flush=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, end)


def main():
    exit_on_interrupt()
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(versions())
        return 0
    needs_python = any(word.startswith("--emit-python") or PYTHON_MODEL.fullmatch(word) for word in arguments)
    tool, torch = None if needs_python else path(), folder_of("torch")
    is_torch_right = (installed_torch() or "").split("+")[0] == TORCH_VERSION
    if tool is None or torch is None or not is_torch_right:
        from shadowgraph.__main__ import main as main_of_package

        return main_of_package()
    sys.stdout.flush()
    os.execve(tool, [tool, *arguments], environment(torch))


def versions():
    """Returns the output of `shadowgraph --version`."""
    installed = installed_torch() or "none"
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"shadowgraph {VERSION}\nbuilt for torch {TORCH_VERSION}; installed torch: {installed}\n"
        f"Python {python}\nsupported torch versions: {', '.join(TORCH_VERSIONS)}"
    )


def installed_torch():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def folder_of(package):
    """Returns the folder of a package without importing it, or None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else os.path.dirname(os.path.abspath(spec.origin))


def path():
    """Returns the path of the C++ tool, or None if the package was built without it."""
    package = folder_of("shadowgraph")
    tool = None if package is None else os.path.join(package, "bin", "shadowgraph")
    return tool if tool is not None and os.path.exists(tool) else None


def environment(torch):
    """Returns the environment for the tool, with libtorch in `torch` on the library path."""
    paths = [os.path.join(torch, "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    sys.exit(main())
