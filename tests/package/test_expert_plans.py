"""Plans with experts on several ranks, beside the program that somebody writes for such a rank."""

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional as F

import shadowgraph as sg
from shadowgraph.__main__ import main

WIDTH, INNER, EXPERTS, CHOICES, HEADS, LAYERS, TOKENS, WORDS = 1024, 2048, 16, 4, 8, 4, 2048, 8192


class Experts(nn.Module):
    """Each of `ranks` has some experts. With one rank, nothing is sent."""

    def __init__(self, ranks):
        super().__init__()
        self.ranks, here = ranks, EXPERTS // ranks
        self.up = nn.Parameter(torch.empty(here, 2 * INNER, WIDTH))
        self.down = nn.Parameter(torch.empty(here, WIDTH, INNER))

    def forward(self, tokens, chosen, weights):
        order = chosen.flatten().argsort(stable=True)
        counts = torch.histc(chosen.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        rows = tokens[order // CHOICES]
        if self.ranks > 1:
            counts = counts.long()
            arriving = funcol.all_to_all_single(counts, None, None, dist.group.WORLD)
            sent, received = (each.view(self.ranks, -1).sum(1).tolist() for each in (counts, arriving))
            rows = funcol.all_to_all_single_autograd(rows, received, sent, dist.group.WORLD)
            # Rows of the same expert lie together: as many from each rank.
            place = torch.arange(len(rows), device=rows.device).view(self.ranks, EXPERTS // self.ranks, -1)
            place = place.transpose(0, 1).flatten()
            rows, counts = rows[place], arriving.view(self.ranks, -1).sum(0)
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, up = torch._grouped_mm(rows, self.up.transpose(-2, -1), ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(-2, -1), ends)
        if self.ranks > 1:
            made = funcol.all_to_all_single_autograd(made[place.argsort()], sent, received, dist.group.WORLD)
        made = made * weights.flatten()[order, None]
        return made[order.argsort()].unflatten(0, (-1, CHOICES)).sum(1)


class Layer(nn.Module):
    def __init__(self, ranks):
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), Experts(ranks)

    def forward(self, x):
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOICES)
        return x + self.experts(tokens, chosen, weights).view_as(x)


class Decoder(nn.Module):
    def __init__(self, ranks=1):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(ranks) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), ids.flatten())


HOW = dict(loss=lambda loss: loss, optimizer=torch.optim.SGD, dtype=torch.bfloat16, device="cuda")


def planned(tmp_path, *more):
    graph = sg.capture_training_step(Decoder, f"i64[1,{TOKENS}]", **HOW)
    graph.save(str(tmp_path / "decoder.sg"))
    words = ["plan", str(tmp_path / "decoder.sg"), "--devices", "8xh100", "--samples-per-step", "8", "--micro-batch",
             "1", "--tensor", "1", "--pipeline", "1", "--zero", "0", "--captured-state", "-o", str(tmp_path), *more]
    assert main(words) == 0
    return json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_is_as_it_is_written(ranks, tmp_path):
    spec = tmp_path / "h100.json"  # plans wait for no Python
    spec.write_text(json.dumps({"version": 1, "base": "h100", "host_call": 5e-6}))
    with sg.fake_process_group(ranks):
        real = sg.profile(lambda: Decoder(ranks), f"i64[1,{TOKENS}]", spec=str(spec), interconnect="h100", **HOW).dict()
    found = planned(tmp_path, "--experts", str(ranks))
    best = found["simulated"][0]
    assert best["plan"]["experts"] == ranks
    rank, stage = found["run"]["ranks"][0], found["run"]["stages"][0]
    assert rank["peak_bytes"] == pytest.approx(real["peak_with_scratch"]["bytes"], rel=0.001)
    # The program does not add up gradients of what is no expert.
    seconds = best["seconds"] - stage["reduce_gradients_seconds"]
    assert seconds == pytest.approx(real["communication"]["overlap"]["seconds"], rel=0.05)
    assert stage["exposed_seconds"] == pytest.approx(real["communication"]["kinds"]["all_to_all"]["seconds"], rel=1e-3)
