"""Flash attention operators for the CPU, written as plain matrix products; torch has kernels for GPUs only.

Results have the sizes and strides of CUDA's kernels. Temporaries are freed when the operator returns.
"""

import contextlib

import torch
from torch.nn import functional as F

FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default


def _like(tensor, contents):
    """Returns a [B, H, S, D] tensor with the memory layout of [B, S, H, D]."""
    made = torch.empty_like(tensor.transpose(1, 2)).transpose(1, 2)
    return made.copy_(contents)


def _scores(query, key, is_causal, scale):
    scores = query.float() @ key.float().mT * (scale or query.size(-1) ** -0.5)
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    scores = _scores(query, key, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    out = _like(query, (scores - logsumexp[..., None]).exp() @ value.float())
    seed, unused = torch.empty(2, dtype=torch.uint64), torch.empty((), dtype=torch.uint64)
    return out, logsumexp.clone(), None, None, query.size(2), key.size(2), seed, unused, query.new_empty(0)


def _backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
              philox_seed, philox_offset, *, scale=None):  # fmt: skip
    weights = (_scores(query, key, is_causal, scale) - logsumexp[..., None]).exp()
    of_weights = grad_out.float() @ value.float().mT - (grad_out.float() * out.float()).sum(-1, keepdim=True)
    of_scores = weights * of_weights * (scale or query.size(-1) ** -0.5)
    return (_like(query, of_scores @ key.float()), _like(key, of_scores.mT @ query.float()),
            _like(value, weights.mT @ grad_out.float()))  # fmt: skip


def register():
    """Registers the kernels until the process ends."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
    _library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")


@contextlib.contextmanager
def chosen():
    """Makes torch.nn.functional's attention choose flash attention, as on GPUs."""
    usual = F.scaled_dot_product_attention

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
        return FLASH(query, key, value, dropout_p, is_causal)[0]

    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = usual
