"""Exported recipes and arguments, parsed by their frameworks' own parsers where those are installed.

Known restrictions of torchtitan 0.3.0 and Megatron-LM (d98e8a64) are checked in any case.
"""

import sys
import types

import emitted_plan_ranks as ranks
import pytest
import torch
from test_emitted_plans import LLAMA, files_of, recipe_of, step_of

PIPELINE = {"tensor": 2, "data": 2, "pipeline": 2, "stages_per_rank": 2, "schedule": "interleaved", "zero": 3,
            "microbatches": 4, "stages": [{"begins": name} for name in LLAMA]}  # fmt: skip


@pytest.fixture(scope="module")
def step():
    return step_of("llama")


def recipe(step, **knobs):
    text, why_not, _ = files_of(step, {**PIPELINE, **knobs}, sequence=ranks.LENGTH)["torchtitan_recipe.py"]
    assert text, why_not
    return text


def test_a_pipeline_has_no_cuda_graphs(step):
    """torchtitan's Trainer.Config raises "CUDA graphs do not support pipeline parallelism yet"."""
    assert "config.training.disable_cuda_graphs = True\n" in recipe(step)
    assert "cuda_graphs" not in recipe(step, pipeline=1, stages_per_rank=1, stages=[{"begins": ""}])


def test_float8_is_compiled(step):
    files = files_of(step, PIPELINE, sequence=ranks.LENGTH, float8=True)
    assert "config.compile.enable = True\n" in files["torchtitan_recipe.py"][0].split("    return config\n")[0]


def test_some_layers_are_recomputed_by_a_policy_of_the_recipe(step):
    again = [f"model.layers.{i}" for i in (0, 2, 5)]
    text = recipe(step, recomputed=again)
    assert 'RECOMPUTED = ["layers.0", "layers.2", "layers.5"]' in text
    assert "class PlannedAC(FullAC):" in text
    text = recipe(step, recomputed=again, selective=["model.layers.1"])
    assert 'SELECTIVE = ["layers.1"]' in text
    assert "class PlannedAC(SelectiveAC):" in text


@pytest.mark.parametrize("selective", [[], ["model.layers.5", "model.layers.7"]])
def test_torchtitan_reads_the_recipe(step, monkeypatch, selective):
    config = pytest.importorskip("torchtitan.config")
    registry = pytest.importorskip("torchtitan.models.llama3.config_registry")
    text = recipe(step, recomputed=["model.layers.0", "model.layers.3"], selective=selective)
    module = types.ModuleType("planned_recipe")
    module.planned_debug = lambda: recipe_of(text)(registry.llama3_debugmodel())
    monkeypatch.setitem(sys.modules, "planned_recipe", module)
    read = config.ConfigManager().parse_args(["--module=planned_recipe", "--config=planned_debug"])
    assert (read.parallelism.tensor_parallel_degree, read.parallelism.pipeline_parallel_degree) == (2, 2)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict({str(i): torch.nn.Linear(2, 2) for i in range(8)})
    read.activation_checkpoint.build().apply(model)
    wrapped = [n for n, layer in model.layers.items() if not isinstance(layer, torch.nn.Linear)]
    assert wrapped == (["0", "3", "5", "7"] if selective else ["0", "3"])
    x = torch.ones(1, 2, requires_grad=True)
    for name in wrapped:
        model.layers[name](x).sum().backward()


def test_megatron_keeps_the_first_layers_and_the_optimizer_on_the_host(step):
    first = ["model.layers.0", "model.layers.1"]
    knobs = {"data": 4, "zero": 1, "offloaded": first, "optimizer_on_host": True}
    text, _, _ = files_of(step, knobs)["megatron.args"]
    assert "--cpu-offloading-num-layers 2\n" in text
    assert "--optimizer-cpu-offload\n--optimizer-offload-fraction 1.0\n--use-precision-aware-optimizer\n" in text
    for changed, why in (({"offloaded": first[1:]}, "offloads others"), ({"recomputed": first}, "without recompute"),
                         ({"zero": 0}, "--zero 1")):  # fmt: skip
        text, why_not, _ = files_of(step, knobs | changed)["megatron.args"]
        assert not text and why in why_not


def test_megatron_s_fsdp_has_a_format_of_checkpoints(step):
    knobs = {"data": 4, "zero": 3}
    text, _, differs = files_of(step, knobs)["megatron.args"]
    assert "--use-megatron-fsdp\n" in text
    assert "--ckpt-format fsdp_dtensor\n" in text
    assert any("CUDA_DEVICE_MAX_CONNECTIONS must not be 1" in one for one in differs)
    text, _, differs = files_of(step, {"data": 2, "tensor": 2, "zero": 1})["megatron.args"]
    assert "--ckpt-format" not in text
    assert any("CUDA_DEVICE_MAX_CONNECTIONS=1" in one for one in differs)
