"""`shadowgraph plan` of models in Python."""

import json
import os
import sys

import torch

from . import _capture
from . import _shadowgraph as _C

_NUMBERS = ("--tensor", "--context", "--pipeline", "--stages-per-rank", "--micro-batch", "--experts", "--zero")


def add_options(command):
    """Those of the tool's `plan` beside a capture's."""
    command.add_argument("--devices", required=True, metavar="1024xh100", help="how many of which device")
    links = command.add_mutually_exclusive_group()
    links.add_argument("--interconnect", default="", help="links between devices (default: those around the device)")
    links.add_argument("--topology", dest="interconnect", metavar="FILE", default="",
                       help="the same as a file of levels: NVLink, rail, spine, sites")  # fmt: skip
    command.add_argument("--memory", help="memory of a device, 80GB (default: its own)")
    command.add_argument("--samples-per-step", type=int, help="samples, or sequences, on all devices")
    command.add_argument("--tokens-per-step", help="the same in tokens: 16M (of 1,048,576), 512k")
    command.add_argument("--captured-state", action="store_true", help="state as --optimizer and --dtype leave it")
    command.add_argument("--gradients", choices=("f32", "bf16"), help="how they are kept and summed over replicas")
    command.add_argument("--float8", action="store_true", help="products of layers in float8")
    for name in _NUMBERS:
        command.add_argument(name, type=_numbers, default=[], metavar="N,N", help="what is tried, as of the tool")
    command.add_argument("--expert-capacity", type=float, default=1,
                         help="rows that a rank of experts has room for, over the mean (default: 1, routing is even)")
    command.add_argument("--what", type=lambda text: text.split(","), default=[], metavar="QUESTION,...",
                         help="tables in place of one plan: devices, network, memory, batch, sequence, price")
    command.add_argument("--values", type=lambda text: text.split(","), default=[], metavar="N,N",
                         help="with --what: numbers of devices, factors of the network, memories, batches, sequences")
    command.add_argument("--share", type=float, default=0.4, help="of the peak, that devices and batch are to reach")
    command.add_argument("--tokens", default="", metavar="15T", help="with --what price: tokens in all")
    command.add_argument("--within", default="", metavar="14d", help="with --what price: time for all of them")
    command.add_argument("--prices", metavar="FILE", help="with --what price: JSON of a device's price an hour")
    command.add_argument("--recompute", type=lambda text: text.split(","), default=[], metavar="WHAT,...",
                         help="what backward may compute again of a layer: nothing, selective, whole")
    command.add_argument("--offload", type=lambda text: text.split(","), default=[], metavar="WHAT,...",
                         help="what may be on the host: activations, optimizer")  # fmt: skip
    command.add_argument("--attention", type=lambda text: text.split(","), default=[], metavar="KERNEL,...",
                         help="kernels of attention: device, flash, efficient, cudnn, math")  # fmt: skip
    command.add_argument("--layout", type=lambda text: text.split(","), default=[], metavar="WHO,...",
                         help="who lays tensors out over ranks of tensor parallel: megatron, solved, lean")  # fmt: skip
    command.add_argument("--overlap", default="none", choices=("none", "backward", "pieces"),
                         help="what hides collectives of tensor parallel, as of the tool")  # fmt: skip
    command.add_argument("--schedule", action="append", default=[], help="1f1b, interleaved, ...; repeat")


def run(sg, given, program, inputs, how):
    """The exit code."""
    samples = given.samples_per_step
    if (samples is None) == (given.tokens_per_step is None):
        raise sg.Error("give one of --samples-per-step and --tokens-per-step")
    if samples is None:
        samples, rest = divmod(_tokens(sg, given.tokens_per_step), given.seq)
        if rest:
            raise sg.Error(f"--tokens-per-step {given.tokens_per_step} is no whole number of sequences of {given.seq}")
    how = {name: value for name, value in how.items() if name not in ("device", "mode", "steady_state", "accumulate")}
    # Other lengths can be asked about where inputs are written by their length.
    sized = given.seq and (given.source.startswith("hf:") or any("seq" in text for text in given.input))
    questions = sg.PlanQuestions(
        program, (lambda samples, tokens: inputs(samples, tokens)) if sized else inputs, devices=given.devices,
        batch=samples, sequence=given.seq,
        captured_state=given.captured_state, interconnect=given.interconnect, memory=given.memory,
        name=os.path.basename(given.source), schedules=given.schedule, recompute=given.recompute,
        offload=given.offload, attention=given.attention,
        layout=given.layout, overlap=given.overlap, float8=given.float8, expert_capacity=given.expert_capacity,
        gradients={"f32": torch.float32, "bf16": torch.bfloat16}.get(given.gradients),
        **{name[2:].replace("-", "_"): getattr(given, name[2:].replace("-", "_")) for name in _NUMBERS}, **how,
    )  # fmt: skip
    if given.what:
        return _answer(sg, given, questions)
    plan = questions.plan()
    if given.output:
        os.makedirs(given.output, exist_ok=True)
        files = {"report.html": plan.html(), "plan.txt": str(plan), "pipeline.txt": str(plan.run),
                 "plan.json": json.dumps(plan.dict(), indent=1) + "\n", "schedule.csv": plan.run.schedule.csv(),
                 "trace.json": plan.run.chrome_trace()}  # fmt: skip
        if layouts := plan.dict()["simulated"][0].get("layouts"):
            files["layout.json"] = json.dumps(layouts, indent=1) + "\n"
        for name, text in files.items():
            sg._sharding.write_text(os.path.join(given.output, name), text)
        _write_engine_files(sg, given, plan, _capture.of_model(
            program, inputs(plan.dict()["simulated"][0]["plan"]["micro_batch"]), device="cuda", mode="train", **how
        )[0], samples)  # fmt: skip
    print(json.dumps(plan.dict(), indent=1) if given.json else plan)
    return 0


def _answer(sg, given, questions):
    """Prints a table for each question, and writes them where there is an output."""
    if len(given.what) > 1 and given.values:
        raise sg.Error("--values are of one question; ask one at a time")
    tables = {what: questions.ask(what, values=given.values, share=given.share, tokens=given.tokens,
                                  within=given.within, prices=given.prices) for what in given.what}  # fmt: skip
    text = "\n".join(map(str, tables.values()))
    data = json.dumps({what: table.dict() for what, table in tables.items()}, indent=1) + "\n"
    if given.output:
        os.makedirs(given.output, exist_ok=True)
        sg._sharding.write_text(os.path.join(given.output, "questions.txt"), text)
        sg._sharding.write_text(os.path.join(given.output, "questions.json"), data)
    print(data if given.json else text, end="")
    return 0


def _write_engine_files(sg, given, plan, step, samples):
    """The plan in the words of engines; on stderr those that have none for it, and what differs."""
    words = json.dumps(plan.dict()["simulated"][0]["plan"])
    for engine, name, text, why_not, differs in _C.engine_files(step, words, given.seq, samples, given.float8,
                                                                  given.gradients == "bf16"):
        if text:
            sg._sharding.write_text(os.path.join(given.output, name), text)
        print(f"{name}: {engine}" if text else f"{name}: not written: {why_not}", file=sys.stderr)
        for line in differs:
            print(f"  {line}", file=sys.stderr)


def _numbers(text):
    return [int(number) for number in text.split(",")]


def _tokens(sg, text):
    number, unit = (text[:-1], text[-1]) if text[-1:] in "kKM" else (text, "")
    try:
        return int(float(number) * {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20}[unit])
    except ValueError:
        raise sg.Error(f"--tokens-per-step '{text}' is not a number of tokens such as 16M or 512k") from None
