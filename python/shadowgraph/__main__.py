"""`python -m shadowgraph`: the tool in this process, which captures models in Python (_tool.py).

The command `shadowgraph` begins in _shadowgraph_tool.py, which does without this where no model is in Python.
"""

import signal
import sys

import _shadowgraph_tool

from . import _shadowgraph as _C


def main(arguments=None):
    """The exit code: 0 done, 1 the input's fault, 2 usage, 3 ours, 4 check found growth."""
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the tool is C++, where Python's handler would wait
    if list(arguments) == ["--version"]:
        print(_shadowgraph_tool.versions())
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    return _C.run_tool(list(arguments))


if __name__ == "__main__":
    sys.exit(main())
