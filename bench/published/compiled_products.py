"""Linear layers of a compiled block, in bf16 or float8, with optional tensor parallelism and its collectives.

With tensor parallelism, tokens are sharded between blocks. Column parallel layers all-gather them first; row parallel
layers reduce-scatter their results. With float8, tensors are cast before the all-gather, with a common scale.
Asynchronous tensor parallelism overlaps each chunk's collective with the matrix product of another. Sums of several
gradients are reduce-scattered without chunks, since they are not matrix products.
"""

import dataclasses

import torch
import torch.distributed as dist
from compiled_kernels import operators
from torch.distributed import _functional_collectives as collectives

functional = torch.ops._c10d_functional


def named(old, new):
    """Returns a collective that was renamed in torch 2.13."""
    return getattr(collectives, new, None) or getattr(collectives, old)


all_gather = named("all_gather_tensor", "all_gather_single")
reduce_scatter = named("reduce_scatter_tensor", "reduce_scatter_single")
all_gather_autograd = named("all_gather_tensor_autograd", "all_gather_single_autograd")
reduce_scatter_autograd = named("reduce_scatter_tensor_autograd", "reduce_scatter_single_autograd")


@dataclasses.dataclass(frozen=True)
class Products:
    """Options for the matrix products of a block."""

    float8: bool = False
    group: dist.ProcessGroup | None = None  # tensor parallel group
    asynchronous: bool = False

    @property
    def size(self):
        return self.group.size() if self.group else 1

    def cast(self, x):
        """Converts an operand of a matrix product."""
        if not self.float8:
            return x
        scale = operators.amax(x)
        if self.group:
            scale = collectives.all_reduce(scale, "max", self.group)
        return operators.cast(x, scale)

    def gathered(self, x):
        return all_gather(x, 1, self.group) if self.group else x

    def scattered(self, x):
        return reduce_scatter(x, "sum", 1, self.group) if self.group else x

    def product(self, a, b, out=None):
        """Returns a @ b of matrices. float8 requires a row-major a and a column-major b."""
        if not self.float8:
            return torch.mm(a, b, out=out)
        one = a.new_empty((), dtype=torch.float32)
        a, b = a.contiguous(), b.t().contiguous().t()
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True, out=out)

    def for_weights(self, x):
        """Converts an operand of weight gradients, which are summed over tokens.

        Float8 wants another order of it, once for all weights. So does what was gathered by pieces: PyTorch has it by
        token, then by batch.
        """
        if self.float8:
            return x.t().contiguous().t()
        return x.clone() if self.asynchronous else x

    def columns(self, x, *weights):
        return Columns.apply(self, x, *weights)

    def rows(self, x, weight):
        return Result.apply(self, *Rows.apply(self, x, weight), weight.detach())


def flat(x):
    return x.flatten(0, 1)


class Columns(torch.autograd.Function):
    """Multiplies x by several column parallel weights."""

    @staticmethod
    def forward(ctx, how, x, *weights):
        ctx.how = how
        if how.asynchronous:
            whole, results = gather_and_multiply(how, how.cast(x), [weight.t() for weight in weights])
        else:
            whole = how.gathered(how.cast(x))
            results = [how.product(flat(whole), weight.t()).view(*whole.shape[:2], -1) for weight in weights]
        ctx.save_for_backward(whole, *weights)
        return tuple(results) if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx, *grads):
        how, (whole, *weights) = ctx.how, ctx.saved_tensors
        x = flat(whole)
        x = how.for_weights(x)
        parts, of_weights = [], []
        for grad, weight in zip(grads, weights, strict=True):
            cast = flat(how.cast(grad))
            parts.append(how.product(cast, weight))
            of_weights.append(how.product(cast.t(), x))
        total = operators.add(parts) if len(parts) > 1 else parts[0]
        parts = None
        return None, how.scattered(total.view(whole.shape)), *of_weights


class Rows(torch.autograd.Function):
    """Backward of x by a row parallel weight.

    The result follows in Result. So a checkpoint that computes again stops before the product, if it is the last.
    """

    @staticmethod
    def forward(ctx, how, x, weight):
        ctx.how, cast = how, how.cast(x)
        ctx.save_for_backward(cast, weight)
        ctx.mark_non_differentiable(cast)
        return x.new_empty(()).expand(x.shape[0], x.shape[1] // how.size, weight.shape[0]), cast

    @staticmethod
    def backward(ctx, grad, _):
        how, (x, weight) = ctx.how, ctx.saved_tensors
        if how.asynchronous:
            whole, (of_x,) = gather_and_multiply(how, how.cast(grad), [weight])
        else:
            whole = how.gathered(how.cast(grad))
            of_x = how.product(flat(whole), weight).view(*x.shape)
        return None, of_x, how.product(how.for_weights(flat(whole)).t(), flat(x))


class Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx, how, result, x, weight):
        if how.asynchronous:
            return multiply_and_scatter(how, x, weight.t())
        return how.scattered(how.product(flat(x), weight.t()).view(*x.shape[:2], -1))

    @staticmethod
    def backward(ctx, grad):
        return None, grad, None, None


def gather_and_multiply(how, x, weights):
    """All-gathers all chunks asynchronously and multiplies each when it arrives."""
    pieces, name = how.size, how.group.group_name
    whole = x.new_empty(x.shape[0], x.shape[1] * pieces, x.shape[2])
    rows = flat(x).chunk(pieces)
    parts = flat(whole).chunk(pieces)
    sent = [functional.all_gather_into_tensor_out(row, pieces, name, out=part)
            for row, part in zip(rows, parts, strict=True)]  # fmt: skip
    results = [torch.empty(whole.shape[0] * whole.shape[1], weight.shape[1], dtype=torch.bfloat16, device=x.device)
               for weight in weights]  # fmt: skip
    written = [result.chunk(pieces) for result in results]
    for i, piece in enumerate(sent):
        part = collectives.wait_tensor(piece)
        for weight, result in zip(weights, written, strict=True):
            how.product(part, weight, out=result[i])
    return whole, [result.view(*whole.shape[:2], -1) for result in results]


def multiply_and_scatter(how, x, weight):
    """Multiplies chunks, and reduces each while the next is multiplied."""
    pieces, name = how.size, how.group.group_name
    whole = torch.empty(x.shape[0] * x.shape[1], weight.shape[1], dtype=torch.bfloat16, device=x.device)
    result = torch.empty(x.shape[0], x.shape[1] // pieces, weight.shape[1], dtype=torch.bfloat16, device=x.device)
    sent = []
    parts = [each.chunk(pieces) for each in (flat(x), whole, flat(result))]
    for part, product, summed in zip(*parts, strict=True):
        how.product(part, weight, out=product)
        sent.append(functional.reduce_scatter_tensor_out(product, "sum", pieces, name, out=summed))
    for piece in sent:
        collectives.wait_tensor(piece)
    return result
