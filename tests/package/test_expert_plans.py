"""Plans with expert parallel, compared with a hand-written program for one such rank."""

import json
import sys
import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from decoder import DecoderOf
from torch import nn
from torch.nn import functional as F

import shadowgraph as sg
from shadowgraph.__main__ import main

# transformers imports torchvision, which may be built for another torch.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

WIDTH, INNER, EXPERTS, CHOICES, HEADS, LAYERS, TOKENS, WORDS = 1024, 2048, 16, 4, 8, 4, 2048, 8192


class Experts(nn.Module):
    """Each of `ranks` has some of the experts. With one rank, nothing is communicated."""

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
            # Groups rows by expert; each rank contributes the same number.
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


class Decoder(DecoderOf):
    def __init__(self, ranks=1):
        super().__init__((Layer(ranks) for _ in range(LAYERS)), WIDTH, WORDS)


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
    spec = tmp_path / "h100.json"  # Plans model no Python overhead, so the profile uses a shorter host call.
    spec.write_text(json.dumps({"version": 1, "base": "h100", "host_call": 5e-6}))
    with sg.fake_process_group(ranks):
        real = sg.profile(lambda: Decoder(ranks), f"i64[1,{TOKENS}]", spec=str(spec), interconnect="h100", **HOW).dict()
    found = planned(tmp_path, "--experts", str(ranks))
    best = found["simulated"][0]
    assert best["plan"]["experts"] == ranks
    rank, stage = found["run"]["ranks"][0], found["run"]["stages"][0]
    assert rank["peak_bytes"] == pytest.approx(real["peak_with_scratch"]["bytes"], rel=0.001)
    # The program does not reduce gradients of non-expert parameters.
    seconds = best["seconds"] - stage["reduce_gradients_seconds"]
    assert seconds == pytest.approx(real["communication"]["overlap"]["seconds"], rel=0.05)
    assert stage["exposed_seconds"] == pytest.approx(real["communication"]["kinds"]["all_to_all"]["seconds"], rel=1e-3)


# ---- transformers


SIZES = dict(hidden_size=64, vocab_size=128, num_attention_heads=4, num_key_value_heads=4)
MODELS = {
    "Mixtral": dict(intermediate_size=128, num_hidden_layers=6, num_local_experts=8, num_experts_per_tok=2),
    "Qwen3Moe": dict(moe_intermediate_size=32, num_hidden_layers=6, head_dim=16, num_experts=8, num_experts_per_tok=2),
    "DeepseekV2": dict(intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=7, n_routed_experts=8,
                       num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=None,
                       kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_group=1,
                       topk_group=1),
    "GptOss": dict(intermediate_size=64, num_hidden_layers=6, head_dim=16, num_local_experts=8, num_experts_per_tok=2),
}  # fmt: skip


def config_of(name, **more):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{name}Config")(**(SIZES | MODELS[name]), **more)


def of_transformers(config, **more):
    inputs = {"input_ids": "i64[1,32]", "labels": "i64[1,32]"}
    how = dict(loss=".loss", devices="8xh100", batch=16, sequence=32, micro_batch=[1], tensor=[1], pipeline=[1],
               zero=[1])  # fmt: skip
    return sg.plan(config, lambda n: inputs, **how | more)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "DeepseekV2"])
@pytest.mark.parametrize("how", [{}, {"experts_implementation": "grouped_mm"}])
def test_experts_of_transformers_are_on_several_ranks(name, how):
    config = config_of(name, **how)
    found = of_transformers(config, experts=[4]).dict()
    assert [made["plan"]["experts"] for made in found["simulated"]] == [4] * len(found["simulated"])
    stage, alone = (made["run"]["stages"][0] for made in (found, of_transformers(config, experts=[1]).dict()))
    assert stage["parameter_bytes"] < alone["parameter_bytes"] / 1.2
    # With known layers, capturing fewer of them gives the result of the whole model.
    whole = of_transformers(config, experts=[4], layers=(0, lambda count: config)).dict()
    figures = [[(made["plan"], made["seconds"], made["bytes"]) for made in one["simulated"]] for one in (found, whole)]
    assert figures[0] == figures[1]


def test_room_for_more_rows_takes_more():
    even, padded = (of_transformers(config_of("Mixtral"), experts=[4], expert_capacity=factor) for factor in (1, 2))
    assert padded.seconds > even.seconds
    assert padded.run.dict()["stages"][0]["carried_bytes"] > even.run.dict()["stages"][0]["carried_bytes"]
    with pytest.raises(sg.Error, match="expert_capacity"):
        of_transformers(config_of("Mixtral"), experts=[4], expert_capacity=0.5)


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("Mixtral", {"experts_implementation": "eager"}, "no experts that support expert parallelism.*grouped_mm"),
        ("Mixtral", {"experts_implementation": "batched_mm"}, "no experts that support expert parallelism"),
        ("GptOss", {}, "gate_up_proj_bias: a per-expert parameter"),
    ],
)
def test_experts_that_cannot_be_on_several_ranks_are_so_only_where_asked(name, how, why):
    config = config_of(name, **how)
    assert of_transformers(config).dict()["simulated"][0]["plan"].get("experts", 1) == 1
    with pytest.raises(sg.Error, match=why):
        of_transformers(config, experts=[4])
