"""Megatron-LM's golden values: bytes allocated on the last rank of its functional tests, beside the prediction.

    PYTHONPATH=build/python python bench/published/megatron.py [--rows 0..8] [--json FILE]

megatron.csv and megatron_cases.json are facts of NVIDIA/Megatron-LM, tests/functional_tests. They have the arguments of
a case, and the bytes that its last rank had allocated after the last step, and at most. The programs are written here
from how its modules are built; no line of it is copied.
"""

import argparse
import csv
import functools
import json
import pathlib
import statistics
import sys
import time

import megatron_arguments
from megatron_models import Rank, chunks
from megatron_training import Training

import shadowgraph as sg

HERE = pathlib.Path(__file__).parent
GIB = 2**30
STEPS = 2  # the second finds the optimizer's state
SPECS = {"a100": "a100", "h100": "h100", "gb200": "b200"}
# TransformerEngine's workspace for cuBLAS: on Hopper and later, and before.
TRANSFORMER_ENGINE, TRANSFORMER_ENGINE_OLDER = 32 * 2**20, 4 * 2**20
GROUPED_STREAMS = 4
# Micro-batches beyond these hold what those before them held.
MICRO_BATCHES = 3


def rows():
    """Dicts of case, hardware, published bytes, and `given`: the case's arguments and environment.

    Rows whose case the programs do not express are not among them: `left_out`.
    """
    return [row for row in _table() if not _why_not(row)]


def left_out():
    """{case: why the programs do not express it}."""
    return {row["case"]: why for row in _table() if (why := _why_not(row))}


def _table():
    cases = json.loads((HERE / "megatron_cases.json").read_text())
    return [{**row, "given": cases[row["case"]]} for row in csv.DictReader((HERE / "megatron.csv").open())]


def _why_not(row):
    try:
        megatron_arguments.of_row(row)
    except megatron_arguments.NotExpressed as error:
        return str(error)
    return None


def published(row):
    return {"allocated": int(float(row["mem_allocated_bytes_last"])),
            "max_allocated": int(float(row["mem_max_allocated_bytes"]))}  # fmt: skip


def spec_of(row):
    for name, spec in SPECS.items():
        if name in row["hardware"]:
            return spec
    return "a100"  # "lts": the stack of long support, which ran on A100


@functools.lru_cache(maxsize=4)
def captured(arguments):
    """What the last rank does from its beginning to the end of a second step, as a graph."""
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
    """How many workspaces TransformerEngine's products have made, which stay.

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
    return {"allocated": memory["allocated_after_steps"][-1] + own,
            "max_allocated": memory["allocated_peak_bytes"] + own, "local": arguments.local}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    asked = rows()
    if given.rows:
        first, last = map(int, given.rows.split(".."))
        asked = asked[first:last]
    answers = []
    for row in asked:
        start = time.perf_counter()
        answer, facts = predicted(row), published(row)
        for name, value in facts.items():
            answer[f"published_{name}"], answer[f"error_{name}"] = value, answer[name] / value - 1
        answers.append({**row, **answer})
        texts = [f"{facts[name] / GIB:7.3f} {100 * answer[f'error_{name}']:+6.2f} %" for name in facts]
        print(f"{row['case'][:64]:64} {row['hardware'][:20]:20} {'  '.join(texts)}  "
              f"{time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
    for local in (True, False):
        errors = [abs(answer["error_max_allocated"]) for answer in answers if answer["local"] == local]
        if errors:
            print(f"{len(errors)} {'local' if local else 'other'} rows: most allocated, median error "
                  f"{100 * statistics.median(errors):.2f} %, worst {100 * max(errors):.2f} %")  # fmt: skip
    if not given.rows:
        print("\n".join(["not expressed:", *left_out().values()]))
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(answers, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
