"""Plans with context parallel, compared with PyTorch's own context parallel."""

import contextlib
import functools
import json

import pytest
import torch
from decoder import DecoderOf
from torch import nn
from torch.nn import functional as F

import shadowgraph as sg
from shadowgraph.__main__ import main

WIDTH, HEADS, KEYS, LAYERS, TOKENS, WORDS = 2048, 16, 4, 4, 65536, 8192


class Layer(nn.Module):
    def __init__(self, repeated):
        super().__init__()
        self.repeated = repeated
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        size = WIDTH // HEADS
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, (KEYS if repeated else HEADS) * size, bias=False) for _ in "kv")
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.attention_norm(x)
        heads = [p(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                 for p in (self.q_proj, self.k_proj, self.v_proj)]  # fmt: skip
        if self.repeated:
            heads[1:] = [h[:, :, None].expand(-1, -1, HEADS // KEYS, -1, -1).flatten(1, 2) for h in heads[1:]]
        x = x + self.o_proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down_proj(F.silu(self.up_proj(self.norm(x))))


class Decoder(DecoderOf):
    def __init__(self, layers=LAYERS, repeated=False):
        super().__init__((Layer(repeated) for _ in range(layers)), WIDTH, WORDS)


def inputs(samples, tokens):
    return f"i64[{samples},{tokens}]"


HOW = dict(devices="8xh100", batch=8, sequence=TOKENS, loss=lambda loss: loss, micro_batch=[1])


def planned(model=Decoder, **knobs):
    return sg.plan(model, inputs, **{**HOW, "tensor": [1], "pipeline": [1], **knobs})


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_is_what_pytorch_s_own_context_parallel_takes(ranks, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    def context(ids):  # the tokens are sharded already
        set_rotate_method("allgather")
        stack = contextlib.ExitStack()
        order = torch.empty(TOKENS, device="cuda")
        mesh = init_device_mesh("cuda", (ranks,))
        stack.enter_context(context_parallel(mesh, buffers=[order], buffer_seq_dims=[0]))
        return stack

    (tmp_path / "h100.json").write_text(json.dumps({"version": 1, "base": "h100", "host_call": 5e-6}))
    with sg.fake_process_group(ranks, ranks // 2):
        real = sg.profile(Decoder, inputs(1, TOKENS // ranks), loss=lambda loss: loss, optimizer=torch.optim.SGD,
                          dtype=torch.bfloat16, device="cuda", context=context, spec=str(tmp_path / "h100.json"),
                          interconnect="h100").dict()  # fmt: skip
    found = planned(context=[ranks], zero=[0], batch=8 // ranks, captured_state=True, optimizer=torch.optim.SGD)
    best, run = found.dict()["simulated"][0], found.run.dict()
    assert (best["plan"]["context"], best["plan"]["microbatches"]) == (ranks, 1)
    # PyTorch's ring attention merges results once per rank, and so more often than the plan.
    peak = run["ranks"][0]["peak_bytes"] / real["peak_with_scratch"]["bytes"]
    assert peak == pytest.approx(1, abs=0.05)
    seconds = best["seconds"] - run["stages"][0]["reduce_gradients_seconds"]
    assert 0.9 < seconds / real["communication"]["overlap"]["seconds"] < 1


def test_plans_of_long_sequences():
    found = planned(tensor=[1, 2], sequence=16384, batch=4)
    best = found.dict()["simulated"][0]["plan"]
    assert best["context"] == 2  # with four sequences on eight devices, half of the devices would be idle otherwise
    assert f"cp {best['context']}, pp 1" in str(found)
    assert {row["option"] for row in found.dict()["neighbors"]} >= {"context", "tensor"}
    assert {"axis": "context", "ranks": 2, "apart": best["tensor"], "level": "nvlink"} in found.dict()["placed"]
    made = sg.simulate_plan(Decoder, inputs, best, **{**HOW, "sequence": 16384, "batch": 4})
    assert (made.seconds, made.bytes) == (found.seconds, found.bytes)
    assert made.dict()["context"] == 2


def test_heads_that_are_repeated_are_sent_once():
    plain, repeated = (
        planned(model, context=[4], zero=[0], batch=2).run.dict()["stages"][0]
        for model in (Decoder, functools.partial(Decoder, repeated=True))
    )
    assert repeated["exposed_seconds"] < 0.5 * plain["exposed_seconds"]


def test_short_sequences_stay_whole_unless_asked():
    short = planned(sequence=512)
    assert {row["plan"]["context"] for row in short.dict()["estimated_plans"]} == {1}
    assert planned(sequence=512, context=[2]).dict()["simulated"][0]["plan"]["context"] == 2


class Written(Decoder):
    """Attention written as three operator calls."""

    def forward(self, ids):
        x = self.words(ids)
        scores = (x @ x.mT).softmax(-1)
        return F.cross_entropy(self.head(scores @ x).flatten(0, 1).float(), ids.flatten())


def test_what_cannot_be_cut_is_refused_where_it_is_asked_for():
    with pytest.raises(sg.Error, match="found no attention"):
        planned(Written, context=[2], sequence=512)
    with pytest.raises(sg.Error, match="a function of samples and tokens"):
        sg.plan(Decoder, lambda n: f"i64[{n},512]", **{**HOW, "sequence": 512, "context": [2]})
    with pytest.raises(sg.Error, match="512 tokens do not divide into 6 equal chunks"):
        planned(context=[3], sequence=512, devices="6xh100", batch=6)
    whole = planned(Written, sequence=16384)
    assert any("no context parallelism" in note for note in whole.dict()["notes"])


def test_the_tool_cuts_sequences(capfd):
    words = ["plan", "llama3_8b", "--devices", "16xh100", "--samples-per-step", "4", "--seq", "32768", "--context", "4",
             "--pipeline", "1", "--json"]  # fmt: skip
    assert main(words) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["simulated"][0]["plan"]["context"] == 4
