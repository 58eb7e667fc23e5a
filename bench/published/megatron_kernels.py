"""Fused kernels of Megatron-LM and Apex as operators with their operands, allocations and mutations.

They have no implementation, only fake kernels, which create tensors of the same sizes as the real kernels.
"""

import math

import torch

import shadowgraph as sg

_library = torch.library.Library("megatron", "DEF")


def _dense(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _nothing(call):
    return 0


def _float_sums(call):
    """Backward of attention accumulates the query gradient in float32, and one value per row."""
    query = call.arguments[1]
    return 4 * math.prod(query.shape[:3]) * (query.shape[3] + 1)


def _attention_flops(call):
    query, key, _, flash, causal = call.arguments
    keys = key.shape[1] if flash else key.shape[0]
    return 4 * math.prod(query.shape) * keys // (2 if causal else 1)


def _attention_backward_flops(call):
    _, query, key, _, _, _, flash, causal = call.arguments
    keys = key.shape[1] if flash else key.shape[0]
    return 10 * math.prod(query.shape) * keys // (2 if causal else 1)


def _product_flops(call):
    x, gradient, _ = call.arguments
    return 2 * math.prod(x.shape) * gradient.shape[-1]


def _operator(schema, fake, scratch=_nothing, flops=None):
    _library.define(schema)
    name = "megatron::" + schema.split("(")[0]
    torch.library.register_fake(name, fake, lib=_library)
    sg.register_cost(name, scratch=scratch, flops=flops)


_operator("causal_softmax(Tensor scores, float scale) -> Tensor", lambda scores, scale: torch.empty_like(scores))
_operator("masked_softmax(Tensor scores, Tensor mask, float scale) -> Tensor",
          lambda scores, mask, scale: torch.empty_like(scores))  # fmt: skip
_operator("softmax_backward_(Tensor(a!) gradient, Tensor result, float scale) -> ()", lambda *operands: None)
_operator("bias_gelu(Tensor x, Tensor bias) -> Tensor", lambda x, bias: torch.empty_like(x))
_operator("bias_gelu_backward(Tensor gradient, Tensor x, Tensor bias) -> Tensor",
          lambda gradient, x, bias: torch.empty_like(x))  # fmt: skip
_operator("bias_dropout_add(Tensor x, Tensor bias, Tensor residual, float p) -> (Tensor, Tensor)",
          lambda x, bias, residual, p: (torch.empty_like(residual), torch.empty_like(x, dtype=torch.bool)))  # fmt: skip
_operator("bias_dropout_add_backward(Tensor gradient, Tensor mask, float p) -> (Tensor, Tensor)",
          lambda gradient, mask, p: (torch.empty_like(gradient), gradient.new_empty(gradient.shape[-1])))  # fmt: skip
_operator("bias_swiglu(Tensor x, Tensor? bias) -> Tensor",
          lambda x, bias: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)))  # fmt: skip
_operator("bias_swiglu_backward(Tensor gradient, Tensor x, Tensor? bias) -> Tensor",
          lambda gradient, x, bias: torch.empty_like(x))  # fmt: skip
_operator("weighted_swiglu(Tensor x, Tensor weights) -> Tensor",
          lambda x, weights: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)))  # fmt: skip
_operator("weighted_swiglu_backward(Tensor gradient, Tensor x, Tensor weights) -> (Tensor, Tensor)",
          lambda gradient, x, weights: (torch.empty_like(x), torch.empty_like(weights)))  # fmt: skip
_operator("cross_entropy_(Tensor(a!) logits, Tensor target) -> Tensor",
          lambda logits, target: logits.new_empty(target.shape, dtype=torch.float32))  # fmt: skip
_operator("rotated(Tensor x) -> Tensor", lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device))


def _sums(query):
    return query.new_empty(math.prod(query.shape[:3]), dtype=torch.float32)


_operator("attention(Tensor query, Tensor key, Tensor value, bool flash, bool causal) -> (Tensor, Tensor)",
          lambda query, key, value, flash, causal: (_dense(query), _sums(query)), flops=_attention_flops)  # fmt: skip
_operator("attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor out, Tensor sums, "
          "bool flash, bool causal) -> (Tensor, Tensor, Tensor)",
          lambda gradient, query, key, value, out, sums, *how: (_dense(query), _dense(key), _dense(value)),
          scratch=_float_sums, flops=_attention_backward_flops)  # fmt: skip
_operator("accumulate_product_(Tensor x, Tensor gradient, Tensor(a!) sums) -> ()", lambda *operands: None,
          flops=_product_flops)  # fmt: skip
_operator("norm(Tensor[] all) -> Tensor", lambda all: all[0].new_empty(1, dtype=torch.float32))
_operator("scale_(Tensor(a!)[] all, Tensor by) -> ()", lambda *operands: None)
_operator("unscale_(Tensor(a!)[] all, Tensor(b!) found, Tensor by) -> ()", lambda *operands: None)
_operator("adam_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] first, Tensor(c!)[] second) -> ()",
          lambda *operands: None)  # fmt: skip
_operator("copy_all_(Tensor[] of, Tensor(a!)[] to) -> ()", lambda *operands: None)
kernels = torch.ops.megatron


class ScaledSoftmax(torch.autograd.Function):
    """Masked softmax, causal without a mask. Backward overwrites the given gradient."""

    @staticmethod
    def forward(ctx, scores, mask, scale):
        masked = mask is not None
        result = kernels.masked_softmax(scores, mask, scale) if masked else kernels.causal_softmax(scores, scale)
        ctx.save_for_backward(result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        kernels.softmax_backward_(gradient, result, ctx.scale)
        return gradient, None, None


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return kernels.bias_gelu(x, bias)

    @staticmethod
    def backward(ctx, gradient):
        both = kernels.bias_gelu_backward(gradient, *ctx.saved_tensors)
        return both, both  # autograd sums the second over all rows


class BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, residual, p):
        result, mask = kernels.bias_dropout_add(x, bias, residual, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return result

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        of_x, of_bias = kernels.bias_dropout_add_backward(gradient, mask, ctx.p)
        return of_x, of_bias, gradient, None


class BiasSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return kernels.bias_swiglu(x, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, bias = ctx.saved_tensors
        both = kernels.bias_swiglu_backward(gradient, x, bias)
        return both, None if bias is None else both


class WeightedSwiglu(torch.autograd.Function):
    """Tokens of an expert with their routing weights."""

    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        return kernels.weighted_swiglu(x, weights)

    @staticmethod
    def backward(ctx, gradient):
        return kernels.weighted_swiglu_backward(gradient, *ctx.saved_tensors)


class EngineLoss(torch.autograd.Function):
    """Cross entropy of TransformerEngine: forward overwrites the logits with the gradient."""

    @staticmethod
    def forward(ctx, logits, target):
        losses = kernels.cross_entropy_(logits, target)
        ctx.save_for_backward(logits.detach())
        return losses

    @staticmethod
    def backward(ctx, gradient):
        (logits,) = ctx.saved_tensors
        return logits.mul_(gradient.unsqueeze(dim=-1)), None


class Rotated(torch.autograd.Function):
    """Rotary embedding, which only saves its table."""

    @staticmethod
    def forward(ctx, x):
        return kernels.rotated(x)

    @staticmethod
    def backward(ctx, gradient):
        return kernels.rotated(gradient)


class Attention(torch.autograd.Function):
    """Flash and cuDNN attention, which save inputs, result, and one float32 value per row."""

    @staticmethod
    def forward(ctx, query, key, value, flash, causal):
        result, sums = kernels.attention(query, key, value, flash, causal)
        ctx.save_for_backward(query, key, value, result, sums)
        ctx.how = flash, causal
        return result

    @staticmethod
    def backward(ctx, gradient):
        return *kernels.attention_backward(gradient, *ctx.saved_tensors, *ctx.how), None, None
