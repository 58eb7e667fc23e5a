#!/usr/bin/env python3
"""Measures PyTorch's MemTracker relative to FakeTensorMode: a training step with AdamW (foreach) on one thread.

    .venv/bin/python bench/mem_tracker.py [gpt2 bert resnet50]

Prints the minimum CPU time of several steps after a first one. MemTracker records peak memory by kind during the same
step. Models and inputs are those of bench/python_package.py, which compares captures with FakeTensorMode. See
docs/figures.md for results.
"""

import peer_steps
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


def compare(name):
    with FakeTensorMode():
        model, given, optimizer = peer_steps.create(name)

        def step():
            peer_steps.step(model, given, optimizer)
            optimizer.zero_grad(set_to_none=True)

        def tracked():
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                step()

        plain, both = peer_steps.best(step, 4), peer_steps.best(tracked, 4)
    return name, f"{plain * 1e3:.0f}", f"{both * 1e3:.0f}", f"{both / plain:.1f} x"


if __name__ == "__main__":
    peer_steps.each(compare, ("model", "FakeTensorMode ms", "with MemTracker ms", "MemTracker / FakeTensorMode"),
                    ("gpt2", "bert", "resnet50"))  # fmt: skip
