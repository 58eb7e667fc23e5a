"""Compares predictions with Sailor's pipelines of OPT and GPT-Neo on GH200: step time.

    PYTHONPATH=build/python python bench/published/sailor_seconds.py [--csv FILE] [--rows 0..8] [--json FILE]

Specs of the GPU and the network are in gh200.json and gh200_links.json. The network is as measured by Sailor. The host
time of a call is 62 us, since Sailor's profile of a layer has 3.2 ms for 52 calls with small batches.
"""

import functools
import json
import pathlib
import tempfile

import sailor
import stage_clock
from comparison import HERE, compare
from sailor import is_compared, named  # noqa: F401
from sailor_engine import Engine
from sailor_models import SEQUENCE, SIZES, rank_of

import shadowgraph as sg

TABLE, TITLE, UNIT = "sailor.csv", "Sailor's pipelines on GH200, a step", "s"
WORST = ("A step of one micro-batch takes 1.5 times as long as its parts. Small batches are host bound, and the host "
         "speed differs between runs.")  # fmt: skip
SPEC, LINKS = str(HERE / "gh200.json"), str(HERE / "gh200_links.json")


def published(row):
    return float(row["real_s"])


@functools.cache
def quick_host():
    """Returns the device spec with the host time of calls outside of Python modules."""
    figures = {**json.loads((HERE / "gh200.json").read_text()), "host_call": 5e-6}
    path = pathlib.Path(tempfile.mkdtemp()) / "gh200_quick.json"
    path.write_text(json.dumps(figures))
    return str(path)


@functools.cache
def few(model, tensor, micro_batch, data, first, last, micro_batches):
    """Returns (time, device time, forward's share of device time) of a step with few layers."""
    ranks = tensor * data
    with sg.fake_process_group(ranks, rank=ranks - 1), sg.Capture("cuda", source_lines=False) as session:
        Engine(model, rank_of(model, tensor, micro_batch, data), first, last, 1).step(micro_batches)
        graph = session.finish()
    report, quick = (sg.profile(graph, spec=spec, interconnect=LINKS).dict() for spec in (SPEC, quick_host()))
    phases = report["time"]["phases"]
    seconds, alone = (each["communication"]["overlap"]["seconds"] for each in (report, quick))
    return seconds, alone, phases["forward"] / (phases["forward"] + phases["backward"])


def stage(model, tensor, micro_batch, data, first, last):
    """Returns times of (forward, backward, rest of a step), extrapolated from captures of one and two layers."""
    count = SIZES[model][0]
    layers = min(last, count) - max(first, 1) + 1
    ends = (lambda n: (count - n + 1, count + 1)) if last > count else (lambda n: (1, n))

    def of(n, micro_batches):
        low, high = (0, n) if first == 0 and last <= count else ends(n)
        return few(model, tensor, micro_batch, data, low, high, micro_batches)

    def linear(micro_batches):
        (one, one_alone, share), (two, two_alone, _) = of(1, micro_batches), of(2, micro_batches)
        return one + (two - one) * (layers - 1), one_alone + (two_alone - one_alone) * (layers - 1), share

    (once, once_alone, _), (twice, twice_alone, share) = linear(1), linear(2)
    each = twice - once
    # The rest of a step handles gradients and parameters without Python between calls.
    return each * share, each * (1 - share), 2 * once_alone - twice_alone


def predicted(row):
    tensor, micro_batch = int(row["gpus_per_node_tp"]), int(row["mbs"])
    data = json.loads(row["dp"])[0]
    micro_batches = int(row["gbs"]) // (micro_batch * data)
    _, hidden, _ = SIZES[row["model"]]
    times = [stage(row["model"], tensor, micro_batch, data, first, last) for first, last, _ in sailor.stages(row)]
    links = json.loads((HERE / "gh200_links.json").read_text())
    between = links["levels"][1]
    bytes_sent = 4 * SEQUENCE * micro_batch * hidden / tensor
    send = 2 * (links["base"] + between["latency"]) + bytes_sent / between["bandwidth"]  # and a message with sizes
    forward, backward, rest = zip(*times, strict=True)
    programs = stage_clock.deepspeed(len(times), micro_batches, forward, backward, send)
    for program, seconds in zip(programs, rest, strict=True):
        program.append(("compute", seconds))
    return {"predicted": stage_clock.run(programs)}


def is_compared(row):  # noqa: F811
    return row["gpu"] == "GH-96"


def part(row):
    return f"micro-batches of {'1 or 2' if int(row['mbs']) < 4 else '4 or 8'}"


if __name__ == "__main__":
    compare("sailor_seconds")
