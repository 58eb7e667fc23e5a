"""Captures some.module:factory and hf:CONFIG.json for the command line tool (cli/tool.h, python/src/tool.cpp)."""

import contextlib
import functools
import importlib
import json
import linecache
import math
import os
import re
import sys
import traceback

import torch

from . import _capture, _distributed, _eager_plan, _inputs, _models, _plans, _serving, _training
from . import _shadowgraph as _C
from ._shared import nearest

_HINT = "; did you mean {}?"


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
    if isinstance(error, (_C.Error, OSError)):
        return str(error)
    said = str(error) if isinstance(error, AttributeError) else f"the program raised {type(error).__name__}: {error}"
    return said + _fields_of(error) + _unusual_fields_of(error)


def _unusual_fields_of(error):
    """Returns the end of a message: the source's configuration file and the fields that may be the cause."""
    requests = (frame.f_locals.get("request") for frame, _ in traceback.walk_tb(error.__traceback__))
    source = next((request["source"] for request in requests if isinstance(request, dict) and "source" in request), "")
    if not source.startswith("hf:"):
        return ""
    with open(source[3:]) as file:
        described = json.load(file)
    import transformers

    defaults = transformers.AutoConfig.for_model(described["model_type"]).to_dict()

    def unusual(name, value):
        usual = defaults.get(name, ...)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return isinstance(usual, bool) or not 0 < value < 2**31
        return type(value) is not type(usual) or (isinstance(value, str) and value != usual)

    apart = {"model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
    fields = {name: value for name, value in described.items() if name not in apart and unusual(name, value)}
    listed = "".join(f"; check {name} = {_shown(value)}" for name, value in fields.items())
    return f" (in {source[3:]}{listed})"


def _fields_of(error):
    """Returns the end of a message: the fields of a configuration that the failing line read, with their values."""
    fields = ", ".join(f"{name} = {_shown(value)}" for name, value in _fields_read(error).items())
    return f"; the failing line reads {fields} of the configuration" if fields else ""


def _shown(value):
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_read(error):
    """Returns the fields of a transformers configuration that the innermost such lines of the traceback read."""
    fields: dict[str, object] = {}
    for (frame, _), at in zip(traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__)):
        owner = frame.f_locals.get("self")
        config = frame.f_locals.get("config", getattr(owner, "config", owner))
        if not _models._is_configuration(config):
            continue
        lines = range(at.lineno or 0, (getattr(at, "end_lineno", None) or at.lineno or 0) + 1)
        text = " ".join(linecache.getline(at.filename, line) for line in lines)
        known = {*vars(config), *getattr(config, "attribute_map", {})}
        read = [name for name in re.findall(r"\b(?:config|self)\.(\w+)", text) if name in known]
        fields = {name: getattr(config, name, None) for name in read} or fields
    return fields


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
            raise _C.Error(f"module {kind} has no attribute '{name}'{nearest(name, dir(program), _HINT)}")
        program = getattr(program, name)
    return program


def _module(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # imported by the module
            raise
        files = [file[:-3] for file in os.listdir() if file.endswith(".py")]
        raise _C.Error(f"no module named '{name}'{nearest(name, files, _HINT)}") from None


def _configuration(path):
    import transformers

    if not os.path.exists(path):
        raise _C.FileError(f"file '{path}' does not exist")
    with open(path) as file:
        try:
            described = json.load(file)
        except ValueError as error:
            raise _C.ParseError(f"{path} is not valid JSON: {error}") from None
    kind = described.get("model_type") if isinstance(described, dict) else None
    if not isinstance(kind, str):
        raise _C.Error(f'{path} is not a transformers configuration: it has no "model_type", such as "llama"')
    try:
        defaults = transformers.AutoConfig.for_model(kind)
    except ValueError:
        raise _C.Error(f"{path}: model_type = {kind!r} is unknown to transformers {transformers.__version__}") from None
    described = _without_code(described, path)
    _check_fields(path, described, defaults.to_dict())
    try:
        return transformers.AutoConfig.for_model(**described)
    except ImportError:
        raise
    except Exception as error:  # of the class's own checks
        raise _C.Error(f"{path}: {type(error).__name__}: {error}{_fields_of(error)}") from None


# Fields that count something. Huge or negative ones fail far from here, or take all memory.
_COUNTS = re.compile(
    r"(^n|num|size|dim|embd|inner|heads?|layers?|positions?|embeddings|rank|channels|depth|width)(_|$)"
)


def _check_fields(path, described, defaults, prefix=""):
    """Raises Error for a field that is not of the type of its default, or a count that is no size."""
    for name, value in described.items():
        default, place = defaults.get(name), f"{path}: {prefix}{name} = {_shown(value)}"
        if isinstance(value, dict) and isinstance(default, dict):
            _check_fields(path, value, default, f"{prefix}{name}.")
        elif isinstance(default, bool) and not isinstance(value, (bool, type(None))):
            raise _C.Error(f"{place} must be true or false")
        elif isinstance(default, (int, float)) and not isinstance(default, bool):
            if isinstance(value, (bool, str, dict)):
                raise _C.Error(f"{place} must be a number")
        elif isinstance(default, str) and isinstance(value, (bool, int, float, list)):
            raise _C.Error(f"{place} must be a string")
        if isinstance(value, float) and not math.isfinite(value):
            raise _C.Error(f"{place} must be finite")
        is_count = _COUNTS.search(name) and not (isinstance(default, int) and default < 0)  # some count from the end
        if is_count and isinstance(value, (int, float)) and not 0 <= value < 2**31:
            raise _C.Error(f"{place} must be from 0 to 2^31 - 1")


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
