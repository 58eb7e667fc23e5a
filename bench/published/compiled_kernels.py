"""Fused kernels that Inductor generates between the matrix products of a block, as operators.

The operators have no implementation, since only captures call them. They are tagged pointwise, so that the time model
uses the bytes they read and write. They save the same tensors for backward as the partitioner of AOTAutograd.
"""

import torch

library = torch.library.Library("published", "DEF")
operators = torch.ops.published
FLOAT8 = torch.float8_e4m3fn


def kernel(schema, results):
    """Defines an operator; `results` creates its results."""
    name = schema[: schema.index("(")]
    library.define(schema, tags=torch.Tag.pointwise)
    library.impl(name, results, "Meta")


def rows(x):
    """Returns a float32 tensor with one element per vector of x."""
    return torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)


kernel("norm(Tensor x, Tensor weight) -> (Tensor, Tensor)", lambda x, weight: (torch.empty_like(x), rows(x)))
kernel("add_norm(Tensor x, Tensor y, Tensor weight) -> (Tensor, Tensor, Tensor)",
       lambda x, y, weight: (torch.empty_like(x), torch.empty_like(x), rows(x)))  # fmt: skip
kernel("norm_backward(Tensor grad, Tensor x, Tensor root, Tensor weight, Tensor residual) -> Tensor",
       lambda grad, x, root, weight, residual: torch.empty_like(x))  # fmt: skip
kernel("norm_weight_backward(Tensor grad, Tensor x, Tensor root) -> Tensor",
       lambda grad, x, root: torch.empty(x.shape[-1], dtype=x.dtype, device=x.device))  # fmt: skip
kernel("silu_mul(Tensor a, Tensor b) -> Tensor", lambda a, b: torch.empty_like(a))
kernel("silu_mul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)",
       lambda grad, a, b: (torch.empty_like(a), torch.empty_like(b)))  # fmt: skip
kernel("add(Tensor[] parts) -> Tensor", lambda parts: torch.empty_like(parts[0]))
kernel("amax(Tensor x) -> Tensor", lambda x: torch.empty((), dtype=torch.float32, device=x.device))
kernel("cast(Tensor x, Tensor scale) -> Tensor", lambda x, scale: torch.empty_like(x, dtype=FLOAT8))


class Norm(torch.autograd.Function):
    """Returns (x, normed x), so that backward adds the gradient of x in the same kernel."""

    @staticmethod
    def forward(ctx, x, weight):
        normed, root = operators.norm(x, weight)
        ctx.save_for_backward(x, root, weight)
        return x.view_as(x), normed

    @staticmethod
    def backward(ctx, residual, grad):
        x, root, weight = ctx.saved_tensors
        return (operators.norm_backward(grad, x, root, weight, residual),
                operators.norm_weight_backward(grad, x, root))  # fmt: skip


class AddNorm(torch.autograd.Function):
    """Returns (x + y, normed x + y)."""

    @staticmethod
    def forward(ctx, x, y, weight):
        total, normed, root = operators.add_norm(x, y, weight)
        ctx.save_for_backward(total, root, weight)
        return total, normed

    @staticmethod
    def backward(ctx, residual, grad):
        x, root, weight = ctx.saved_tensors
        both = operators.norm_backward(grad, x, root, weight, residual)
        return both, both, operators.norm_weight_backward(grad, x, root)


class SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return operators.silu_mul(a, b)

    @staticmethod
    def backward(ctx, grad):
        return operators.silu_mul_backward(grad, *ctx.saved_tensors)


norm, add_norm, silu_mul = Norm.apply, AddNorm.apply, SiluMul.apply
