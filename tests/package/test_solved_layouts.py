"""Plans whose tensor-parallel layouts are chosen by the sharding solver."""

import functools
import json
import sys
import types

import pytest
import torch
from torch import nn

import shadowgraph as sg
from shadowgraph.__main__ import main

# transformers imports torchvision, which may be built for another torch.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 6, "vocab_size": 32000,
    "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": False, "max_position_embeddings": 8192,
}  # fmt: skip
HOW = dict(devices="16xh100", batch=32, tensor=[8], micro_batch=[1, 2])


@functools.cache
def plan(*layouts, overlap="none"):
    transformers = pytest.importorskip("transformers")
    return sg.plan(transformers.AutoConfig.for_model(**CONFIG),
                   lambda n: {"input_ids": f"i64[{n},8192]", "labels": f"i64[{n},8192]"}, loss=".loss", sequence=8192,
                   layout=layouts, overlap=overlap, **HOW)  # fmt: skip


@pytest.mark.parametrize("overlap", ["none", "backward", "pieces"])
def test_the_solver_is_at_least_as_quick_as_megatrons_rules(overlap):
    solved, megatron = plan("solved", overlap=overlap), plan("megatron", overlap=overlap)
    both = plan("megatron", "solved", overlap=overlap)
    assert solved.seconds < megatron.seconds
    assert both.seconds == solved.seconds
    values = {row["value"]: row for row in both.dict()["neighbors"] if row["option"] == "layout"}
    assert values.keys() == {"megatron"}
    best = solved.dict()["simulated"][0]
    assert best["plan"]["layout"] == "solved"
    assert "solved layout" in str(solved)
    assert best["seconds"] == pytest.approx(best["estimated_seconds"], rel=0.02)
    assert best["bytes"] == pytest.approx(best["estimated_bytes"], rel=0.1)


def test_a_lean_layout_is_one_more():
    lean, solved = plan("lean").dict()["simulated"][0], plan("solved").dict()["simulated"][0]
    assert lean["seconds"] == pytest.approx(lean["estimated_seconds"], rel=0.02)
    assert lean["layouts"] != solved["layouts"]
    assert plan("megatron", "solved", "lean").seconds == min(lean["seconds"], solved["seconds"])


def test_layouts_are_given_by_name_and_can_be_measured_again():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**CONFIG)
    best = plan("solved").dict()["simulated"][0]
    names = {name for name, _ in transformers.LlamaForCausalLM(config).named_parameters()}
    assert best["layouts"].keys() == names
    inputs = {"input_ids": f"i64[{best['plan']['micro_batch']},8192]"}
    step = sg.capture_training_step(config, inputs | {"labels": inputs["input_ids"]}, loss=".loss", device="cuda",
                                    dtype=torch.bfloat16)  # fmt: skip
    answer = sg.shard(step, mesh="tp=8", spec="h100", solution=best["layouts"], shard_vocabulary=True)
    assert {row["name"]: row["layout"] for row in answer.dict()["tensors"]}.items() >= best["layouts"].items()
    assert "layouts" not in plan("megatron").dict()["simulated"][0]


def test_a_solved_plan_is_simulated_again_as_it_was():
    transformers = pytest.importorskip("transformers")
    best = plan("solved").dict()["simulated"][0]
    again = sg.simulate_plan(transformers.AutoConfig.for_model(**CONFIG),
                             lambda n: {"input_ids": f"i64[{n},8192]", "labels": f"i64[{n},8192]"}, best["plan"],
                             loss=".loss", sequence=8192, devices="16xh100", batch=32)  # fmt: skip
    assert (again.seconds, again.bytes) == (best["seconds"], best["bytes"])


def test_layers_that_megatron_has_no_names_for_are_laid_out():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4096, 16384, bias=False), nn.Linear(16384, 4096, bias=False)

        def forward(self, x):
            return x + self.second(torch.relu(self.first(x)))

    found = {
        layout: sg.plan(lambda: nn.Sequential(*(Block() for _ in range(4))), lambda n: f"bf16[{n},2048,4096]",
                        loss=lambda y: y.float().mean(), devices="8xh100", batch=8, micro_batch=[1], tensor=[8],
                        layout=[layout])
        for layout in ("megatron", "solved")
    }  # fmt: skip
    assert found["solved"].seconds < 0.5 * found["megatron"].seconds


def test_engines_say_that_they_have_no_words_for_it(tmp_path, capfd):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    folder = tmp_path / "plan"
    words = ["plan", f"hf:{tmp_path / 'config.json'}", "--devices", "16xh100", "--samples-per-step", "32", "--seq",
             "8192", "--tensor", "8", "--micro-batch", "1,2", "--layout", "solved", "-o", str(folder)]  # fmt: skip
    assert main(words) == 0
    said = capfd.readouterr().err
    assert said.count("not written") == 5
    assert "plan with --layout megatron" in said
    best = json.loads((folder / "plan.json").read_text())["simulated"][0]
    assert json.loads((folder / "parameter_layouts.json").read_text()) == best["layouts"]


def test_other_layouts_are_refused():
    with pytest.raises(sg.Error, match="'mine' is not one of megatron, solved, lean"):
        plan("mine")
