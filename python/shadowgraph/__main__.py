"""`python -m shadowgraph`: runs the command line tool in this process, to capture Python models (_tool.py).

The command `shadowgraph` starts in _shadowgraph_tool.py, which only uses this module if a model is in Python.
"""

import sys

import _shadowgraph_tool

from . import _shadowgraph as _C


def main(arguments=None):
    """Returns the exit code: 0 success, 1 invalid input, 2 usage error, 3 internal error, 4 regression (check)."""
    if arguments is None:
        arguments = sys.argv[1:]
        _C.exit_on_interrupt()  # Python's handler would not run until C++ returns
    if list(arguments) == ["--version"]:
        print(_shadowgraph_tool.versions())
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    return _C.run_tool(list(arguments))


if __name__ == "__main__":
    sys.exit(main())
