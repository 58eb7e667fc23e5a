#!/usr/bin/env python3
"""Measures CPU time of sg.profile for a rank of Llama 3 8B with FSDP2 on eight H100s and selective checkpoints.

    PYTHONPATH=build/python python bench/sharded_profile.py

Model and sharding are those of bench/overlap.py. Profiles the second step. The first call includes imports.
"""

import functools
import sys
import time
import types

import torch
from overlap import LENGTH, RANKS, SEQUENCES, make

import shadowgraph as sg


def profile():
    ids = f"i64[{SEQUENCES},{LENGTH}]"
    with sg.fake_process_group(RANKS):
        return sg.profile(lambda: make(32), {"input_ids": ids, "labels": ids}, loss=".loss", device="cuda",
                          optimizer=functools.partial(torch.optim.AdamW, fused=True), steady_state=True)  # fmt: skip


def main():
    # transformers imports torchvision, which may be built for another torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    print("| call | CPU s | aim |\n|---|---|---|")
    for number in range(3):
        begin = time.process_time()
        report = profile()
        print(f"| {number + 1} | {time.process_time() - begin:.2f} | {'2 s' if number == 0 else '-'} |", flush=True)
    print(f"{len(list(report.graph)):,} nodes")


if __name__ == "__main__":
    main()
