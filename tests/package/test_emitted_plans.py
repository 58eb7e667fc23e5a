"""Plans exported to training frameworks: train.py over gloo matches one process; other files are parsed by their
framework."""

import functools
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import types

import emitted_plan_ranks as ranks
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

import shadowgraph as sg

SCRIPT = pathlib.Path(ranks.__file__)
TOLERANCE = 1e-5
ATTENTION = torch.nn.functional.scaled_dot_product_attention
LLAMA = ["", "model.layers.2", "model.layers.4", "model.norm"]
GPT = ["", "blocks.1", "blocks.4", "blocks.7"]
EIGHT = ["", *(f"model.layers.{i}" for i in range(1, 8))]


def plan(model, *, stages=("",), recomputed=(), selective=(), offloaded=(), **knobs):
    layers = {"llama": "model.layers", "mixtral": "model.layers", "gpt2": "transformer.h"}.get(model, "blocks")
    made = {"microbatches": 4 if len(stages) > 1 else 2, **knobs}
    made["stages"] = [{"begins": name} for name in stages]
    made["recomputed"] = [f"{layers}.{i}" for i in recomputed]
    made["selective"] = [f"{layers}.{i}" for i in selective]
    made["offloaded"] = [f"{layers}.{i}" for i in offloaded]
    return model, made


ON_FOUR = {
    "dp": plan("llama", data=4),
    "dp zero 1": plan("llama", data=4, zero=1, micro_batch=2),
    "dp zero 2": plan("gpt", data=4, zero=2),
    "dp zero 3, again": plan("gpt", data=4, zero=3, recomputed=range(8)),
    "tp": plan("gpt", tensor=4),
    "tp, again": plan("llama", tensor=2, data=2, zero=2, recomputed=(0, 1, 5)),
    "dp tp": plan("llama", tensor=2, data=2),
    "dp tp zero 3": plan("gpt", tensor=2, data=2, zero=3),
    "pp": plan("llama", pipeline=4, stages=LLAMA),
    "pp gpipe, again": plan("llama", pipeline=4, stages=LLAMA, schedule="gpipe", recomputed=(1, 3)),
    "pp dp zero 2, selective": plan(
        "gpt", pipeline=2, data=2, zero=2, stages=["", "blocks.4"], recomputed=(0,), selective=(1, 5)
    ),
    "tp, selective": plan("llama", tensor=2, data=2, recomputed=(1,), selective=(0, *range(2, 8))),
    "pp dp": plan("llama", pipeline=2, data=2, stages=["", "model.layers.3"], micro_batch=2),
    "pp dp zero 1": plan("gpt", pipeline=2, data=2, zero=1, stages_per_rank=2, schedule="interleaved", stages=GPT),
    "pp tp zbv": plan("gpt", pipeline=2, tensor=2, stages_per_rank=2, schedule="zbv", stages=GPT),
    "pp dp zero 3": plan("llama", pipeline=2, data=2, zero=3, stages=["", "model.layers.3"], data_outermost=True),
    "v_half": plan("llama", pipeline=2, data=2, stages_per_rank=2, schedule="v_half", stages=LLAMA),
}
IN_PART = [
    {"layers": ["model.layers.0", "model.layers.5"], "keeps": ["aten::mm#0", "aten::mm#4", "aten::mul.Tensor#2"]},
    {"layers": ["model.layers.6"], "keeps": ["aten::mm#6"]},
]
ON_FOUR["dp zero 3, by the curve"] = plan("llama", data=4, zero=3, recomputed=(3,), in_part=IN_PART)
ON_EIGHT = {
    "dp tp pp": plan("llama", tensor=2, data=2, pipeline=2, stages=["", "model.layers.5"]),
    "dp tp pp zero 1, again": plan(
        "gpt", tensor=2, data=2, pipeline=2, zero=1, stages=["", "blocks.3"], recomputed=(0, 3, 4)
    ),
    "pp 4 dp zero 2": plan("gpt", pipeline=4, data=2, zero=2, stages=GPT),
    "pp 8": plan("llama", pipeline=8, stages=EIGHT, microbatches=8),
    "dp cp pp": plan("llama", context=2, data=2, pipeline=2, stages=["", "model.layers.5"], data_outermost=True),
    "looped dp tp": plan(
        "llama", tensor=2, data=2, pipeline=2, stages_per_rank=2, schedule="looped_bfs", stages=LLAMA,
        data_outermost=True,
    ),
}
ON_HOST = {
    "dp, offloaded": plan("llama", data=4, offloaded=range(8)),
    "dp tp zero 3, again, offloaded": plan(
        "gpt", tensor=2, data=2, zero=3, recomputed=(0, 3, 4), selective=(7,), offloaded=range(6)
    ),
    "pp dp zero 1, offloaded": plan("gpt", pipeline=2, data=2, zero=1, stages=["", "blocks.4"], offloaded=(0, 1, 5)),
    "pp tp zbv, offloaded": plan(
        "gpt", pipeline=2, tensor=2, stages_per_rank=2, schedule="zbv", stages=GPT, offloaded=range(4)
    ),
    "optimizer on the host": plan("llama", data=4, optimizer_on_host=True),
    "tp, optimizer on the host": plan("gpt", tensor=4, optimizer_on_host=True, microbatches=1),
    "tp dp zero 3, both on the host": plan(
        "gpt", tensor=2, data=2, zero=3, optimizer_on_host=True, offloaded=range(8)
    ),
    "pp dp zero 1, optimizer on the host": plan(
        "llama", pipeline=2, data=2, zero=1, stages=["", "model.layers.3"], optimizer_on_host=True
    ),
}
ON_EXPERTS = {
    "ep": plan("experts", data=4, experts=2),
    "ep 4": plan("mixtral", data=4, experts=4, micro_batch=2),
    "ep zero 3, again": plan("mixtral", data=4, experts=2, zero=3, recomputed=(0, 3)),
    "ep 4 zero 2, selective": plan("experts", data=4, experts=4, zero=2, selective=(0, 1)),
    "ep tp zero 1": plan("mixtral", tensor=2, data=2, experts=2, zero=1),
    "ep pp zero 1": plan("experts", pipeline=2, data=2, experts=2, zero=1, stages=["", "blocks.2"]),
    "ep pp zbv": plan(
        "mixtral", pipeline=2, data=2, experts=2, stages_per_rank=2, schedule="zbv",
        stages=["", "model.layers.1", "model.layers.2", "model.layers.3"], data_outermost=True,
    ),
    "ep zero 3, on the host": plan(
        "experts", data=4, experts=2, zero=3, optimizer_on_host=True, offloaded=range(4)
    ),
}  # fmt: skip
ON_SEQUENCES = {
    "cp": plan("llama", context=4),
    "cp dp zero 3, again": plan("gpt", context=2, data=2, zero=3, recomputed=range(8)),
    "cp tp, selective": plan("llama", context=2, tensor=2, selective=range(8)),
    "cp pp zero 1": plan("gpt", context=2, pipeline=2, zero=1, stages=["", "blocks.4"]),
    "cp dp ep, again": plan("mixtral", context=2, data=2, experts=4, micro_batch=2, recomputed=(0, 1)),
    "cp dp, offloaded": plan("gpt", context=2, data=2, offloaded=range(6)),
}
ON_TIED = {
    "tied, pp": plan("tied", pipeline=4, stages=["", "blocks.1", "blocks.4", "blocks.6"]),
    "tied, pp dp": plan("tied", pipeline=2, data=2, stages=["", "blocks.3"], data_outermost=True),
    "tied, pp dp zero 1": plan("tied", pipeline=2, data=2, zero=1, stages=["", "blocks.3"]),
    "tied, pp tp zbv": plan("tied", pipeline=2, tensor=2, stages_per_rank=2, schedule="zbv", stages=GPT),
    "tied, pp cp zero 3, on the host": plan(
        "tied", pipeline=2, context=2, zero=3, stages=["", "blocks.3"], optimizer_on_host=True
    ),
}
ON_FUSED = {
    "fused tp": plan("gpt2", tensor=4),
    "fused tp dp zero 3, again": plan("gpt2", tensor=2, data=2, zero=3, recomputed=(0, 3)),
    "fused tp pp": plan("gpt2", tensor=2, pipeline=2, stages=["", "transformer.h.1"]),
    "fused tp cp, selective": plan("fused", tensor=2, context=2, selective=range(8)),
    "fused tp dp zero 1, offloaded": plan("fused", tensor=2, data=2, zero=1, offloaded=range(3)),
}
META = ("dp tp zero 3", "pp gpipe, again", "pp dp zero 3", "dp tp pp", "pp 4 dp zero 2",
        "ep zero 3, again", "cp pp zero 1")  # made without memory  # fmt: skip
SAVED = ("tp", "dp tp zero 3", "pp tp zbv", "pp dp zero 1", "dp tp pp zero 1, again", "tp dp zero 3, both on the host",
         "pp dp zero 1, optimizer on the host", "ep", "ep zero 3, again", "ep pp zero 1",
         "tied, pp dp zero 1", "fused tp dp zero 3, again")  # fmt: skip


def step_of(model, micro_batch=1):
    def loss(output):
        return (output if isinstance(output, torch.Tensor) else output.logits).float().sum()

    ids = f"i64[{micro_batch},{ranks.LENGTH}]"
    return sg.capture_training_step(lambda: ranks.make(model), ids, loss=loss, optimizer=torch.optim.AdamW)


@pytest.fixture(scope="module")
def steps():
    return {model: step_of(model) for model in ranks.MODELS}


def files_of(step, plan, **sizes):
    """Returns (text, error, differences from the plan) by file name."""
    files = sg._shadowgraph.export_plan(step, json.dumps(plan), **sizes)
    return {name: (text, why_not, differs) for _, name, text, why_not, differs in files}


@pytest.mark.parametrize(
    ("size", "cases"),
    [(4, ON_FOUR), (8, ON_EIGHT), (4, ON_HOST), (4, ON_EXPERTS), (4, ON_SEQUENCES), (4, ON_TIED), (4, ON_FUSED)],
)
def test_scripts_give_what_one_process_gives(size, cases, steps, tmp_path):
    given = {}
    for number, (case, (model, knobs)) in enumerate(cases.items()):
        text, why_not, _ = files_of(steps[model], knobs, sequence=ranks.LENGTH)["train.py"]
        assert text, why_not
        path = tmp_path / str(number) / "train.py"
        path.parent.mkdir()
        path.write_text(text)
        checkpoint = str(path.parent / "checkpoint") if case in SAVED else None
        given[case] = {"script": str(path), "model": model, "checkpoint": checkpoint, "meta": case in META}
    (tmp_path / "cases.json").write_text(json.dumps(given))
    found = run_ranks(SCRIPT, size, tmp_path / "store", tmp_path / "cases.json")
    for case in cases:
        measured = ("loss", "gradients", "after", *(("resumed",) if case in SAVED else ()))
        worst = {what: max(rank[case][what] for rank in found) for what in measured}
        assert max(worst.values()) <= TOLERANCE, (case, worst)
        _, knobs = cases[case]
        parameters = {name for rank in found for name in rank[case]["parameters"]}
        named = ranks.make(given[case]["model"]).named_parameters(remove_duplicate="pipeline" not in knobs)
        assert parameters == {name for name, _ in named}, case
        assert all((rank[case]["fetched"] > 0) == bool(knobs["offloaded"]) for rank in found), case
        assert (max(len(rank[case]["parameters"]) for rank in found) < len(parameters)) == ("pipeline" in knobs), case


@pytest.mark.parametrize("meta", [(), ("--meta",)])
def test_torchrun_trains(steps, tmp_path, meta):
    (tmp_path / "train.py").write_text(files_of(steps["gpt"], {"data": 2, "zero": 3}, sequence=16)["train.py"][0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(tmp_path / "train.py"), "--model", "emitted_plan_ranks:Gpt", "--random-tokens", "64", "--steps", "2",
               "--precision", "bfloat16", "--save", str(tmp_path / "saved"), *meta]  # fmt: skip
    done = subprocess.run(command, cwd=SCRIPT.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [["step", "0", "loss"], ["step", "1", "loss"]]
    assert (tmp_path / "saved" / ".metadata").exists()


class Skipping(ranks.Gpt):
    """A block also takes the output of an earlier, non-adjacent block."""

    def forward(self, ids):
        x = first = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x + first))


def train_of(text, folder):
    (folder / "train.py").write_text(text)
    spec = importlib.util.spec_from_file_location(f"train_of_{folder.name}", folder / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    return train


class Unset(torch.nn.Module):
    """One of its tensors is initialized only by the constructor."""

    def __init__(self, kind, value, initialized):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.part = torch.nn.Module()
        if kind == "parameter":
            self.part.value = torch.nn.Parameter(value)
        else:
            self.part.register_buffer("value", value)
        if initialized:
            self.part.reset_parameters = lambda: self.part.value.fill_(1)


@pytest.mark.parametrize("initialized", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"), [("parameter", torch.ones(3)), ("buffer", torch.ones(3)), ("buffer", torch.ones(3, dtype=int))]
)
def test_what_has_no_first_values_is_not_made_without_memory(steps, tmp_path, kind, value, initialized):
    train = train_of(files_of(steps["gpt"], {"data": 2})["train.py"][0], tmp_path)
    model = Unset(kind, value.to("meta"), initialized)
    if not initialized:
        with pytest.raises(train.CannotRunError, match="part.value is not initialized"):
            train._fill(model, "", torch.device("cpu"), 1)
        return
    train._fill(model, "", torch.device("cpu"), 1)
    assert model.part.value.tolist() == [1, 1, 1]


def test_tied_parameters_are_not_made_without_memory(steps, tmp_path):
    train = train_of(files_of(steps["gpt"], {})["train.py"][0], tmp_path)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(train.CannotRunError, match="share a parameter"):
            train.Training(ranks.Tied, torch.device("cpu"), meta=1)
        assert train.Training(ranks.Gpt, torch.device("cpu"), meta=1).parameters()["head.weight"].device.type == "cpu"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "inputs", "knobs", "why"),
    [
        (Skipping, "i64[1,16]", plan("gpt", pipeline=2, stages=["", "blocks.4"])[1], "2 tensors are passed"),
        (
            ranks.Gpt, "i64[1,16]",
            plan("gpt", pipeline=2, data=2, zero=3, stages_per_rank=2, schedule="zbv", stages=GPT)[1],
            "without gradients",
        ),
        (ranks.Gpt, "i64[1,16]", plan("gpt", selective=(1, 2), offloaded=(0, 2))[1], "blocks.2 is partly recomputed"),
        (
            ranks.Gpt, "i64[1,16]",
            plan("gpt", pipeline=2, stages_per_rank=2, schedule="zbv", stages=GPT, optimizer_on_host=True)[1],
            "plan with --schedule 1f1b",
        ),
    ],
)
def test_what_a_script_cannot_say_is_named(make, inputs, knobs, why):
    step = sg.capture_training_step(make, inputs, loss=lambda y: y.sum(), optimizer=torch.optim.AdamW)
    text, why_not, _ = files_of(step, knobs)["train.py"]
    assert text == ""
    assert why in why_not


class WeightedBetween(ranks.Experts):
    def __init__(self):
        super().__init__()
        del self.gate

    def forward(self, tokens, chosen, weights):
        order = chosen.flatten().argsort(stable=True)
        ends = torch.histc(chosen.flatten().float(), 8, 0, 7).cumsum(0, dtype=torch.int32)
        made = torch._grouped_mm(tokens[order // 2], self.up, ends) * weights.flatten()[order, None]
        return torch._grouped_mm(made, self.down, ends)[order.argsort()].unflatten(0, chosen.shape).sum(1)


class Deep(ranks.Experts):
    def forward(self, tokens, chosen, weights):
        order = chosen.flatten().argsort(stable=True)
        ends = torch.histc(chosen.flatten().float(), 8, 0, 7).cumsum(0, dtype=torch.int32)
        made = tokens[order // 2]
        for weight in (self.gate, self.up, self.down):
            made = torch._grouped_mm(made, weight, ends)
        return made[order.argsort()].unflatten(0, chosen.shape).sum(1)


class Scaled(ranks.Experts):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, *given):
        return super().forward(*given) * self.scale


class Biased(ranks.Experts):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(8, ranks.WIDTH))


class AloneChosen(ranks.Experts):
    def forward(self, tokens, chosen, weights):
        return super().forward(tokens, chosen[:, :1], weights[:, :1])


def with_experts(kind):
    def make():
        model = ranks.ExpertGpt()
        for block in model.blocks:
            block.fc2 = kind()
        return model

    return make


@pytest.mark.parametrize(
    ("kind", "knobs", "why"),
    [
        (WeightedBetween, {}, "blocks.0.fc2 computes aten::mul.* on rows of tokens between its matmuls"),
        (Deep, {}, "blocks.0.fc2 has more than two matmuls in sequence"),
        (Scaled, {}, "parameter blocks.0.fc2.scale: a module with grouped matmuls"),
        (Biased, {}, "bias: a per-expert parameter"),
        (ranks.Experts, {"experts": 3, "data": 3}, "8 experts do not divide by the expert-parallel degree 3"),
        (ranks.Experts, {"data": 3}, "3 data ranks do not divide by the expert-parallel degree 2"),
        (ranks.Experts, {"in_part": [{"layers": ["blocks.1"], "keeps": ["aten::mm#0"]}]}, "`curve` is not supported"),
        (torch.nn.Module, {}, "no module supports expert"),
    ],
)
def test_experts_that_a_script_does_not_know_are_named(kind, knobs, why):
    make = ranks.Gpt if kind is torch.nn.Module else with_experts(kind)
    step = sg.capture_training_step(make, "i64[1,16]", loss=lambda y: y.sum(), optimizer=torch.optim.AdamW)
    text, why_not, _ = files_of(step, {"data": 2, "experts": 2, **knobs})["train.py"]
    assert text == ""
    assert re.search(why, why_not)


def test_a_script_has_the_parts_of_its_plan(steps):
    texts = [files_of(steps["experts"], plan("experts", data=2, experts=of)[1])["train.py"][0] for of in (1, 2)]
    assert ["class Exchange" in text for text in texts] == [False, True]
    assert ["TorchFunctionMode" in text for text in texts] == [False, True]
    assert not any("with experts" in text for text in texts)


def test_experts_whose_forward_is_another_are_refused(steps, tmp_path):
    train = train_of(files_of(steps["experts"], plan("experts", data=2, experts=2)[1])["train.py"][0], tmp_path)
    train.EXPERTS, module = 1, torch.nn.Module()
    module.forward = lambda rows: rows
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train._put_experts_on_ranks(module, 2, dist.init_device_mesh("cpu", (1,)))
        with pytest.raises(train.CannotRunError, match="expects 2 grouped matmuls"):
            module(torch.ones(2))
    finally:
        dist.destroy_process_group()


def model_with(model, attention):
    made = model()
    for block in made.blocks:
        block.attention = attention()
    return made


def fused(take, attend=ATTENTION):
    class Attention(ranks.FusedAttention):
        def forward(self, x):
            heads = [each.unflatten(-1, (4, -1)).transpose(1, 2) for each in take(self.c_attn(x))]
            return self.c_proj(attend(*heads).transpose(1, 2).flatten(2))

    return functools.partial(model_with, ranks.FusedGpt, Attention)


class WithoutProjection(ranks.FusedAttention):
    def __init__(self):
        super().__init__()
        self.c_proj = torch.nn.Identity()


def without_projection():
    model = ranks.FusedGpt()
    for block in model.blocks:
        block.attention = WithoutProjection()
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fused(lambda y: y.unflatten(-1, (3, -1)).unbind(-2)), "aten::view uses them, but only split"),
        (fused(lambda y: (y[..., :32], y[..., 32:64], y[..., 64:])), "aten::slice.Tensor uses them"),
        (fused(lambda y: y.chunk(3, -1), lambda q, k, v: (q @ k.mT).softmax(-1) @ v), "does not call scaled_dot"),
        (without_projection, "blocks.*.attention.c_attn is sharded without its counterpart"),
    ],
)
def test_queries_keys_and_values_in_one_that_a_script_does_not_know_are_named(make, why):
    step = sg.capture_training_step(make, "i64[1,16]", loss=lambda y: y.sum(), optimizer=torch.optim.AdamW)
    text, why_not, _ = files_of(step, {"tensor": 2})["train.py"]
    assert text == ""
    assert why in why_not


def test_heads_of_another_width_are_refused(tmp_path):
    step = sg.capture_training_step(ranks.FusedGpt, "i64[1,16]", loss=lambda y: y.sum(), optimizer=torch.optim.AdamW)
    train = train_of(files_of(step, {"tensor": 2})["train.py"][0], tmp_path)
    assert train.FUSED == {"blocks.*.attention": 8}
    x = torch.ones(1, 4, 3 * ranks.WIDTH // 2)
    x.is_three = True
    with train.OwnHeads(8):
        assert [each.shape[-1] for each in x.split(ranks.WIDTH, -1)] == [ranks.WIDTH // 2] * 3
        heads = [each.unflatten(-1, (4, -1)).transpose(1, 2) for each in x.chunk(3, -1)]
        with pytest.raises(train.CannotRunError, match="head size is 4, not 8"):
            ATTENTION(*heads)
        with pytest.raises(train.CannotRunError, match="unsupported view of fused queries"):
            x.view(-1)


class Sliced(ranks.Gpt):
    """Always takes the first rows of its position embedding, whatever tokens it gets."""

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WithoutPositions(ranks.Gpt):
    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def with_attention(attend):
    class Attention(ranks.Attention):
        def forward(self, x):
            heads = [p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
            return self.out_proj(attend(*heads).transpose(1, 2).flatten(2))

    return functools.partial(model_with, ranks.Gpt, Attention)


WRITTEN = with_attention(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)


@pytest.mark.parametrize(
    ("make", "length", "why"),
    [
        (ranks.Gpt, 14, "14 tokens do not divide into 4 equal chunks"),
        (with_attention(ATTENTION), 16, "attention in blocks.0.attention is not causal"),
        (WRITTEN, 16, "found no attention"),
        (with_experts(AloneChosen), 16, "their indices would be mistaken for positions"),
    ],
)
def test_sequences_that_a_script_does_not_cut_are_named(make, length, why):
    step = sg.capture_training_step(make, f"i64[1,{length}]", loss=lambda y: y.sum(), optimizer=torch.optim.AdamW)
    text, why_not, _ = files_of(step, {"context": 2}, sequence=length)["train.py"]
    assert text == ""
    assert why in why_not


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Sliced, "slices a parameter by length"),
        (WithoutPositions, "calls torch.arange for positions"),
        (WRITTEN, "calls scaled_dot_product_attention"),
        (with_attention(lambda q, k, v: ATTENTION(q, k, v, torch.ones(8, 8))), "only causal attention without mask"),
        (with_attention(lambda q, k, v: ATTENTION(q, k, v, dropout_p=0.1, is_causal=True)), "mask and dropout"),
        (with_attention(lambda q, k, v: ATTENTION(q[:, :, 4:], k, v, is_causal=True)), "only causal attention"),
    ],
)
def test_models_whose_sequences_cannot_be_cut_are_refused(make, why, steps, tmp_path):
    train = train_of(files_of(steps["gpt"], {"context": 2}, sequence=16)["train.py"][0], tmp_path)
    train.CONTEXT = 1
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        chunks, model = train.OnChunks(dist.group.WORLD), make()
        stage = train.Stage(model, train.modules_of_stages(model), 0, torch.float32)
        chunks.of(stage)
        with pytest.raises(train.CannotRunError, match=why):
            stage(torch.zeros(1, 8, dtype=torch.int64))
        train.CONTEXT = 2
        with pytest.raises(train.CannotRunError, match="6 tokens do not divide into 4 equal chunks"):
            chunks.cut(torch.zeros(1, 6))
    finally:
        dist.destroy_process_group()


def test_ranks_that_share_sequences_are_said(steps):
    files = files_of(steps["gpt"], {"context": 4, "data": 2, "zero": 1}, sequence=16)
    assert "--context-parallel-size 4\n--cp-comm-type all_gather\n" in files["megatron.args"][0]
    assert "--use-distributed-optimizer" in files["megatron.args"][0]
    assert "does not support context parallelism" in files["accelerate.yaml"][1]
    recipe = files_of(step_of("llama"), {"context": 4, "data": 2, "zero": 3}, sequence=16)["torchtitan_recipe.py"][0]
    assert "config.parallelism.context_parallel_degree = 4\n" in recipe
    assert "config.parallelism.data_parallel_shard_degree = 2\n" in recipe


def test_what_differs_from_the_plan_is_said(steps):
    text, _, differs = files_of(steps["gpt"], {"data": 3, "zero": 2, "tensor": 2}, batch=2)["train.py"]
    assert any("ZeRO 2" in one for one in differs)
    assert any("3 samples per step, since 2 do not divide" in one for one in differs)
    assert all(one in text for one in differs)


def test_an_optimizer_on_the_host_is_said(steps):
    knobs = {"data": 2, "zero": 2, "microbatches": 2, "optimizer_on_host": True}
    files = files_of(steps["llama"], knobs, sequence=16)
    assert "    config.training.enable_cpu_offload = True\n" in files["torchtitan_recipe.py"][0]
    assert "  fsdp_offload_params: true\n" in files["accelerate.yaml"][0]
    for name in ("train.py", "torchtitan_recipe.py", "accelerate.yaml"):
        assert sum("optimizer offload" in one for one in files[name][2]) == 2, name
    without = files_of(steps["llama"], {"data": 2, "optimizer_on_host": True})["accelerate.yaml"]
    assert (without[0], "only with FSDP" in without[1]) == ("", True)
    layers = files_of(steps["llama"], {**knobs, "offloaded": ["model.layers.0"]})
    for name in ("torchtitan_recipe.py", "accelerate.yaml"):
        assert (layers[name][0], "cannot offload activations" in layers[name][1]) == ("", True)


def test_accelerate_reads_its_file(steps, tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    text, why_not, _ = files_of(steps["gpt"], {"data": 8, "zero": 3}, sequence=16)["accelerate.yaml"]
    assert why_not == ""
    (tmp_path / "accelerate.yaml").write_text(text)
    config = config_args.load_config_from_file(str(tmp_path / "accelerate.yaml"))
    assert (config.num_processes, config.fsdp_config["fsdp_version"]) == (8, 2)
    assert config.fsdp_config["fsdp_reshard_after_forward"] is True
    assert config.fsdp_config["fsdp_activation_checkpointing"] is False
    every = [f"blocks.{i}" for i in range(8)]
    text, _, _ = files_of(steps["gpt"], {"data": 8, "zero": 3, "recomputed": every})["accelerate.yaml"]
    assert "fsdp_activation_checkpointing: true" in text
    for knobs, why in (
        ({"pipeline": 2, "stages": [{"begins": ""}, {"begins": "blocks.1"}]}, "pipeline parallelism"),
        ({"tensor": 2}, "not support tensor parallelism"),
        ({"data": 2, "zero": 1, "recomputed": every[:3]}, "all layers or none, but the plan recomputes 3 of 8"),
        ({"data": 2, "zero": 1, "selective": every}, "only whole layers"),
    ):
        text, why_not, _ = files_of(steps["gpt"], knobs)["accelerate.yaml"]
        assert text == ""
        assert why in why_not


def test_deepspeed_configuration(steps):
    knobs = {"data": 4, "zero": 2, "microbatches": 3, "optimizer_on_host": True}
    text, why_not, _ = files_of(steps["gpt"], knobs)["deepspeed.json"]
    assert why_not == ""
    found = json.loads(text)
    assert (found["train_batch_size"], found["gradient_accumulation_steps"]) == (12, 3)
    assert found["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    assert "only data parallelism" in files_of(steps["gpt"], {"tensor": 2})["deepspeed.json"][1]


def test_megatron_arguments(steps):
    stages = [{"begins": name} for name in LLAMA]
    knobs = {"tensor": 2, "data": 2, "pipeline": 2, "stages_per_rank": 2, "schedule": "interleaved", "zero": 1,
             "microbatches": 4, "stages": stages, "data_outermost": True}  # fmt: skip
    text, why_not, _ = files_of(steps["llama"], knobs, sequence=16)["megatron.args"]
    assert why_not == ""
    words = dict(line.partition(" ")[::2] for line in text.splitlines())
    assert words == {
        "--num-layers": "8", "--tensor-model-parallel-size": "2", "--sequence-parallel": "",
        "--pipeline-model-parallel-size": "2", "--pipeline-model-parallel-layout": "Et*2|t*2|t*4|L",
        "--use-tp-pp-dp-mapping": "", "--micro-batch-size": "1", "--global-batch-size": "8", "--seq-length": "16",
        "--use-distributed-optimizer": "",
    }  # fmt: skip
    again = {**knobs, "recomputed": [f"model.layers.{i}" for i in (0, 2, 4)]}
    assert "--recompute-num-layers 1\n" in files_of(steps["llama"], again)["megatron.args"][0]
    parts = {**knobs, "selective": [f"model.layers.{i}" for i in range(8)]}
    text, _, differs = files_of(steps["llama"], parts)["megatron.args"]
    assert "--recompute-granularity selective\n--recompute-modules layernorm\n" in text
    assert any("only norms" in one for one in differs)
    for other, why in (
        ({"schedule": "zbv"}, "not zbv"),
        ({"zero": 3}, "not support ZeRO 3 in a pipeline"),
        ({"recomputed": ["model.layers.1"]}, "first layers of a stage"),
        ({"recomputed": ["model.layers.0"]}, "same number of layers in each stage"),
        ({"selective": ["model.layers.0"]}, "either parts of all layers or whole layers, but the plan has 1"),
    ):
        text, why_not, _ = files_of(steps["llama"], {**knobs, **other})["megatron.args"]
        assert text == ""
        assert why in why_not


def test_megatron_reads_the_layout(steps):
    layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    knobs = {"pipeline": 4, "microbatches": 4, "stages": [{"begins": name} for name in LLAMA]}
    text = files_of(steps["llama"], knobs)["megatron.args"][0]
    words = dict(line.partition(" ")[::2] for line in text.splitlines())
    layout = layouts.PipelineParallelLayerLayout(words["--pipeline-model-parallel-layout"], 4)
    layout.validate_layer_layout(8, 0)
    assert [len(stage) for (stage,) in layout.layout] == [3, 2, 4, 1]


def recipe_of(text):
    names = {}
    exec(compile(text, "torchtitan_recipe.py", "exec"), names)
    return names["planned"]


def test_engines_hide_collectives_as_the_plan_says(steps):
    knobs = {"tensor": 2, "data": 2, "stages": [{"begins": LLAMA[0]}]}
    found = {how: files_of(steps["llama"], {**knobs, "overlap": how}) for how in ("none", "backward", "pieces")}
    assert {how: "--tp-comm-overlap\n" in files["megatron.args"][0] for how, files in found.items()} == {
        "none": False, "backward": False, "pieces": True,
    }  # fmt: skip
    titan = found["pieces"]["torchtitan_recipe.py"][0]
    assert "config.compile.enable = True\n    config.compile.enable_async_tensor_parallel = True\n" in titan
    assert "compile" not in found["none"]["torchtitan_recipe.py"][0]
    told = {how: [name for name, (_, _, differs) in files.items() if any("--overlap" in one for one in differs)]
            for how, files in found.items()}  # fmt: skip
    assert told == {"none": ["megatron.args"], "backward": ["train.py", "torchtitan_recipe.py"], "pieces": ["train.py"]}


def test_torchtitan_recipe(steps):
    """Keys match torchtitan's classes, if it is installed; values match the plan."""
    knobs = {"tensor": 2, "data": 2, "pipeline": 2, "stages_per_rank": 2, "schedule": "interleaved", "zero": 3,
             "microbatches": 4, "stages": [{"begins": name} for name in LLAMA]}  # fmt: skip
    text, why_not, _ = files_of(steps["llama"], knobs, sequence=16)["torchtitan_recipe.py"]
    assert why_not == ""
    try:
        from torchtitan.config import ParallelismConfig, TrainingConfig
    except ImportError:
        ParallelismConfig = TrainingConfig = types.SimpleNamespace
    config = recipe_of(text)(types.SimpleNamespace(parallelism=ParallelismConfig(), training=TrainingConfig()))
    found = config.parallelism
    assert (found.data_parallel_replicate_degree, found.data_parallel_shard_degree) == (1, 2)
    assert (found.tensor_parallel_degree, found.pipeline_parallel_degree) == (2, 2)
    assert (found.pipeline_parallel_schedule, found.fsdp_reshard_after_forward) == ("Interleaved1F1B", "always")
    assert found.module_fqns_per_model_part == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4", "layers.5", "layers.6", "layers.7"],
        ["norm", "lm_head"],
    ]
    assert (config.training.local_batch_size, config.training.global_batch_size) == (4, 8)
    assert config.activation_checkpoint is None
    for other, why in (
        ({"schedule": "v_half"}, "does not have the schedule v_half"),
        ({"data_outermost": True}, "pipeline outermost"),
    ):
        text, why_not, _ = files_of(steps["llama"], {**knobs, **other})["torchtitan_recipe.py"]
        assert text == ""
        assert why in why_not
    assert "not tokens" in files_of(steps["gpt"], plan("gpt", pipeline=2, stages=["", "blocks.4"])[1])[
        "torchtitan_recipe.py"][1]  # fmt: skip


def test_what_is_no_plan_is_refused(steps):
    for text in ("[]", '{"tensor": 0}', '{"tensor": "two"}', '{"tensors": 2}', '{"stages": [{"layer": 2}]}'):
        with pytest.raises(sg.Error, match="a plan: "):
            sg._shadowgraph.export_plan(steps["gpt"], text)


def test_a_model_that_is_not_the_plan_s_is_refused(steps, tmp_path):
    text, _, _ = files_of(steps["gpt"], plan("gpt", pipeline=2, stages=["", "blocks.4"])[1])["train.py"]
    train = train_of(text, tmp_path)
    model = ranks.make("gpt")
    del model.blocks[4:]
    with pytest.raises(train.CannotRunError, match=r"begins stages at \['blocks.4'\]"):
        train.modules_of_stages(model)
    model = ranks.make("tied")
    with pytest.raises(train.CannotRunError, match=r"ties the parameters \['tokens.weight'\]"):
        train.tied_over_stages(model, train.modules_of_stages(model))
    model = ranks.make("gpt")
    model.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(train.CannotRunError, match="scale is outside of"):
        train.modules_of_stages(model)
