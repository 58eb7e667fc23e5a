#!/usr/bin/env python3
"""PyTorch's MemTracker beside its FakeTensorMode, in one process, one thread: a training step with AdamW (foreach).

    .venv/bin/python bench/mem_tracker.py [gpt2 bert resnet50]

Prints CPU seconds of the thread, the least of several steps after a first one. MemTracker records peak memory by kind
during the same step. Models and inputs are those of bench/python_package.py, which
measures a capture by shadowgraph against FakeTensorMode. docs/figures.md has the figures.
"""

import os
import sys
import time
import types

os.environ["HF_HUB_OFFLINE"] = "1"
# A torchvision built for another torch fails when it registers its operators' fake kernels; no model needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

import torch  # noqa: E402
import transformers  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402


def language(batch, length):
    ids = torch.zeros(batch, length, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids}


def image():
    return {"pixel_values": torch.zeros(8, 3, 224, 224), "labels": torch.zeros(8, dtype=torch.int64)}


MODELS = {
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()), lambda: language(4, 512)),
    "bert": (lambda: transformers.BertForMaskedLM(transformers.BertConfig()), lambda: language(8, 128)),
    "resnet50": (lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig()), image),
}


def best(work, rounds):
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times[1:])


def compare(name):
    make, inputs = MODELS[name]
    with FakeTensorMode():
        model, given = make(), inputs()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step():
            loss = model(**given).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def tracked():
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                step()

        plain, both = best(step, 4), best(tracked, 4)
    print(f"| {name} | {plain * 1e3:.0f} | {both * 1e3:.0f} | {both / plain:.1f} x |", flush=True)


def main():
    torch.set_num_threads(1)
    print("| model | FakeTensorMode ms | with MemTracker ms | MemTracker / FakeTensorMode |\n|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        compare(name)


if __name__ == "__main__":
    main()
