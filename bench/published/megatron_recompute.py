"""Activation checkpoints of Megatron-LM."""

import functools

import torch


class Recomputed(torch.autograd.Function):
    """Returns function(*given) with an activation checkpoint. Arguments are tensors or None."""

    @staticmethod
    def forward(ctx, function, *given):
        ctx.function = function
        with torch.no_grad():
            result = function(*given)
        ctx.save_for_backward(*given)
        return result

    @staticmethod
    def backward(ctx, gradient):
        given = []
        for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:]):
            given.append(tensor if tensor is None else tensor.detach().requires_grad_(needed))
        with torch.enable_grad():
            result = ctx.function(*given)
        torch.autograd.backward(result, gradient)
        return None, *(None if tensor is None else tensor.grad for tensor in given)


class Plan:
    """Selects the layers to recompute by Megatron-LM's arguments."""

    def __init__(self, arguments):
        full = arguments.given.get("recompute-granularity") == "full"
        self.method = arguments.given.get("recompute-method") if full else None
        self.count = arguments.number("recompute-num-layers", 1)

    def run(self, layers, x, *others):
        """uniform: groups of recompute-num-layers layers. block: the first recompute-num-layers layers individually."""
        at_once = self.count if self.method == "uniform" else 1
        for first in range(0, len(layers), at_once):
            part = functools.partial(_through, layers[first : first + at_once])
            again = self.method == "uniform" or (self.method == "block" and first < self.count)
            x = Recomputed.apply(part, x, *others) if again else part(x, *others)
        return x


def _through(layers, x, *others):
    for layer in layers:
        x = layer(x, *others)
    return x
