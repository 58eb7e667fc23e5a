#!/usr/bin/env python3
"""CPU seconds of sg.profile of one rank: Llama 3 8B with FSDP2 on eight H100s, selective checkpoints, the second step.

    PYTHONPATH=build/python python bench/sharded_profile.py

The model, and how it is sharded, are bench/overlap.py's. The first call of a process loads what it uses.
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
    # transformers asks for torchvision, which is built for another torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    print("| call | CPU s | aim |\n|---|---|---|")
    for number in range(3):
        begin = time.process_time()
        report = profile()
        print(f"| {number + 1} | {time.process_time() - begin:.2f} | {'2 s' if number == 0 else '-'} |", flush=True)
    print(f"{len(list(report.graph)):,} nodes")


if __name__ == "__main__":
    main()
