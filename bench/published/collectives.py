"""Compares predicted times with Aceso's table of single collectives on 2, 4 and 8 GPUs.

    PYTHONPATH=build/python python bench/published/collectives.py [--csv FILE] [--by collective] [--json FILE]

The rows in collectives.csv are from profiles by comm_profiler of microsoft/Aceso on A100 SXM4 40 GB and V100 SXM2
32 GB, published in Dazz993/Mist. `mb` is the input size of a process in MiB of float16, rounded down; the result of
all_gather is `gpus` times as large. Repeated measurements are represented by their median.

A row is the wall time of a Python call between two synchronizations, which includes more than the collective:

- HOST is the time of PyTorch and the synchronization, and HOST_TENSOR that of creating each tensor of a list.
- all_gather and reduce_scatter of lists use one flat tensor, from or to which each part is copied.
- Sizes are those of GPT activations (46.004 MiB, not 46). collectives_sizes.csv has the number of elements of
  fractional sizes, derived from Aceso's table of operators.
- NCCL is slower for parts that are not aligned to 16 bytes: UNALIGNED. shadowgraph does not model this, since
  separately allocated tensors are aligned.
"""

import collections
import functools
import warnings

import torch
import torch.distributed as dist
from comparison import HERE, compare, read_rows

import shadowgraph as sg

warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
TABLE, TITLE, UNIT = "collectives.csv", "Single collectives", "ms"
WORST = "The worst rows are small collectives: each row includes tens of microseconds of Python and synchronization."
SPECS = {"a100": "a100_40gb", "v100": "v100"}
HOST = 60e-6  # seconds of a call with minimal data, without the time of NCCL
HOST_TENSOR = 10e-6
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LISTS = ("all_gather", "reduce_scatter", "all_to_all")
COPIES = ("all_gather", "reduce_scatter")  # one per process
# Slowdown of collectives with parts that are not aligned to 16 bytes.
UNALIGNED = {
    "a100": {"all_gather": 2.0, "reduce_scatter": 4.2, "all_to_all": 1.75},
    "v100": {"all_gather": 1.75, "reduce_scatter": 1.65, "all_to_all": 1.8},
}


@functools.cache
def _sizes():
    rows = read_rows(HERE / "collectives_sizes.csv")
    return {(row["gpu_set"], int(row["mb"])): int(row["elements"]) for row in rows}


def _key(row):
    """Returns (GPU, processes, collective, elements) of a row."""
    mb = int(float(row["mb"]))
    elements = _sizes().get((row["gpu_set"], mb), mb * 2**19)
    return row["gpu_set"].split("-")[0], int(row["gpus"]), row["collective"], elements


def _is_aligned(collective, processes, elements):
    if collective == "all_reduce":
        return True
    part = elements if collective == "all_gather" else elements // processes
    return part * 2 % 16 == 0


def _send(collective, processes, elements):
    """Runs the timed part of the program."""
    if collective != "all_gather":
        elements = elements // processes * processes
    own = torch.empty(elements, dtype=torch.float16, device="cuda")
    if collective == "all_reduce":
        dist.all_reduce(own)
    elif collective == "all_gather":
        flat = torch.empty(processes, own.numel(), dtype=own.dtype, device="cuda")
        dist.all_gather_into_tensor(flat, own)
        for part in flat:
            torch.empty_like(part).copy_(part)
    elif collective == "reduce_scatter":
        flat = torch.empty_like(own)
        for to, part in zip(flat.chunk(processes), own.chunk(processes), strict=True):
            to.copy_(part)
        dist.reduce_scatter_tensor(torch.empty_like(own.chunk(processes)[0]), flat)
    else:
        parts = list(own.chunk(processes))
        dist.all_to_all([torch.empty_like(part) for part in parts], parts)


_known = {}


def _predict(keys):
    """Fills `_known` with one capture per machine and number of processes."""
    groups = collections.defaultdict(list)
    for key in keys:
        if key not in _known and key not in groups[key[:2]]:
            groups[key[:2]].append(key)
    for (gpu, processes), wanted in groups.items():
        with sg.fake_process_group(processes), sg.Capture("cuda") as capture:
            for _, _, collective, elements in wanted:
                _send(collective, processes, elements)
            graph = capture.finish([])
        spec = SPECS[gpu]
        report = sg.profile(graph, spec=spec, interconnect=gpu)
        sent = iter([node.communication_seconds for node in report.nodes if node.communication_seconds])
        copied = iter([node.seconds for node in report.nodes if node.seconds])
        for key in wanted:
            collective = key[2]
            seconds = HOST + (HOST_TENSOR * processes if collective in LISTS else 0)
            seconds += next(sent) * (1 if _is_aligned(collective, processes, key[3]) else UNALIGNED[gpu][collective])
            _known[key] = seconds + sum(next(copied) for _ in range(processes if collective in COPIES else 0))


def predicted(row):
    """Returns the predicted time of a row in milliseconds."""
    key = _key(row)
    if key not in _known:
        # Predict all sizes of the table at once, because there are thousands of rows.
        sizes = {_key(other)[3] for other in read_rows(HERE / TABLE) if other["gpu_set"] == row["gpu_set"]}
        _predict([key, *((*key[:2], collective, size) for collective in COLLECTIVES for size in sizes)])
    return {"predicted": 1000 * _known[key]}


def published(row):
    return float(row["ms"])


def is_compared(row):
    return row["collective"] in COLLECTIVES


def part(row):
    return row["gpu_set"].split("-")[0]


def named(row):
    return f"{part(row)} {row['collective']} of {row['mb']} MiB on {row['gpus']}"


if __name__ == "__main__":
    compare("collectives")
