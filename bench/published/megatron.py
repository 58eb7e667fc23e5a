"""Compares predicted memory with golden values of Megatron-LM: bytes allocated on the last rank in functional tests.

    PYTHONPATH=build/python python bench/published/megatron.py [--csv FILE] [--rows 0..8] [--json FILE]

megatron.csv and megatron_cases.json are from NVIDIA/Megatron-LM, tests/functional_tests. They contain the arguments of
a case, and the bytes allocated on its last rank after the last step and at the peak. The programs are independent
implementations of its modules.
"""

import functools
import json

import megatron_arguments
from comparison import HERE, compare, read_rows
from megatron_models import Rank, chunks
from megatron_training import Training

import shadowgraph as sg

TABLE, TITLE, UNIT = "megatron.csv", "Megatron-LM, peak allocation", "bytes"
WORST = ("Two rows resume from a checkpoint, whose loading is not modeled. Others on A100 probably predate the "
         "attention kernel of their cases: with unfused attention most are within 2.5 %.")  # fmt: skip
STEPS = 2  # the optimizer state exists in the second step
SPECS = {"a100": "a100", "h100": "h100", "gb200": "b200"}
# cuBLAS workspace of TransformerEngine: on Hopper and later, and before.
TRANSFORMER_ENGINE, TRANSFORMER_ENGINE_OLDER = 32 * 2**20, 4 * 2**20
GROUPED_STREAMS = 4
# Further micro-batches do not change memory.
MICRO_BATCHES = 3


def rows(path=HERE / TABLE):
    """Returns dicts of case, hardware, published bytes, and `given`: arguments and environment of the case."""
    cases = json.loads((HERE / "megatron_cases.json").read_text())
    return [{**row, "given": cases.get(row["case"]) or json.loads(row["all_args_json"])} for row in read_rows(path)]


def why_not(row):
    """Returns the reason why the programs here do not support a case, or None."""
    try:
        megatron_arguments.of_row(row)
    except megatron_arguments.NotExpressed as error:
        return str(error)
    return None


def published(row):
    """Returns the peak bytes of the last rank."""
    return int(float(row["mem_max_allocated_bytes"]))


def published_after(row):
    """Returns the bytes of the last rank after the last step."""
    return int(float(row["mem_allocated_bytes_last"]))


def spec_of(row):
    for name, spec in SPECS.items():
        if name in row["hardware"]:
            return spec
    return "a100"  # "lts": the long-term support stack, which ran on A100


@functools.lru_cache(maxsize=4)
def captured(arguments):
    """Captures the last rank from its start to the end of the second step."""
    count = arguments.gpus
    with sg.fake_process_group(count, rank=count - 1), sg.Capture("cuda", source_lines=False) as session:
        rank = Rank(arguments)
        parts = chunks(rank)
        training = Training(rank, parts)
        for _ in range(STEPS):
            several = MICRO_BATCHES if arguments.virtual == 1 else 2 * arguments.pipeline
            training.step(min(arguments.micro_batches, several))
        return session.finish(training.reports)


def engine_workspaces(arguments):
    """Returns the number of cuBLAS workspaces that TransformerEngine has allocated, which are never freed.

    The router of a mixture of experts is one of its products, also in Megatron's own modules. Products of all experts
    at once run on four streams.
    """
    if arguments.local and not arguments.experts:
        return 0
    return 1 + (GROUPED_STREAMS if arguments.flag("moe-grouped-gemm") and not arguments.older else 0)


def predicted(row):
    arguments = megatron_arguments.of_row(row)
    graph = captured(arguments)
    spec = spec_of(row)
    config = row["given"].get("CUBLAS_WORKSPACE_CONFIG")
    memory = sg.profile(graph, spec=spec, cublas_workspace=config).dict()["device_memory"]
    own = engine_workspaces(arguments) * (TRANSFORMER_ENGINE_OLDER if spec == "a100" else TRANSFORMER_ENGINE)
    return {"predicted": memory["allocated_peak_bytes"] + own, "after": memory["allocated_after_steps"][-1] + own}


def is_compared(row):
    return why_not(row) is None


def part(row):
    modules = "own modules" if megatron_arguments.of_row(row).local else "TransformerEngine's"
    return f"{modules}, {spec_of(row)}"


def named(row):
    return f"{row['case']} on {row['hardware']}"


if __name__ == "__main__":
    compare("megatron")
