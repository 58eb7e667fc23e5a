"""Mixture of experts of Megatron-LM: router, token dispatch and combine, experts.

Assumes balanced routing, since the actual routing depends on data.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_kernels import WeightedSwiglu
from megatron_layers import ColumnProduct, Mlp, gated, parameter
from torch import nn


class _Scores(torch.autograd.Function):
    """Matrix product of the router, in its own dtype."""

    @staticmethod
    def forward(ctx, x, weight, dtype):
        ctx.save_for_backward(x, weight)
        ctx.dtype = dtype
        return torch.matmul(x.to(dtype), weight.to(dtype).t())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x = torch.matmul(gradient, weight.to(ctx.dtype)).to(x.dtype)
        rows = x.view(-1, x.shape[-1]).to(ctx.dtype)
        return of_x, torch.matmul(gradient.view(-1, gradient.shape[-1]).t(), rows).to(weight.dtype), None


class _Gathered(torch.autograd.Function):
    """All-gathers tokens; backward reduce-scatters gradients."""

    @staticmethod
    def forward(ctx, x, group, size, whole):
        ctx.group, ctx.size = group, size
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return _part(gradient, ctx.group, ctx.size), None, None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, size):
        ctx.group, ctx.size = group, size
        return _part(x, group, size)

    @staticmethod
    def backward(ctx, gradient):
        whole = _made(ctx.size * gradient.shape[0], gradient)
        dist.all_gather_into_tensor(whole, gradient.contiguous(), group=ctx.group)
        return whole, None, None


class _Exchanged(torch.autograd.Function):
    """All-to-all with equal splits."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x.contiguous(), group=group)
        return result

    @staticmethod
    def backward(ctx, gradient):
        result = torch.empty_like(gradient)
        dist.all_to_all_single(result, gradient.contiguous(), group=ctx.group)
        return result, None


def _made(rows, like):
    return torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device="cuda")


def _part(x, group, size):
    result = _made(x.shape[0] // size, x)
    dist.reduce_scatter_tensor(result, x.contiguous(), group=group)
    return result


def _indices(count):
    return torch.empty(count, dtype=torch.int64, device="cuda")


class Expert(nn.Module):
    def __init__(self, rank):
        super().__init__()
        arguments = rank.arguments
        self.rank, self.gated = rank, arguments.flag("swiglu")
        self.fused = self.gated and not arguments.flag("no-bias-swiglu-fusion")
        inner = arguments.number("moe-ffn-hidden-size", arguments.ffn) // arguments.expert_tensor
        self.up = parameter(rank, inner * (2 if self.gated else 1), arguments.hidden)
        self.down = parameter(rank, arguments.hidden, inner)
        self.up.expert = self.down.expert = True

    def forward(self, x, shares):
        inner = ColumnProduct.apply(x, self.up, None, self.rank, False)
        if self.fused:
            inner = WeightedSwiglu.apply(inner, shares.unsqueeze(-1))
        else:
            inner = gated(inner) if self.gated else F.gelu(inner)
            inner = (inner * shares.unsqueeze(-1)).to(x.dtype)
        return ColumnProduct.apply(inner, self.down, None, self.rank, False)


class Experts(nn.Module):
    """Replaces the MLP of a layer."""

    def __init__(self, rank):
        super().__init__()
        arguments = rank.arguments
        self.rank = rank
        self.count, self.chosen = arguments.experts, arguments.number("moe-router-topk", 2)
        self.router = parameter(rank, self.count, arguments.hidden)
        self.dtype = torch.float32 if arguments.given.get("moe-router-dtype") == "fp32" else arguments.dtype
        self.local = nn.ModuleList(Expert(rank) for _ in range(self.count // arguments.expert_parallel))
        shared = arguments.number("moe-shared-expert-intermediate-size", 0)
        self.shared = Mlp(rank, shared) if shared else None
        self.together = arguments.expert_parallel * arguments.expert_tensor
        self.exchanges = arguments.given.get("moe-token-dispatcher-type", "allgather") != "allgather"

    def forward(self, x):
        shares = torch.sigmoid(_Scores.apply(x, self.router, self.dtype)).view(-1, self.count)
        chosen = torch.empty(shares.shape, dtype=torch.bool, device="cuda")
        shares = shares * chosen
        tokens = x.view(-1, x.shape[-1])
        moved = self.exchanged if self.exchanges else self.gathered
        result = moved(tokens, shares).view(x.shape)
        return result if self.shared is None else result + self.shared(x)[0], None

    def gathered(self, tokens, shares):
        group, size = self.rank.expert_group, self.together
        if size > 1:
            shares = _Gathered.apply(shares, group, size, _made(shares.shape[0] * size, shares))
            whole = self.rank.buffer((tokens.shape[0] * size, tokens.shape[1]), tokens.dtype)
            tokens = _Gathered.apply(tokens, group, size, whole)
        here = _indices(tokens.shape[0] * self.chosen * len(self.local) // self.count)
        own = shares[:, : len(self.local)].contiguous().view(-1).index_select(0, _indices(here.shape[0]))
        result = self.computed(tokens.index_select(0, here), own)
        result = torch.zeros_like(tokens).index_add_(0, here, result)
        if size > 1:
            result = _Scattered.apply(result.to(shares.dtype), group, size).to(tokens.dtype)
        return result

    def exchanged(self, tokens, shares):
        rank = self.rank
        cut, spread = rank.arguments.expert_tensor, rank.arguments.expert_parallel
        order = _indices(tokens.shape[0] * self.chosen)
        sent = tokens.index_select(0, order)
        own = shares.view(-1).index_select(0, order)
        if spread > 1:
            sent, own = _Exchanged.apply(sent, rank.spread_group), _Exchanged.apply(own, rank.spread_group)
        if cut > 1:
            sent = _Gathered.apply(sent, rank.cut_group, cut, _made(sent.shape[0] * cut, sent))
            own = _Gathered.apply(own, rank.cut_group, cut, _made(own.shape[0] * cut, own))
        if several := len(self.local) > 1:
            sent, own = sent.clone(), own.clone()  # sorted by expert
        result = self.computed(sent, own)
        result = result.clone() if several else result
        if cut > 1:
            result = _Scattered.apply(result, rank.cut_group, cut)
        if spread > 1:
            result = _Exchanged.apply(result, rank.spread_group)
        return torch.zeros_like(tokens).index_add_(0, order, result)

    def computed(self, tokens, shares):
        if len(self.local) == 1:
            return self.local[0](tokens, shares)
        parts = zip(self.local, tokens.chunk(len(self.local)), shares.chunk(len(self.local)))
        return torch.cat([expert(own, share) for expert, own, share in parts])
