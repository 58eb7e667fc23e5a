"""Cluster plans for Python models."""

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
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def llama():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(**CONFIG)


def ids(samples):
    return {"input_ids": f"i64[{samples},32]", "labels": f"i64[{samples},32]"}


def plan(**changed):
    how = dict(loss=".loss", devices="8xh100", batch=16, sequence=32, micro_batch=[1, 2], tensor=[1, 2])
    return sg.plan(llama(), ids, **how | changed)


def test_a_plan_was_simulated_and_is_not_below_its_bound():
    found = plan()
    best = found.dict()["simulated"][0]
    assert found.seconds == best["seconds"] == found.run.seconds >= found.bound > 0
    assert found.bytes == best["bytes"] <= found.dict()["memory"]
    knobs = best["plan"]
    assert knobs["tensor"] * knobs["data"] * knobs["pipeline"] == 8
    assert knobs["data"] * knobs["micro_batch"] * knobs["microbatches"] == 16
    assert "8 x NVIDIA H100" in str(found)


def test_layers_of_a_configuration_are_known_and_give_what_the_whole_model_gives():
    short, whole = plan(), plan(layers=(0, lambda count: llama()))
    assert short.dict()["simulated"] == whole.dict()["simulated"]


def test_layers_that_differ_are_captured_whole():
    from shadowgraph._plans import _layers_of

    config = llama()
    assert _layers_of(config)[0] == 6
    config.layer_types = ["full_attention", "sliding_attention"] * 3
    assert _layers_of(config)[0] == 0


def test_models_whose_kinds_of_layers_follow_from_their_number_are_planned():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=6, vocab_size=128, state_size=4)
    found = sg.plan(config, lambda n: {"input_ids": f"i64[{n},16]", "labels": f"i64[{n},16]"}, loss=".loss",
                    devices="4xh100", batch=8, micro_batch=[1], tensor=[1])  # fmt: skip
    assert found.dict()["simulated"][0]["plan"]["stages"]


def test_a_plan_of_fully_sharded_ranks_is_what_fsdp2_takes(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    config = llama()
    config.update(dict(hidden_size=1024, intermediate_size=4096, vocab_size=32000, num_attention_heads=16,
                       num_key_value_heads=16, max_position_embeddings=4096))  # fmt: skip
    long = {"input_ids": "i64[1,4096]", "labels": "i64[1,4096]"}

    def make():
        import transformers

        mesh, model = init_device_mesh("cuda", (16,)), transformers.LlamaForCausalLM(config)
        how = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        for layer in model.model.layers:
            fully_shard(layer, **how)
        return fully_shard(model, **how)

    # Plans model no Python overhead, so the profile uses a shorter host call.
    (tmp_path / "h100.json").write_text(json.dumps({"version": 1, "base": "h100", "host_call": 5e-6}))
    with sg.fake_process_group(16):
        real = sg.profile(make, long, loss=".loss", optimizer=functools.partial(torch.optim.AdamW, fused=True),
                          device="cuda", steady_state=True, spec=str(tmp_path / "h100.json"),
                          interconnect="h100").dict()  # fmt: skip
    found = sg.plan(config, lambda n: long, loss=".loss", devices="16xh100", batch=16, sequence=4096, tensor=[1],
                    pipeline=[1], micro_batch=[1], zero=[3])  # fmt: skip
    rank = found.run.dict()["ranks"][0]
    assert rank["peak_bytes"] == pytest.approx(real["peak_with_scratch"]["bytes"], rel=0.04)
    assert found.bytes == pytest.approx(real["device_memory"]["reserved_peak_bytes"], rel=0.08)
    assert found.seconds == pytest.approx(real["communication"]["overlap"]["seconds"], rel=0.07)


def test_a_module_without_layers_is_planned():
    def make():
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    found = sg.plan(make, lambda n: f"f32[{n},64]", loss=torch.mean, dtype=None, devices="4xh100", batch=8)
    assert found.dict()["simulated"][0]["plan"]["data"] * 1 >= 1
    assert found.tokens_per_second == 0


@pytest.mark.parametrize(
    ("changed", "error", "why"),
    [
        (dict(devices="many"), sg.Error, "is not of the form"),
        (dict(devices="8xh9000"), sg.Error, "h9000"),
        (dict(memory="2070MB"), sg.InfeasibleError, "no plan of model fits"),
        (dict(memory="1GB"), sg.InfeasibleError, "is not enough"),
        (dict(schedule=["2f2b"]), sg.Error, "unknown schedule"),
        (dict(tensor=[3]), sg.Error, "does not divide"),
        (dict(pipeline=[3]), sg.InfeasibleError, "no tensor-parallel degree(.|\\n)*with any pipeline"),
        (dict(tensor=2), sg.Error, r"pass tensor=\[2\]"),
        (dict(layers=6), sg.Error, "number of layers, function"),
    ],
)
def test_what_cannot_be_is_refused(changed, error, why):
    with pytest.raises(error, match=why):
        plan(**changed)


def test_memory_may_be_left_free():
    assert plan(memory="4GB", leave_free="1GB").dict()["memory"] == plan(memory="3GB").dict()["memory"]
    with pytest.raises(sg.Error, match="leave_free: 'some' is not a size such as 24GiB"):
        plan(leave_free="some")


@pytest.mark.parametrize(
    ("knob", "why"),
    [
        (dict(micro_batch=[0]), "micro_batch: '0' is not an integer >= 1"),
        (dict(zero=["one"]), "zero: 'one' is not an integer from 0 to 3"),
        (dict(recompute="full"), r"recompute: expected a list, got 'full'; pass recompute=\['full'\]"),
        (dict(float8="yes"), "float8: 'yes' is not true or false"),
        (dict(gradients=torch.float16), "gradients: 'f16' is not one of f32, bf16"),
        (dict(gradients=torch.bfloat16, captured_state=True), "give one of them"),
        (dict(simulated=True), "simulated: got True, expected"),
    ],
)
def test_knobs_are_checked_by_their_table(knob, why):
    with pytest.raises(sg.Error, match=why):
        plan(**knob)
    assert "micro_batch: Micro-batch sizes, in samples (a list, each an integer >= 1)" in sg.plan.__doc__


def ids_of(samples, tokens):
    return {"input_ids": f"i64[{samples},{tokens}]", "labels": f"i64[{samples},{tokens}]"}


def questions(**changed):
    how = dict(loss=".loss", devices="8xh100", batch=16, sequence=32, micro_batch=[1, 2], tensor=[1, 2])
    return sg.PlanSweep(llama(), changed.pop("inputs", ids_of), **how | changed)


def test_questions_ask_for_the_plans_of_changed_requests():
    asked = questions()
    table = asked.run("devices", values=[8, 16])
    rows = {row["value"]: row for row in table.dict()["rows"]}
    assert rows["8"]["seconds"] == asked.plan().seconds == plan().seconds
    assert rows["16"]["seconds"] == plan(devices="16xh100", simulated=1).seconds
    assert table.findings and table.findings[0] in str(table)
    cheapest = asked.run("price", tokens="1M", within="1d", prices={"h100": 2.5, "a100": {"per_hour": 1, "most": 16}})
    assert "cheapest: " in cheapest.findings[0]


def test_sequences_can_be_asked_about_where_inputs_take_them():
    longer = [row["number"] for row in questions().run("sequence", values=[32, 64]).dict()["rows"]]
    assert {32, 64} <= set(longer)
    with pytest.raises(sg.Error, match="fixed sequence length"):
        questions(inputs=ids).run("sequence", values=[64])


@pytest.mark.parametrize(
    ("what", "how", "why"),
    [
        ("weather", {}, "not one of devices, network"),
        ("price", dict(tokens="1M", within="1d"), "requires --prices"),
        ("price", dict(tokens="1M", within="1d", prices={"h9000": 1}), "h9000"),
        ("devices", dict(share=2), "is not a number > 0 and <= 1"),
    ],
)
def test_questions_that_make_no_sense_are_refused(what, how, why):
    with pytest.raises(sg.Error, match=why):
        questions().run(what, **how)


def test_what_would_fit_was_planned():
    with pytest.raises(sg.InfeasibleError, match="smallest first") as refused:
        plan(memory="2170MB", devices="1xh100", batch=4096, micro_batch=[4096], tensor=[])
    changes = str(refused.value).splitlines()[1:]
    assert "with any micro-batch" in changes[0]
    assert all(" per step" in change for change in changes)


def test_neighbors_that_were_simulated_take_what_they_took():
    found = plan(simulated=8).dict()
    simulated = {made["text"]: made["seconds"] for made in found["simulated"]}
    beside = [one for one in found["neighbors"] if one.get("plan") in simulated]
    assert beside
    assert [one["seconds"] for one in beside] == [simulated[one["plan"]] for one in beside]


def test_a_page_holds_the_plan():
    page = plan().html()
    assert page.startswith("<!doctype html>") and 'id="plan-data"' in page
    assert "http-equiv" in page and "src=" not in page.split("<script>")[0]


def test_control_flow_that_depends_on_data_is_refused():
    class Chooser(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return (self.one if x.sum() > 0 else self.other)(x)

    with pytest.raises(RuntimeError, match="depends on the data of a fake tensor"):
        sg.plan(Chooser, lambda n: f"f32[{n},8]", loss=torch.mean, devices="4xh100", batch=8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "links.json"),
        ('{"version": 1, "levels": "fast"}', "levels"),
        ('{"version": 1, "levels": [{"name": "nvlink", "bandwidth": 1}], "axes": {"ep": {"latency": 0}}}', "axis 'ep'"),
        ('{"version": 1, "levels": [{"name": "nvlink", "size": 4, "bandwidth": 1}]}',
         "joins at most 4 devices .level 'nvlink'., but 8 are requested"),
        ('{"version": 1, "levels": [{"name": "nvlink", "size": 8, "latency": 0, "bandwidth": "fast"}]}', "bandwidth"),
    ],
)
def test_a_wrong_file_of_links_is_refused_by_its_place(tmp_path, text, why):
    path = tmp_path / "links.json"
    path.write_text(text)
    with pytest.raises(sg.Error, match=why):
        plan(interconnect=str(path))


def test_what_the_program_raises_arrives():
    def broken(samples):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sg.plan(llama(), broken, loss=".loss", devices="8xh100", batch=16)


def test_the_tool_plans_a_configuration(tmp_path, capfd):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    source, folder = f"hf:{tmp_path / 'config.json'}", tmp_path / "plan"
    words = ["plan", source, "--devices", "8xh100", "--samples-per-step", "16", "--seq", "32", "--tensor", "1,2",
             "--micro-batch", "1,2"]  # fmt: skip
    assert main([*words, "-o", str(folder)]) == 0
    found = json.loads((folder / "plan.json").read_text())
    assert found["simulated"][0]["seconds"] == pytest.approx(plan().seconds)
    assert (folder / "train.py").exists() == ("train.py         not written" not in capfd.readouterr().err)
    assert main([*words, "--tokens-per-step", "512"]) == 2
    assert "give one of" in capfd.readouterr().err


def test_kernels_of_attention_are_a_knob():
    found = plan(attention=["math", "flash", "cudnn"])
    best = found.dict()["simulated"][0]
    assert best["plan"]["attention"] in ("flash", "cudnn")
    others = {row["value"] for row in found.dict()["neighbors"] if row["option"] == "attention"}
    assert others == {"math", "flash", "cudnn"} - {best["plan"]["attention"]}
    given = {"tensor": 1, "pipeline": 2, "micro_batch": 1}
    how = dict(loss=".loss", devices="8xh100", batch=16, sequence=32)
    seconds = {kernel: sg.simulate_plan(llama(), ids, given | {"attention": kernel}, **how).seconds
               for kernel in ("device", "cudnn", "flash", "math")}  # fmt: skip
    assert seconds["device"] == seconds["cudnn"] < seconds["math"]  # PyTorch's default on an H100
    with pytest.raises(sg.Error, match="attention: 'fast' is not one of device"):
        plan(attention=["fast"])
