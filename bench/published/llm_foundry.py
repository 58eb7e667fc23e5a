"""llm-foundry's table of MPT models trained with FSDP: tokens a second, and what fits, beside the prediction.

    PYTHONPATH=build/python python bench/published/llm_foundry.py [--rows 0..8] [--json FILE]

The rows in llm_foundry.csv are facts of the benchmarking page of mosaicml/llm-foundry. They are of A100 and H100, 8 to
512 devices, PyTorch FSDP, parameters kept in float32 and gathered in bfloat16. All of them ran, so all of them fit.
"""

import argparse
import csv
import json
import pathlib
import statistics
import sys
import time

import torch
from mpt import Mpt
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import shadowgraph as sg

SPECS = {"a100_40gb": "a100_40gb", "a100_80gb": "a100", "h100_80gb": "h100"}
GIB = 2**30


def made(row):
    """A function that makes one rank's model."""

    def make():
        devices = int(row["gpus"])
        sums = torch.bfloat16 if row["precision"].endswith("PURE") else torch.float32
        how = {"mesh": init_device_mesh("cuda", (devices,)), "reshard_after_forward": row["sharding"] == "FULL_SHARD",
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=sums)}  # fmt: skip
        model = Mpt(row["model"], int(row["sequence"]))
        for i, block in enumerate(model.blocks):
            wrapped = checkpoint_wrapper(block, preserve_rng_state=False) if row["checkpoint"] == "True" else block
            model.blocks[i] = fully_shard(wrapped, **how)
        return fully_shard(model, **how)

    return make


def predicted(row):
    spec = SPECS[row["gpu"]]
    tokens, accumulate = int(row["micro_batch"]) * int(row["sequence"]), int(row["accumulate"])
    ids = f"i64[{row['micro_batch']},{row['sequence']}]"
    # Micro-batches are alike: a step of one and a step of two say what each takes.
    steps = []
    with sg.fake_process_group(int(row["gpus"])):
        for each in (1, 2) if accumulate > 1 else (1,):
            report = sg.profile(made(row), ids, loss=lambda loss: loss, optimizer=torch.optim.AdamW, steady_state=True,
                                spec=spec, accumulate=each).dict()  # fmt: skip
            steps.append((report, seconds_of(report)))
    seconds = steps[0][1] + (accumulate - 1) * (steps[-1][1] - steps[0][1] if accumulate > 1 else 0)
    size, memory = steps[-1][0], steps[-1][0]["device_memory"]
    if size["whole_parameters"] != int(row["parameters"]):
        raise SystemExit(f"{row['model']} has {size['whole_parameters']} parameters, published {row['parameters']}")
    return {"tokens_per_second_per_gpu": tokens * accumulate / seconds, "reserved": memory["reserved_peak_bytes"],
            "footprint": memory["footprint_bytes"]}  # fmt: skip


def seconds_of(report):
    return report["communication"]["overlap"]["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    rows = list(csv.DictReader((pathlib.Path(__file__).parent / "llm_foundry.csv").open()))
    rows = [row for row in rows if "fp8" not in row["precision"]]
    if given.rows:
        first, last = map(int, given.rows.split(".."))
        rows = rows[first:last]
    answers = []
    for row in rows:
        start = time.perf_counter()
        answer = predicted(row)
        published = float(row["tokens_per_second_per_gpu"])
        answer["error"] = answer["tokens_per_second_per_gpu"] / published - 1
        answers.append({**row, **answer})
        print(f"{row['gpu']:10} {row['gpus']:>4} {row['model']:>5} {row['sequence']:>6} x {row['micro_batch']:>2} "
              f"{published:9.0f} {answer['tokens_per_second_per_gpu']:9.0f} {100 * answer['error']:+6.1f} %  "
              f"{answer['reserved'] / GIB:6.1f} GiB  {time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
    errors = [abs(answer["error"]) for answer in answers]
    print(f"{len(errors)} rows: mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %")
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(answers, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
