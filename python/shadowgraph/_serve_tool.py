"""`shadowgraph fit SOURCE --mode serve`: what an inference engine serves of a model in Python."""

import argparse
import json
import re

import _shadowgraph_tool


def asked(arguments):
    """Whether a command line of the tool is this one."""
    if arguments[:1] != ["fit"]:
        return False
    words = [word for pair in zip(arguments, [*arguments[1:], ""], strict=True) for word in ("=".join(pair), pair[0])]
    return "--mode=serve" in words


def parser(at_least, memory):
    """at_least, memory: what reads whole numbers and sizes or devices of a command line."""
    command = argparse.ArgumentParser(
        prog="shadowgraph fit", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="How many requests an engine with paged keys and values holds at once, and how fast it answers.",
        epilog="Examples:\n"
               "  shadowgraph fit hf:CONFIG.json --mode serve --spec l4 --context 8k\n"
               "  shadowgraph fit hf:CONFIG.json --mode serve --spec h100 --tp 4 --context 32k --weights fp8 --json",
    )  # fmt: skip
    command.add_argument("source", help="hf:CONFIG.json (a transformers configuration), or some.module:factory")
    command.add_argument("--mode", choices=["serve"], required=True)
    command.add_argument("--spec", default="", metavar="DEVICE|FILE", help="the device: l4, h100, ...")
    command.add_argument("--context", type=_tokens, required=True, help="tokens of a request, its answer's too: 8k")
    command.add_argument("--prompt", type=_tokens, default=0, help="of them, those that it comes with (all)")
    command.add_argument("--weights", metavar="FORMAT", help="how matrix products' parameters are stored: awq, "
                         "gptq:group=32, fp8, ...; none: as made (default: as the configuration says)")  # fmt: skip
    command.add_argument("--keep", action="append", metavar="NAME",
                         help="parameters that stay as made: a part of their names, or a pattern (the output layer)")
    command.add_argument("--dtype", choices=["f32", "bf16", "f16"],
                         help="of what is not quantised, of keys and values (the configuration's)")
    command.add_argument("--tp", type=at_least(1), default=1, help="devices that share each layer")
    command.add_argument("--memory", type=memory, metavar="SIZE|DEVICE",
                         help="of the device, where it is not the spec's; or the device: l4")
    command.add_argument("--memory-share", type=float, default=0.9, help="of it, for the engine (0.9)")
    command.add_argument("--tokens-at-once", type=_tokens, default=8192, help="of a pass, at most (8k)")
    command.add_argument("--page", type=at_least(1), default=16, help="tokens of a page of the cache (16)")
    command.add_argument("--interconnect", default="", metavar="NAME|FILE", help="links between the devices")
    command.add_argument("--debug", action="store_true", help="show where the program raised")
    command.add_argument("--json", action="store_true", help="the answer as JSON")
    return command


def run(sg, given, source, dtypes):
    """The exit code: 0 if one request fits, 1 if not. source: a function from a command line to what makes the model.

    dtypes: by word, the names of torch's.
    """
    import torch

    if not _shadowgraph_tool.MADE_IN_PYTHON.fullmatch(given.source):
        raise sg.Error("--mode serve is of models in Python: hf:CONFIG.json or some.module:factory. For "
                       f"{given.source} --mode decode says the longest context of a batch")  # fmt: skip
    memory, device = sg._shadowgraph.memory_limit(given.memory)[:2] if given.memory else (0, "")
    spec = given.spec or device
    if not spec:
        raise sg.Error("which device serves? Give --spec: l4, h100, ...")
    weights = "" if given.weights == "none" else given.weights
    answer = sg.serve(source(given), spec=spec, context=given.context, prompt=given.prompt, weights=weights,
                      keep=given.keep, dtype=getattr(torch, dtypes[given.dtype]) if given.dtype else None,
                      tensor_parallel=given.tp, memory=memory, memory_share=given.memory_share,
                      tokens_at_once=given.tokens_at_once, page=given.page,
                      interconnect=given.interconnect)  # fmt: skip
    print(json.dumps(answer.dict(), indent=2) if given.json else str(answer).rstrip("\n"))
    return 0 if answer.fits else 1


def _tokens(text):
    found = re.fullmatch(r"(\d+)([kK]?)", text)
    number = int(found[1]) * (1024 if found[2] else 1) if found else 0
    if not 1 <= number <= 1 << 40:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of tokens such as 8192 or 8k")
    return number
