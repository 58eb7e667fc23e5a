"""Sailor's pipelines of OPT and GPT-Neo on GH200: what nvidia-smi showed of the fullest GPU, beside the prediction.

    PYTHONPATH=build/python python bench/published/sailor.py [--rows 0..8] [--json FILE]

The rows in sailor.csv are facts of eth-easl/sailor, Planner/simulations/validation. The bytes are those of the device:
what the allocator reserves, and what lies outside of it.
"""

import argparse
import csv
import functools
import json
import pathlib
import statistics
import sys
import time

import torch
from sailor_models import SEQUENCE, Stage, rank_of

import shadowgraph as sg

TABLE = pathlib.Path(__file__).parent / "sailor.csv"
GIB = 2**30
# Sailor states what its GPUs hold outside of PyTorch's allocator: contexts, kernels and NCCL's buffers.
# (Planner/simulations/runtime_simulator.py). It is measured on GH200, and a round figure elsewhere.
OUTSIDE = {"GH-96": 4_760_000_000 + 300_000_000}
OUTSIDE_ELSEWHERE = 3_000_000_000
SPECS = {"GH-96": "h100", "A100-40": "a100_40gb", "RTX-3090": "rtx3090"}
STEPS = 2


def rows():
    return list(csv.DictReader(TABLE.open()))


def published(row):
    return {"max_mem_bytes": int(row["max_mem_bytes"]), "seconds": float(row["real_s"])}


@functools.lru_cache(maxsize=1)
def captured(model, tensor, micro_batch, first, last, ahead, micro_batches, several):
    """Two steps of a stage that runs `ahead` micro-batches before its first backward."""
    with sg.fake_process_group(tensor, rank=tensor - 1), sg.Capture("cuda", source_lines=False) as session:
        rank = rank_of(model, tensor, micro_batch)
        mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda")
        stage = Stage(model, rank, first, last)
        optimizer = torch.optim.AdamW(stage.parameters(), fused=True)
        empty = lambda dtype=torch.int64: torch.empty(micro_batch, SEQUENCE, dtype=dtype, device="cuda")  # noqa: E731
        hidden = lambda: torch.empty(SEQUENCE, micro_batch, rank.arguments.hidden, device="cuda")  # noqa: E731
        received = hidden() if first > 0 else None
        of_output = None if stage.ends else hidden()
        for _ in range(STEPS):
            kept = []
            for k in range(micro_batches + ahead - 1):
                if k < micro_batches:
                    batch = {name: empty() for name in ("tokens", "labels", "positions")}
                    batch["weights"] = empty(torch.float32)
                    x = None if received is None else received.clone().requires_grad_()
                    kept.append((stage(batch, mask, x), x))
                if k >= ahead - 1:
                    output, x = kept.pop(0)
                    output.backward(of_output)
                    del output, x
            if several:  # DeepSpeed sums gradients over data parallel ranks in one flat copy
                flat = torch.cat([p.grad.view(-1) for p in stage.parameters() if p.grad is not None])
                del flat
            optimizer.step()
            optimizer.zero_grad()
        return session.finish()


def stages(row):
    """(first, last layer, micro-batches before the first backward) of each stage."""
    counts, at = [int(count) for count in row["layers_per_stage"].split("/")], 0
    for i, count in enumerate(counts):
        yield at, at + count - 1, len(counts) - i
        at += count


def predicted(row):
    tensor, micro_batch = int(row["gpus_per_node_tp"]), int(row["mbs"])
    data = json.loads(row["dp"])[0]
    micro_batches = int(row["gbs"]) // (micro_batch * data)
    most = 0
    for first, last, ahead in stages(row):
        ahead = min(ahead, micro_batches)
        graph = captured(row["model"], tensor, micro_batch, first, last, ahead, min(micro_batches, ahead + 1), data > 1)
        memory = sg.profile(graph, spec=SPECS.get(row["gpu"], "h100")).dict()["device_memory"]
        most = max(most, memory["reserved_peak_bytes"])
    return {"max_mem_bytes": most + OUTSIDE.get(row["gpu"], OUTSIDE_ELSEWHERE)}


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
        answer["error_max_mem"] = answer["max_mem_bytes"] / facts["max_mem_bytes"] - 1
        answers.append({**row, **{f"published_{name}": value for name, value in facts.items()}, **answer})
        print(f"{row['model']:8} {row['gpu']:8} {row['N_nodes']:>3} nodes {row['stages']} stages x {row['mbs']} "
              f"{facts['max_mem_bytes'] / GIB:6.2f} {answer['max_mem_bytes'] / GIB:6.2f} GiB "
              f"{100 * answer['error_max_mem']:+6.1f} %  {time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
    errors = [abs(answer["error_max_mem"]) for answer in answers]
    print(f"{len(errors)} rows: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(answers, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
