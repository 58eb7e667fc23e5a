"""Captures FlexAttention that is compiled for CUDA as the one kernel that it is there.

torch.compile'd programs run eagerly inside a mode, where flex_attention computes all scores and masks them. Compiled,
a kernel computes only blocks that the block mask does not skip and keeps the output and its logsumexp. Without
torch.compile, and on the CPU, the program itself computes all scores, and so does the capture.
"""

import functools
import math
import sys

import torch
import torch.nn.attention.flex_attention as flex
from torch._higher_order_ops.flex_attention import flex_attention as operator

from . import _shadowgraph as _C
from ._unfake import unfake

_MOST_ROWS = 256  # of blocks of a mask that is evaluated here


def patch():
    """Replaces the kernel that fake tensors dispatch to. Called once per process."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    original = operator.py_kernels[key]

    @functools.wraps(original)
    def attend(query, key, value, score_mod, block_mask, scale, kernel_options, score_buffers=(), mask_buffers=()):
        if not (_C.is_active() and _C.is_fake(query) and query.is_cuda and _is_compiled()):
            return original(
                query, key, value, score_mod, block_mask, scale, kernel_options, score_buffers, mask_buffers
            )
        scores = query.size(0) * query.size(1) * _scores_of_head(block_mask, query, key)
        tensors = [each for each in (*block_mask, *mask_buffers) if isinstance(each, torch.Tensor)]
        return _FusedKernel.apply(query, key, value, scores, scale, tensors, *score_buffers, *_trained(score_mod))

    operator.py_kernels[key] = attend


def _is_compiled():
    """Returns True if the caller runs in a function compiled by torch.compile, which force_eager calls directly."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            return True
        frame = frame.f_back
    return False


def _trained(score_mod):
    """Returns the leaves that the function's result depends on and that require a gradient, such as a learned bias."""
    if not torch.is_grad_enabled():
        return []
    with unfake():
        index = torch.zeros((), dtype=torch.int64)
        try:
            score = score_mod(torch.zeros(()), index, index, index, index)
        except Exception:  # the program's own function, of tensors that cannot be indexed one by one
            return []
    found, left = {}, [score.grad_fn] if isinstance(score, torch.Tensor) and score.grad_fn else []
    while left:
        node = left.pop()
        if node in found:
            continue
        found[node] = getattr(node, "variable", None)
        left += [each for each, _ in node.next_functions if each is not None]
    return [each for each in found.values() if each is not None]


class _FusedKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, scores, scale, tensors, *captured):
        out, logsumexp, max_scores = torch.ops.shadowgraph.flex_attention(
            query, key, value, scores, scale, [*tensors, *captured]
        )
        ctx.save_for_backward(query, key, value, out, logsumexp, *tensors, *captured)
        ctx.arguments = scores, scale, len(tensors)
        ctx.mark_non_differentiable(max_scores)
        ctx.set_materialize_grads(False)
        return out, logsumexp, max_scores

    @staticmethod
    def backward(ctx, grad_out, grad_logsumexp, _):
        query, key, value, out, logsumexp, *buffers = ctx.saved_tensors
        scores, scale, count = ctx.arguments
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        gradients = torch.ops.shadowgraph.flex_attention_backward(
            grad_out, query, key, value, out, logsumexp, scores, scale, buffers
        )
        of_captured = [torch.zeros_like(each) if each.requires_grad else None for each in buffers[count:]]
        return *gradients, None, None, None, *of_captured


def _scores_of_head(block_mask, query, key):
    """Returns the scores in blocks that the mask does not skip, per sample and head (a mean).

    If the mask depends on unknown data, as of documents, returns all of them as a negative number.
    """
    (rows, columns), sides = (query.size(-2), key.size(-2)), block_mask[-3:-1]
    block = min(sides[0], rows) * min(sides[1], columns)
    numbers = [block_mask[2], block_mask[4]]  # of blocks that are masked in part, and of whole ones
    counted = 0.0
    for each in numbers:
        if each is None:
            continue
        known = _known(each)
        if known is None:
            counted = _blocks_by_evaluation(block_mask[-1], each.shape[:2], rows, columns, sides)
            break
        with unfake():
            counted += known.double().sum(-1).mean().item()
    return -rows * columns if counted is None else min(math.ceil(counted * block), rows * columns)


def _known(tensor):
    if not _C.is_fake(tensor):
        return tensor
    try:
        return _C.known_contents(tensor)
    except _C.Error:  # beyond the budget
        return None


def _blocks_by_evaluation(mask_mod, heads, rows, columns, sides):
    """Returns the blocks with an unmasked score, by evaluating the mask; None if it reads tensors without data."""
    starts = range(0, rows, sides[0])
    sampled = starts[:: math.ceil(len(starts) / _MOST_ROWS)]
    blocks = 0
    with unfake(), torch.no_grad():
        mask = flex._vmap_for_bhqkv(mask_mod, prefix=())
        b, h, kv = torch.arange(heads[0]), torch.arange(heads[1]), torch.arange(columns)
        for start in sampled:
            try:
                scores = mask(b, h, torch.arange(start, min(start + sides[0], rows)), kv)
            except Exception:  # the program's own function, on tensors without data
                return None
            if _C.is_fake(scores):
                return None
            by_column = scores.expand(*heads, -1, columns).any(2)
            padded = torch.nn.functional.pad(by_column, (0, -columns % sides[1]))
            blocks += padded.unflatten(-1, (-1, sides[1])).any(-1).sum().item()
    return blocks / (heads[0] * heads[1]) * len(starts) / len(sampled)
