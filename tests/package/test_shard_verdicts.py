"""sg.shard: the verdict on its plan, refused inputs, imported solutions, and hand-written plans."""

import json

import pytest
import torch
import torch.nn.functional as F
from test_check import tool
from test_shard_options import QUICK, SLOW, Net

import shadowgraph as sg


@pytest.fixture
def figures(tmp_path):
    """Returns plan arguments for a slow device with fast links, so that sharding small models is cost-effective."""
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))
    (tmp_path / "links.json").write_text(json.dumps(QUICK))
    return {"spec": str(tmp_path / "slow.json"), "interconnect": str(tmp_path / "links.json")}


def step(batch=8, optimizer="sgd"):
    return sg.capture_training_step(Net, (f"i64[{batch},16]", f"i64[{batch},16]"), loss=lambda loss: loss, device="cpu",
                                    optimizer=optimizer)  # fmt: skip


# ---- The verdict


def test_a_good_plan(figures):
    sharding = sg.shard(step(), "dp=4", **figures)
    verdict = sharding.dict()["verdict"]
    assert verdict["efficiency"] == pytest.approx(
        sharding.dict()["one_device_seconds"] / sharding.dict()["seconds"] / 4)  # fmt: skip
    assert verdict["efficiency"] > 0.8 and verdict["unused_axes"] == verdict["undivided_axes"] == []
    assert verdict["batch"] == 8 and verdict["fits"]
    assert f"verdict: 4 devices at {verdict['efficiency'] * 100:.0f} % of their peak throughput" in str(sharding)


def test_an_axis_that_nothing_is_cut_over(figures):
    sharding = sg.shard(step(batch=7), "dp=5,tp=3", **figures)
    verdict = sharding.dict()["verdict"]
    assert verdict["unused_axes"] == ["dp", "tp"]  # none of 7, 64, 256 and 512 is divisible by 3 or 5
    assert verdict["undivided_axes"] == ["dp", "tp"] and verdict["batch"] == 7
    assert verdict["efficiency"] == pytest.approx(1 / 15, rel=0.05)
    said = str(sharding)
    assert "; axis dp, tp is unused: its devices do the same work; the batch of 7 is not divisible by dp, tp" in said
    assert "try a batch size of 10: dp=5 does not divide the batch of 7" in said
    assert "try --mesh 1: as fast with 1 of the 15 devices" in said


def test_a_batch_that_one_axis_does_not_divide(figures):
    verdict = sg.shard(step(batch=6), "dp=4", **figures).dict()["verdict"]
    assert verdict["undivided_axes"] == ["dp"] and verdict["unused_axes"] == []  # it splits channels
    assert any("a batch size of 8" in attempt for attempt in verdict["try"])
    assert sg.shard(step(batch=8), "dp=4", **figures).dict()["verdict"]["undivided_axes"] == []


def test_overlap_that_gains_nothing():
    sharding = sg.shard(step(), "dp=4", spec="h100")
    figures = sharding.dict()
    pays = figures["overlapped_seconds"] <= figures["seconds"] or figures["communication_seconds"] == 0
    assert figures["verdict"]["overlap_pays"] == pays
    assert ("overlapping communication does not help" in str(sharding)) == (not pays)


def test_what_does_not_fit(figures, tmp_path):
    small = {**SLOW, "memory_bytes": 1 << 20}
    (tmp_path / "slow.json").write_text(json.dumps(small))
    sharding = sg.shard(step(batch=8192), "dp=2", **figures)
    assert not sharding.dict()["verdict"]["fits"] and "does not fit into memory" in str(sharding)
    assert "try --memory 1.00 MiB" in str(sharding)


@pytest.mark.parametrize("axis", ["pp", "pipe", "pipeline", "stage"])
def test_an_axis_of_a_pipeline_is_refused(axis, tmp_path):
    with pytest.raises(sg.Error, match="`shadowgraph pipeline SOURCE --ranks 2`"):
        sg.shard(step(), f"dp=2,{axis}=2")
    done = tool("shard", "gpt2", "--mesh", f"dp=2,{axis}=2")
    assert done.returncode == 1 and "shadowgraph pipeline SOURCE --ranks 2" in done.stderr


# ---- Operators that once had no sharding rule


class Experts(torch.nn.Module):
    """Applies the experts to their rows, one expert after the other."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.empty(4, 64, 256, dtype=torch.bfloat16))
        self.down = torch.nn.Parameter(torch.empty(4, 256, 64, dtype=torch.bfloat16))

    def forward(self, rows, ends):
        return torch._grouped_mm(torch._grouped_mm(rows, self.up, offs=ends).relu(), self.down, offs=ends)


def test_grouped_products_are_cut():
    graph = sg.capture_training_step(Experts, ("bf16[4096,64]", "i32[4]"), loss=lambda y: y.float().sum(),
                                     optimizer="sgd", device="cuda")  # fmt: skip
    sharding = sg.shard(graph, "tp=4", pins={"up": "S(2)"})
    assert sharding.dict()["without_a_rule"] == {}
    rank = sharding.graph_of_rank(1)
    shapes = {tuple(node.outputs[0].shape) for node in rank.find("aten::_grouped_mm") if node.phase == "forward"}
    assert (4096, 64) in shapes  # a quarter of the 256 columns


def flex(q, k, v):
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, lambda score, b, h, i, j: torch.where(i >= j, score, -1e9))


ATTENTIONS = {
    "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    "mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=q[:1, :1, :, :1] + k[:1, :1, :, 0]),
    "flex": flex,
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "device"), [(name, device) for name in ATTENTIONS for device in ("cpu", "cuda")
                                              if (name, device) != ("flex", "cpu")])  # no backward on this device
def test_every_attention_has_a_rule(name, device):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(64, 192)

        def forward(self, x):
            parts = [part.view(8, 64, 8, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
            return ATTENTIONS[name](*parts).sum()

    graph = sg.capture_training_step(Attention, "f32[8,64,64]", loss=lambda y: y, device=device)
    figures = sg.shard(graph, "dp=2", spec="h100").dict()
    assert figures["without_a_rule"] == {}
    assert figures["optimal"]


# ---- Imported solutions


def test_a_plan_is_read_back(figures, tmp_path):
    found = sg.shard(step(), "dp=2,tp=2", **figures)
    (tmp_path / "plan.json").write_text(json.dumps(found.graph_layouts()))
    for answer in (found.graph_layouts(), tmp_path / "plan.json", str(tmp_path / "plan.json")):
        again = sg.shard(step(), "dp=2,tp=2", solution=answer, **figures)
        assert again.graph_layouts() == found.graph_layouts() and again.dict()["given"]
        assert again.dict()["seconds"] == found.dict()["seconds"]
        assert "evaluated the given plan" in str(again)


def test_a_plan_of_layers_that_differ_is_measured(figures):
    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return x.sum()

    graph = sg.capture_training_step(Deep, "f32[8,64]", loss=lambda y: y, device="cpu")
    pins = {"layers.0.weight": "S(0)", "layers.1.weight": "S(1)"}
    unlike = sg.shard(graph, "2", pins=pins, unfold=True, **figures)
    again = sg.shard(graph, "2", solution=unlike.graph_layouts(), **figures)
    assert again.layouts() == unlike.layouts() and again.dict()["seconds"] == unlike.dict()["seconds"]


def test_layouts_by_name_leave_the_rest_open(figures):
    answer = {"up.weight": "S(0)", "head.*": "R"}
    sharding = sg.shard(step(), "2", solution=answer, **figures)
    assert sharding.layouts()["up.weight"] == "S(0)" and sharding.layouts()["head.weight"] == "R"
    assert sg.shard(step(), "2", solution=sharding.layouts(), **figures).layouts() == sharding.layouts()


def test_a_solution_of_the_exported_problem(figures, tmp_path):
    graph = tmp_path / "step.sg"
    step().save(str(graph))
    common = ("--mesh", "2", "--spec", figures["spec"], "--interconnect", figures["interconnect"])
    problem, solution = tmp_path / "problem.json", tmp_path / "solution.json"
    assert tool("shard", graph, *common, "--export", problem, "-o", tmp_path / "a").returncode == 0
    assert tool("shard", "--problem", problem, "-o", solution).returncode == 0
    done = tool("shard", graph, *common, "--solution", solution, "--compare", "-o", tmp_path / "b")
    assert done.returncode == 0 and "best found" in done.stdout, done.stderr
    ours, theirs = (json.loads((tmp_path / folder / "sharding.json").read_text()) for folder in "ab")
    assert theirs["given"] and theirs["seconds"] == ours["seconds"]
    done = tool("shard", "--problem", problem, "--solution", solution)
    assert done.returncode == 0 and f"cost {json.loads(solution.read_text())['cost']}, as " in done.stdout
    choice = json.loads(solution.read_text())["choice"]
    assert sg.shard(step(), "2", solution=choice, **figures).dict()["seconds"] == ours["seconds"]


def test_what_is_no_answer(figures, tmp_path):
    plan = sg.shard(step(), "2", **figures).graph_layouts()
    choice = [0] * 3
    other = json.loads(json.dumps(plan))
    other["nodes"][3]["name"] = "aten::gelu"
    partial = json.loads(json.dumps(plan))
    partial["nodes"][0]["results"] = ["S(0)" if partial["nodes"][0]["results"] == ["R"] else "R"]
    wrong = [
        (choice, "has choices for 3 nodes, but the problem has"),
        ([-1], "choice|0"),
        ({"up.weight": 3}, "must be a layout such as"),
        ({"up.weight": "S(zero)"}, "up.weight"),
        ({"nowhere": "R"}, "no placeholder or node has this name"),
        ({}, "must not be empty"),
        (
            {"format": "shadowgraph-assignment-solution", "version": 1, "choice": [0], "cost": "7"},
            "has choices for 1 node",
        ),
        ({"format": "something"}, "must be shadowgraph-layouts, not something"),
        (other, "aten::gelu"),
    ]
    for answer, said in wrong:
        with pytest.raises(sg.Error, match=said):
            sg.shard(step(), "2", solution=answer, **figures)
    with pytest.raises(sg.Error, match="is for mesh x=2, not x=4"):
        sg.shard(step(), "4", solution=plan, **figures)
    with pytest.raises(sg.FileError, match="nowhere.json"):
        sg.shard(step(), "2", solution="nowhere.json", **figures)
    with pytest.raises(sg.Error, match="cannot be combined"):
        sg.shard(step(), "2", solution=plan, parallelism="fully sharded", **figures)


def test_a_cost_that_is_of_another_problem(figures, tmp_path):
    graph = tmp_path / "step.sg"
    step().save(str(graph))
    common = ("--mesh", "2", "--spec", figures["spec"], "--interconnect", figures["interconnect"])
    assert tool("shard", graph, *common, "--export", tmp_path / "p.json").returncode == 0
    assert tool("shard", "--problem", tmp_path / "p.json", "-o", tmp_path / "s.json").returncode == 0
    solution = json.loads((tmp_path / "s.json").read_text())
    solution["cost"] = "12345"
    (tmp_path / "s.json").write_text(json.dumps(solution))
    done = tool("shard", graph, *common, "--solution", tmp_path / "s.json")
    assert done.returncode == 1 and "states a cost of 12345" in done.stderr


# ---- By hand


def test_plans_by_hand(figures):
    graph = step(optimizer="adamw")
    compared = {plan["name"]: plan["seconds"] for plan in sg.shard(graph, "4", compare=True,
                                                                   **figures).dict()["compared"]}  # fmt: skip
    for name in ("data parallel", "fully sharded", "tensor parallel"):
        sharding = sg.shard(graph, "4", parallelism=name, **figures)
        assert sharding.dict()["parallelism"] == name and f"preset plan {name}" in str(sharding)
        assert sharding.dict()["seconds"] == pytest.approx(compared[name])
        assert (
            sharding.graph_layouts()
            == sg.shard(graph, "4", parallelism=name.replace(" ", "-"), **figures).graph_layouts()
        )
    assert set(sg.shard(graph, "4", parallelism="data parallel", **figures).layouts().values()) == {"R", "S(0)"}
    with pytest.raises(sg.Error, match="choose one of data-parallel, fully-sharded, tensor-parallel"):
        sg.shard(graph, "4", parallelism="fsdp", **figures)
    with pytest.raises(sg.Error, match="data-tensor-parallel, fully-sharded-tensor-parallel"):
        sg.shard(graph, "2x2", parallelism="tensor-parallel", **figures)
