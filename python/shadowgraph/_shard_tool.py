"""`shadowgraph shard` of models in Python, and its --emit-python: around the tool, which does the rest."""

import json
import os
import sys
import tempfile

# The tool's own, passed on to it as they are given.
_TAKE_VALUES = ("--mesh", "--spec", "--interconnect", "--memory", "--pin", "--rules", "--explain", "--rows", "--rank",
                "--time-limit", "--export", "--format", "--solver", "--highs", "--dot",
                "--svg", "--answer", "--by-hand")  # fmt: skip
_FLAGS = ("--unfold", "--cut-random", "--cut-vocabulary", "--recompute", "--compare", "--all-ranks")


def add_options(command):
    """Those of the tool, and --emit-python, to a parser that has those of a capture."""
    for name in _TAKE_VALUES:
        command.add_argument(name, action="append", default=[], required=name == "--mesh", help="as of the tool")
    for name in _FLAGS:
        command.add_argument(name, action="store_true", help="as of the tool")
    command.add_argument("--emit-python", metavar="FILE", help="the plan as a Python file that lays the eager model "
                         "out by torch.distributed.tensor and fully_shard")  # fmt: skip


def asks_for_python(arguments):
    """Whether the tool alone is not enough."""
    return any(word == "--emit-python" or word.startswith("--emit-python=") for word in arguments)


def passed_on(given):
    """What is the tool's of a command line that add_options' parser has read."""
    words = []
    for name in _TAKE_VALUES:
        for value in getattr(given, name[2:].replace("-", "_")):
            words += [name, value]
    words += [name for name in _FLAGS if getattr(given, name[2:].replace("-", "_"))]
    words += ["--json"] if given.json else []
    return words + (["-o", given.output] if given.output else [])


def without_emit(sg, arguments):
    """(file, what is left) of a command line for a source that the tool knows."""
    rest, path = [], None
    words = iter(arguments)
    for word in words:
        if word == "--emit-python":
            path = next(words, None)
        elif word.startswith("--emit-python="):
            path = word.partition("=")[2]
        else:
            rest.append(word)
    if not path:
        raise sg.Error("--emit-python needs a file: --emit-python plan.py")
    return path, rest


def run(sg, tool, words, path):
    """The tool's exit code. words: its command line after `shard`; path: of the Python file, or None.

    tool: a function from a command line to an exit code.
    """
    from ._eager_plan import eager_plan
    from ._sharding import write_text

    with tempfile.TemporaryDirectory() as temporary:
        output = [i for i, word in enumerate(words) if word in ("-o", "--output")]
        folder = words[output[-1] + 1] if output and output[-1] + 1 < len(words) else temporary
        code = tool(["shard", *words, *([] if output else ["-o", folder])])
        if code != 0 or path is None:
            return code
        graph = sg.Graph.load(os.path.join(folder, "graph.sg"))
        with open(os.path.join(folder, "answer.json")) as file:
            answer = json.load(file)
        with open(os.path.join(folder, "plan.json")) as file:
            eager = eager_plan(graph, json.load(file), answer.get("by_hand", ""))
        write_text(path, eager.source(answer["title"]))
    missed = len(eager.not_expressed)
    print(f"{path}: {len(eager.parameters)} parameters; {missed} things that the plan says otherwise (NOT_EXPRESSED)",
          file=sys.stderr)  # fmt: skip
    return 0
