"""Hugging Face models of every kind of architecture, in small configurations; nothing is downloaded.

Each is captured as a training step with AdamW and for inference on simulated CUDA, both from a factory and converted
from a real model. The graph is verified and compared with a real step on the CPU: FLOPs against FlopCounterMode, and
output shapes.
"""

import sys
import types

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import shadowgraph as sg

# A torchvision built for another torch fails when it registers its operators' fake kernels; no model here needs them.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
transformers = pytest.importorskip("transformers")

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=128)
GROUPED = dict(**SMALL, num_key_value_heads=2)
GPT = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=128)
ENCODER_DECODER = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=128)  # fmt: skip


def tokens(batch=2, length=16):
    return torch.arange(batch * length).reshape(batch, length) % 100 + 3


def language(**more):
    ids = tokens()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, **more}


def image(size=32):
    return {"pixel_values": torch.zeros(2, 3, size, size), "labels": torch.zeros(2, dtype=torch.int64)}


# name: (model class, configuration class, its arguments, inputs)
MODELS = {
    # decoders
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT, language),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", dict(**GPT, rotary_dim=8), language),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, language),
    "opt": ("OPTForCausalLM", "OPTConfig", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                                                 vocab_size=128, word_embed_proj_dim=32), language),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=128), language),
    "falcon": ("FalconForCausalLM", "FalconConfig", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                         vocab_size=128), language),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, language),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED, language),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, language),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(**GROUPED, head_dim=8), language),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(**GROUPED, head_dim=8), language),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(**GROUPED, head_dim=8), language),
    "phi": ("PhiForCausalLM", "PhiConfig", SMALL, language),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", dict(**SMALL, pad_token_id=0), language),
    # mixture of experts
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(**GROUPED, num_local_experts=4), language),
    # encoders
    "bert": ("BertForMaskedLM", "BertConfig", SMALL, language),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SMALL, language),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                                                                     vocab_size=128), language),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", dict(**SMALL, embedding_size=32), language),
    "deberta_v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", dict(**SMALL, relative_attention=True,
                                                                   pos_att_type=["p2c", "c2p"]), language),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", dict(**SMALL, embedding_size=16), language),
    # encoder and decoder
    "t5": ("T5ForConditionalGeneration", "T5Config", dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                                          vocab_size=128, decoder_start_token_id=0), language),
    "bart": ("BartForConditionalGeneration", "BartConfig", ENCODER_DECODER, language),
    # vision
    "vit": ("ViTForImageClassification", "ViTConfig", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                           intermediate_size=64, image_size=32, patch_size=8), image),
    "swin": ("SwinForImageClassification", "SwinConfig", dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                                                              num_heads=[2, 4], window_size=4), image),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", dict(embedding_size=16, hidden_sizes=[16, 32],
                                                                    depths=[1, 1]), image),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", dict(hidden_sizes=[16, 32, 32, 32],
                                                                          depths=[1, 1, 1, 1]), lambda: image(64)),
    # speech
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                dict(**ENCODER_DECODER, num_mel_bins=16, max_source_positions=32, pad_token_id=0, bos_token_id=1,
                     eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None),
                lambda: {"input_features": torch.zeros(2, 16, 64), "labels": tokens()}),
    # multimodal
    "clip": ("CLIPModel", "CLIPConfig",
             dict(text_config=SMALL, vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                        intermediate_size=64, image_size=32, patch_size=8),
                  projection_dim=16),
             lambda: {"input_ids": tokens(), "pixel_values": torch.zeros(2, 3, 32, 32), "return_loss": True}),
    # state space
    "mamba": ("MambaForCausalLM", "MambaConfig", dict(hidden_size=32, num_hidden_layers=2, vocab_size=128,
                                                      state_size=8),
     lambda: {"input_ids": tokens(), "labels": tokens()}),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", dict(hidden_size=32, num_hidden_layers=2, vocab_size=128,
                                                         state_size=8, num_heads=8, head_dim=8, n_groups=1,
                                                         chunk_size=8),
               lambda: {"input_ids": tokens(), "labels": tokens()}),
}  # fmt: skip


def make(name):
    model_class, config_class, arguments, inputs = MODELS[name]
    config = getattr(transformers, config_class)(**arguments)
    return lambda: getattr(transformers, model_class)(config), inputs


@pytest.mark.parametrize("name", MODELS)
def test_step_and_inference(name):
    factory, inputs = make(name)
    torch.manual_seed(0)
    model = factory()

    def captured(of):
        return sg.capture_training_step(of, inputs(), optimizer=torch.optim.AdamW, device="cuda")

    step = captured(model)
    step.verify()
    assert {node.phase for node in step} >= {"forward", "backward", "optimizer"}
    assert any(node.module for node in step)
    # The same program, whether its tensors were created as fakes or converted.
    assert captured(factory).difference(step) is None
    with torch.no_grad():
        real = model.eval()(**inputs())
    inference = sg.capture(model, device="cuda", train=False, **inputs())
    inference.verify()
    (output,) = inference.find("sg::output")
    shapes = [value.shape for value in output.inputs]
    expected = [tuple(tensor.shape) for tensor in sg._inputs.tensors_of(real)]
    assert shapes == expected


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_real_step(name):
    factory, inputs = make(name)
    torch.manual_seed(0)
    model = factory().train()
    figures = sg.profile(model, inputs(), device="cpu", loss=".loss").dict()
    counted = figures["flops"]["forward"] + figures["flops"]["backward"]
    beyond = figures.get("flops_beyond_pytorch", {})
    with FlopCounterMode(display=False) as counter:
        model(**inputs()).loss.backward()
    assert counted - beyond.get("forward", 0) - beyond.get("backward", 0) == counter.get_total_flops()


def test_a_class_has_the_defaults_of_its_configuration():
    graph = sg.profile(transformers.GPT2LMHeadModel, {"input_ids": "i64[1,16]"}, device="cuda").graph
    (table,) = [node for node in graph.find("sg::parameter") if node.argument("name") == "transformer.wte.weight"]
    assert table.outputs[0].shape == (50257, 768)


def test_a_multimodal_model_without_images_says_that_its_encoder_does_not_run():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(num_hidden_layers=2, hidden_size=64, intermediate_size=128,
                                                    num_attention_heads=2, image_size=28, patch_size=14),
        text_config=transformers.LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128,
                                             num_hidden_layers=1, num_attention_heads=2))  # fmt: skip
    text = sg.profile(config, {"input_ids": "i64[1,16]"}, device="cuda", mode="infer")
    assert "without pixel_values, the model runs on text alone" in str(text)
    plain = sg.profile(transformers.LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128,
                                                num_hidden_layers=1, num_attention_heads=2),
                       {"input_ids": "i64[1,16]"}, device="cuda", mode="infer")  # fmt: skip
    assert "text alone" not in str(plain)
