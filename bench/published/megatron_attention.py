"""Attention of Megatron-LM and TransformerEngine: unfused with all scores in memory, and fused."""

import math

import torch
import torch.nn.functional as F
from megatron_kernels import Attention, Rotated, ScaledSoftmax
from megatron_layers import ColumnLinear, ColumnProduct, Norm, RowLinear
from megatron_recompute import Recomputed
from torch import nn

LONGEST_FUSED = 4096  # limit of the fused softmax


def _made(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


class DotProducts(nn.Module):
    """Unfused attention. Megatron-LM's implementation keeps scores in a buffer shared by layers."""

    def __init__(self, rank, causal, layer):
        super().__init__()
        self.rank, self.causal = rank, causal
        arguments = rank.arguments
        self.coefficient = float(layer) if arguments.flag("apply-query-key-layer-scaling") else 1.0
        self.scale = 1 / (math.sqrt(arguments.head) * self.coefficient)
        self.p = arguments.dropout[1]
        self.local = arguments.local

    def forward(self, query, key, value, mask):
        length, batch, heads, head = query.shape
        if (each := heads // key.shape[2]) > 1:
            key, value = key.repeat_interleave(each, dim=2), value.repeat_interleave(each, dim=2)
        keys, rows = key.shape[0], batch * heads
        query, key = query.reshape(length, rows, head), key.reshape(keys, rows, head)
        # The product has a third operand, which it does not read.
        unused = (self.rank.buffer if self.local else _made)((rows, length, keys), query.dtype)
        products = torch.baddbmm(unused, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0,
                                 alpha=self.scale)  # fmt: skip
        scores = products.view(batch, heads, length, keys)
        shares = self.softmax(scores, mask)
        shares = F.dropout(shares, self.p, training=True)
        value = value.reshape(keys, rows, head)
        context = torch.bmm(shares.view(rows, length, keys), value.transpose(0, 1))
        context = context.view(batch, heads, length, head).permute(2, 0, 1, 3).contiguous()
        return context.view(length, batch, heads * head)

    def fused(self, scores):
        batch, heads, length, keys = scores.shape
        if scores.dtype == torch.float32 or (self.local and self.rank.arguments.flag("no-masked-softmax-fusion")):
            return False
        # A block of 128 threads takes four warps, and a warp two rows of up to 128 keys.
        at_once = 8 if keys <= 128 else 4
        if not 16 < keys <= LONGEST_FUSED or length % 4 or keys % 4 or batch * heads % 4:
            return False
        return (batch * heads if self.causal else length) % at_once == 0

    def softmax(self, scores, mask):
        if self.fused(scores):
            if self.causal:
                return ScaledSoftmax.apply(scores.view(-1, *scores.shape[2:]), None, self.coefficient).view(
                    scores.shape
                )
            return ScaledSoftmax.apply(scores, mask, self.coefficient)
        dtype = scores.dtype
        in_float32 = self.rank.arguments.flag("apply-query-key-layer-scaling")
        if in_float32:
            scores = scores.float() * self.coefficient
        shares = torch.softmax(scores.masked_fill_(mask, -10000.0), dim=-1)
        return shares.to(dtype)


class FusedProducts(nn.Module):
    """Fused attention. Flash attention has the batch first, so inputs and results are copied."""

    def __init__(self, flash, causal):
        super().__init__()
        self.flash, self.causal = flash, causal

    def forward(self, query, key, value, mask):
        if self.flash:
            query, key, value = (x.transpose(0, 1).contiguous() for x in (query, key, value))
        context = Attention.apply(query, key, value, self.flash, self.causal)
        if self.flash:
            context = context.transpose(0, 1).contiguous()
        return context.view(*context.shape[:2], -1)


def products(rank, causal, number):
    backend = rank.arguments.attention
    return DotProducts(rank, causal, number) if backend == "unfused" else FusedProducts(backend == "flash", causal)


class SelfAttention(nn.Module):
    def __init__(self, rank, core):
        super().__init__()
        arguments = rank.arguments
        self.rotary, self.copies = arguments.rotary, not arguments.local
        self.norms = None
        if arguments.flag("qk-layernorm"):
            self.norms = nn.ModuleList(Norm(rank, arguments.head) for _ in range(2))
        self.head, self.groups = arguments.head, arguments.groups // rank.tensor
        self.each = arguments.heads // arguments.groups  # queries per group
        self.core = core
        self.again = arguments.given.get("recompute-granularity") == "selective"
        outputs = (arguments.heads + 2 * arguments.groups) * self.head
        self.qkv = ColumnLinear(rank, arguments.hidden, outputs, bias=arguments.bias or arguments.flag("add-qkv-bias"))
        self.out = RowLinear(rank, arguments.heads * self.head, arguments.hidden, bias=arguments.bias)

    def forward(self, x, mask):
        mixed = ColumnProduct.apply(x, self.qkv.weight, self.qkv.bias, self.qkv.rank, self.qkv.rank.tensor > 1)
        mixed = mixed.view(*mixed.shape[:-1], self.groups, (self.each + 2) * self.head)
        query, key, value = torch.split(mixed, [self.each * self.head, self.head, self.head], dim=3)
        query = query.reshape(*query.shape[:2], -1, self.head)
        if self.norms is not None:
            query, key = self.norms[0](query.contiguous()), self.norms[1](key.contiguous())
        if self.rotary:
            query, key = Rotated.apply(query), Rotated.apply(key)
        if self.copies and (self.rotary or self.norms is not None or self.each > 1):
            key, value = key.contiguous(), value.contiguous()  # TransformerEngine requires equal layouts
        parts = (query, key, value, mask)
        context = Recomputed.apply(self.core, *parts) if self.again else self.core(*parts)
        return self.out(context), self.out.bias


class CrossAttention(nn.Module):
    def __init__(self, rank, core):
        super().__init__()
        arguments = rank.arguments
        size = arguments.heads * arguments.head
        self.head, self.rank, self.core = arguments.head, rank, core
        self.query = ColumnLinear(rank, arguments.hidden, size, bias=arguments.bias)
        self.key_value = ColumnLinear(rank, arguments.hidden, 2 * size, bias=arguments.bias)
        self.out = RowLinear(rank, size, arguments.hidden, bias=arguments.bias)

    def forward(self, x, mask, context):
        product = lambda x, to: ColumnProduct.apply(x, to.weight, to.bias, self.rank, self.rank.tensor > 1)  # noqa: E731
        mixed = product(context, self.key_value)
        mixed = mixed.view(*mixed.shape[:-1], -1, 2 * self.head)
        key, value = torch.split(mixed, self.head, dim=-1)
        query = product(x, self.query)
        query = query.view(*query.shape[:-1], -1, self.head)
        return self.out(self.core(query, key, value, mask)), self.out.bias
