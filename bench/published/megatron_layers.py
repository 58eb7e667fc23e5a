"""Layers of Megatron-LM as `--transformer-impl local` lays them out: plain PyTorch, cut over tensor parallel ranks.

A tensor is [sequence, batch, hidden]. `Rank` has what the layers of a process share.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_kernels import BiasDropoutAdd, BiasGelu, CausalSoftmax, MaskedSoftmax, kernels
from torch import nn

LONGEST_FUSED = 4096  # keys that the fused softmax takes


class Rank:
    """A process: its arguments, its tensor parallel group, and the buffer that layers use in turns."""

    def __init__(self, arguments, tensor_group=None):
        self.arguments = arguments
        self.group = tensor_group
        self._shared = {}
        self._dummies = {}

    @property
    def tensor(self):
        return self.arguments.tensor

    def buffer(self, shape, dtype):
        """Part of one buffer a dtype, which grows and stays."""
        count = math.prod(shape)
        if dtype not in self._shared or self._shared[dtype].numel() < count:
            self._shared[dtype] = torch.empty(count, dtype=dtype, device="cuda", requires_grad=False)
        return self._shared[dtype][:count].view(shape)

    def dummy(self, weight):
        """Stands for a gradient that a kernel added to the buffer of gradients already; TransformerEngine keeps one."""
        key = (weight.shape, weight.dtype)
        if key not in self._dummies:
            self._dummies[key] = torch.empty(weight.shape, dtype=weight.dtype, device="cuda", requires_grad=False)
        return self._dummies[key].detach()

    def all_reduce(self, tensor):
        if self.tensor > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gathered(self, part, whole):
        dist.all_gather_into_tensor(whole, part.contiguous(), group=self.group)
        return whole

    def scattered(self, whole):
        part = torch.empty((whole.shape[0] // self.tensor, *whole.shape[1:]), dtype=whole.dtype, device="cuda")
        dist.reduce_scatter_tensor(part, whole.contiguous(), group=self.group)
        return part

    def whole_shape(self, part):
        return (part.shape[0] * self.tensor, *part.shape[1:])


class ColumnProduct(torch.autograd.Function):
    """x W^T of a weight cut by rows. The sum of input gradients, and with sequence parallel the whole input, are here."""

    @staticmethod
    def forward(ctx, x, weight, bias, rank, cut):
        ctx.save_for_backward(x, weight)
        ctx.rank, ctx.cut, ctx.bias, ctx.parameter = rank, cut, bias is not None, weight
        if cut and rank.arguments.sequence_parallel:
            x = rank.gathered(x, rank.buffer(rank.whole_shape(x), x.dtype))
        result = torch.matmul(x, weight.t())
        return result + bias if bias is not None else result

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rank, arguments = ctx.rank, ctx.rank.arguments
        along = ctx.cut and arguments.sequence_parallel
        if along:
            x = rank.gathered(x, rank.buffer(rank.whole_shape(x), x.dtype))
        of_x = gradient.matmul(weight)
        gradient = gradient.contiguous().view(-1, gradient.shape[-1])
        x = x.view(-1, x.shape[-1])
        if along:
            part = rank.scattered(of_x)
        elif ctx.cut:
            rank.all_reduce(of_x)
        if arguments.gradient_fusion:
            kernels.accumulate_product_(x, gradient, ctx.parameter.main_grad)
            ctx.parameter.added = True
            of_weight = rank.dummy(weight)
        else:
            of_weight = gradient.t().matmul(x)
        of_bias = gradient.sum(dim=0) if ctx.bias else None
        return part if along else of_x, of_weight, of_bias, None, None


class _Reduced(torch.autograd.Function):
    """The sum over tensor parallel ranks, in place; with sequence parallel a part of it."""

    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return rank.scattered(x) if rank.arguments.sequence_parallel else rank.all_reduce(x)

    @staticmethod
    def backward(ctx, gradient):
        rank = ctx.rank
        if not rank.arguments.sequence_parallel:
            return gradient, None
        whole = torch.empty(rank.whole_shape(gradient), dtype=gradient.dtype, device="cuda")
        return rank.gathered(gradient, whole), None


def parameter(rank, *shape, dtype=None):
    return nn.Parameter(torch.empty(*shape, dtype=dtype or rank.arguments.dtype, device="cuda"))


class ColumnLinear(nn.Module):
    """Hands its bias on, for whoever fuses it."""

    def __init__(self, rank, inputs, outputs, bias=True):
        super().__init__()
        self.rank = rank
        self.weight = parameter(rank, outputs // rank.tensor, inputs)
        self.bias = parameter(rank, outputs // rank.tensor) if bias else None

    def forward(self, x):
        return ColumnProduct.apply(x, self.weight, None, self.rank, self.rank.tensor > 1)


class RowLinear(nn.Module):
    def __init__(self, rank, inputs, outputs, bias=True):
        super().__init__()
        self.rank = rank
        self.weight = parameter(rank, outputs, inputs // rank.tensor)
        self.bias = parameter(rank, outputs) if bias else None

    def forward(self, x):
        result = ColumnProduct.apply(x, self.weight, None, self.rank, False)
        return _Reduced.apply(result, self.rank) if self.rank.tensor > 1 else result


class Norm(nn.Module):
    """Apex's fused layer norm keeps what PyTorch's keeps: its input, the mean and the inverse deviation of each row."""

    def __init__(self, rank):
        super().__init__()
        size = rank.arguments.hidden
        self.weight, self.bias = parameter(rank, size), parameter(rank, size)

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class DotProducts(nn.Module):
    """Attention whose scores are all in memory."""

    def __init__(self, rank, causal, layer):
        super().__init__()
        self.rank, self.causal = rank, causal
        arguments = rank.arguments
        self.coefficient = float(layer) if arguments.flag("apply-query-key-layer-scaling") else 1.0
        self.scale = 1 / (math.sqrt(arguments.head) * self.coefficient)
        self.p = arguments.dropout[1]

    def forward(self, query, key, value, mask):
        length, batch, heads, head = query.shape
        keys, rows = key.shape[0], batch * heads
        query, key = query.reshape(length, rows, head), key.reshape(keys, rows, head)
        unused = self.rank.buffer((rows, length, keys), query.dtype)
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
        if self.rank.arguments.flag("no-masked-softmax-fusion") or scores.dtype == torch.float32:
            return False
        # A block of 128 threads takes four warps, and a warp two rows of up to 128 keys.
        at_once = 8 if keys <= 128 else 4
        if not 16 < keys <= LONGEST_FUSED or length % 4 or keys % 4 or batch * heads % 4:
            return False
        return (batch * heads if self.causal else length) % at_once == 0

    def softmax(self, scores, mask):
        if self.fused(scores):
            if self.causal:
                return CausalSoftmax.apply(scores.view(-1, *scores.shape[2:]), self.coefficient).view(scores.shape)
            return MaskedSoftmax.apply(scores, mask, self.coefficient)
        dtype = scores.dtype
        in_float32 = self.rank.arguments.flag("apply-query-key-layer-scaling")
        if in_float32:
            scores = scores.float() * self.coefficient
        shares = torch.softmax(scores.masked_fill_(mask, -10000.0), dim=-1)
        return shares.to(dtype)


class SelfAttention(nn.Module):
    def __init__(self, rank, core):
        super().__init__()
        arguments = rank.arguments
        self.head, self.groups = arguments.head, arguments.groups // rank.tensor
        self.each = arguments.heads // arguments.groups  # queries of a group
        self.core = core
        self.qkv = ColumnLinear(rank, arguments.hidden, (arguments.heads + 2 * arguments.groups) * self.head,
                                bias=False)  # fmt: skip
        self.qkv.bias = parameter(rank, self.qkv.weight.shape[0]) if arguments.bias else None
        self.out = RowLinear(rank, arguments.heads * self.head, arguments.hidden, bias=arguments.bias)

    def forward(self, x, mask):
        mixed = ColumnProduct.apply(x, self.qkv.weight, self.qkv.bias, self.qkv.rank, self.qkv.rank.tensor > 1)
        mixed = mixed.view(*mixed.shape[:-1], self.groups, (self.each + 2) * self.head)
        query, key, value = torch.split(mixed, [self.each * self.head, self.head, self.head], dim=3)
        query = query.reshape(*query.shape[:2], -1, self.head)
        return self.out(self.core(query, key, value, mask)), self.out.bias


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


class Mlp(nn.Module):
    def __init__(self, rank):
        super().__init__()
        arguments = rank.arguments
        self.up = ColumnLinear(rank, arguments.hidden, arguments.ffn, bias=arguments.bias)
        self.down = RowLinear(rank, arguments.ffn, arguments.hidden, bias=arguments.bias)
        self.fuse = not arguments.flag("no-bias-gelu-fusion")

    def forward(self, x):
        inner = self.up(x)
        if self.fuse:
            inner = BiasGelu.apply(inner, self.up.bias)
        else:
            inner = F.gelu(inner if self.up.bias is None else inner + self.up.bias)
        return self.down(inner), self.down.bias


class Layer(nn.Module):
    def __init__(self, rank, number, causal, cross=False):
        super().__init__()
        self.p = rank.arguments.dropout[0]
        self.norm1, self.attention = Norm(rank), SelfAttention(rank, DotProducts(rank, causal, number))
        self.norm2 = Norm(rank) if cross else None
        self.cross = CrossAttention(rank, DotProducts(rank, False, number)) if cross else None
        self.norm3, self.mlp = Norm(rank), Mlp(rank)

    def added(self, result, residual):
        x, bias = result
        if bias is None:
            return residual + F.dropout(x, self.p, training=True)
        return BiasDropoutAdd.apply(x, bias, residual, self.p)

    def forward(self, x, mask, context=None, context_mask=None):
        normed = self.norm1(x)
        result = self.attention(normed, mask)
        x = self.added(result, x)
        if self.cross is not None:
            normed = self.norm2(x)
            result = self.cross(normed, context_mask, context)
            x = self.added(result, x)
        normed = self.norm3(x)
        result = self.mlp(normed)
        return self.added(result, x)
