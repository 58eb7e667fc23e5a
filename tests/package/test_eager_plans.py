"""Plans applied to eager models: over gloo, with one process per rank, a step equals that of one device.

Tolerance: 1e-9 of the largest element of each tensor, in float64, because reductions run in another order. Llama
computes partly in single precision; its tolerance is 1e-4 after AdamW's step.
"""

import ast
import json
import pathlib
import re
import sys

import eager_plan_ranks
import pytest
import torch
from rank_processes import run_ranks

import shadowgraph as sg

RANKS = pathlib.Path(__file__).with_name("eager_plan_ranks.py")
# A slow device with fast links, so that sharding small models is cost-effective.
SLOW = {"version": 1, "name": "slow", "bandwidth": 1e9, "matmul": {"float32": 1e9, "float64": 1e9},
        "classes": {"other": {"fixed": 0}}}  # fmt: skip
QUICK = {"version": 1, "base": 1e-9, "levels": [{"name": "wire", "latency": 1e-9, "bandwidth": 1e10}]}
COLUMNS, ROWS = ("query", "key", "value", "up", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("out", "down",
           "o_proj", "down_proj")  # fmt: skip
ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture
def figures(tmp_path):
    """Returns plan arguments for that device."""
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))
    (tmp_path / "links.json").write_text(json.dumps(QUICK))
    return {"spec": str(tmp_path / "slow.json"), "interconnect": str(tmp_path / "links.json")}


def captured(name, optimizer=None):
    loss = {"decoder": None}.get(name, ".loss")
    if name in ("perceptron", "views"):
        loss = lambda y: y.square().mean()  # noqa: E731
    return sg.capture_training_step(lambda: eager_plan_ranks.made(name), eager_plan_ranks.shapes_of(name), loss=loss,
                                    optimizer=optimizer or eager_plan_ranks.optimizer_of, device="cpu")  # fmt: skip


def megatron(step, axes, attention=True):
    """Returns pinned layouts: column- and row-parallel alternating over the last axis, the batch over the others."""
    pins = {}

    def pin(name, last, other="R"):
        pins[name] = ",".join([other] * (axes - 1) + [last])

    for node in step:
        words = node.argument("name").split(".") if node.target == "sg::parameter" else [""]
        if words[-1] == "weight" and len(words) > 1:
            if words[-2] in COLUMNS:
                pin(node.argument("name"), "S(0)", "S(1)")
            elif words[-2] in ROWS:
                pin(node.argument("name"), "S(1)", "S(0)")
        elif node.target == "sg::input" and any(user.phase == "forward" for user in node.results[0].users):
            pin(node.argument("name"), "R", "S(0)")
        elif node.target in ("aten::gelu", "aten::silu") and node.phase == "forward":
            pin(node.name, f"S({len(node.results[0].shape) - 1})", "S(0)")
        elif node.target == ATTENTION and attention:
            pin(node.name, "S(1)", "S(0)")
    return pins


def run_plan(tmp_path, sharding, name, size):
    sharding.to_python(tmp_path / "plan.py")
    return run_ranks(RANKS, size, tmp_path / "plan.py", name, tmp_path / "store")[0]


def planned_shapes(sharding):
    """Returns the local shape of each parameter in the plan."""
    sizes = {axis["name"]: axis["size"] for axis in sharding.graph_layouts()["mesh"]}
    shapes = {}
    for node in sharding.graph:
        if node.target == "sg::parameter":
            shape = list(node.results[0].shape)
            layout = sharding.layouts()[node.argument("name")].replace("),", ");").replace("R,", "R;").split(";")
            for size, placement in zip(sizes.values(), layout):
                if placement.startswith("S"):
                    shape[int(placement[2:-1].split(",")[0])] //= size
            shapes[node.argument("name")] = shape
    return shapes


@pytest.mark.parametrize("name, mesh, size, data_axes",
                         [("perceptron", "dp=2", 2, None), ("decoder", "dp=2", 2, ["dp"]),
                          ("decoder", "x=2,y=2", 4, ["x", "y"]), ("llama", "dp=2", 2, None)])  # fmt: skip
def test_the_plan_that_is_found(name, mesh, size, data_axes, figures, tmp_path):
    sharding = sg.shard(captured(name), mesh, **figures)
    assert any("S" in layout for layout in sharding.layouts().values())
    done = run_plan(tmp_path, sharding, name, size)
    assert done["shapes"] == planned_shapes(sharding)
    assert max(done["off"].values()) < eager_plan_ranks.TOLERANCE[name]
    if data_axes is not None:
        assert done["data_axes"] == data_axes


@pytest.mark.parametrize("name", ["perceptron", "decoder", "llama"])
def test_fully_sharded_by_hand_is_fully_shard(name, figures, tmp_path):
    sharding = sg.shard(captured(name), "dp=2", parallelism="fully sharded", **figures)
    done = run_plan(tmp_path, sharding, name, 2)
    assert done["data_axes"] == ["dp"]
    assert done["shapes"] == planned_shapes(sharding)
    assert max(done["off"].values()) < eager_plan_ranks.TOLERANCE[name]


@pytest.mark.parametrize("name, mesh, size", [("decoder", "tp=2", 2), ("decoder", "dp=2,tp=2", 4),
                                              ("llama", "dp=2,tp=2", 4)])  # fmt: skip
def test_tensor_parallel_layers(name, mesh, size, figures, tmp_path):
    step = captured(name)
    sharding = sg.shard(step, mesh, pins=megatron(step, mesh.count("="), name == "decoder"), **figures)
    done = run_plan(tmp_path, sharding, name, size)
    assert done["shapes"] == planned_shapes(sharding)
    assert max(done["off"].values()) < eager_plan_ranks.TOLERANCE[name]
    if name == "decoder":
        assert done["data_axes"] == (["dp"] if "dp" in mesh else [])
    source = (tmp_path / "plan.py").read_text()
    assert "DTensor chooses" in source
    kinds = {miss["kind"] for miss in sharding.not_expressed}
    assert {"operator", "backward"} <= kinds


def check_dimensions(step, module):
    """No layout of a parameter shards a dimension that it does not have."""
    for node in step:
        if node.target == "sg::parameter":
            name = node.argument("name")
            for table in (module.PARAMETERS, module.USES):
                for layout in module._of(table, name) or ():
                    assert all(int(dim) < len(node.results[0].shape) for dim in re.findall(r"S\((\d+)", layout)), name


@pytest.mark.parametrize("pins", [
    {"up.weight": "S(0)", "down.weight": "S(1)"},
    {"up.weight": "S(0)", "scale": "S(0)", "heads": "S(0)", "ranges": "R", "logarithm": "S(0)", "kernel": "S(0)"},
    {"up.weight": "S(0)", "scale": "R", "heads": "S(1)", "ranges": "S(0)", "logarithm": "S(1)", "kernel": "R"},
    {"fused": "S(0)", "down.weight": "S(1)"},
])  # fmt: skip
def test_parameters_used_through_views(pins, figures, tmp_path):
    step = captured("views")
    sharding = sg.shard(step, "tp=2", pins=pins, **figures)
    done = run_plan(tmp_path, sharding, "views", 2)
    assert done["shapes"] == planned_shapes(sharding)
    assert max(done["off"].values()) < eager_plan_ranks.TOLERANCE["views"]
    check_dimensions(step, sharding.module())


def test_a_state_space_model(figures, tmp_path):
    """Mamba's mixer uses D as D[None, :, None], A_log as -exp(A_log), and conv1d's parameters without calling it."""
    step = captured("mamba")
    last = {"in_proj.weight": "S(0)", "out_proj.weight": "S(1)", "D": "S(0)", "A_log": "S(0)"}
    sharding = sg.shard(step, "tp=2", pins={"*mixer." + name: layout for name, layout in last.items()}, **figures)
    check_dimensions(step, sharding.module())
    done = run_plan(tmp_path, sharding, "mamba", 2)
    assert done["shapes"] == planned_shapes(sharding)
    assert max(done["off"].values()) < eager_plan_ranks.TOLERANCE["mamba"]


def test_the_file_is_plain_python_and_says_what_is_missing(figures, tmp_path):
    step = captured("decoder")
    sharding = sg.shard(step, "dp=2,tp=2", pins=megatron(step, 2), **figures)
    text = sharding.to_python(str(tmp_path / "plan.py"))
    assert (tmp_path / "plan.py").read_text() == text and not list(tmp_path.glob(".shadowgraph-*"))
    tree = ast.parse(text)
    imported = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in ast.walk(tree)
                if isinstance(node, (ast.Import, ast.ImportFrom))}  # fmt: skip
    assert all(name.split(".")[0] in ("torch", *sys.stdlib_module_names) for name in imported), imported
    module = sharding.module()
    assert [tuple(miss[key] if key != "where" else tuple(miss[key]) for key in ("kind", "what", "where"))
            for miss in sharding.not_expressed] == list(module.NOT_EXPRESSED)  # fmt: skip
    # Identical layers share one row.
    assert "blocks.*.up.weight" in module.PARAMETERS and "blocks.0.up.weight" not in module.PARAMETERS


def test_a_title_is_no_code():
    text = sg._shadowgraph._layouts_script('a\nraise SystemExit\r"""\x0craise SystemExit', "MESH = {'dp': 2}\n")
    tree = ast.parse(text)
    assert not any(isinstance(node, ast.Raise) for node in tree.body)
    assert '\n# a raise SystemExit     raise SystemExit\nMESH = ' in text


def test_what_does_not_fit_is_refused(figures):
    sharding = sg.shard(captured("perceptron"), "dp=2", **figures)
    module = sharding.module()

    class Mesh:
        mesh_dim_names, shape = ("dp",), (4,)

    with pytest.raises(ValueError, match="the plan needs the mesh"):
        module.place(eager_plan_ranks.made("perceptron"), Mesh())
    Mesh.shape = (2,)
    with pytest.raises(ValueError, match="no layout of head.bias, head.weight"):
        module.place(torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)}), Mesh())
    with pytest.raises(ValueError, match="not one of 'mean', 'sum'"):
        module.place(eager_plan_ranks.made("perceptron"), Mesh(), loss="median")
    with pytest.raises(ValueError, match="no input nothing"):
        module.inputs(Mesh(), nothing=torch.ones(2))
    with pytest.raises(sg.Error, match="mesh"):
        sg.shard(sharding.graph, "dp=none")
    with pytest.raises(sg.InfeasibleError, match="fits into"):
        sg.shard(captured("perceptron"), "dp=2", memory=1000, interconnect="pcie4")
    with pytest.raises(sg.Error, match="--memory"):
        sg.shard(captured("perceptron"), "dp=2", recompute=True)
    with pytest.raises(sg.FileError, match="nowhere"):
        sharding.to_python("/nowhere/plan.py")


def test_an_optimizer_over_lists_plans_as_tensor_by_tensor(figures):
    """_foreach_ operators do not tie their parameters: layouts and communication are the same as tensor by tensor."""
    plans = []
    for foreach in (False, True):
        step = sg.capture_training_step(lambda: eager_plan_ranks.made("decoder"), eager_plan_ranks.shapes_of("decoder"),
                                        optimizer=lambda p, foreach=foreach: torch.optim.AdamW(p, foreach=foreach),
                                        device="cuda", steady_state=True)  # fmt: skip
        assert any("_foreach_" in node.target for node in step) == foreach
        pins = megatron(step, 2) | {"blocks.*.up.weight": "R,S(0)", "embedding.weight": "S(1),R"}
        plans.append(sg.shard(step, "dp=2,tp=2", pins=pins, **figures))
    single, lists = plans
    assert single.dict()["communication_seconds"] > 0
    assert lists.dict()["communication_seconds"] == pytest.approx(single.dict()["communication_seconds"], rel=1e-6)
    named = {name: layout for name, layout in single.layouts().items() if not name.startswith("input")}
    assert {name: lists.layouts()[name] for name in named} == named
    for rank in range(2):
        lists.graph_of_rank(rank).verify()


def test_the_command_writes_it(figures, tmp_path, monkeypatch, capfd):
    from shadowgraph.__main__ import main

    captured("decoder").save(str(tmp_path / "step.sg"))
    common = ["--mesh", "dp=2", "--spec", figures["spec"], "--interconnect", figures["interconnect"]]
    assert main(["shard", str(tmp_path / "step.sg"), *common, "--emit-python", str(tmp_path / "a.py")]) == 0
    assert "DATA_AXES = ('dp',)" in (tmp_path / "a.py").read_text()
    (tmp_path / "net.py").write_text("import torch\ndef make(): return torch.nn.Linear(64, 64)\n")
    monkeypatch.chdir(tmp_path)
    given = ["--input", "f32[batch,64]", "--batch", "32", "--mode", "train", "--device", "cpu", "-o", "out"]
    assert main(["shard", "net:make", *common, *given, f"--emit-python={tmp_path}/b.py"]) == 0
    assert "'weight'" in (tmp_path / "b.py").read_text() and (tmp_path / "out" / "layouts.json").exists()
    assert main(["shard", "nowhere.sg", "--mesh", "2", "--emit-python", "c.py"]) == 1
    assert main(["shard", "step.sg", "--mesh", "2", "--emit-python"]) == 2
    assert "--emit-python" in capfd.readouterr().err
