"""sg.shard with the HiGHS solver, and its errors if no sharding fits in memory."""

import json

import pytest
import torch

import shadowgraph as sg

# A slow device with fast links, so that sharding small models is cost-effective.
SLOW = {"version": 1, "name": "slow", "bandwidth": 1e9, "matmul": {"float32": 1e9, "float64": 1e9},
        "classes": {"other": {"fixed": 0}}}  # fmt: skip
QUICK = {"version": 1, "base": 1e-9, "levels": [{"name": "wire", "latency": 1e-9, "bandwidth": 1e10}]}


@pytest.fixture
def figures(tmp_path):
    """Returns plan arguments for that device."""
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))
    (tmp_path / "links.json").write_text(json.dumps(QUICK))
    return {"spec": str(tmp_path / "slow.json"), "interconnect": str(tmp_path / "links.json")}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 64)
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)
        self.head = torch.nn.Linear(64, 512)

    def forward(self, words, targets):
        x = self.embedding(words)
        logits = self.head(x + self.down(torch.relu(self.up(x))))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def step(**optimizer):
    return sg.capture_training_step(Net, ("i64[8,16]", "i64[8,16]"), loss=lambda loss: loss, device="cpu",
                                    optimizer=lambda p: torch.optim.AdamW(p, **optimizer))  # fmt: skip


def test_highs_finds_what_the_own_search_finds(figures):
    pytest.importorskip("highspy")
    own = sg.shard(step(), "dp=2", **figures).dict()
    highs = sg.shard(step(), "dp=2", solver="highs", **figures).dict()
    assert highs["seconds"] == pytest.approx(own["seconds"], rel=1e-9)
    assert highs["lower_bound_seconds"] == pytest.approx(own["lower_bound_seconds"], rel=1e-6)


def test_what_is_in_the_way_has_a_name(figures):
    pytest.importorskip("highspy")
    pins = {"up.weight": "R", "embedding.weight": "S(0)"}
    with pytest.raises(sg.InfeasibleError, match="The smallest feasible limit is"):
        sg.shard(step(), "dp=2", memory=1000, solver="both", pins=pins, **figures)


def test_a_solver_that_is_not_there_is_named(figures):
    with pytest.raises(sg.Error, match="pip install highspy"):
        sg.shard(step(), "dp=2", solver="highs", highs="/nowhere/libhighs.so", **figures)
    with pytest.raises(sg.Error, match="builtin, highs, both"):
        sg.shard(step(), "dp=2", solver="cplex", **figures)


class Whitened(torch.nn.Module):
    """A matrix product, then an operator without a sharding rule."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(512, 512))

    def forward(self, x):
        y = x @ self.weight
        return torch.linalg.cholesky_ex(y.T @ y)[0].square().mean()


def test_what_has_no_rule_is_a_warning_and_never_called_optimal():
    graph = sg.capture_training_step(Whitened, "f32[2048,512]", loss=lambda loss: loss, optimizer="sgd", device="cuda")
    text = str(sg.shard(graph, {"dp": 4}, spec="h100"))
    assert "warning: 3 of" in text and "which takes" in text and "aten::linalg_cholesky_ex (1)" in text
    assert "optimal" not in text


def test_heads_that_share_keys_and_values_are_cut():
    class Grouped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = torch.nn.Linear(512, 512, bias=False), torch.nn.Linear(512, 256, bias=False)

        def forward(self, x):
            query, key = (part(x).unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.query, self.key))
            found = torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
            return found.square().mean()

    graph = sg.capture_training_step(lambda: Grouped().bfloat16(), "bf16[1,4096,512]", loss=lambda loss: loss,
                                     optimizer="sgd", device="cuda", dtype=torch.bfloat16)  # fmt: skip
    assert any("scaled_dot_product" in node.target for node in graph)
    sharding = sg.shard(graph, {"tp": 4}, spec="h100")
    assert "all nodes have a rule" in str(sharding)
    assert sharding.layouts()["query.weight"] == sharding.layouts()["key.weight"] == "S(0)"
