"""OPT and GPT-Neo as in Sailor with Megatron-DeepSpeed: float32, pipeline stages, tensor parallelism.

Without attention dropout and fused float32 kernels. Memory of layers is that of Megatron-LM's layers.
"""

import dataclasses

import torch
import torch.nn.functional as F
from megatron_arguments import of_row
from megatron_attention import DotProducts, SelfAttention
from megatron_layers import ColumnLinear, ColumnProduct, Norm, Rank, RowLinear, parameter
from megatron_models import Embedding, VocabularyLoss
from torch import nn

SEQUENCE, WORDS = 2048, 50257
SIZES = {"OPT-350": (24, 1024, 16), "GPT-NEO": (32, 2560, 20)}  # layers, hidden size, heads


def rank_of(model, tensor, micro_batch, data=1):
    """Arguments of the rank in the format of Megatron-LM, as used by Sailor's layers."""
    layers, hidden, heads = SIZES[model]
    given = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": SEQUENCE,
             "max-position-embeddings": SEQUENCE, "micro-batch-size": micro_batch, "global-batch-size": micro_batch,
             "tensor-model-parallel-size": tensor, "transformer-impl": "local", "vocab-size": WORDS,
             "attention-dropout": 0.0, "hidden-dropout": 0.1 if model == "GPT-NEO" else 0.0,
             "no-gradient-accumulation-fusion": "true"}  # fmt: skip
    arguments = of_row({"case": "gpt/sailor", "hardware": "gh200", "given": given})
    return Rank(dataclasses.replace(arguments, data=data))


class _NormOfResult(torch.autograd.Function):
    """Layer norm of Apex that saves its result, which the next matrix product saves anyway, instead of its input."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        result, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
        ctx.save_for_backward(result, mean, inverse, weight, bias)
        return result

    @staticmethod
    def backward(ctx, gradient):
        result, mean, inverse, weight, bias = ctx.saved_tensors
        backward = torch.ops.aten.native_layer_norm_backward
        return backward(gradient, result, result.shape[-1:], mean, inverse, weight, bias, [True, True, True])


class ResultNorm(Norm):
    def forward(self, x):
        return _NormOfResult.apply(x, self.weight, self.bias)


class Layer(nn.Module):
    """Layer of OPT: no dropout, ReLU."""

    norm = ResultNorm

    def __init__(self, rank):
        super().__init__()
        arguments = rank.arguments
        self.p = arguments.dropout[0]
        self.norm1, self.norm2 = self.norm(rank), self.norm(rank)
        self.attention = SelfAttention(rank, DotProducts(rank, True, 1))
        self.attention.core.local = False  # no buffer shared by layers
        self.up = ColumnLinear(rank, arguments.hidden, arguments.ffn)
        self.down = RowLinear(rank, arguments.ffn, arguments.hidden)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)[0]
        return x + self.down(F.relu(self.up(self.norm2(x))))


class NeoLayer(Layer):
    """Layer of GPT-Neo: GELU, dropout after attention and MLP. In Sailor, attention only returns its first row."""

    norm = Norm

    def __init__(self, rank):
        super().__init__(rank)
        whole = torch.empty(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda")
        self.register_buffer("bias", whole)  # an unused mask

    def dropped(self, x):
        return F.dropout(x, self.p, training=True)

    def forward(self, x, mask):
        x = self.dropped(self.attention(self.norm1(x), mask)[0])[0] + x
        return x + self.dropped(self.down(F.gelu(self.up(self.norm2(x)))))


class Stage(nn.Module):
    """Layers first to last of the model, counting the embedding as the first and the head as the last."""

    def __init__(self, model, rank, first, last):
        super().__init__()
        neo = model == "GPT-NEO"
        count = SIZES[model][0]
        self.rank = rank
        self.embedding = Embedding(rank) if first == 0 else None
        inner = range(max(first, 1), min(last, count) + 1)
        self.layers = nn.ModuleList((NeoLayer if neo else Layer)(rank) for _ in inner)
        self.ends = last > count
        self.after = ResultNorm(rank) if self.ends else None
        # GPT-Neo has no output layer in Sailor: its loss is computed from the hidden state.
        self.output = parameter(rank, rank.arguments.words // rank.tensor, rank.arguments.hidden) if (
            self.ends and not neo) else None  # fmt: skip

    def forward(self, batch, mask, x=None):
        """Returns the activations for the next stage, or logits."""
        if self.embedding is not None:
            x = self.embedding(batch["tokens"], batch["positions"])
        for layer in self.layers:
            x = layer(x, mask)
        if self.ends:
            x = self.after(x)
        if self.output is not None:
            x = ColumnProduct.apply(x, self.output, None, self.rank, self.rank.tensor > 1)
        return x

    def loss(self, logits, batch):
        labels = batch["labels"].transpose(0, 1).contiguous()
        losses = VocabularyLoss.apply(logits, labels, self.rank, True).transpose(0, 1).contiguous()
        weights = batch["weights"].view(-1)
        return torch.sum(losses.view(-1) * weights) / weights.sum()
