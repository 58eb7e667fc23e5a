"""Verbs of the tool that take any graph: a model in Python is captured here, and the tool reads the file."""

import os
import tempfile

import _shadowgraph_tool

COMMANDS = {"checkpoint": "what backward should compute again", "pipeline": "a step cut into stages",
            "compare": "what grew, and where", "draw": "a picture, or a page",
            "emit": "code that runs the graph"}  # fmt: skip

# Options of the tool that take values, and its flags: passed on as they are given. Capture's own are not here.
_VALUES = {
    "checkpoint": ("--spec", "--link-bandwidth", "--memory", "--bytes", "--modules", "--cost", "--output", "--svg",
                   "--chain", "--module-statistics"),
    "pipeline": ("--spec", "--interconnect", "--allocator", "--memory", "--schedule", "--ranks", "--microbatches",
                 "--stages-per-rank", "--cut", "--ranks-apart", "--output", "--chakra"),
    "compare": ("--output", "--limit", "--memory", "--spec", "--interconnect", "--mesh", "--allocator", "--title",
                "--color"),
    "draw": ("--output", "--color", "--title", "--depth", "--phase", "--around", "--radius", "--path", "--diff",
             "--boxes", "--rows", "--memory", "--spec", "--interconnect", "--mesh", "--allocator"),
    "emit": ("--lang", "--name", "--function", "--output", "--only", "--seed"),
}  # fmt: skip
_FLAGS = {
    "checkpoint": ("--pareto", "--json"),
    "pipeline": ("--receives-ahead", "--json"),
    "compare": ("--nodes", "--json"),
    "draw": ("--unfold", "--all-phases", "--views"),
    "emit": ("--autograd", "--weights"),
}
_PAIRS = ("--path",)  # take two values


def sources_of(verb):
    """How many of its words are sources."""
    return 2 if verb == "compare" else 1


def add_options(command, verb):
    command.add_argument("sources", nargs=sources_of(verb), help="some.module:factory, hf:CONFIG.json, or what the "
                         "tool takes")  # fmt: skip
    for name in _VALUES[verb]:
        names = ["-o", name] if name == "--output" else [name]
        command.add_argument(*names, dest=_dest(name), action="append", default=[], nargs=2 if name in _PAIRS else None,
                             help="as of the tool")  # fmt: skip
    for name in _FLAGS[verb]:
        command.add_argument(name, dest=_dest(name), action="store_true", help="as of the tool")


def is_made_in_python(source):
    return bool(_shadowgraph_tool.MADE_IN_PYTHON.fullmatch(source)) and not os.path.exists(source)


def run(sg, given, captured, tool):
    """The tool's exit code. captured: a function from a source to a graph; tool: from words to a code."""
    for source in given.sources:
        if not is_made_in_python(source) and not os.path.exists(source):
            raise sg.Error(f"{source} is no file: beside a model in Python, {given.command} takes files and others in "
                           "Python; save what the tool knows by 'shadowgraph capture'")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        sources, model = [], ""
        for number, source in enumerate(given.sources):
            if is_made_in_python(source):
                graph = captured(source)
                model = graph.metadata.get("model", "captured")
                path = os.path.join(folder, f"{model}{number or ''}.sg")
                graph.save(path)
                source = path
            sources.append(source)
        return tool([given.command, *sources, *_passed_on(given, model)])


def _dest(name):
    return "tool_" + name[2:].replace("-", "_")


def _passed_on(given, model):
    words = []
    for name in _VALUES[given.command]:
        for value in getattr(given, _dest(name)):
            words += [name, *(value if name in _PAIRS else [value])]
    words += [name for name in _FLAGS[given.command] if getattr(given, _dest(name))]
    page = given.command in ("draw", "compare") and any(file.endswith(".html") for file in given.tool_output)
    if page and not given.tool_title:
        words += ["--title", model]  # not the name of a file that is gone
    return words
