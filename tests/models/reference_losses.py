"""The losses of the Python originals of the tiny models, for the table in tests/models/reference_test.cpp.

    PYTHONPATH=<torchvision> .venv/bin/python tests/models/reference_losses.py

Needs torchvision and transformers; neither the build nor the tests do. Parameters and inputs are filled by formula, the
same as in the test, so no weights are exchanged. If the losses agree, structure, parameter order and shapes are the
same. The U-Net and the LSTM have no package; bench/gpu/measure_gpu.py has them after their repositories.
"""
import pathlib
import sys

import torch
import torch.nn.functional as F
from formula_filled import fill, ids, noise
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
from measure_gpu import LstmLanguageModel, Unet

VOCAB, CLASSES = 101, 10


def report(name, module, loss):
    loss.backward()
    gradients = [p.grad.flatten() for p in module.parameters()]
    first, total = gradients[0].norm().item(), torch.cat(gradients).norm().item()
    print(f'{{"{name}", {loss.item():.6g}, {first:.6g}, {total:.6g}}},')


def resnet(name, block):
    from torchvision.models.resnet import ResNet

    class Narrow(ResNet):  # torchvision has no option for the width of the first stage
        def _make_layer(self, block, planes, *args, **kwargs):
            self.inplanes = 8 if planes == 64 else self.inplanes
            return super()._make_layer(block, planes // 8, *args, **kwargs)

    model = Narrow(block, [2, 1, 1, 1], num_classes=CLASSES)
    model.conv1, model.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
    model.fc = nn.Linear(64 * block.expansion, CLASSES)
    image(name, fill(model), 64, ids([2], CLASSES))


def image(name, model, size, labels):
    report(name, model, F.cross_entropy(model(noise([2, 3, size, size], 0)), labels))


def language_model(name, model):
    tokens = ids([2, 16], VOCAB)
    report(name, model, fill(model)(input_ids=tokens, labels=tokens).loss)


def main():
    from torchvision.models import VisionTransformer
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from transformers import (
        BertConfig,
        BertModel,
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
    )

    resnet("resnet18", BasicBlock)
    resnet("resnet50", Bottleneck)
    image("vit_b_16", fill(VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=CLASSES)), 32, ids([2], CLASSES))

    bert = fill(BertModel(BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0)).train())
    report("bert_base", bert, F.cross_entropy(bert(input_ids=ids([2, 16], VOCAB)).pooler_output, ids([2], 32)))

    language_model("gpt2", GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)).train())
    language_model("llama3_8b", LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0})).train())

    language_model("deepseek_v3", DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=3,
        first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, n_group=4, topk_group=2, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})).train())

    image("unet", fill(Unet(4)), 32, ids([2, 32, 32], 2))

    lstm = fill(LstmLanguageModel(VOCAB, 16, 24, dropout=0.0))
    state = torch.zeros(2, 2, 24)
    report("lstm_lm", lstm, F.nll_loss(lstm(ids([16, 2], VOCAB), state, state)[0], ids([32], VOCAB)))


main()
