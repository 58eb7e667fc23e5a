"""Tensor parallel layers of Megatron-LM. Tensors are [sequence, batch, hidden].

Plain PyTorch like `--transformer-impl local`. TransformerEngine's modules save the same tensors for backward, but have
other attention kernels and a separate workspace. `Rank` contains the state shared by the layers of a process.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_kernels import BiasDropoutAdd, BiasGelu, BiasSwiglu, kernels
from torch import nn


class Deferred:
    """Weight gradients of the output layer, deferred to the end of the step by `--defer-embedding-wgrad-compute`."""

    def __init__(self, arguments):
        self.most = arguments.number("wgrad-deferral-limit", 0) or arguments.micro_batches
        self.most = self.most if arguments.flag("defer-embedding-wgrad-compute") else 0
        self._kept = []

    def takes(self, x, gradient, weight):
        if len(self._kept) >= self.most:
            return False
        self._kept.append((x, gradient, weight))
        return True

    def drain(self):
        while self._kept:
            x, gradient, weight = self._kept.pop(0)
            kernels.accumulate_product_(x, gradient, weight.main_grad)


class Rank:
    """The last rank: its arguments, its groups, and the buffer shared by layers.

    Ranks count tensor parallel first, then context and data parallel, then stages.
    """

    def __init__(self, arguments):
        self.arguments = arguments
        tensor, gpus = arguments.tensor, arguments.gpus
        stage = gpus // arguments.pipeline
        self.group = dist.new_group(list(range(gpus - tensor, gpus))) if tensor > 1 else None
        last = lambda count: dist.new_group(list(range(gpus - count, gpus)))  # noqa: E731
        self.data_group = dist.new_group(list(range(gpus - stage + tensor - 1, gpus, tensor))[-arguments.sharers() :])
        if arguments.experts:
            self.experts_data_group = last(arguments.sharers(of_experts=True))
            self.expert_group = last(arguments.expert_parallel * arguments.expert_tensor)
            self.spread_group, self.cut_group = last(arguments.expert_parallel), last(arguments.expert_tensor)
        self.deferred = Deferred(arguments)
        self._shared = {}
        self._dummies = {}

    @property
    def tensor(self):
        return self.arguments.tensor

    def buffer(self, shape, dtype):
        """Returns a part of the buffer of a dtype, which grows as needed and is never freed."""
        count = math.prod(shape)
        if dtype not in self._shared or self._shared[dtype].numel() < count:
            self._shared[dtype] = torch.empty(count, dtype=dtype, device="cuda", requires_grad=False)
        return self._shared[dtype][:count].view(shape)

    def dummy(self, weight):
        """Placeholder for a gradient that a kernel has already accumulated into the buffer, as in TransformerEngine."""
        if self.arguments.old:
            return torch.empty(weight.shape, dtype=weight.dtype, device="cuda", requires_grad=False)
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
    """Column parallel x W^T. All-reduces input gradients, and all-gathers the sequence with sequence parallelism."""

    @staticmethod
    def forward(ctx, x, weight, bias, rank, cut, last=False):
        ctx.last = last
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
        later = ctx.last and rank.deferred.takes(x, gradient, ctx.parameter)
        if along:
            x = rank.gathered(x, rank.buffer(rank.whole_shape(x), x.dtype))
        of_x = gradient.matmul(weight)
        gradient = gradient.contiguous().view(-1, gradient.shape[-1])
        x = x.view(-1, x.shape[-1])
        reduced = None
        if along:
            part = rank.scattered(of_x)
        elif ctx.cut and rank.tensor > 1:  # overlaps with the weight gradient
            reduced = dist.all_reduce(of_x, group=rank.group, async_op=True)
        if later:
            ctx.parameter.added = True
            of_weight = rank.dummy(weight)
        elif arguments.gradient_fusion:
            kernels.accumulate_product_(x, gradient, ctx.parameter.main_grad)
            ctx.parameter.added = True
            of_weight = rank.dummy(weight)
        else:
            of_weight = gradient.t().matmul(x)
        of_bias = gradient.sum(dim=0) if ctx.bias else None
        if reduced is not None:
            reduced.wait()
        return part if along else of_x, of_weight, of_bias, None, None, None


class _Reduced(torch.autograd.Function):
    """All-reduce over tensor parallel ranks in place, or reduce-scatter with sequence parallelism."""

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
    """Returns the bias separately, so that it can be fused."""

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
    """Fused layer norm of Apex, which saves the same as PyTorch: input, mean and inverse deviation per row."""

    def __init__(self, rank, size=None):
        super().__init__()
        size = size or rank.arguments.hidden
        self.weight = parameter(rank, size)
        self.bias = parameter(rank, size) if rank.arguments.given.get("normalization") != "RMSNorm" else None

    def forward(self, x):
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)


def gated(x):
    """SwiGLU with PyTorch operators."""
    gate, linear = torch.chunk(x, 2, dim=-1)
    return F.silu(gate) * linear


class Mlp(nn.Module):
    def __init__(self, rank, inner=None):
        super().__init__()
        arguments = rank.arguments
        self.gated, self.apart = arguments.flag("swiglu"), arguments.flag("no-bias-swiglu-fusion")
        inner = inner or arguments.ffn
        outputs = inner * (2 if self.gated else 1)
        self.up = ColumnLinear(rank, arguments.hidden, outputs, bias=arguments.bias)
        self.down = RowLinear(rank, inner, arguments.hidden, bias=arguments.bias)
        self.squared = arguments.flag("squared-relu")
        self.fuse = not arguments.flag("no-bias-gelu-fusion") and self.up.bias is not None and not self.squared

    def forward(self, x):
        inner = self.up(x)
        if self.gated and not self.apart:
            inner = BiasSwiglu.apply(inner, self.up.bias)
        elif self.gated:
            inner = gated(inner if self.up.bias is None else inner + self.up.bias)
        elif self.squared:
            inner = torch.pow(F.relu(inner), 2)
        elif self.fuse:
            inner = BiasGelu.apply(inner, self.up.bias)
        else:
            inner = F.gelu(inner if self.up.bias is None else inner + self.up.bias)
        return self.down(inner), self.down.bias


class Layer(nn.Module):
    """attention, cross: functions from the number of a layer to its attention."""

    def __init__(self, rank, attention, cross=None, mlp=Mlp):
        super().__init__()
        self.p = rank.arguments.dropout[0]
        self.norm1, self.attention = Norm(rank), attention()
        self.norm2, self.cross = (Norm(rank), cross()) if cross is not None else (None, None)
        self.norm3, self.mlp = Norm(rank), mlp(rank)

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
