"""Llama as in nanotron: pipeline stages, sequence parallelism, float32 gradients.

Tensors are [sequence, batch, hidden]. Matrix products start with the local part of the sequence during the all-gather.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_kernels import Rotated
from megatron_models import VocabularyLoss
from torch import nn

SEQUENCE, WORDS = 4096, 131072
# Layers, width, heads, inner width. Models below 4 B have tied embeddings.
SIZES = {"1.34": (16, 2048, 32, 8192), "3.57": (28, 3072, 32, 8192), "8.86": (32, 4096, 32, 14336),
         "80.0": (80, 8192, 64, 28672)}  # fmt: skip


class Rank:
    """The last rank of a stage. Rank order is tensor, data."""

    def __init__(self, tensor, data):
        self.tensor, self.data = tensor, data
        ranks = tensor * data
        self.group = dist.new_group(list(range(ranks - tensor, ranks)))
        self.data_group = dist.new_group(list(range(tensor - 1, ranks, tensor)))
        self._rooms = {}

    def room(self, name, part):
        """Returns the buffer for gathered tensors, which all layers share."""
        shape = (part.shape[0] * self.tensor, *part.shape[1:])
        if self._rooms.get(name) is None or self._rooms[name].shape != shape:
            self._rooms[name] = torch.empty(shape, dtype=part.dtype, device="cuda", requires_grad=False)
        return self._rooms[name].detach()

    def gathered(self, name, part):
        whole = self.room(name, part)
        return whole, dist.all_gather_into_tensor(whole, part.contiguous(), group=self.group, async_op=True)

    def all_reduce(self, tensor):
        if self.tensor > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def by_parts(self, name, part, product):
        """Returns product(...) of the full sequence: first of the local part, then of the gathered rest."""
        whole, coming = self.gathered(name, part)
        of_own = product(part)
        result = torch.empty((whole.shape[0], *of_own.shape[1:]), dtype=part.dtype, device="cuda")
        result[-part.shape[0] :] = of_own
        coming.wait()
        result[: -part.shape[0]] = product(whole[: -part.shape[0]])
        return result

    def scattered(self, whole, async_op=False):
        part = torch.empty((whole.shape[0] // self.tensor, *whole.shape[1:]), dtype=whole.dtype, device="cuda")
        work = dist.reduce_scatter_tensor(part, whole.contiguous(), group=self.group, async_op=async_op)
        return (part, work) if async_op else part


def _flat(x):
    return x.reshape(-1, x.shape[-1])


class Column(torch.autograd.Function):
    """Saves the local part of the sequence, and all-gathers the rest again in backward."""

    @staticmethod
    def forward(ctx, x, weight, rank):
        ctx.save_for_backward(x, weight)
        ctx.rank = rank
        return F.linear(x, weight) if rank.tensor == 1 else rank.by_parts("x", x, lambda part: F.linear(part, weight))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rank = ctx.rank
        if rank.tensor == 1:
            return gradient.matmul(weight), _flat(gradient).t().matmul(_flat(x)), None
        whole, coming = rank.gathered("x", x)
        of_x, reduced = rank.scattered(gradient.matmul(weight), async_op=True)
        coming.wait()
        of_weight = _flat(gradient).t().matmul(_flat(whole))
        reduced.wait()
        return of_x, of_weight, None


class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rank):
        ctx.save_for_backward(x, weight)
        ctx.rank = rank
        result = F.linear(x, weight)
        return result if rank.tensor == 1 else rank.scattered(result)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rank = ctx.rank
        if rank.tensor == 1:
            return gradient.matmul(weight), _flat(gradient).t().matmul(_flat(x)), None
        of_x = rank.by_parts("gradient", gradient, lambda part: part.matmul(weight))
        whole = rank.room("gradient", gradient)
        return of_x, _flat(whole).t().matmul(_flat(x)), None


class Linear(nn.Module):
    def __init__(self, rank, inputs, outputs, product):
        super().__init__()
        self.rank, self.product = rank, product
        cut = (outputs // rank.tensor, inputs) if product is Column else (outputs, inputs // rank.tensor)
        self.weight = nn.Parameter(torch.empty(cut, dtype=torch.bfloat16, device="cuda"))

    def forward(self, x):
        return self.product.apply(x, self.weight, self.rank)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.bfloat16, device="cuda"))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight)


class Layer(nn.Module):
    def __init__(self, rank, width, heads, inner):
        super().__init__()
        self.heads, self.head = heads // rank.tensor, width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.qkv, self.out = Linear(rank, width, 3 * width, Column), Linear(rank, width, width, Row)
        self.up, self.down = Linear(rank, width, 2 * inner, Column), Linear(rank, inner, width, Row)

    def attention(self, x):
        mixed = self.qkv(x)
        length, batch, _ = mixed.shape
        q, k, v = mixed.view(length, batch, 3, self.heads, self.head).permute(2, 1, 0, 3, 4).contiguous()
        both = torch.cat([k.unsqueeze(0), v.unsqueeze(0)], dim=0).permute(1, 2, 0, 3, 4).contiguous()
        k, v = both.unbind(2)
        q, k = Rotated.apply(q), Rotated.apply(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attended = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0].transpose(1, 2)
        return self.out(attended.contiguous().view(batch, length, -1).transpose(0, 1))

    def forward(self, x):
        x = self.attention(self.norm1(x)) + x
        gate, linear = torch.chunk(self.up(self.norm2(x)), 2, dim=-1)
        return self.down(F.silu(gate) * linear) + x


class Stage(nn.Module):
    """begins: has the embeddings. ends: has the output layer and the loss. Small models have tied embeddings."""

    def __init__(self, model, rank, layers, begins, ends):
        super().__init__()
        _, width, heads, inner = SIZES[model]
        self.rank, self.ends, tied = rank, ends, inner < 10_000
        table = lambda: nn.Parameter(torch.empty(WORDS // rank.tensor, width, dtype=torch.bfloat16, device="cuda"))  # noqa: E731
        self.words = table() if begins else None
        self.layers = nn.ModuleList(Layer(rank, width, heads, inner) for _ in range(layers))
        self.norm = Norm(width) if ends else None
        self.output = None if not ends else self.words if begins and tied else table()

    def embedded(self, ids):
        begin = (self.rank.tensor - 1) * self.words.shape[0]
        elsewhere = (ids < begin) | (ids >= begin + self.words.shape[0])
        found = F.embedding((ids - begin).masked_fill(elsewhere, 0), self.words)
        if self.rank.tensor == 1:
            return found
        return _Scattered.apply(found.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.rank)

    def forward(self, ids, x=None):
        if self.words is not None:
            x = self.embedded(ids.transpose(0, 1))
        for layer in self.layers:
            x = layer(x)
        if not self.ends:
            return x
        logits = Column.apply(self.norm(x), self.output, self.rank).float()
        losses = VocabularyLoss.apply(logits, ids.transpose(0, 1).contiguous(), _Plain(self.rank), True)
        return losses.mean()


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return rank.scattered(x)

    @staticmethod
    def backward(ctx, gradient):
        whole, coming = ctx.rank.gathered("x", gradient)
        coming.wait()
        return whole.clone(), None


class _Plain:
    """Model interface for the loss."""

    def __init__(self, rank):
        self.tensor, self.all_reduce, self.arguments = rank.tensor, rank.all_reduce, self

    def flag(self, name):
        return False
