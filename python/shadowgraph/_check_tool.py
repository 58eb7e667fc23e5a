"""`shadowgraph check` of models in Python: what of its options is the tool's."""

_TAKE_VALUES = ("--spec", "--max-peak", "--max-time", "--rows")
_FLAGS = ("--update", "--markdown")


def add_options(command):
    """Those of the tool, to a parser that has those of a capture."""
    for name in _TAKE_VALUES:
        command.add_argument(name, help="as of the tool")
    for name in _FLAGS:
        command.add_argument(name, action="store_true", help="as of the tool")


def passed_on(given):
    """What is the tool's of a command line that add_options' parser has read."""
    words = []
    for name in _TAKE_VALUES:
        value = getattr(given, name[2:].replace("-", "_"))
        words += [] if value is None else [name, value]
    words += [name for name in _FLAGS if getattr(given, name[2:])]
    return words + (["--json"] if given.json else [])
