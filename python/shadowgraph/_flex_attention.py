"""Captures FlexAttention that is compiled for CUDA as the one kernel that it is there.

torch.compile'd programs run eagerly inside a mode, where flex_attention computes all scores and masks them. Compiled,
a kernel computes only blocks that the block mask does not skip and keeps the output and its logsumexp. Without
torch.compile, and on the CPU, the program itself computes all scores, and so does the capture.
"""

import functools
import math
import sys
import traceback

import torch
import torch.nn.attention.flex_attention as flex
import torch.utils.weak
from torch._higher_order_ops.flex_attention import flex_attention as operator

from . import _shadowgraph as _C
from ._unfake import unfake

_MOST_ROWS = 128  # of blocks of a mask that is created here: 16,384 queries
_SAMPLED_ROWS = 32  # of a larger one
_counted = torch.utils.weak.WeakTensorKeyDictionary()  # by block mask: blocks per head, None if unknown


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
    codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py") for code in codes)


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
        if node not in found:
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
    partly, wholly = block_mask[2], block_mask[4]  # numbers of blocks that are masked in part, and not at all
    if partly not in _counted:
        known = [_known(each) for each in (partly, wholly) if each is not None]
        if any(each is None for each in known):
            count = len(range(0, rows, sides[0]))
            step = math.ceil(count / _SAMPLED_ROWS)
            sampled = range(step // 2, count, step)
            blocks = _evaluate(block_mask[-1], partly.shape[:2], (rows, columns), sides, sampled)
            if blocks is not None:
                with unfake():
                    blocks = (blocks[0] + blocks[1]).double().mean((0, 1, 2)).sum().item() * count
        else:
            with unfake():
                blocks = sum(each.double().sum(-1).mean().item() for each in known)
        _counted[partly] = blocks
    blocks = _counted[partly]
    if blocks is None:
        return -rows * columns
    return min(math.ceil(blocks * min(sides[0], rows) * min(sides[1], columns)), rows * columns)


def _known(tensor):
    if not _C.is_fake(tensor):
        return tensor
    try:
        return _C.known_contents(tensor)
    except _C.Error:  # beyond the budget
        return None


def _evaluate(mask_mod, heads, sizes, sides, rows_of_blocks):
    """Returns which blocks are masked in part, and which not at all, as int8 [batch, heads, rows, columns].

    Evaluates the mask for these rows of blocks. Returns None if it reads tensors without data.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    partly, wholly = [], []
    with unfake(), torch.no_grad(), TransformGetItemToIndex():
        mask = flex._vmap_for_bhqkv(mask_mod, prefix=())
        b, h, kv = torch.arange(heads[0]), torch.arange(heads[1]), torch.arange(sizes[1])
        for row in rows_of_blocks:
            q = torch.arange(row * sides[0], min((row + 1) * sides[0], sizes[0]))
            try:
                needed = mask(b, h, q, kv)
            except Exception:  # the program's own function, on tensors without data
                return None
            if _C.is_fake(needed):
                return None
            needed = torch.nn.functional.pad(needed.expand(*heads, len(q), sizes[1]), (0, -sizes[1] % sides[1]))
            needed = needed.unflatten(-1, (-1, sides[1]))
            whole = needed.all(-1).all(2) if len(q) == sides[0] else torch.zeros(1, dtype=torch.bool)
            some = needed.any(-1).any(2)
            wholly.append(whole.expand_as(some).to(torch.int8))
            partly.append((some & ~whole).to(torch.int8))
        return torch.stack(partly, 2), torch.stack(wholly, 2)


class _Mask:
    """A mask of a compiled create_block_mask, which computes its blocks without the mask itself in memory."""

    def __init__(self, mask_mod, heads, sizes, device):
        self.arguments, self.device = (mask_mod, heads, sizes), device

    def blocks(self, sides):
        _, heads, sizes = self.arguments
        count = math.ceil(sizes[0] / sides[0])
        found = _evaluate(*self.arguments, sides, range(count)) if count <= _MOST_ROWS else None
        shape = (*heads, count, math.ceil(sizes[1] / sides[1]))
        if found is None:
            return [torch.empty(shape, dtype=torch.int8, device=self.device) for _ in range(2)]
        return [torch.tensor(each.tolist(), dtype=torch.int8, device=self.device) for each in found]


_create_mask, _convert = flex.create_mask, flex._convert_mask_to_block_mask


@functools.wraps(_create_mask)
def _create(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    fused = _C.is_active() and torch.device(device or "cpu").type == "cuda" and _is_compiled()
    if fused and flex._get_mod_type(mod_fn) == flex._ModificationType.MASK_MOD:
        return _Mask(mod_fn, (B or 1, H or 1), (Q_LEN, KV_LEN), device)
    return _create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device)


@functools.wraps(_convert)
def _convert_mask(mask, Q_BLOCK_SIZE=128, KV_BLOCK_SIZE=128, separate_full_blocks=False):
    if not isinstance(mask, _Mask):
        return _convert(mask, Q_BLOCK_SIZE, KV_BLOCK_SIZE, separate_full_blocks)
    partly, wholly = mask.blocks((Q_BLOCK_SIZE, KV_BLOCK_SIZE))
    return (partly, wholly) if separate_full_blocks else (partly + wholly, None)


def fuse_masks(fused):
    """While a mode is active, which torch.compile does not trace: replaces the parts of create_block_mask."""
    flex.create_mask = _create if fused else _create_mask
    flex._convert_mask_to_block_mask = _convert_mask if fused else _convert
