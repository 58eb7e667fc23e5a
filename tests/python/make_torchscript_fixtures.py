#!/usr/bin/env python3
"""Makes the TorchScript files of the tests from third-party Python models.

    make_torchscript_fixtures.py build/fixtures [--only NAME ...] [--list]

The models come from transformers, torchvision and torch.nn, in small configurations with random weights; nothing is
downloaded. NAME.pt is the module, NAME.json the results of a real run on the CPU:

    name, origin, kind            "trace" or "script"
    training                      the mode it was traced in (a scripted module can change it later)
    inputs                        ["i64[2,16]", ...]: what `shadowgraph profile NAME.pt --input` takes
    integer_bound                 real integer inputs are below this
    outputs                       [{spec, shape, dtype, stride}], nested outputs flattened in order
    parameters, parameter_bytes   elements and bytes, shared ones once
    buffers                       elements
    device_constants              operators given a constant device: the CPU, whatever device is asked for later
    gradients                     [{name, spec, stride}] after the sum of the first floating output, run backward
    saved                         {storages, bytes, of_parameters}: what autograd kept for it, by storage; of_parameters
                                  are the bytes of those that are parameters or buffers

The files are made again when a package version or this script has changed.
"""

import json
import re

import fixture_files

PACKAGES = ["torch", "transformers", "torchvision"]


FIXTURES = {}


def fixture(kind, *inputs, training=False, integer_bound=None):
    """Registers a function that returns a module; `inputs` are specs such as 'f32[8,3,32,32]'."""

    def register(build):
        FIXTURES[build.__name__] = dict(
            build=build, kind=kind, inputs=list(inputs), training=training, integer_bound=integer_bound
        )
        return build

    return register


# --- transformers ----------------------------------------------------------------------------------------------------
SMALL_TEXT = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)


@fixture("trace", "i64[2,16]", integer_bound=97)
def gpt2_eager():
    return _gpt2("eager")


@fixture("trace", "i64[2,16]", integer_bound=97, training=True)
def gpt2_sdpa():
    return _gpt2("sdpa")


def _gpt2(attention):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False,
                        bos_token_id=0, eos_token_id=0, attn_implementation=attention)
    return GPT2LMHeadModel(config)


@fixture("trace", "i64[2,16]", "i64[2,16]", integer_bound=2)
def bert_eager():
    return _bert("eager")


@fixture("trace", "i64[2,16]", "i64[2,16]", integer_bound=2)
def bert_sdpa():
    return _bert("sdpa")


def _bert(attention):
    # The second input is the attention mask; zeros and ones are valid tokens, too.
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SMALL_TEXT, intermediate_size=64, max_position_embeddings=32,
                                use_cache=False, attn_implementation=attention))


@fixture("trace", "i64[2,16]", integer_bound=97)
def distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=97, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=32))


@fixture("trace", "f32[2,3,32,32]")
def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
                  patch_size=8, num_labels=10))


@fixture("trace", "i64[2,16]", integer_bound=97)
def t5_encoder():
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                   use_cache=False))


@fixture("trace", "i64[2,16]", integer_bound=97)
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL_TEXT, num_key_value_heads=2, intermediate_size=64,
                                        max_position_embeddings=32, use_cache=False))


@fixture("trace", "f32[2,3,32,32]", training=True)
def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10))


# --- torchvision -----------------------------------------------------------------------------------------------------
@fixture("script", "f32[2,3,64,64]", training=True)
def resnet18_scripted():
    import torchvision

    return torchvision.models.resnet18()


@fixture("trace", "f32[2,3,64,64]", training=True)
def mobilenet_v3_small():
    import torchvision

    return torchvision.models.mobilenet_v3_small()


@fixture("trace", "f32[2,3,64,64]")
def squeezenet():
    import torchvision

    return torchvision.models.squeezenet1_1()


@fixture("trace", "f32[2,3,64,64]", training=True)
def shufflenet():
    import torchvision

    return torchvision.models.shufflenet_v2_x0_5()


@fixture("trace", "f32[1,3,64,64]")
def densenet121():
    import torchvision

    return torchvision.models.densenet121()


@fixture("trace", "f32[2,3,56,56]")
def swin():
    import torchvision

    return torchvision.models.SwinTransformer(patch_size=[4, 4], embed_dim=32, depths=[2, 2], num_heads=[2, 4],
                                              window_size=[7, 7], num_classes=10)


# Sizes derived from constant tensors in the trace: torch.min(torch.tensor((14, 14))).
@fixture("trace", "f32[2,3,56,56]")
def swin_of_transformers():
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(image_size=56, patch_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 2], window_size=7,
                   num_labels=10))


# --- torch.nn --------------------------------------------------------------------------------------------------------
@fixture("trace", "f32[2,16,32]", training=True)
def transformer_encoder():
    from torch import nn

    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False)


@fixture("trace", "f32[2,16,32]", "f32[2,8,32]", training=True)
def transformer():
    from torch import nn

    return nn.Transformer(32, 4, 2, 2, 64, batch_first=True)


@fixture("script", "f32[4,3,32,32]", training=True)
def cnn_scripted():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, groups=2), nn.GroupNorm(4, 32), nn.SiLU(), nn.AvgPool2d(2), nn.Dropout(0.1),
        nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10))


@fixture("trace", "f32[16,2,24]", training=True)
def lstm():
    from torch import nn

    return nn.LSTM(24, 32, num_layers=2)


@fixture("trace", "f32[2,16,24]", training=True)
def gru():
    from torch import nn

    return nn.GRU(24, 32, num_layers=2, bidirectional=True, batch_first=True)


@fixture("script", "f32[2,16,32]", training=True)
def transformer_layer_scripted():
    from torch import nn

    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


# --- the run that is written down ------------------------------------------------------------------------------------
def dtype_names():
    import torch

    return {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
            "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
            "bool": torch.bool}


def make_input(spec, integer_bound):
    import torch

    name, _, sizes = spec.rstrip("]").partition("[")
    shape = [int(size) for size in sizes.split(",") if size]
    dtype = dtype_names()[name]
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, integer_bound, shape, dtype=dtype)


def spec_of(tensor):
    names = {dtype: name for name, dtype in dtype_names().items()}
    return f"{names[tensor.dtype]}[{','.join(map(str, tensor.shape))}]"


def flatten(value):
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value or [] for tensor in flatten(item)] if isinstance(value, (list, tuple)) else []


def describe(tensor):
    return dict(spec=spec_of(tensor), shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."),
                stride=list(tensor.stride()))


def distinct(tensors):
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values())


def device_constants(script):
    """Counts operators with a constant device argument."""
    text = str(script.inlined_graph)
    names = re.findall(r"(%\S+) : Device = prim::Constant", text)
    return sum(len(re.findall(rf"aten::\S+\([^#]*{re.escape(name)}[,)]", text)) for name in names)


def tensors_only(model):
    """Converts transformers' ModelOutput, which a trace cannot contain, to a tuple of its tensors."""
    import torch

    class TensorsOnly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return tuple(flatten(self.model(*inputs)))

    return TensorsOnly().train(model.training)


def make(name, folder):
    import torch

    entry = FIXTURES[name]
    torch.manual_seed(0)
    module = entry["build"]().train(entry["training"])
    origin = f"{type(module).__module__}.{type(module).__name__}"
    inputs = [make_input(spec, entry["integer_bound"]) for spec in entry["inputs"]]
    if entry["kind"] == "trace":
        if type(module).__module__.startswith("transformers."):
            module = tensors_only(module)
        script = torch.jit.trace(module, tuple(inputs), check_trace=False)
    else:
        script = torch.jit.script(module)
    torch.jit.save(script, folder / f"{name}.pt")
    script = torch.jit.load(folder / f"{name}.pt")
    constants = device_constants(script)  # before the run, which folds constants in place

    # Without optimization, as shadowgraph runs it: the operators of the file, not fused.
    kept = []
    with torch.jit.optimized_execution(False):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda x: x):
            torch.manual_seed(1)
            outputs = flatten(script(*inputs))
        torch.manual_seed(1)
        eager = flatten(module(*inputs))
        assert [describe(out) for out in outputs] == [describe(out) for out in eager], f"{name}: TorchScript differs"
        next(out for out in outputs if out.is_floating_point()).sum().backward()

    parameters = distinct(script.parameters())
    buffers = distinct(script.buffers())
    owned = {tensor.untyped_storage().data_ptr() for tensor in parameters + buffers}
    saved = [tensor.untyped_storage() for tensor in distinct(kept)]
    facts = dict(
        name=name,
        origin=origin,
        kind=entry["kind"],
        training=entry["training"],
        inputs=entry["inputs"],
        integer_bound=entry["integer_bound"],
        outputs=[describe(out) for out in outputs],
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        buffers=sum(buffer.numel() for buffer in buffers),
        device_constants=constants,
        gradients=[dict(name=key, spec=spec_of(parameter.grad), stride=list(parameter.grad.stride()))
                   for key, parameter in script.named_parameters() if parameter.grad is not None],
        saved=dict(storages=len(saved), bytes=sum(storage.nbytes() for storage in saved),
                   of_parameters=sum(storage.nbytes() for storage in saved if storage.data_ptr() in owned)),
    )
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def make_and_tell(name, folder):
    facts = make(name, folder)
    return (f"{facts['kind']} of {facts['origin']}, {facts['parameters']:,} parameters, {len(facts['gradients'])} "
            f"gradients, {facts['device_constants']} device constants")  # fmt: skip


if __name__ == "__main__":
    current = fixture_files.fingerprint_of(PACKAGES, __file__)
    fixture_files.make_all(__doc__.split("\n")[0], FIXTURES, ("pt", "json"), current, make_and_tell)
