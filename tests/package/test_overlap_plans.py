"""Tensor-parallel collectives that overlap matrix products: plans compared with a hand-written program for one rank."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shadowgraph as sg

RANKS, TOKENS, WIDTH, INNER, LAYERS = 4, 8192, 4096, 16384, 4
c10d = torch.ops._c10d_functional


def gathered(part):
    return c10d.all_gather_into_tensor(part, RANKS, dist.group.WORLD.group_name)


def scattered(whole):
    return c10d.reduce_scatter_tensor(whole, "sum", RANKS, dist.group.WORLD.group_name)


class Columns(torch.autograd.Function):
    """Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication, with sequence parallel."""

    @staticmethod
    def forward(ctx, part, weight):
        ctx.save_for_backward(part, weight)
        return c10d.wait_tensor(gathered(part)).mm(weight.t())

    @staticmethod
    def backward(ctx, gradient):
        part, weight = ctx.saved_tensors
        again = gathered(part)
        summed = scattered(gradient.mm(weight))
        of_weight = gradient.t().mm(c10d.wait_tensor(again))
        return c10d.wait_tensor(summed), of_weight


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return c10d.wait_tensor(scattered(x.mm(weight.t())))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        whole = c10d.wait_tensor(gathered(gradient))
        return whole.mm(weight), whole.t().mm(x)


class Layer(nn.Module):
    """One rank's part of each layer."""

    def __init__(self, ranks):
        super().__init__()
        self.ranks = ranks
        self.fc1 = nn.Linear(WIDTH, INNER // ranks, bias=False)
        self.fc2 = nn.Linear(INNER // ranks, WIDTH, bias=False)

    def forward(self, x):
        wide = x.float()  # RMSNorm in several kernels, as in transformers; replicating it would be expensive
        y = (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
        if self.ranks == 1:
            return x + self.fc2(self.fc1(y).relu())
        return x + Rows.apply(Columns.apply(y, self.fc1.weight).relu(), self.fc2.weight)


class Stack(nn.Module):
    def __init__(self, ranks=1):
        super().__init__()
        self.words = nn.Embedding(1024, WIDTH)
        self.layers = nn.ModuleList(Layer(ranks) for _ in range(LAYERS))

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x.float().pow(2).sum()


HOW = dict(loss=lambda loss: loss, optimizer=torch.optim.SGD, dtype=torch.bfloat16)


def simulated(tmp_path, **plan):
    spec = tmp_path / "h100.json"  # plans model no Python overhead
    spec.write_text(json.dumps({"version": 1, "base": "h100", "host_call": 5e-6}))
    return sg.simulate_plan(Stack, lambda n: f"i64[{n * TOKENS}]", {"tensor": RANKS, **plan}, devices="4xh100",
                            batch=1, captured_state=True, **HOW)  # fmt: skip


def written(tmp_path):
    with sg.fake_process_group(RANKS):
        return sg.profile(lambda: Stack(RANKS), f"i64[{TOKENS // RANKS}]", device="cuda",
                          spec=str(tmp_path / "h100.json"), interconnect="h100", **HOW).dict()  # fmt: skip


def test_a_rank_is_as_megatron_writes_it(tmp_path):
    made = simulated(tmp_path, overlap="backward")
    real = written(tmp_path)
    assert made.seconds == pytest.approx(real["communication"]["overlap"]["seconds"], rel=0.03)
    assert made.run.dict()["ranks"][0]["peak_bytes"] == pytest.approx(real["peak_with_scratch"]["bytes"], rel=0.02)


def test_overlap_orders_engines_and_bytes(tmp_path):
    none, backward, pieces = (simulated(tmp_path, overlap=how) for how in ("none", "backward", "pieces"))
    assert none.seconds > backward.seconds > pieces.seconds
    assert none.bytes >= backward.bytes == pieces.bytes
    assert "overlap" not in str(none) and str(pieces).endswith("overlap pieces")
    assert backward.dict()["overlap"] == "backward"


def test_what_is_no_overlap_is_refused(tmp_path):
    with pytest.raises(sg.Error, match="none, backward, pieces"):
        simulated(tmp_path, overlap="all")
    with pytest.raises(sg.ParseError, match="tensor parallelism, which the plan does not use"):
        simulated(tmp_path, tensor=1, overlap="backward")


def test_a_plan_says_what_another_engine_would_bring():
    plan = sg.plan(Stack, lambda n: f"i64[{n * TOKENS}]", devices="4xh100", batch=1, tensor=[4],
                   overlap="backward", captured_state=True, **HOW)  # fmt: skip
    best = plan.dict()["simulated"][0]
    assert best["plan"]["overlap"] == "backward"
    others = {one["value"]: one["seconds"] for one in plan.dict()["neighbors"] if one["option"] == "overlap"}
    assert others["none"] > best["estimated_seconds"] > others["pieces"]
