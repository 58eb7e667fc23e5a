"""One rank of test_emitted_peaks.py: the peak memory of the second step of several generated scripts, over gloo.

    python emitted_peak_ranks.py RANK SIZE STORE LIBRARY CASES.json

A case is [train.py, "llama" | "gpt"]. The last line of the output has the bytes by case. "parts" are this rank's
shards of the parameters that FSDP2 shards.
"""

import gc
import json
import os
import sys

import emitted_plan_ranks as ranks
import torch
import torch.distributed as dist
from parallel_programs import Watch, count_with
from torch.distributed.tensor import DTensor

LENGTH = 256
# model sizes that replace those of emitted_plan_ranks
SIZES = {"WORDS": 1024, "WIDTH": 256, "LENGTH": LENGTH, "KEYS": 4}


def count_no_host(train):
    """Excludes tensors offloaded to the CPU from the count."""
    start = train.OnHost.__init__

    def started(one, *args):
        start(one, *args)
        one.host = torch.from_numpy(one.host.numpy().copy())

    train.OnHost.__init__ = started


def second_step(script, model, live):
    gc.collect()
    before, train = live(), ranks.script_of(script)
    count_no_host(train)
    training = train.Training(lambda: ranks.make(model), torch.device("cpu"), optimizer=torch.optim.AdamW)
    ids = torch.zeros(train.DATA * train.MICRO_BATCH * train.MICROBATCHES, LENGTH, dtype=torch.int64)
    training.step(ids, ids)
    gc.collect()
    with Watch(live) as watch:
        training.step(ids, ids)
    local = [p.to_local() if isinstance(p, DTensor) else p for p in training.parameters().values()]
    return {
        "pipeline": training.mesh["pipeline"].get_local_rank(),
        "peak": watch.most - before,
        "parts": sum(p.nbytes for p in local) if training.sharded else 0,
    }


def main():
    rank, size, store, library, cases = sys.argv[1:]
    torch.set_num_threads(1)
    for name, value in SIZES.items():
        setattr(ranks, name, value)
    live, found = count_with(library), {}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    with open(cases) as file:
        for case, given in json.load(file).items():
            found[case] = second_step(*given, live)
            dist.barrier()
    print(json.dumps(found), flush=True)
    os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts


if __name__ == "__main__":
    main()
