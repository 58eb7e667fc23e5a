"""Simulation of given plans, and memory shared by the stages of one rank."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import shadowgraph as sg

WIDTH, WORDS, LENGTH, LAYERS = 64, 256, 128, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (-1, 16)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers=LAYERS):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(layers)), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), ids.flatten())


def inputs(samples):
    return f"i64[{samples},{LENGTH}]"


HOW = {"devices": "8xh100", "batch": 16, "sequence": LENGTH, "loss": lambda loss: loss}


def simulated(plan):
    return sg.simulate_plan(Decoder, inputs, plan, **HOW)


def test_a_plan_that_was_found_is_simulated_as_it_was():
    found = sg.plan(Decoder, inputs, layers=(LAYERS, lambda count: lambda: Decoder(count)), **HOW, pipeline=[2, 4],
                    schedule=["interleaved"])  # fmt: skip
    for one in found.dict()["simulated"]:
        made = simulated(one["plan"])
        assert (made.seconds, made.bytes) == (one["seconds"], one["bytes"])
        assert made.dict() == one["plan"]


def test_numbers_say_what_names_say():
    few = {"tensor": 2, "pipeline": 2, "zero": 1, "stages": [3, 5], "recomputed": [1, 2]}
    short = simulated(few)
    assert short.dict()["data"] == 2
    assert short.dict()["microbatches"] == 8
    assert [stage["begins"] for stage in short.dict()["stages"]] == ["", "layers.2"]
    assert short.dict()["recomputed"] == ["layers.0", "layers.2", "layers.3"]
    whole = simulated(short.dict())
    assert (short.seconds, short.bytes) == (whole.seconds, whole.bytes)
    named = simulated({**few, "stages": [{"begins": ""}, {"begins": "layers.2"}]})
    assert named.dict() == short.dict()
    parts = simulated({**few, "selective": [1, 1]}).dict()
    assert parts["recomputed"] == ["layers.0", "layers.2", "layers.3"]
    assert parts["selective"] == ["layers.1", "layers.4"]
    assert simulated({**few, "selective": "all"}).dict()["selective"] == ["layers.1", "layers.4", "layers.5"]
    assert simulated(parts).dict() == parts
    even = simulated({"pipeline": 4, "recomputed": "all"}).dict()
    assert [stage["units"] for stage in even["stages"]] == [2, 2, 2, 2]
    assert even["recomputed"] == [f"layers.{i}" for i in range(LAYERS)]


def test_what_products_give_is_kept():
    knobs = {"tensor": 2, "pipeline": 2, "data": 2}
    made = [simulated({**knobs, **again}) for again in ({}, {"selective": "all"}, {"recomputed": "all"})]
    assert made[0].seconds < made[1].seconds < made[2].seconds
    carried = [one.run.dict()["ranks"][0]["activations_peak_bytes"] for one in made]
    assert carried[0] > carried[1] > carried[2]


KEPT = ("mm", "addmm", "_scaled_dot_product")


class Selective(Decoder):
    """Recomputes what torch's selective checkpointing recomputes when expensive operators are kept."""

    def forward(self, ids):
        def policy(_, operator, *args, **kwargs):
            kept = operator.__name__.startswith(KEPT)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        x = self.tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), ids.flatten())


@pytest.mark.parametrize("knobs", [{"micro_batch": 2}, {"micro_batch": 16}, {"pipeline": 2, "micro_batch": 8}])
def test_selective_layers_are_those_of_torch(knobs):
    """Compares a program with torch's own selective checkpoints with the one the plan derives."""
    devices = {**HOW, "devices": f"{knobs.get('pipeline', 1)}xh100"}

    def long(samples):
        return f"i64[{samples},2048]"

    # The first checkpoint imports modules, which temporarily hold its tensors.
    Selective()(torch.zeros(1, 16, dtype=torch.long)).backward()
    ours = sg.simulate_plan(Decoder, long, {**knobs, "selective": "all"}, **devices)
    torchs = sg.simulate_plan(Selective, long, knobs, **devices)
    assert ours.seconds == pytest.approx(torchs.seconds, rel=1e-9)
    for mine, its in zip(ours.run.dict()["ranks"], torchs.run.dict()["ranks"], strict=True):
        assert mine["activations_peak_bytes"] == its["activations_peak_bytes"]
        assert mine["peak_bytes"] == its["peak_bytes"]
        assert mine["reserved_peak_bytes"] == pytest.approx(its["reserved_peak_bytes"], rel=0.02)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"tensors": 2}, "tensors is not a key of a plan"),
        ({"stages": [{"units": 8, "layers": 2}]}, r"stages\[0\].layers is not a key of a stage"),
        ({"in_part": [{"layers": [], "keeps": [], "names": []}]}, r"in_part\[0\].names is not a key of layers in part"),
        ({"pipeline": 2, "stages": [{"begins": ""}, {"begins": "layers.9"}]}, "is not a unit of the model"),
        ({"pipeline": 2, "stages": [{"begins": "layers.2"}, {"begins": ""}]}, "begins at or after the next stage"),
        ({"tensor": 0}, "tensor"),
        ({"tensor": 16}, "needs 16 devices, but there are 8"),
        ({"pipeline": 2, "stages": [3, 4]}, "has 7 units, but the model has 8"),
        ({"pipeline": 2, "stages": [8]}, "has 1 stages, not 2"),
        ({"pipeline": 2, "recomputed": [1]}, "has 1 stages, not 2"),
        ({"pipeline": 2, "recomputed": [1, 7]}, "exceeds the 3 layers"),
        ({"recomputed": ["layers.9"]}, "layers.9"),
        ({"recomputed": ["norm"]}, "norm, which is not a layer"),
        ({"stages": [{"begins": "", "units": 8, "recomputed": 2}]}, "differs from the 0"),
        ({"pipeline": 2, "stages": [{"units": 4}, {"begins": "layers.2", "units": 4}]}, 'end at "layers.3"'),
        ({"zero": 4}, "zero"),
        ({"experts": 3}, "does not divide 8 data ranks"),
        ({"recomputed": "some"}, "all"),
        ({"recomputed": ["layers.1"], "selective": ["layers.1"]}, "a layer may be in only one list"),
        ({"pipeline": 2, "recomputed": [3, 0], "selective": [1, 0]}, "exceeds the 0 layers"),
        ({"stages": [{"begins": "", "units": 8, "selective": 2}]}, "differs from the 0"),
        ({"stages": [{"begins": "", "units": 8, "in_part": 1}]}, "differs from the 0"),
        ({"pipeline": 2, "schedule": "rounds"}, "unknown schedule"),
        ({"pipeline": 8, "stages_per_rank": 2, "schedule": "interleaved"}, "16 stages for a model with only 8 units"),
    ],
)
def test_what_is_no_plan_of_the_model_is_refused(plan, why):
    with pytest.raises(sg.Error, match=why):
        simulated(plan)


def test_stages_of_a_rank_share_its_memory():
    """Each stage's share of the memory is too small to keep a layer, but the shares together are not."""

    def long(samples):
        return f"i64[{samples},8192]"

    how = {"layers": (LAYERS, lambda count: lambda: Decoder(count)), "tensor": [1], "pipeline": [2], "zero": [1],
           "stages_per_rank": [4], "schedule": ["interleaved"], "micro_batch": [1], "simulated": 1}  # fmt: skip
    memory = 40 * 2**30
    roomy = sg.plan(Decoder, long, **HOW, **how, memory=memory)
    beside = memory - roomy.dict()["memory"]
    chosen = roomy.dict()["simulated"][0]["plan"]
    assert chosen["recomputed"] == []
    knobs = {key: chosen[key] for key in ("pipeline", "stages_per_rank", "schedule", "zero")}
    full = sg.simulate_plan(Decoder, long, {**knobs, "recomputed": "all"}, **HOW)
    again = []
    for share in (0.5, 0.7, 0.8, 0.9):
        memory = int(beside + share * roomy.bytes + (1 - share) * full.bytes)
        tight = sg.plan(Decoder, long, **HOW, **how, memory=memory)
        best = tight.dict()["simulated"][0]
        assert best["bytes"] <= tight.dict()["memory"]
        again.append(len(best["plan"]["recomputed"]))
    assert again == sorted(again, reverse=True)
    assert 0 < again[-1] <= again[1] < LAYERS
