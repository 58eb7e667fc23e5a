#!/usr/bin/env python3
"""Measures peak memory and time of steps on a GPU, for bench/gpu/accuracy_gpu.py.

Only requires torch 2.0 or newer: copy this file to a machine with an NVIDIA or AMD GPU.

    python measure_gpu.py -o measurements.json
    python measure_gpu.py -o measurements.json --only resnet50 gpt2 --modes sgd --dtypes bf16
    python measure_gpu.py -o dry.json --device cpu --tiny            # dry run without memory

Then, in a build of shadowgraph: make accuracy-gpu MEASUREMENTS=measurements.json

The models are ports of models/*.cpp to plain PyTorch with the same modules, parameter order and calls.
tests/python/check_accuracy_gpu.py compares losses and gradients with the C++ models, tests/package/test_plain_models.py
FLOPs and peaks. The optimizers make the same calls as those of libtorch; torch.optim would use foreach kernels on a
GPU, which need more memory.

Each configuration runs in a separate process: a first step, two warm-up steps, then --steps steps. A row has the peak
bytes allocated and reserved by the caching allocator (torch.cuda.memory_stats), the time of a step between CUDA events,
and the time until the host has launched it. Rows are written immediately, so that an interrupted run can continue.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

FORMAT = "shadowgraph measurements on a GPU"
VERSION = 1
# (name, batch, sequence): defaults of `shadowgraph list models`, without the larger llamas, which do not fit on a GPU
CONFIGURATIONS = [
    ("resnet18", 32, 0), ("resnet50", 32, 0), ("vit_b_16", 32, 0), ("bert_base", 8, 512), ("gpt2", 8, 512),
    ("gpt2_medium", 8, 512), ("gpt2_large", 8, 512), ("gpt2_xl", 8, 512), ("llama3_8b", 1, 2048), ("unet", 4, 0),
    ("lstm_lm", 20, 35),
]
MODES = ("infer", "sgd", "adamw")
DTYPES = ("f32", "bf16")
WARM_UP = 2
MEMORY = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit("measure_gpu.py: torch is not installed; install PyTorch 2.0 or newer (https://pytorch.org)")


# ---- Models
# Each has batch(size, sequence, dtype), which returns inputs and targets, and loss(outputs, targets). Tensor lifetimes
# are the same as in C++: values are locals of separate methods, and containers are iterated instead of called where C++
# moves their input.

def class_loss(logits, labels):
    return F.cross_entropy(logits.to(torch.float32), labels)


def next_token_loss(logits, labels):
    following = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.to(torch.float32).view(-1, logits.size(-1)), following.contiguous().view(-1))


def images(size, pixels, dtype):
    return torch.randn(size, 3, pixels, pixels, dtype=dtype)


class Linear(nn.Linear):
    """Like libtorch's C++ module, which adds the bias in a separate call unless the input is a matrix."""

    def forward(self, x):
        if x.dim() == 2 and self.bias is not None:
            return torch.addmm(self.bias, x, self.weight.t())
        y = torch.matmul(x, self.weight.t())
        if self.bias is not None:
            y += self.bias
        return y


class ImageClassifier(nn.Module):
    def __init__(self, pixels, classes):
        super().__init__()
        self.pixels, self.classes = pixels, classes

    def batch(self, size, sequence, dtype):
        return [images(size, self.pixels, dtype)], torch.randint(self.classes, (size,))

    loss = staticmethod(class_loss)


class CausalLanguageModel(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab

    def batch(self, size, sequence, dtype):
        tokens = torch.randint(self.vocab, (size, sequence))
        return [tokens], tokens.clone()

    loss = staticmethod(next_token_loss)


def convolution(c_in, c_out, kernel, stride=1):
    return nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    def shortcut(self, c_in, c_out, stride):
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(convolution(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))

    def join(self, x, given):
        x += given if self.downsample is None else self.downsample(given)
        return F.relu_(x)


class BasicBlock(ResidualBlock):
    expansion = 1

    def __init__(self, c_in, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(c_in, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = convolution(channels, channels, 3), nn.BatchNorm2d(channels)
        self.shortcut(c_in, channels, stride)

    def forward(self, given):
        x = F.relu_(self.bn1(self.conv1(given)))
        return self.join(self.bn2(self.conv2(x)), given)


class Bottleneck(ResidualBlock):
    expansion = 4

    def __init__(self, c_in, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(c_in, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = convolution(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = convolution(channels, channels * 4, 1), nn.BatchNorm2d(channels * 4)
        self.shortcut(c_in, channels * 4, stride)

    def forward(self, given):
        x = F.relu_(self.bn1(self.conv1(given)))
        x = F.relu_(self.bn2(self.conv2(x)))
        return self.join(self.bn3(self.conv3(x)), given)


class ResNet(ImageClassifier):
    def __init__(self, block=BasicBlock, blocks=(2, 2, 2, 2), width=64, classes=1000, pixels=224, dropout=None):
        super().__init__(pixels, classes)
        self.conv1, self.bn1 = convolution(3, width, 7, 2), nn.BatchNorm2d(width)
        c_in = width
        for i, count in enumerate(blocks):
            channels = width << i
            stage = nn.Sequential()
            for j in range(count):
                stage.append(block(c_in, channels, 2 if i and not j else 1))
                c_in = channels * block.expansion
            setattr(self, f"layer{i + 1}", stage)
        self.fc = Linear(c_in, classes)

    def forward(self, x):
        x = F.relu_(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class PackedSelfAttention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * hidden))
        self.out_proj = Linear(hidden, hidden)

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)

    def forward(self, x):
        size, tokens, hidden = x.shape
        q, k, v = (F.linear(x, self.in_proj_weight, self.in_proj_bias)
                   .view(size, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4).unbind(0))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).reshape(size, tokens, hidden))


class VitEncoderBlock(nn.Module):
    def __init__(self, hidden, heads, mlp, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=1e-6)
        self.self_attention = PackedSelfAttention(hidden, heads, dropout)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = nn.Sequential(Linear(hidden, mlp), nn.GELU(), nn.Dropout(dropout), Linear(mlp, hidden),
                                 nn.Dropout(dropout))

    def forward(self, given):
        x = given + self.dropout(self.self_attention(self.ln_1(given)))
        y = self.ln_2(x)
        for module in self.mlp:
            y = module(y)
        return x + y


class VitEncoder(nn.Module):
    def __init__(self, tokens, hidden, layers, heads, mlp, dropout):
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, hidden))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(VitEncoderBlock(hidden, heads, mlp, dropout) for _ in range(layers)))
        self.ln = nn.LayerNorm(hidden, eps=1e-6)

    def reset_parameters(self):
        nn.init.normal_(self.pos_embedding, std=0.02)

    def forward(self, x):
        x = self.dropout(x + self.pos_embedding)
        for layer in self.layers:
            x = layer(x)
        return self.ln(x)


class VisionTransformer(ImageClassifier):
    def __init__(self, pixels=224, patch=16, layers=12, heads=12, hidden=768, mlp=3072, classes=1000, dropout=None):
        super().__init__(pixels, classes)
        self.class_token = nn.Parameter(torch.empty(1, 1, hidden))
        self.conv_proj = nn.Conv2d(3, hidden, patch, patch)
        self.encoder = VitEncoder((pixels // patch) ** 2 + 1, hidden, layers, heads, mlp, dropout or 0.0)
        self.heads = nn.Sequential()
        self.heads.add_module("head", Linear(hidden, classes))

    def reset_parameters(self):
        nn.init.zeros_(self.class_token)

    def forward(self, image):
        patches = self.conv_proj(image).flatten(2).permute(0, 2, 1)
        tokens = torch.cat([self.class_token.expand(image.size(0), -1, -1), patches], 1)
        return self.heads(self.encoder(tokens).select(1, 0))


def split_heads(x, heads):
    return x.view(x.size(0), x.size(1), heads, x.size(2) // heads).transpose(1, 2)


class BertEmbeddings(nn.Module):
    def __init__(self, vocab, hidden, positions, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.token_type_embeddings = nn.Embedding(2, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position_ids", torch.arange(positions).unsqueeze(0))
        self.register_buffer("token_type_ids", torch.zeros(1, positions, dtype=torch.long))

    def reset_parameters(self):
        self.position_ids.copy_(torch.arange(self.position_ids.size(1)).unsqueeze(0))
        self.token_type_ids.zero_()

    def forward(self, tokens):
        length = tokens.size(1)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(self.token_type_ids[:, :length].expand_as(tokens))
        x = x + self.position_embeddings(self.position_ids[:, :length])
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (Linear(hidden, hidden) for _ in range(3))

    def forward(self, x):
        q, k, v = (split_heads(projection(x), self.heads) for projection in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return y.transpose(1, 2).reshape(x.shape)


class BertResidualOutput(nn.Module):
    def __init__(self, c_in, hidden, dropout):
        super().__init__()
        self.dense = Linear(c_in, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, residual):
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class BertLayer(nn.Module):
    def __init__(self, hidden, heads, intermediate, dropout):
        super().__init__()
        self.attention = BertSelfAttention(hidden, heads, dropout)
        self.attention_output = BertResidualOutput(hidden, hidden, dropout)
        self.intermediate = Linear(hidden, intermediate)
        self.output = BertResidualOutput(intermediate, hidden, dropout)

    def forward(self, x):
        x = self.attention_output(self.attention(x), x)
        return self.output(F.gelu(self.intermediate(x)), x)


class Bert(nn.Module):
    def __init__(self, layers=12, heads=12, hidden=768, intermediate=3072, vocab=30522, positions=512, dropout=None):
        super().__init__()
        dropout = 0.1 if dropout is None else dropout
        self.vocab, self.hidden = vocab, hidden
        self.embeddings = BertEmbeddings(vocab, hidden, positions, dropout)
        self.layers = nn.ModuleList(BertLayer(hidden, heads, intermediate, dropout) for _ in range(layers))
        self.pooler = Linear(hidden, hidden)

    def batch(self, size, sequence, dtype):
        return [torch.randint(self.vocab, (size, sequence))], torch.randint(self.hidden, (size,))

    def forward(self, tokens):
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x.select(1, 0)))

    def loss(self, outputs, labels):
        return class_loss(outputs[1], labels)


class Conv1D(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(c_in, c_out)), nn.Parameter(torch.empty(c_out))

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.weight.size(1))


class Gpt2Attention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn, self.c_proj = Conv1D(hidden, 3 * hidden), Conv1D(hidden, hidden)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in self.c_attn(x).split(x.size(2), dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(x.shape)))


class Gpt2Mlp(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(hidden, 4 * hidden), Conv1D(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.c_fc(x)
        return self.dropout(self.c_proj(F.gelu(x, approximate="tanh")))


class Gpt2Block(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden)
        self.attn = Gpt2Attention(hidden, heads, dropout)
        self.ln_2 = nn.LayerNorm(hidden)
        self.mlp = Gpt2Mlp(hidden, dropout)

    def forward(self, given):
        x = self.attn(self.ln_1(given)) + given
        return x + self.mlp(self.ln_2(x))


class Gpt2(CausalLanguageModel):
    def __init__(self, layers=12, heads=12, hidden=768, vocab=50257, positions=1024, dropout=None):
        super().__init__(vocab)
        dropout = 0.1 if dropout is None else dropout
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Gpt2Block(hidden, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def hidden(self, tokens):
        positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def forward(self, tokens):
        return F.linear(self.hidden(tokens), self.wte.weight)


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(hidden)), eps

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + self.eps)).to(x.dtype)


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, size, theta=500000.0):
        super().__init__()
        self.size, self.theta = size, theta
        self.register_buffer("inv_freq", torch.empty(size // 2))

    def reset_parameters(self):
        exponent = torch.arange(0, self.size, 2, dtype=torch.float32) / self.size
        self.inv_freq.copy_(torch.pow(self.theta, exponent).reciprocal())

    def forward(self, x):
        positions = torch.arange(x.size(1), dtype=torch.float32, device=x.device)
        half = torch.matmul(positions.unsqueeze(1), self.inv_freq.unsqueeze(0))
        angles = torch.cat([half, half], -1).unsqueeze(0).unsqueeze(0)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x, rotation):
    half = x.size(-1) // 2
    return x * rotation[0] + torch.cat([-x[..., half:], x[..., :half]], -1) * rotation[1]


def repeat_kv(x, times):
    if times == 1:
        return x
    size, heads, length, head = x.shape
    return x.unsqueeze(2).expand(size, heads, times, length, head).reshape(size, heads * times, length, head)


class LlamaAttention(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        kv_size = kv_heads * (hidden // heads)
        self.q_proj = Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = Linear(hidden, kv_size, bias=False), Linear(hidden, kv_size, bias=False)
        self.o_proj = Linear(hidden, hidden, bias=False)

    def forward(self, x, rotation):
        q = rotate(split_heads(self.q_proj(x), self.heads), rotation)
        k = rotate(split_heads(self.k_proj(x), self.kv_heads), rotation)
        v = split_heads(self.v_proj(x), self.kv_heads)
        times = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(q, repeat_kv(k, times), repeat_kv(v, times), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))


class LlamaMlp(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate, bias=False)
        self.up_proj = Linear(hidden, intermediate, bias=False)
        self.down_proj = Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, intermediate):
        super().__init__()
        self.self_attn = LlamaAttention(hidden, heads, kv_heads)
        self.mlp = LlamaMlp(hidden, intermediate)
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)

    def forward(self, given, rotation):
        x = given + self.self_attn(self.input_layernorm(given), rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(CausalLanguageModel):
    def __init__(self, layers=32, heads=32, kv_heads=8, hidden=4096, intermediate=14336, vocab=128256, dropout=None):
        super().__init__(vocab)
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaDecoderLayer(hidden, heads, kv_heads, intermediate) for _ in range(layers))
        self.norm = LlamaRMSNorm(hidden)
        self.rotary_emb = LlamaRotaryEmbedding(hidden // heads)
        self.lm_head = Linear(hidden, vocab, bias=False)

    def hidden(self, tokens):
        x = self.embed_tokens(tokens)
        rotation = self.rotary_emb(x)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)

    def forward(self, tokens):
        return self.lm_head(self.hidden(tokens))


def rotate_pairs(x, rotation):
    halves = x.view(*x.shape[:-1], -1, 2).transpose(4, 3).reshape(x.shape)
    return rotate(halves, rotation)


class DeepseekAttention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes, hidden, heads = sizes, sizes["hidden"], sizes["heads"]
        self.head = [sizes["plain"], sizes["rotated"]]
        self.q_a_proj = Linear(hidden, sizes["queries"], bias=False)
        self.q_a_layernorm = LlamaRMSNorm(sizes["queries"], 1e-6)
        self.q_b_proj = Linear(sizes["queries"], heads * sum(self.head), bias=False)
        self.kv_a_proj_with_mqa = Linear(hidden, sizes["values"] + sizes["rotated"], bias=False)
        self.kv_a_layernorm = LlamaRMSNorm(sizes["values"], 1e-6)
        self.kv_b_proj = Linear(sizes["values"], heads * (sizes["plain"] + sizes["value"]), bias=False)
        self.o_proj = Linear(heads * sizes["value"], hidden, bias=False)

    def forward(self, x, rotation):
        sizes, heads = self.sizes, self.sizes["heads"]
        queries = split_heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))), heads)
        plain, rotated = queries.split(self.head, -1)
        latent, key = self.kv_a_proj_with_mqa(x).split([sizes["values"], sizes["rotated"]], -1)
        both = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), heads)
        keys, values = both.split([sizes["plain"], sizes["value"]], -1)
        turned = rotate_pairs(key.view(x.size(0), 1, x.size(1), -1), rotation)
        q = torch.cat([plain, rotate_pairs(rotated.contiguous(), rotation)], -1)
        k = torch.cat([keys, turned.expand(x.size(0), heads, x.size(1), -1)], -1)
        y = F.scaled_dot_product_attention(q, k, values, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(x.size(0), x.size(1), -1))


class DeepseekRouter(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter(torch.empty(sizes["experts"], sizes["hidden"]))
        self.register_buffer("e_score_correction_bias", torch.empty(sizes["experts"]))

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.e_score_correction_bias)

    def forward(self, x):
        sizes = self.sizes
        scores = F.linear(x.float(), self.weight.float()).sigmoid()
        choice = scores.detach() + self.e_score_correction_bias.unsqueeze(0)
        of_groups = choice.view(len(x), sizes["groups"], -1).topk(2)[0].sum(-1)
        groups = of_groups.topk(sizes["groups_per_token"], -1, sorted=False)[1]
        mask = torch.zeros_like(of_groups).scatter_(1, groups, 1)
        each = mask.unsqueeze(-1).expand(len(x), sizes["groups"], sizes["experts"] // sizes["groups"])
        choice = choice.masked_fill(each.reshape(len(x), -1).bool().logical_not(), 0.0)
        chosen = choice.topk(sizes["experts_per_token"], -1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5


class DeepseekExperts(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        experts, hidden, inner = sizes["experts"], sizes["hidden"], sizes["expert_intermediate"]
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))

    def reset_parameters(self):
        nn.init.normal_(self.gate_up_proj, std=0.02)
        nn.init.normal_(self.down_proj, std=0.02)

    def forward(self, x, chosen, weights):
        experts, times = len(self.down_proj), chosen.size(1)
        expert = chosen.reshape(-1)
        order = expert.argsort()
        back = order.argsort()
        counts = torch.histc(expert.index_select(0, order).float(), experts, 0, experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        rows = x.index_select(0, order.floor_divide(times))
        gate, up = torch._grouped_mm(rows, self.gate_up_proj.transpose(-2, -1), ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down_proj.transpose(-2, -1), ends)
        weight = weights.to(x.dtype).reshape(-1).index_select(0, order).unsqueeze(-1)
        return (made * weight).index_select(0, back).view(len(x), times, -1).sum(1)


class DeepseekMoe(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.experts, self.gate = DeepseekExperts(sizes), DeepseekRouter(sizes)
        self.shared_experts = LlamaMlp(sizes["hidden"], sizes["expert_intermediate"])

    def forward(self, x):
        tokens = x.view(-1, x.size(-1))
        return self.experts(tokens, *self.gate(tokens)).view(x.shape) + self.shared_experts(x)


class DeepseekLayer(nn.Module):
    def __init__(self, sizes, dense):
        super().__init__()
        self.self_attn = DeepseekAttention(sizes)
        self.mlp = LlamaMlp(sizes["hidden"], sizes["intermediate"]) if dense else DeepseekMoe(sizes)
        self.input_layernorm = LlamaRMSNorm(sizes["hidden"], 1e-6)
        self.post_attention_layernorm = LlamaRMSNorm(sizes["hidden"], 1e-6)

    def forward(self, given, rotation):
        x = given + self.self_attn(self.input_layernorm(given), rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


DEEPSEEK_V3 = dict(layers=61, dense_layers=3, heads=128, hidden=7168, intermediate=18432, expert_intermediate=2048,
                   experts=256, experts_per_token=8, groups=8, groups_per_token=4, queries=1536, values=512, plain=128,
                   rotated=64, value=128, vocab=129280)  # fmt: skip


class Deepseek(CausalLanguageModel):
    def __init__(self, dropout=None, **sizes):
        sizes = DEEPSEEK_V3 | sizes
        super().__init__(sizes["vocab"])
        self.embed_tokens = nn.Embedding(sizes["vocab"], sizes["hidden"])
        self.layers = nn.ModuleList(DeepseekLayer(sizes, i < sizes["dense_layers"]) for i in range(sizes["layers"]))
        self.norm = LlamaRMSNorm(sizes["hidden"], 1e-6)
        self.rotary_emb = LlamaRotaryEmbedding(sizes["rotated"], 10000.0)
        self.lm_head = Linear(sizes["hidden"], sizes["vocab"], bias=False)

    hidden, forward = Llama.hidden, Llama.forward


class DoubleConv(nn.Sequential):
    def __init__(self, c_in, c_out):
        super().__init__(convolution(c_in, c_out, 3), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
                         convolution(c_out, c_out, 3), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class Up(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.up = nn.ConvTranspose2d(c_in, c_in // 2, 2, stride=2)
        self.conv = DoubleConv(c_in, c_out)

    def forward(self, x, skip):
        large = self.up(x)
        rows, columns = skip.size(2) - large.size(2), skip.size(3) - large.size(3)
        padded = F.pad(large, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return self.conv(torch.cat([skip, padded], 1))


class Unet(nn.Module):
    def __init__(self, width=64, pixels=256, dropout=None):
        super().__init__()
        self.pixels = pixels
        self.inc = DoubleConv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << i, width << i + 1)) for i in range(4))
        self.up = nn.ModuleList(Up(width << i + 1, width << i) for i in (3, 2, 1, 0))
        self.outc = nn.Conv2d(width, 2, 1)

    def batch(self, size, sequence, dtype):
        return [images(size, self.pixels, dtype)], torch.randint(2, (size, self.pixels, self.pixels))

    def forward(self, image):
        x1 = self.inc(image)
        x2 = self.down[0](x1)
        x3 = self.down[1](x2)
        x4 = self.down[2](x3)
        x = self.down[3](x4)
        x = self.up[0](x, x4)
        x = self.up[1](x, x3)
        x = self.up[2](x, x2)
        x = self.up[3](x, x1)
        return self.outc(x)

    loss = staticmethod(class_loss)


class LstmLanguageModel(nn.Module):
    def __init__(self, vocab=33278, embedding=200, hidden=200, layers=2, dropout=None):
        super().__init__()
        dropout = 0.2 if dropout is None else dropout
        self.vocab, self.hidden, self.layers = vocab, hidden, layers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, dropout=dropout)
        self.decoder = Linear(hidden, vocab)

    def batch(self, size, sequence, dtype):
        state = [torch.zeros(self.layers, size, self.hidden, dtype=dtype) for _ in range(2)]
        return [torch.randint(self.vocab, (sequence, size)), *state], torch.randint(self.vocab, (sequence * size,))

    def forward(self, tokens, hidden, cell):
        output, state = self.rnn(self.drop(self.encoder(tokens)), (hidden, cell))
        decoded = self.decoder(self.drop(output))
        return F.log_softmax(decoded.view(-1, self.vocab), 1), *state

    def loss(self, outputs, labels):
        return F.nll_loss(outputs[0].to(torch.float32), labels)


TINY_GPT2 = dict(layers=2, heads=2, hidden=32, vocab=101, positions=32)
TINY_LLAMA = dict(layers=2, heads=4, kv_heads=2, hidden=32, intermediate=64, vocab=101)
TINY_DEEPSEEK = dict(layers=3, dense_layers=1, heads=4, hidden=32, intermediate=64, expert_intermediate=16, experts=8,
                     experts_per_token=2, groups=4, groups_per_token=2, queries=24, values=16, plain=16, rotated=8,
                     value=16, vocab=101)  # fmt: skip
TINY_RESNET = dict(blocks=(2, 1, 1, 1), width=8, classes=10, pixels=64)
# {name: (class, options of the full model, options of the tiny model)}
MODELS = {
    "resnet18": (ResNet, {}, TINY_RESNET),
    "resnet50": (ResNet, dict(block=Bottleneck, blocks=(3, 4, 6, 3)), dict(TINY_RESNET, block=Bottleneck)),
    "vit_b_16": (VisionTransformer, {}, dict(pixels=32, patch=8, layers=2, heads=2, hidden=32, mlp=64, classes=10)),
    "bert_base": (Bert, {}, dict(layers=2, heads=2, hidden=32, intermediate=64, vocab=101, positions=32)),
    "gpt2": (Gpt2, {}, TINY_GPT2),
    "gpt2_medium": (Gpt2, dict(layers=24, heads=16, hidden=1024), TINY_GPT2),
    "gpt2_large": (Gpt2, dict(layers=36, heads=20, hidden=1280), TINY_GPT2),
    "gpt2_xl": (Gpt2, dict(layers=48, heads=25, hidden=1600), TINY_GPT2),
    "llama3_8b": (Llama, {}, TINY_LLAMA),
    "llama3_70b": (Llama, dict(layers=80, heads=64, hidden=8192, intermediate=28672), TINY_LLAMA),
    "llama3_405b": (Llama, dict(layers=126, heads=128, hidden=16384, intermediate=53248), TINY_LLAMA),
    "deepseek_v3": (Deepseek, {}, TINY_DEEPSEEK),
    "unet": (Unet, {}, dict(width=4, pixels=32)),
    "lstm_lm": (LstmLanguageModel, {}, dict(vocab=101, embedding=16, hidden=24)),
}
TINY_BATCH, TINY_SEQUENCE = 2, 16


def dtype_of(name):
    return {"f32": torch.float32, "bf16": torch.bfloat16}[name]


def convert(model, dtype):
    """Like models/registry.cpp: buffers of modules without parameters (rotary frequencies) stay in float32."""
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        for tensor in own + list(module.buffers(recurse=False)) if own else []:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
    return model


def build(name, dtype=torch.float32, device="cpu", tiny=False, dropout=None):
    """Returns the model, created directly on `device`."""
    kind, full, small = MODELS[name]
    with torch.device("meta"):
        model = kind(**(small if tiny else full), dropout=dropout)
    convert(model, dtype).to_empty(device=device)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    return model


# ---- Optimizers
# The calls of torch/csrc/api/src/optim/{sgd,adamw}.cpp with the options of `shadowgraph profile`. Each call of update()
# handles one parameter, so that its temporaries are freed before the next.

class Sgd:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter.add_(parameter.grad, alpha=-1e-2)


class AdamW:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.state = {}
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for parameter in self.parameters:
            self.update(parameter, parameter.grad)

    def update(self, parameter, gradient, rate=1e-3, betas=(0.9, 0.999), epsilon=1e-8, decay=1e-2):
        parameter.mul_(1 - rate * decay)
        if parameter not in self.state:
            self.state[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        average, square = self.state[parameter]
        average.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
        square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        bias = [1 - beta ** self.steps for beta in betas]
        denominator = (square.sqrt() / math.sqrt(bias[1])).add_(epsilon)
        parameter.addcdiv_(average, denominator, value=-rate / bias[0])


class Meter:
    """Measures memory and time of steps on a CUDA or ROCm device; on a CPU, only time."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def start_of_peaks(self):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peaks(self):
        """Returns {kind: peak bytes since start_of_peaks()} for the kinds that this version of torch counts."""
        if not self.cuda:
            return {}
        stats = torch.cuda.memory_stats(self.device)
        return {kind: stats[f"{kind}.all.peak"] for kind in MEMORY if f"{kind}.all.peak" in stats}

    def timed(self, step):
        """Returns (device time, host time) of the step in seconds. Host time ends when all kernels are launched."""
        if self.cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
        started = time.perf_counter()
        step()
        issued = time.perf_counter() - started
        if not self.cuda:
            return issued, issued
        end.record()
        self.synchronize()
        return begin.elapsed_time(end) / 1000, issued


def step_of(model, inputs, targets, mode):
    """Returns a function that runs a step. Gradients and loss are freed at the start of the next training step."""
    if mode == "infer":
        def step():
            with torch.no_grad():
                model(*inputs)
        return step
    parameters = list(model.parameters())
    optimizer = {"sgd": Sgd, "adamw": AdamW}[mode](parameters)
    kept = {}

    def train():
        kept.clear()
        for parameter in parameters:
            parameter.grad = None
        outputs = model(*inputs)
        loss = model.loss(outputs, targets)
        del outputs
        loss.backward()
        optimizer.step()
        kept["loss"] = loss
    return train


def measure(name, size, sequence, mode, dtype, device, tiny, steps):
    torch.manual_seed(0)
    meter = Meter(device)
    model = build(name, dtype_of(dtype), device, tiny).train(mode != "infer")
    inputs, targets = model.batch(size, sequence, dtype_of(dtype))
    inputs, targets = [tensor.to(device) for tensor in inputs], targets.to(device)
    row = {}
    if meter.cuda:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # cached by the initialization
        row["bytes_before"] = torch.cuda.memory_allocated(device)
    step = step_of(model, inputs, targets, mode)
    meter.start_of_peaks()
    row["first_seconds"], _ = meter.timed(step)
    row["first"] = meter.peaks()
    meter.start_of_peaks()
    for _ in range(WARM_UP):
        meter.timed(step)
    warm = meter.peaks()
    meter.start_of_peaks()
    times = [meter.timed(step) for _ in range(steps)]
    row["steady"] = meter.peaks()
    row["run"] = {kind: max(part[kind] for part in (row["first"], warm, row["steady"])) for kind in row["first"]}
    row["step_seconds"] = statistics.median(seconds for seconds, _ in times)
    row["host_seconds"] = statistics.median(issued for _, issued in times)
    row["all_step_seconds"] = [seconds for seconds, _ in times]
    if meter.cuda:
        free, total = torch.cuda.mem_get_info(device)
        row["device_used_bytes"] = total - free
    return row


def driver_version(rocm):
    if rocm:
        with contextlib.suppress(OSError):
            return pathlib.Path("/sys/module/amdgpu/version").read_text().strip()
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], text=True,
                              capture_output=True, timeout=60, check=True).stdout.split("\n")[0].strip()
    return None


def processor():
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine(device):
    facts = {"torch": torch.__version__, "python": platform.python_version(), "host": processor(),
             "allocator_settings": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
             or "", "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")}
    if torch.device(device).type != "cuda":
        return dict(facts, device=processor(), dry_run=True)
    properties = torch.cuda.get_device_properties(device)
    rocm = getattr(torch.version, "hip", None)
    return dict(
        facts, device=properties.name, dry_run=False, memory_bytes=properties.total_memory, driver=driver_version(rocm),
        capability=None if rocm else [properties.major, properties.minor], cuda=torch.version.cuda, rocm=rocm,
        cudnn=torch.backends.cudnn.version(), cudnn_benchmark=torch.backends.cudnn.benchmark,
        tf32={"convolutions": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32},
        allocator=torch.cuda.get_allocator_backend() if hasattr(torch.cuda, "get_allocator_backend") else "native")


def check_device(device):
    try:
        kind = torch.device(device)
    except RuntimeError:
        sys.exit(f"measure_gpu.py: invalid device '{device}'; expected cuda, cuda:1 or, for a dry run, cpu")
    if kind.type == "cpu":
        return
    if kind.type != "cuda":
        sys.exit(f"measure_gpu.py: unsupported device '{kind.type}'; expected a CUDA or ROCm device")
    if not torch.cuda.is_available():
        built = "without CUDA or ROCm" if not (torch.version.cuda or getattr(torch.version, "hip", None)) else \
            "for a GPU, but none is visible"
        sys.exit(f"measure_gpu.py: there is no GPU: torch {torch.__version__} is built {built}; "
                 "for a dry run, pass --device cpu --tiny")
    if kind.index is not None and kind.index >= torch.cuda.device_count():
        sys.exit(f"measure_gpu.py: {device} does not exist; torch has {torch.cuda.device_count()} GPUs")


def write(path, document):
    partial = path.with_name(path.name + ".new")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)


def key_of(row):
    return row["model"], row["batch"], row["seq"], row["mode"], row["dtype"]


def earlier_rows(path, facts, tiny):
    """Returns the rows of an interrupted run on this machine with the same settings."""
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text())
        same = document["format"] == FORMAT and document["version"] == VERSION
        if same and document["machine"] == facts and document["tiny"] == tiny:
            return document["rows"]
    except (ValueError, KeyError, TypeError):
        same = False
    what = "measurements of another machine or other settings" if same else "no measurements"
    sys.exit(f"measure_gpu.py: {path} exists and contains {what}; choose another file with -o")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("measurements.json"))
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1; cpu for a dry run")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--steps", type=int, default=10, help="number of steps for the median time (default: 10)")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a dry run")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)  # child process: one row as JSON on stdout
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    if options.output.parent != pathlib.Path() and not options.output.parent.is_dir():
        parser.error(f"folder {options.output.parent} does not exist")
    check_device(options.device)
    if options.one:
        name, size, sequence, mode, dtype = options.one
        print(json.dumps(measure(name, int(size), int(sequence), mode, dtype, options.device, options.tiny,
                                 options.steps)))
        return

    facts = machine(options.device)
    rows = earlier_rows(options.output, facts, options.tiny)
    done = {key_of(row) for row in rows}
    failed = 0
    for (name, size, sequence), mode, dtype in itertools.product(CONFIGURATIONS, options.modes, options.dtypes):
        if options.only and name not in options.only:
            continue
        if options.tiny:
            size, sequence = TINY_BATCH, TINY_SEQUENCE if sequence else 0
        row = {"model": name, "batch": size, "seq": sequence, "mode": mode, "dtype": dtype}
        if key_of(row) in done:
            continue
        print(*key_of(row), end=" ", flush=True)
        command = [sys.executable, __file__, "--one", name, str(size), str(sequence), mode, dtype, "--device",
                   options.device, "--steps", str(options.steps)] + (["--tiny"] if options.tiny else [])
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode == 0:
            row.update(json.loads(run.stdout.splitlines()[-1]))
            print(f"{row['step_seconds'] * 1000:.2f} ms", *(f"{kind} {count}" for kind, count in row["run"].items()))
        elif "OutOfMemoryError" in run.stderr or "out of memory" in run.stderr:
            row["out_of_memory"] = True
            print("out of memory")
        else:
            failed += 1
            print(f"failed:\n{run.stderr[-2000:]}", file=sys.stderr)
            continue
        rows.append(row)
        write(options.output, {"format": FORMAT, "version": VERSION, "tiny": options.tiny, "machine": facts,
                               "rows": rows})
    print(f"{len(rows)} rows in {options.output}" + (f", {failed} failed" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
