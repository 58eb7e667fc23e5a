#!/usr/bin/env python3
"""Compares the Python package with FakeTensorMode: a training step with AdamW (foreach) in one process on one thread.

    PYTHONPATH=build/python .venv/bin/python bench/python_package.py [gpt2 bert t5 resnet50]

Times are the minimum thread CPU time of several rounds, without the first (cold) one. FakeTensorMode uses "cpu", our
package simulated CUDA. "recorded" is a full capture with module paths, saved tensors and source lines. make_fx only
traces forward and backward (tracing_mode="fake"), and is compared with a capture of these. Creates the table in
docs/figures.md.
"""

import peer_steps
import torch
from peer_steps import best, step
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import shadowgraph as sg


def compare(name):
    make, inputs = peer_steps.MODELS[name]
    with FakeTensorMode():
        model, given, optimizer = peer_steps.create(name)
        theirs = best(lambda: step(model, given, optimizer), 4)
    with sg.fake("cuda"):
        with torch.device("cuda"):
            model, given = make(), inputs()
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, given, optimizer)
        fakes = best(lambda: step(model, given, optimizer), 30)
        nodes = 0

        def record():
            nonlocal nodes
            with sg.Capture("cuda") as session:
                session.name_module(model)
                for key, tensor in given.items():
                    session.name_input(tensor, key)
                nodes = len(session.finish(step(model, given, optimizer)))

        recorded = best(record, 60)

        def record_gradients():
            with sg.Capture("cuda") as session:
                session.name_module(model)
                loss = model(**given).loss
                session.finish(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

        gradients = best(record_gradients, 30)
    traced = make_fx_seconds(make, inputs)
    return (name, nodes, f"{theirs * 1e3:.0f}", f"{fakes * 1e3:.1f}", f"{recorded * 1e3:.1f}",
            f"{theirs / fakes:.0f} x", f"{theirs / recorded:.0f} x", f"{traced * 1e3:.0f}",
            f"{traced / gradients:.0f} x")  # fmt: skip


def make_fx_seconds(make, inputs):
    """Returns the time of make_fx for forward and backward of a real model."""
    model, given = make(), inputs()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())

    def gradients(parameters, buffers, given):
        loss = torch.func.functional_call(model, (parameters, buffers), (), given).loss
        return torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)

    return best(lambda: make_fx(gradients, tracing_mode="fake")(parameters, buffers, given), 2)


def call_overheads():
    with sg.fake("cuda"):
        x, y = torch.empty(64, 32, device="cuda"), torch.empty(64, 32, device="cuda")
        identity = torch.nn.Identity()

        def many(call, count=5000):
            return best(lambda: [call() for _ in range(count)], 8) / count * 1e6

        add, module = many(lambda: x + y), many(lambda: identity(x))
        with sg.Capture("cuda"):
            recorded_module = many(lambda: identity(x))
    print(f"\nadd {add:.2f} us; a module call {module:.2f} us, while a capture is active {recorded_module:.2f} us")


if __name__ == "__main__":
    peer_steps.each(compare, ("model", "nodes", "FakeTensorMode ms", "fakes ms", "recorded ms", "fakes", "recorded",
                              "make_fx ms", "make_fx"))  # fmt: skip
    call_overheads()
