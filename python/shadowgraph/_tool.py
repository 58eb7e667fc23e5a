"""Captures some.module:factory and hf:CONFIG.json for the command line tool (cli/tool.h, python/src/tool.cpp)."""

import contextlib
import difflib
import functools
import importlib
import json
import os
import sys
import traceback

import torch

from . import _capture, _distributed, _eager_plan, _inputs, _plans, _serving, _training
from . import _shadowgraph as _C


def capture(request):
    """Returns (graph, seconds) for a CaptureRequest."""
    program = _program(request["source"])
    if request["layers"]:
        program = _plans._layers_of(program)[1](request["layers"])
    world = request["world"]
    around = _distributed.fake_process_group(world) if world else contextlib.nullcontext()
    with around, _capture.attention(request["attention"]):
        return _capture.of_model(program, _call(request), run_steps=request["run_steps"], **_how(request))


def layers(request):
    """Returns (number of layers, number of leading layers that differ) of a model, as JSON."""
    count, _, first = _plans._layers_of(_program(request["source"]))
    return json.dumps([count, first])


def serve(request):
    dtype = request["dtype"] and getattr(torch, request["dtype"])
    return _serving.serve(_program(request["source"]), dtype=dtype, **request["how"])


def ranks(request):
    """Returns the text of reports on ranks of a distributed program."""
    import shadowgraph as sg

    target = {"target": request["target"]} if request["target"] else {}
    wanted = "all" if request["ranks"] == "all" else [int(rank) for rank in request["ranks"].split(",")]
    with _capture.attention(request["attention"]):
        found = sg.profile(_program(request["source"]), _call(request), spec=request["spec"],
                           allocator=request["allocator"], device_memory=request["memory"],
                           interconnect=request["interconnect"], ranks=wanted, world=request["world"],
                           **_how(request), **target)  # fmt: skip
    run = found.run(request["spec"], request["interconnect"]) if wanted == "all" else None
    if request["folder"]:
        for role in found.roles:
            name = str(role.name).replace(" ", "-").replace(",", "")
            role.profile.save(os.path.join(request["folder"], name), request["exports"])
        if run is not None:
            _C.write_file(os.path.join(request["folder"], "trace.json"), run.chrome_trace())
        print(f"wrote {len(found.roles)} reports to {request['folder']}", file=sys.stderr)
    if request["json"]:
        return json.dumps({"roles": found.dict(), "step": run and run.dict()}, indent=2) + "\n"
    return "\n\n".join(str(part).rstrip("\n") for part in (found, run) if part is not None) + "\n"


def emit_python(request):
    """Writes a sharding plan for the eager model as Python and returns a message."""
    eager = _eager_plan.eager_plan(_C.Graph.parse(request["graph"]), request["plan"], request["parallelism"])
    _C.write_file(request["path"], eager.source(request["title"]))
    missed = len(eager.not_expressed)
    return (f"wrote {request['path']}: {len(eager.parameters)} parameters; {missed} parts of the plan are not applied "
            "(see NOT_EXPRESSED)")  # fmt: skip


def error_message(error, debug):
    """Returns the message for an exception. Prints the traceback if `debug` is set."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, ImportError):
        return str(error) + _cause_of(error)
    if isinstance(error, (_C.Error, OSError, AttributeError)):
        return str(error)
    return f"the program raised {type(error).__name__}: {error}"


def _cause_of(error):
    """Returns the first error of a chain as text: lazy imports, as in transformers, hide it. Empty if there is none."""
    cause = error
    while (before := cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)) is not None:
        cause = before
    return "" if cause is error else f" The cause is {type(cause).__name__}: {cause}"


def _how(request):
    optimizer = request["optimizer"] if request["mode"] == "train" else None
    if optimizer is not None and not request["foreach"]:
        optimizer = functools.partial(_training.OPTIMIZERS[optimizer], foreach=False)
    return dict(optimizer=optimizer, device=request["device"],
                dtype=request["dtype"] and getattr(torch, request["dtype"]), mode=request["mode"],
                steady_state=request["steady_state"],
                options={"host_reads": request["host_reads"], "data_sizes": request["data_sizes"]},
                **request["training"] | {"autocast": request["training"]["autocast"]
                                       and getattr(torch, request["training"]["autocast"])})  # fmt: skip


def _call(request):
    by_position = tuple(spec for name, spec in request["inputs"] if name is None)
    return _inputs.Call(by_position, {name: spec for name, spec in request["inputs"] if name is not None})


def _program(source):
    """Returns the object that hf:CONFIG.json or some.module:factory refers to."""
    kind, _, rest = source.partition(":")
    if kind == "hf":
        return _configuration(rest)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    program = _module(kind)
    for name in rest.split("."):
        if not hasattr(program, name):
            raise _C.Error(f"module {kind} has no attribute '{name}'{_suggestion(name, dir(program))}")
        program = getattr(program, name)
    return program


def _suggestion(word, names):
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _module(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # imported by the module
            raise
        files = [file[:-3] for file in os.listdir() if file.endswith(".py")]
        raise _C.Error(f"no module named '{name}'{_suggestion(name, files)}") from None


def _configuration(path):
    import transformers

    if not os.path.exists(path):
        raise _C.FileError(f"file '{path}' does not exist")
    with open(path) as file:
        try:
            described = json.load(file)
        except ValueError as error:
            raise _C.ParseError(f"{path} is not valid JSON: {error}") from None
    if "model_type" not in described:
        raise _C.Error(f'{path} is not a transformers configuration: it has no "model_type"')
    return transformers.AutoConfig.for_model(**_without_code(described, path))


def _without_code(described, path):
    """Removes the classes that a configuration names outside transformers, and refuses attention kernels of the Hub."""
    if isinstance(described, list):
        return [_without_code(value, path) for value in described]
    if not isinstance(described, dict):
        return described
    for key, value in described.items():
        if key.endswith("_implementation") and "/" in str(value):
            raise _C.Error(f"{path} names code of the Hugging Face Hub in {key}: {value}; use an implementation of "
                           "transformers, such as sdpa")  # fmt: skip
    return {key: _without_code(value, path) for key, value in described.items() if key != "auto_map"}
