"""Parameters of tensor subclasses: torchao, bitsandbytes, a subclass that hides its storage, and peft adapters."""

import sys
import types

import pytest
import torch
from torch import nn

import shadowgraph as sg

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
# Installed by scripts/setup.sh --test: if one is missing, these tests fail with its name.
import bitsandbytes as bnb  # noqa: E402
import peft  # noqa: E402
import torchao  # noqa: E402
import transformers  # noqa: E402

# The packages' pinned versions are in tests/python/requirements.txt.
ao = torchao.quantization
CUDA_OF_TORCH = torch.version.cuda


def mlp(linear=nn.Linear, dtype=torch.bfloat16, width=256, **how):
    first, second = linear(width, 512, bias=False, **how), linear(512, width, bias=False, **how)
    return nn.Sequential(first, nn.ReLU(), second).to(dtype)


def state_of(graph):
    """{name: (dtype, bytes)} of parameters and buffers."""
    return {
        node.argument("name"): (str(node.outputs[0].dtype).removeprefix("torch."), node.outputs[0].storage.nbytes)
        for node in graph
        if node.target in ("sg::parameter", "sg::buffer")
    }


CONFIGURATIONS = {
    "int8": ao.Int8WeightOnlyConfig,
    "int8_dynamic": ao.Int8DynamicActivationInt8WeightConfig,
    "float8": ao.Float8WeightOnlyConfig,
    "intx": ao.IntxWeightOnlyConfig,
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_torchao_keeps_its_tensors(name, device):
    net = mlp()
    ao.quantize_(net, CONFIGURATIONS[name]())
    held = {}
    for path, weight in net.named_parameters():
        for part in weight.__tensor_flatten__()[0]:
            tensor = getattr(weight, part)
            held[f"{path}.{part}"] = (str(tensor.dtype).removeprefix("torch."), tensor.nbytes)
    assert held["0.weight.qdata"][0] in ("int8", "float8_e4m3fn") and held["0.weight.qdata"][1] == 256 * 512

    def make():
        made = mlp()
        ao.quantize_(made, CONFIGURATIONS[name]())
        return made

    for model in (net, make):
        graph = sg.profile(model, "bf16[8,256]", device=device).graph
        graph.verify()
        assert state_of(graph) == held
    assert not any(sg.is_fake(getattr(net[0].weight, part)) for part in net[0].weight.__tensor_flatten__()[0])


def test_torchao_asks_for_cuda_and_gets_it():
    """Float8 products and int4 tiles exist for GPUs only. torchao refuses them if torch.version.cuda is None."""

    def make(configuration, width=256):
        made = mlp(width=width)
        ao.quantize_(made, configuration)
        return made

    graph = sg.profile(lambda: make(ao.Float8DynamicActivationFloat8WeightConfig()), "bf16[32,256]").graph
    assert sum(node.target == "aten::_scaled_mm" for node in graph) == 2
    assert state_of(graph)["0.weight.qdata"] == ("float8_e4m3fn", 256 * 512)
    tiles = ao.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
    graph = sg.profile(lambda: make(tiles, 1024), "bf16[32,1024]").graph
    assert state_of(graph)["0.weight.qdata"] == ("int32", 1024 * 512 // 2)
    assert torch.version.cuda == CUDA_OF_TORCH  # restored


def test_float8_training():
    from torchao.float8 import convert_to_float8_training

    step = sg.capture_training_step(lambda: convert_to_float8_training(mlp()), "bf16[32,256]", optimizer="adamw",
                                    device="cuda", steady_state=True)  # fmt: skip
    step.verify()
    # Forward, and two products of backward each; torchao also computes the unneeded input gradient of the first layer.
    assert sum(node.target == "aten::_scaled_mm" for node in step) == 6
    assert state_of(step) == {"0.weight": ("bfloat16", 2 * 256 * 512), "2.weight": ("bfloat16", 2 * 256 * 512)}


def int8_state(rows, columns):
    return ("int8", rows * columns), ("float32", 4 * rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("way", ["made", "moved by the program", "real", "real and quantized", "dtype"])
def test_linear8bit_is_int8_and_its_statistics(way, device):
    def make():
        return mlp(bnb.nn.Linear8bitLt, torch.float16, has_fp16_weights=False)

    model = {
        "made": make,
        "moved by the program": lambda: make().to(device),
        "real": make() if way == "real" else None,
        "real and quantized": make().to("cpu") if way == "real and quantized" else None,
        "dtype": make,
    }[way]
    dtype = torch.bfloat16 if way == "dtype" else None
    graph = sg.profile(model, "f16[8,256]", device=device, dtype=dtype).graph
    graph.verify()
    weight, scales = int8_state(512, 256)
    more_weight, more_scales = int8_state(256, 512)
    assert state_of(graph) == {
        "0.weight": weight, "0.weight.SCB": scales, "2.weight": more_weight, "2.weight.SCB": more_scales,
    }  # fmt: skip
    assert "assumed" not in graph.metadata
    if isinstance(model, nn.Module):  # the given model is unchanged
        assert all(not sg.is_fake(tensor) for layer in (model[0], model[2]) for tensor in layer.parameters())
        assert model[0].weight.dtype == (torch.int8 if way == "real and quantized" else torch.float16)
        assert model[0].state.CB is None


def test_linear8bit_that_has_run():
    model = mlp(bnb.nn.Linear8bitLt, torch.float16, has_fp16_weights=False).to("cpu")
    x = torch.randn(8, 256)
    before = model(x)
    graph = sg.profile(model, "f32[8,256]").graph
    # bitsandbytes moves it into the state in the first forward
    assert state_of(graph)["0.state.SCB"] == ("float32", 4 * 512)
    assert state_of(graph)["0.weight"] == ("int8", 256 * 512)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("way", ["made", "real", "real and quantized"])
def test_linear4bit(way):
    def make():
        return mlp(bnb.nn.Linear4bit, quant_type="nf4", compute_dtype=torch.bfloat16)

    model = make if way == "made" else make().to("cpu") if way == "real and quantized" else make()
    graph = sg.profile(model, "bf16[8,256]").graph
    graph.verify()
    state = state_of(graph)
    assert state["0.weight"] == ("uint8", 256 * 512 // 2)
    assert state["0.weight.quant_state.absmax"] == ("uint8", 256 * 512 // 64)
    assert state["0.weight.quant_state.state2.absmax"] == ("float32", 4 * 256 * 512 // 64 // 256)
    if way == "real and quantized":
        assert not sg.is_fake(model[0].weight.quant_state.absmax) and not sg.is_fake(model[0].quant_state.absmax)


def test_adam_of_8_bits():
    def step(optimizer):
        return sg.profile(lambda: nn.Linear(256, 256), "f32[8,256]", optimizer=optimizer, steady_state=True).graph

    kept = {"f32": 0, "u8": 0}
    for node in step(bnb.optim.AdamW8bit):
        if node.target == "sg::input" and node.outputs[0].shape == (256, 256):
            kept["u8" if node.outputs[0].dtype == torch.uint8 else "f32"] += node.outputs[0].storage.nbytes
    assert kept == {"f32": 0, "u8": 2 * 256 * 256}


def test_bitsandbytes_is_imported_while_cuda_is_pretended():
    import subprocess

    program = """
import torch, shadowgraph as sg
with sg.fake("cuda"):
    import bitsandbytes as bnb
layer = bnb.nn.Linear8bitLt(64, 32, has_fp16_weights=False).to("cpu")
assert layer(torch.randn(4, 64)).shape == (4, 32)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)


class Hiding(torch.Tensor):
    """Runs its operators itself and does not expose its inner tensors."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        out = func(*(each.inner if isinstance(each, Hiding) else each for each in args), **(kwargs or {}))
        return Hiding(out) if func.overloadpacket in (torch.ops.aten.detach, torch.ops.aten.alias) else out


def test_a_class_that_hides_its_tensors_is_refused_by_name():
    def make():
        layer = nn.Linear(4, 4)
        layer.weight = nn.Parameter(Hiding(layer.weight.data), requires_grad=False)
        return layer

    for model in (make, make()):
        with pytest.raises(sg.Error, match=r"test_quantized\.Hiding .*__tensor_flatten__"):
            sg.profile(model, "f32[2,4]")


def test_adapters_stay_as_made_unless_asked():
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                      num_attention_heads=4, vocab_size=128)  # fmt: skip

    def make():
        return peft.get_peft_model(transformers.LlamaForCausalLM(config).to(torch.bfloat16),
                                   peft.LoraConfig(target_modules=["q_proj", "v_proj"]))  # fmt: skip

    inputs = {"input_ids": "i64[2,16]", "labels": "i64[2,16]"}
    graph = sg.profile(make, inputs, optimizer="adamw").graph
    dtypes = {name.split(".")[-3] if "lora" in name else "base": dtype for name, (dtype, _) in state_of(graph).items()
              if "inv_freq" not in name}  # fmt: skip
    assert dtypes == {"lora_A": "float32", "lora_B": "float32", "base": "bfloat16"}
    assert "assumed" not in graph.metadata
    for model in (make, make()):
        report = sg.profile(model, inputs, optimizer="adamw", dtype=torch.bfloat16)
        assert {dtype for name, (dtype, _) in state_of(report.graph).items() if "lora" in name} == {"bfloat16"}
        # Two adapter matrices at each of two projections of each of two layers.
        assert "dtype=bfloat16 converted 8 parameters" in str(report)
