"""Llama 3 as compiled by torchtitan per block, after torch.compile has removed DTensors.

Uses fused kernels between matrix products (compiled_kernels.py). Complex rotary embeddings are those of llama.py,
because Inductor falls back to eager for them. Embedding, final norm, output layer and loss are not compiled. Tensor
parallelism shards tokens between blocks, and heads, hidden units and vocabulary inside.
"""

import torch
from compiled_kernels import add_norm, norm, silu_mul
from compiled_products import Products, all_gather_autograd, reduce_scatter_autograd
from llama import SIZES, VOCABULARY, RmsNorm, rotated
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def matrix(rows, columns):
    return torch.nn.Parameter(torch.empty(rows, columns))


class Block(torch.nn.Module):
    def __init__(self, size, how):
        super().__init__()
        width, _, heads, key_heads, hidden = SIZES[size]
        cut = how.size
        self.how, self.head, self.groups = how, width // heads, heads // key_heads
        self.wq, self.wk, self.wv = (matrix(n * self.head // cut, width) for n in (heads, key_heads, key_heads))
        self.wo = matrix(width, width // cut)
        self.w1, self.w3 = matrix(hidden // cut, width), matrix(hidden // cut, width)
        self.w2 = matrix(width, hidden // cut)
        self.attention_norm, self.ffn_norm = (torch.nn.Parameter(torch.ones(width)) for _ in range(2))

    def forward(self, x, turns):
        for parameter in self.parameters():  # parameters gathered in float8 have bf16 gradients
            if parameter.dtype == torch.float8_e4m3fn:
                parameter.grad_dtype = torch.bfloat16
        x, normed = norm(x, self.attention_norm)
        attended = self.attended(normed, turns)
        del normed  # freed after the last use, as in Inductor's code
        x, normed = add_norm(x, self.how.rows(attended, self.wo), self.ffn_norm)
        del attended
        a, b = self.how.columns(normed, self.w1, self.w3)
        del normed
        hidden = silu_mul(a, b)
        del a, b
        return x + self.how.rows(hidden, self.w2)

    def attended(self, normed, turns):
        q, k, v = (part.unflatten(-1, (-1, self.head)) for part in self.how.columns(normed, self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = self.repeated(k), self.repeated(v)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            done = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return done.transpose(1, 2).flatten(2).contiguous()

    def repeated(self, x):
        batch, tokens, heads, head = x.shape
        wide = x[:, :, :, None, :].expand(batch, tokens, heads, self.groups, head)
        return wide.reshape(batch, tokens, heads * self.groups, head)


class Llama(torch.nn.Module):
    """A pipeline stage: layers, with the embedding on the first stage and the output layer and loss on the last."""

    def __init__(self, size, length, layers, how=None, mesh=None, first=True, last=True, gives_loss=True):
        super().__init__()
        width, _, heads, *_ = SIZES[size]
        self.how, self.mesh, self.first, self.last, self.gives_loss = how or Products(), mesh, first, last, gives_loss
        if first:
            self.tok_embeddings = torch.nn.Embedding(VOCABULARY // self.how.size, width)
        self.layers = torch.nn.ModuleList(Block(size, self.how) for _ in range(layers))
        if last:
            self.norm = RmsNorm(width)
            self.output = torch.nn.Linear(width, VOCABULARY // self.how.size, bias=False)
        self.register_buffer("turns", torch.empty(length, width // heads // 2, dtype=torch.complex64))

    def embedded(self, ids):
        if not self.how.group:
            return self.tok_embeddings(ids)
        mine = self.tok_embeddings.num_embeddings
        elsewhere = (ids < 0) | (ids >= mine)
        found = self.tok_embeddings(ids.masked_fill(elsewhere, 0)).masked_fill(elsewhere[..., None], 0)
        return reduce_scatter_autograd(found, "sum", 1, self.how.group)

    def forward(self, x):
        ids = x
        if self.first:
            x = self.embedded(x)
        for layer in self.layers:
            x = layer(x, self.turns)
        if not self.last:
            return x
        x = self.norm(x)
        if self.how.group:
            x = all_gather_autograd(x, 1, self.how.group)
        logits = self.output(x)
        if self.how.group:
            logits = DTensor.from_local(logits, self.mesh, [Shard(2)], run_check=False)
        return loss_of(logits, ids) if self.gives_loss else logits


def loss_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
