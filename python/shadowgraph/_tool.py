"""What the tool asks Python: captures of some.module:factory and hf:CONFIG.json (cli/tool.h, python/src/tool.cpp)."""

import contextlib
import difflib
import importlib
import json
import os
import sys
import traceback

import torch

from . import _capture, _distributed, _eager_plan, _inputs, _plans, _serving, _sharding
from . import _shadowgraph as _C


def capture(asked):
    """(graph, seconds) of a CaptureRequest."""
    program = _program(asked["source"])
    if asked["layers"]:
        program = _plans._layers_of(program)[1](asked["layers"])
    world = asked["world"]
    around = _distributed.fake_process_group(world) if world else contextlib.nullcontext()
    with around, _capture.attention(asked["attention"]):
        return _capture.of_model(program, _call(asked), run_steps=asked["run_steps"], **_how(asked))


def layers(asked):
    """(how many layers a model has, how many of them come first and are of another kind)."""
    count, _, first = _plans._layers_of(_program(asked["source"]))
    return json.dumps([count, first])


def serve(asked):
    dtype = asked["dtype"] and getattr(torch, asked["dtype"])
    return _serving.serve(_program(asked["source"]), dtype=dtype, **asked["how"])


def ranks(asked):
    """The text of reports on processes of many."""
    import shadowgraph as sg

    target = {"target": asked["target"]} if asked["target"] else {}
    wanted = "all" if asked["ranks"] == "all" else [int(rank) for rank in asked["ranks"].split(",")]
    with _capture.attention(asked["attention"]):
        found = sg.profile(_program(asked["source"]), _call(asked), spec=asked["spec"], allocator=asked["allocator"],
                           device_memory=asked["memory"], interconnect=asked["interconnect"], ranks=wanted,
                           world=asked["world"], **_how(asked), **target)  # fmt: skip
    run = found.run(asked["spec"], asked["interconnect"]) if wanted == "all" else None
    if asked["folder"]:
        for role in found.roles:
            name = str(role.name).replace(" ", "-").replace(",", "")
            role.report.save(os.path.join(asked["folder"], name), asked["exports"])
        if run is not None:
            _sharding.write_text(os.path.join(asked["folder"], "trace.json"), run.chrome_trace())
        print(f"wrote {len(found.roles)} reports to {asked['folder']}", file=sys.stderr)
    if asked["json"]:
        return json.dumps({"roles": found.dict(), "step": run and run.dict()}, indent=2) + "\n"
    return "\n\n".join(str(part).rstrip("\n") for part in (found, run) if part is not None) + "\n"


def emit_python(asked):
    """What is to be said of the file that is written: a plan for eager modules."""
    eager = _eager_plan.eager_plan(_C.Graph.parse(asked["graph"]), asked["plan"], asked["by_hand"])
    _sharding.write_text(asked["path"], eager.source(asked["title"]))
    missed = len(eager.not_expressed)
    return (f"{asked['path']}: {len(eager.parameters)} parameters; {missed} things that the plan says "
            "otherwise (NOT_EXPRESSED)")  # fmt: skip


def said(error, debug):
    """The message of what was raised."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, (_C.Error, OSError, ImportError, AttributeError)):
        return str(error)
    return f"the program raised {type(error).__name__}: {error}"


def _how(asked):
    return dict(optimizer=asked["optimizer"] if asked["mode"] == "train" else None, device=asked["device"],
                dtype=asked["dtype"] and getattr(torch, asked["dtype"]), mode=asked["mode"],
                steady_state=asked["steady_state"],
                options={"host_reads": asked["host_reads"], "data_sizes": asked["data_sizes"]},
                **asked["training"] | {"autocast": asked["training"]["autocast"]
                                       and getattr(torch, asked["training"]["autocast"])})  # fmt: skip


def _call(asked):
    by_position = tuple(spec for name, spec in asked["inputs"] if name is None)
    return _inputs.Call(by_position, {name: spec for name, spec in asked["inputs"] if name is not None})


def _program(source):
    """What hf:CONFIG.json or some.module:factory names."""
    kind, _, rest = source.partition(":")
    if kind == "hf":
        return _configuration(rest)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    program = _module(kind)
    for name in rest.split("."):
        if not hasattr(program, name):
            raise _C.Error(f"{kind} has no '{name}'{_meant(name, dir(program))}")
        program = getattr(program, name)
    return program


def _meant(word, names):
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _module(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # one that it imports
            raise
        files = [file[:-3] for file in os.listdir() if file.endswith(".py")]
        raise _C.Error(f"there is no module '{name}'{_meant(name, files)}") from None


def _configuration(path):
    import transformers

    if not os.path.exists(path):
        raise _C.FileError(f"no file '{path}'")
    with open(path) as file:
        try:
            described = json.load(file)
        except ValueError as error:
            raise _C.ParseError(f"{path} is no JSON: {error}") from None
    if "model_type" not in described:
        raise _C.Error(f'{path} has no "model_type": it is no transformers configuration')
    return transformers.AutoConfig.for_model(**described)
