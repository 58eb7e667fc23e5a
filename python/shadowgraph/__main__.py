"""shadowgraph profile|capture some.module:factory, or hf:CONFIG.json: the tool's commands for Python models.

`python -m shadowgraph` is the same.

Exit codes are the tool's: 0 done, 1 the input's fault, 2 usage, 3 ours.
"""

import argparse
import importlib
import json
import os
import sys
import traceback

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def main(arguments=None):
    given = _parser().parse_args(arguments)
    import shadowgraph as sg

    try:
        report = _run(sg, given)
        if given.command == "capture":
            report.graph.save(given.output)
            print(f"{given.output}: {len(report.graph)} nodes", file=sys.stderr)
            return 0
        print(json.dumps(report.dict(), indent=2) if given.json else report)
        if given.output:
            report.save(given.output)
            print(f"wrote graph.sg, profile.json, graph.dot and graph.svg into {given.output}", file=sys.stderr)
        return 0
    except (sg.Error, OSError, ImportError, AttributeError) as error:
        print(f"shadowgraph: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # the program's own
        if given.debug:
            traceback.print_exc()
        print(f"shadowgraph: the program raised {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser():
    parser = argparse.ArgumentParser(prog="shadowgraph", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("profile", "memory, FLOPs and a summary by module"), ("capture", "writes the graph")):
        command = commands.add_parser(name, help=text)
        command.add_argument("source", help="some.module:factory (a function or class without arguments that makes a "
                             "torch.nn.Module), or hf:CONFIG.json (a transformers configuration)")  # fmt: skip
        command.add_argument("--input", action="append", default=[], metavar="[NAME=]f32[8,3,224,224]",
                             help="an input of forward: dtype and shape, once each, by position or name")  # fmt: skip
        command.add_argument("--batch", type=int, default=1, help="hf: language models' batch size")
        command.add_argument("--seq", type=int, default=512, help="hf: language models' sequence length")
        command.add_argument("--mode", choices=["infer", "train"], default="infer")
        command.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
        command.add_argument("--steady-state", action="store_true", help="the second step, with optimizer state there")
        command.add_argument("--device", default="cuda", help="cpu, cuda or cuda:i, pretended")
        command.add_argument("--dtype", choices=DTYPES, default="f32")
        command.add_argument("--host-reads", action="append", default=[], metavar="NAME=VALUE|finite|mask-full",
                             help="what the program reads and data decides: item0=2.5 by name, bool=false for all of a "
                             "kind, finite, mask-full")  # fmt: skip
        command.add_argument("--data-sizes", action="append", default=[], metavar="NAME=N",
                             help="sizes of results that depend on data: nonzero0=17")  # fmt: skip
        command.add_argument("--debug", action="store_true", help="show where the program raised")
        command.add_argument("--json", action="store_true", help="the report as JSON")
        command.add_argument("-o", "--output", required=name == "capture",
                             help="a folder for graph and report" if name == "profile" else "the file")  # fmt: skip
    return parser


def _run(sg, given):
    import torch

    from . import _capture
    from ._report import Report

    program, inputs = _source(sg, given)
    train = given.mode == "train"
    args = tuple(value for name, value in inputs if name is None)
    kwargs = {name: value for name, value in inputs if name is not None}
    optimizer = None
    if train:
        kind = getattr(torch.optim, OPTIMIZERS[given.optimizer])
        optimizer = kind if given.optimizer != "sgd" else lambda parameters: kind(parameters, lr=1e-2)
    graph, seconds = _capture._run(program, args, kwargs, device=given.device,
                                   dtype=getattr(torch, DTYPES[given.dtype]), train=train,
                                   optimizer=optimizer, step=train, steady_state=given.steady_state,
                                   options=_options(sg, given))  # fmt: skip
    return Report(graph, capture_seconds=seconds)


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


def _source(sg, given):
    """(what makes the model, [(name or None, input)])."""
    inputs = []
    for text in given.input:
        name, equals, spec = text.rpartition("=")
        if not sg._inputs.is_spec(spec):
            raise sg.Error(f"--input '{text}': dtype and shape are expected, for example f32[8,3,224,224]")
        inputs.append((name if equals else None, spec))
    kind, colon, rest = given.source.partition(":")
    if not colon:
        raise sg.Error(f"'{given.source}' is neither some.module:factory nor hf:CONFIG.json")
    if kind == "hf":
        import transformers

        if not os.path.exists(rest):
            raise sg.FileError(f"no file '{rest}'")
        with open(rest) as file:
            try:
                described = json.load(file)
            except ValueError as error:
                raise sg.ParseError(f"{rest} is no JSON: {error}") from None
        if "model_type" not in described:
            raise sg.Error(f'{rest} has no "model_type": it is no transformers configuration')
        config = transformers.AutoConfig.for_model(**described)
        if not inputs:
            size = f"i64[{given.batch},{given.seq}]"
            inputs = [("input_ids", size)] + ([("labels", size)] if given.mode == "train" else [])
        return config, inputs
    sys.path.insert(0, os.getcwd())
    factory = importlib.import_module(kind)
    for name in rest.split("."):
        factory = getattr(factory, name)
    if not inputs:
        raise sg.Error(
            "the inputs' dtypes and shapes are needed: one --input each, for example --input 'f32[8,3,224,224]'"
        )
    return factory, inputs


if __name__ == "__main__":
    sys.exit(main())
