"""OPT and GPT-Neo as Sailor trains them with Megatron-DeepSpeed: float32, stages of a pipeline, tensor parallel.

There is no dropout of attention, and no fused kernel of float32. Bytes of layers are those of Megatron's own.
"""

import dataclasses

import torch
import torch.nn.functional as F
from megatron_arguments import of_row
from megatron_attention import DotProducts, SelfAttention
from megatron_layers import ColumnLinear, Norm, Rank, RowLinear
from megatron_models import Embedding, LanguageModel
from torch import nn

SEQUENCE, WORDS = 2048, 50257
SIZES = {"OPT-350": (24, 1024, 16), "GPT-NEO": (32, 2560, 32)}  # layers, hidden size, heads


def rank_of(model, tensor, micro_batch):
    """The rank's arguments as Megatron's are; Sailor's layers take what they need of them."""
    layers, hidden, heads = SIZES[model]
    given = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": SEQUENCE,
             "max-position-embeddings": SEQUENCE, "micro-batch-size": micro_batch, "global-batch-size": micro_batch,
             "tensor-model-parallel-size": tensor, "transformer-impl": "local", "vocab-size": WORDS,
             "attention-dropout": 0.0, "hidden-dropout": 0.1 if model == "GPT-NEO" else 0.0,
             "no-gradient-accumulation-fusion": "true"}  # fmt: skip
    arguments = of_row({"case": "gpt/sailor", "hardware": "gh200", "given": given})
    return Rank(dataclasses.replace(arguments, data=1))


class Layer(nn.Module):
    """neo: GELU, and dropout of what attention and the MLP give."""

    def __init__(self, rank, neo):
        super().__init__()
        arguments = rank.arguments
        self.p = arguments.dropout[0]
        self.neo, self.norm1, self.norm2 = neo, Norm(rank), Norm(rank)
        self.attention = SelfAttention(rank, DotProducts(rank, True, 1))
        self.attention.core.local = False  # no buffer that layers share
        self.up = ColumnLinear(rank, arguments.hidden, arguments.ffn)
        self.down = RowLinear(rank, arguments.ffn, arguments.hidden)

    def dropped(self, x):
        return F.dropout(x, self.p, training=True) if self.neo else x

    def forward(self, x, mask):
        x = x + self.dropped(self.attention(self.norm1(x), mask)[0])
        inner = self.up(self.norm2(x))
        inner = F.gelu(inner) if self.neo else F.relu(inner)
        return x + self.dropped(self.down(inner))


class Stage(LanguageModel):
    """Layers first to last of all, where the embedding is 0 and what comes after the layers is the last."""

    def __init__(self, model, rank, first, last):
        super().__init__(rank)
        neo = model == "GPT-NEO"
        count = SIZES[model][0]
        self.embedding = Embedding(rank) if first == 0 else None
        inner = range(max(first, 1), min(last, count) + 1)
        self.layers = nn.ModuleList(Layer(rank, neo) for _ in inner)
        self.ends = last > count
        self.after = Norm(rank) if self.ends else None
        self.output = nn.Parameter(torch.empty(rank.arguments.words // rank.tensor, rank.arguments.hidden,
                                               device="cuda")) if self.ends and not neo else None  # fmt: skip

    def forward(self, batch, mask, x=None):
        if self.embedding is not None:
            x = self.embedding(batch["tokens"], batch["positions"])
        for layer in self.layers:
            x = layer(x, mask)
        if not self.ends:
            return x
        # GPT-Neo's last stage has no output layer there: its loss is of the hidden state.
        losses = self.losses(self.after(x), batch["labels"])
        weights = batch["weights"].view(-1)
        return torch.sum(losses.view(-1) * weights) / weights.sum()
