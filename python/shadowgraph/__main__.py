"""shadowgraph: the tool, and its verbs profile, fit, capture, shard and check for models in Python.

    shadowgraph profile resnet50 --mode train                       what the tool knows: its models, .pt, .pt2 and .sg
    shadowgraph profile some.module:factory --input f32[8,16]       a function or class that makes a torch.nn.Module
    shadowgraph profile hf:CONFIG.json --batch 4 --seq 512          a transformers configuration

`python -m shadowgraph` is the same; the command itself begins in _shadowgraph_tool.py.
Exit codes: 0 done, 1 the input's fault, 2 usage, 3 ours, 4 check found growth.
"""

import argparse
import difflib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import typing

import _shadowgraph_tool

from . import _fit_tool, _graph_verbs, _plan_tool, _serve_tool, _shard_tool
from ._training import OPTIMIZERS

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
COMMANDS = {"profile": "memory, FLOPs and a summary by module", "fit": "the largest batch and sequence that fit",
            "capture": "writes the graph", "shard": "layouts of all tensors on many devices",
            "plan": "a plan of training on a cluster",
            **_graph_verbs.COMMANDS}  # fmt: skip
ALSO_PYTHON = """\
Models in Python, wherever a verb takes a SOURCE:
  shadowgraph profile some.module:factory --input 'f32[8,16]' --mode train
  shadowgraph fit some.module:factory --input 'f32[batch,16]' --batch 1..256 --memory 24GiB
  shadowgraph fit hf:CONFIG.json --memory l4 --batch 1..64 --seq 512..8k
  shadowgraph profile hf:CONFIG.json --batch 4 --seq 512 --mode train --optimizer adamw
  shadowgraph fit hf:CONFIG.json --mode serve --spec l4 --context 8k --weights awq
  shadowgraph checkpoint hf:CONFIG.json --batch 4 --mode train --pareto
  shadowgraph shard hf:CONFIG.json --batch 16 --mode train --mesh dp=2,tp=4 --emit-python plan.py
  shadowgraph plan hf:CONFIG.json --devices 1024xh100 --tokens-per-step 16M --seq 8192
  shadowgraph check baseline.json some.module:factory --input 'f32[8,16]' --mode train --markdown
  shadowgraph profile some.module:factory --help

some.module is looked for as `import` does, in the current folder first; factory takes no arguments and makes a
torch.nn.Module. CONFIG.json is a configuration of transformers.
"""


def main(arguments=None):
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(_shadowgraph_tool.versions())
        return 0
    if _serve_tool.asked(given):
        return _in_python(_serve_tool.parser(_at_least, _memory).parse_args(given[1:]), _serve)
    if not _is_for_python(given):
        if given[:1] == ["shard"] and _shard_tool.asks_for_python(given):
            return _emit_python(given[1:])
        return _run_tool(given, replace=arguments is None)
    parser = _parsers()[0]
    given = parser.parse_args(given)
    _refuse_without_effect(parser, given)
    return _in_python(given, _command)


def _in_python(given, command):
    """The exit code of a command on a model in Python."""
    import shadowgraph as sg

    try:
        return command(sg, given)
    except (sg.Error, OSError, ImportError, AttributeError) as error:
        print(f"shadowgraph: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # the program's own
        if given.debug:
            traceback.print_exc()
        print(f"shadowgraph: the program raised {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _command(sg, given):
    from . import _capture

    _check(sg, given)
    with _capture.attention("device" if given.command == "plan" else given.attention):
        if given.command == "shard":
            return _shard(sg, given)
        if given.command in _graph_verbs.COMMANDS:
            return _graph_verbs.run(sg, given, lambda source: _captured(sg, given, source),
                                    lambda line: _run_tool(line, replace=False))  # fmt: skip
        if given.command == "profile" and (given.world or given.ranks):
            return _of_many(sg, given)
        if given.command == "plan":
            program, inputs = _source(sg, given)
            return _plan_tool.run(sg, given, program, inputs, dict(options=_options(sg, given), **_how(given)))
        if given.command == "fit":
            program, inputs = _source(sg, given)
            return _fit_tool.run(sg, given, program, inputs, dict(options=_options(sg, given), **_how(given)))
        return _profile_or_capture(sg, given)


def _serve(sg, given):
    return _serve_tool.run(sg, given, lambda given: _program(sg, given.source), DTYPES)


# ---- The tool


def _emit_python(arguments):
    import shadowgraph as sg

    try:
        path, words = _shard_tool.without_emit(sg, arguments)
        return _shard_tool.run(sg, lambda line: _run_tool(line, replace=False), words, path)
    except (sg.Error, OSError) as error:
        print(f"shadowgraph: {error}", file=sys.stderr)
        return 1


def _captured(sg, given, source=None):
    """The graph of the source, with the checkpoints that were asked for."""
    from . import _capture

    program, inputs = _source(sg, given, source)
    graph, _ = _capture.of_model(program, inputs(given.batch), options=_options(sg, given), **_how(given))
    if given.checkpoint:
        graph.run_passes(f"checkpoint{{modules={given.checkpoint}}}")
    return graph


def _shard(sg, given):
    with tempfile.TemporaryDirectory() as folder:
        captured = os.path.join(folder, "captured.sg")
        _captured(sg, given).save(captured)
        words = [captured, *_shard_tool.passed_on(given)]
        return _shard_tool.run(sg, lambda line: _run_tool(line, replace=False), words, given.emit_python)


def _is_for_python(arguments):
    """Whether this is one of COMMANDS, of what only Python can make: hf:CONFIG.json, some.module:factory."""
    if not arguments or arguments[0] not in COMMANDS:
        return False
    parser = _parsers()[1][arguments[0]]
    values = {name: 1 if action.nargs is None else action.nargs for action in parser._actions
              for name in action.option_strings}  # fmt: skip
    rest = iter(arguments[1:])
    sources = []
    for word in rest:
        if word in values:
            for _ in range(values[word]):
                next(rest, None)
        elif not word.startswith("-"):
            sources.append(word)
    return any(_graph_verbs.is_made_in_python(source) for source in sources[_graph_verbs.sources_of(arguments[0])])




def _run_tool(arguments, replace):
    """The exit code of the C++ tool. replace: it takes this process over, and this does not return."""
    tool = _shadowgraph_tool.path()
    if tool is None:
        print("shadowgraph: this package was built without the tool (SHADOWGRAPH_BUILD_TOOL=OFF); it knows models in "
              "Python alone: capture of some.module:factory or hf:CONFIG.json", file=sys.stderr)  # fmt: skip
        return 2
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    is_help = not arguments or (arguments[-1] in ("-h", "--help") and (len(arguments) == 1 or arguments[0] in COMMANDS))
    if replace and not is_help:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(tool, [tool, *arguments], environment)
    code = subprocess.run([tool, *arguments], env=environment).returncode
    if is_help:
        print("\n" + ALSO_PYTHON, end="", file=sys.stdout if code == 0 else sys.stderr)
    return code


# ---- Models in Python


class _Parser(argparse.ArgumentParser):
    """Guesses what a mistyped option may have meant."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.parsers: dict[str, argparse.ArgumentParser] = {}  # of commands

    def error(self, message):
        wrong = re.search(r"unrecognized arguments: .*?(--[\w-]+)", message)
        names = {name for parser in self.parsers.values() for name in parser._option_string_actions}
        super().error(message + (_meant(wrong[1], names) if wrong else ""))


def _meant(word, names):
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _refuse_without_effect(parser, given):
    """Ends with the usage where an option is of a training step and there is none."""
    optimizer, given.optimizer = given.optimizer, given.optimizer or "sgd"
    if given.mode == "train" or (given.command == "profile" and given.what_if):
        return
    of_training = {"--optimizer": optimizer, "--steady-state": given.steady_state, "--accumulate": given.accumulate > 1,
                   "--clip-grad-norm": given.clip_grad_norm, "--grad-scaler": given.grad_scaler, "--ema": given.ema,
                   "--zero-grads": given.zero_grads,
                   "--run": given.command == "profile" and given.run}  # fmt: skip
    for name, value in of_training.items():
        if value:
            parser.error(f"{name} is of a training step: give --mode train")


def _parsers():
    """The parser of command lines, and those of the commands by name."""
    parser = _Parser(prog="shadowgraph", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = parser.parsers = {name: commands.add_parser(name, help=text) for name, text in COMMANDS.items()}
    for name, command in parsers.items():
        profile, fits = name == "profile", name == "fit"
        if name in _graph_verbs.COMMANDS:
            _graph_verbs.add_options(command, name)
        else:
            command.add_argument("source", help="some.module:factory (a function or class without arguments that makes "
                                 "a torch.nn.Module), or hf:CONFIG.json (a transformers configuration)")  # fmt: skip
        command.add_argument("--input", action="append", default=[], metavar="[NAME=]f32[8,3,224,224]",
                             help="an input of forward: dtype and shape, once each, by position or name; batch and seq "
                             "in a shape stand for --batch and --seq")  # fmt: skip
        if fits:
            _fit_tool.add_options(command)
        else:
            command.add_argument("--batch", type=_batch, default=1, help="batch size")
            command.add_argument("--seq", type=_at_least(1), default=512, help="sequence length")
        trains = name in ("fit", "checkpoint", "pipeline", "plan")
        command.add_argument("--mode", choices=["infer", "train"], default="train" if trains else "infer")
        command.add_argument("--optimizer", choices=sorted(OPTIMIZERS), help="of a training step (sgd)")
        command.add_argument("--steady-state", action="store_true", default=name == "pipeline",
                             help="the second step, with optimizer state there")  # fmt: skip
        command.add_argument("--device", type=_device, default="cuda", help="cpu, cuda or cuda:i, pretended")
        command.add_argument("--dtype", choices=DTYPES, default="bf16" if name == "plan" else None,
                             help="convert parameters and inputs (default: as made; of a plan bf16)")  # fmt: skip
        command.add_argument("--autocast", choices=["bf16", "f16"], help="torch.autocast of forward and loss")
        command.add_argument("--accumulate", type=_at_least(1), default=1,
                             help="gradients of so many micro-batches before the optimizer's step")  # fmt: skip
        command.add_argument("--clip-grad-norm", type=float, metavar="MAX", help="torch.nn.utils.clip_grad_norm_")
        command.add_argument("--grad-scaler", action="store_true", help="torch.amp.GradScaler; its check for "
                             "infinities finds none unless --host-reads says so")  # fmt: skip
        command.add_argument("--ema", type=float, metavar="DECAY", help="an average of the parameters, 0.999")
        command.add_argument("--zero-grads", action="store_true", help="zero_grad(set_to_none=False)")
        if name != "plan":  # has a list of them
            kernels = ["device", "flash", "efficient", "cudnn", "math"]
            command.add_argument("--attention", choices=kernels, default="device",
                                 help="the kernel of scaled_dot_product_attention")  # fmt: skip
        command.add_argument("--host-reads", action="append", default=[], metavar="NAME=VALUE|finite|mask-full",
                             help="what the program reads and data decides: item0=2.5 by name, bool=false for all of a "
                             "kind, finite, mask-full")  # fmt: skip
        command.add_argument("--data-sizes", action="append", default=[], metavar="NAME=N",
                             help="sizes of results that depend on data: nonzero0=17")  # fmt: skip
        command.add_argument("--checkpoint", metavar="MODULES",
                             help="activation checkpoints: modules whose activations backward computes again, "
                             "'transformer.h.*', or auto for numbered layers")  # fmt: skip
        command.add_argument("--debug", action="store_true", help="show where the program raised")
        if name not in _graph_verbs.COMMANDS:
            command.add_argument("--json", action="store_true", help="the report, or the graph, as JSON")
        if not fits and name not in _graph_verbs.COMMANDS:
            command.add_argument("-o", "--output", help="the file" if name == "capture" else "a folder")
        if name == "shard":
            _shard_tool.add_options(command)
        if name == "plan":
            _plan_tool.add_options(command)
        if name == "capture":
            command.add_argument("--verify", action="store_true", help="check the graph against every invariant")
            command.add_argument("--preset", choices=["canonical", "short", "fingerprint"], default="canonical",
                                 help="of what is printed")  # fmt: skip
        if profile or fits:
            command.add_argument("--allocator", default="", metavar="SETTINGS",
                                 help="settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them")
            command.add_argument("--memory", type=_memory, metavar="SIZE|DEVICE",
                                 help="memory of the device, l4 or 24GiB: what fits into it")  # fmt: skip
        if profile:
            command.add_argument("--what-if", type=lambda text: text.split(","), default=[], action="extend",
                                 metavar="NAME=VALUE,...", help="what a step would hold with another dtype, optimizer, "
                                 "accumulate, checkpoint, zero, ranks")  # fmt: skip
            command.add_argument("--export", type=_exports, default=[], action="extend", metavar="NAME,...",
                                 help="with -o, more files: svg, dot, nodes-csv, storages-csv, trace, snapshot, "
                                 "model-explorer")  # fmt: skip
            command.add_argument("--run", action="store_true", help="also record the first three steps of a training "
                                 "run, and say what each holds")  # fmt: skip
            command.add_argument("--measure", action="store_true", help="run each distinct call once on this machine's "
                                 "CPU, for scratch memory inside kernels and seconds")
            command.add_argument("--spec", default="", metavar="DEVICE|FILE", help="device that the time is estimated "
                                 "for (default: h100 for cuda, this machine's calibration for cpu)")
            command.add_argument("--interconnect", default="", metavar="NAME|FILE", help="links between processes "
                                 "(default: what is usual around the device)")
            command.add_argument("--mesh", default="", metavar="NAME=SIZE,...", help="sizes of process groups that the "
                                 "graph names and does not describe: dp=8,tp=4")
            command.add_argument("--world", type=_at_least(1), metavar="N", help="the program is one of so many "
                                 "processes of torch.distributed, rank 0 of them")  # fmt: skip
            command.add_argument("--ranks", type=_ranks, metavar="all|0,3,...", help="all of them, by role, and what "
                                 "they wait for each other")  # fmt: skip
            command.add_argument("--target", metavar="i64[32,512]", help="of the loss of a pipeline's last stage")
            command.add_argument("--group", choices=["module", "composite", "operator"], default="module",
                                 help="rows of the table")  # fmt: skip
            command.add_argument("--depth", type=_at_least(0), default=0,
                                 help="module levels in the table; 0: what fits")  # fmt: skip
            command.add_argument("--rows", type=_at_least(0), default=40, help="most rows of the table; 0: all")
    return parser, parsers


def _at_least(least):
    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
        return int(text)

    return number


def _batch(text):
    if ".." in text:
        raise argparse.ArgumentTypeError(f"a range of batches is for 'shadowgraph fit SOURCE --batch {text}'")
    return _at_least(1)(text)


def _ranks(text):
    if text == "all":
        return text
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is neither all nor numbers of ranks such as 0,3")
    return [int(number) for number in text.split(",")]


def _exports(text):
    from ._report import EXPORTS

    for name in text.split(","):
        if name not in EXPORTS:
            raise argparse.ArgumentTypeError(f"there is no '{name}'; there are {', '.join(EXPORTS)}")
    return text.split(",")


def _device(text):
    if not re.fullmatch(r"cpu|cuda(:\d{1,2})?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not cpu, cuda or cuda:i")
    return text


def _memory(text):
    """A size or a device's name, as the tool takes it; what it may have been meant for is said."""
    from . import _shadowgraph as _C

    try:
        note = _C.memory_limit(text)[3]
    except _C.Error as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if note:
        print(f"shadowgraph: --memory {note}", file=sys.stderr)
    return text


def _check(sg, given):
    if given.command == "fit" and given.by and not given.memory:
        raise sg.Error("--by says which bytes --memory is of: give --memory, too")
    if given.command == "profile" and given.what_if:
        given.mode = "train"
        _changes(sg, given.what_if)
    if given.command == "profile" and given.export and not given.output:
        raise sg.Error("--export writes into the folder of -o: name one")


def _how(given):
    import torch

    return dict(optimizer=given.optimizer if given.mode == "train" else None, device=given.device,
                dtype=given.dtype and getattr(torch, DTYPES[given.dtype]), mode=given.mode,
                steady_state=given.steady_state,
                autocast=given.autocast, accumulate=given.accumulate, clip_grad_norm=given.clip_grad_norm,
                grad_scaler=given.grad_scaler, ema=given.ema, zero_grads=given.zero_grads)  # fmt: skip


def _profile_or_capture(sg, given):
    from . import _capture
    from ._report import Report

    if given.command == "profile" and given.output:
        os.makedirs(given.output, exist_ok=True)  # before the work
    program, inputs = _source(sg, given)
    how = _how(given) | {"options": _options(sg, given)}
    graph, seconds = _capture.of_model(program, inputs(given.batch), **how)
    steps = None
    if given.command == "profile" and given.run:
        if given.checkpoint:
            raise sg.Error("--run records steps as the program runs them: leave --checkpoint out")
        steps = _capture.of_model(program, inputs(given.batch), **how | {"steady_state": False, "run_steps": 3})[0]
    if given.checkpoint:
        graph.run_passes(f"checkpoint{{modules={given.checkpoint}}}")
    if given.command == "capture":
        if given.verify:
            graph.verify()
            print(f"{given.source}: {len(graph)} nodes, every invariant holds")
        if not given.output and given.verify:
            return 0
        if not given.output:
            print((graph.json() if given.json else graph.text(given.preset)).rstrip("\n"))
            return 0
        if given.json:
            with open(given.output, "w") as file:
                file.write(graph.json() + "\n")
        else:
            graph.save(given.output)
        print(f"{given.output}: {len(graph)} nodes, captured in {seconds:.3f} s", file=sys.stderr)
        return 0
    report = Report(graph, capture_seconds=seconds, spec=given.spec, allocator=given.allocator,
                    device_memory=given.memory, measure=given.measure, run=steps,
                    interconnect=given.interconnect, mesh=given.mesh)  # fmt: skip
    if given.what_if:
        answer = report.what_if(**_changes(sg, given.what_if))
        print(json.dumps(answer, indent=2) if given.json else str(answer).rstrip("\n"))
        return 0
    print(json.dumps(report.dict(), indent=2) if given.json else report.text(given.group, given.depth, given.rows))
    if given.output:
        written = report.save(given.output, given.export)
        print(f"wrote {', '.join(written)} to {given.output}", file=sys.stderr)
    return 0


def _of_many(sg, given):
    """One process of many, or all of them."""
    from ._sharding import write_text

    if not given.world:
        raise sg.Error("--ranks is of how many processes? Give --world")
    if not given.ranks:
        with sg.fake_process_group(given.world):
            return _profile_or_capture(sg, given)
    for option in ("checkpoint", "what_if", "run", "measure", "mesh"):
        if getattr(given, option):
            raise sg.Error(f"--{option.replace('_', '-')} is of one process: leave --ranks out")
    program, inputs = _source(sg, given)
    target = {"target": given.target} if given.target else {}
    if given.output:
        os.makedirs(given.output, exist_ok=True)  # before the work
    found = sg.profile(program, inputs(given.batch), options=_options(sg, given), spec=given.spec,
                       allocator=given.allocator, device_memory=given.memory, interconnect=given.interconnect,
                       ranks=given.ranks, world=given.world, **_how(given), **target)  # fmt: skip
    run = found.run(given.spec, given.interconnect) if given.ranks == "all" else None
    if given.json:
        print(json.dumps({"roles": found.dict(), "step": run and run.dict()}, indent=2))
    else:
        print(found)
        if run is not None:
            print("\n" + str(run).rstrip("\n"))
    if given.output:
        for role in found.roles:
            role.report.save(
                os.path.join(given.output, str(role.name).replace(" ", "-").replace(",", "")), given.export
            )
        if run is not None:
            write_text(os.path.join(given.output, "trace.json"), run.chrome_trace())
        print(f"wrote {len(found.roles)} reports to {given.output}", file=sys.stderr)
    return 0


def _changes(sg, texts):
    import torch

    takes: dict[str, typing.Any] = {"dtype": lambda value: getattr(torch, DTYPES[value]), "optimizer": str,
                                    "checkpoint": str, "accumulate": int, "zero": int, "ranks": int}  # fmt: skip
    changes = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            changes[name] = takes[name](value)
        except (KeyError, ValueError):
            raise sg.Error(f"--what-if '{text}': zero=1 is expected, or another of {', '.join(takes)}") from None
    return changes


def _options(sg, given):
    reads = []
    for text in (each for texts in given.host_reads for each in texts.split(",")):
        name, equals, value = text.partition("=")
        if text in ("finite", "mask-full"):
            reads.append(text.replace("-", " "))
        elif equals:
            reads.append({name: _number(sg, text, value)})
        else:
            raise sg.Error(f"--host-reads '{text}': item0=2.5, finite or mask-full is expected")
    sizes = {}
    for text in (each for texts in given.data_sizes for each in texts.split(",")):
        name, equals, value = text.partition("=")
        if not equals or not value.isdigit():
            raise sg.Error(f"--data-sizes '{text}': a name and a number of elements are expected, nonzero0=17")
        sizes[name] = int(value)
    return {"host_reads": reads, "data_sizes": sizes}


def _number(sg, text, value):
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    raise sg.Error(f"--host-reads '{text}': '{value}' is neither a number nor true or false")


def _source(sg, given, source=None):
    """(what makes the model, a function from the batch to its inputs)."""
    source = source or given.source
    program = _program(sg, source)
    texts = [(name if equals else None, spec) for name, equals, spec in (text.rpartition("=") for text in given.input)]
    if not texts and source.startswith("hf:"):
        names = ("input_ids", "labels") if given.mode == "train" else ("input_ids",)
        texts = [(name, "i64[batch,seq]") for name in names]
    elif not texts:
        raise sg.Error(
            "the inputs' dtypes and shapes are needed: one --input each, for example --input 'f32[8,3,224,224]'"
        )
    if given.command == "fit":
        _fit_tool.check_inputs(sg, given, [spec for _, spec in texts])

    def inputs(batch, seq=None):
        seq = given.seq if seq is None else seq
        by_position, by_name = [], {}
        for name, text in texts:
            spec = re.sub(r"\bbatch\b", str(batch), re.sub(r"\bseq\b", str(seq), text))
            if not sg._inputs.is_spec(spec):
                raise sg.Error(f"--input '{text}': dtype and shape are expected, for example f32[8,3,224,224]")
            if name is None:
                by_position.append(spec)
            else:
                by_name[name] = spec
        return sg._inputs.Call(tuple(by_position), by_name)

    inputs(1, 1)  # what is wrong with them is said before anything is made
    return program, inputs


def _program(sg, source):
    """What hf:CONFIG.json or some.module:factory names."""
    kind, _, rest = source.partition(":")
    if kind == "hf":
        return _configuration(sg, rest)
    sys.path.insert(0, os.getcwd())
    program = _module(sg, kind)
    for name in rest.split("."):
        if not hasattr(program, name):
            raise sg.Error(f"{kind} has no '{name}'{_meant(name, dir(program))}")
        program = getattr(program, name)
    return program


def _module(sg, name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # one that it imports
            raise
        files = [file[:-3] for file in os.listdir() if file.endswith(".py")]
        raise sg.Error(f"there is no module '{name}'{_meant(name, files)}") from None


def _configuration(sg, path):
    import transformers

    if not os.path.exists(path):
        raise sg.FileError(f"no file '{path}'")
    with open(path) as file:
        try:
            described = json.load(file)
        except ValueError as error:
            raise sg.ParseError(f"{path} is no JSON: {error}") from None
    if "model_type" not in described:
        raise sg.Error(f'{path} has no "model_type": it is no transformers configuration')
    return transformers.AutoConfig.for_model(**described)


if __name__ == "__main__":
    sys.exit(main())
