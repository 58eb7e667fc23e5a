"""Llama 3 as in torchtitan: plain modules, complex rotary embeddings, losses in float32."""

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# Width, layers, heads, key/value heads, hidden width.
SIZES = {"8b": (4096, 32, 32, 8, 14336), "70b": (8192, 80, 64, 8, 28672), "405b": (16384, 126, 128, 8, 53248)}
VOCABULARY = 128256


class RmsNorm(torch.nn.Module):
    """torch.nn.RMSNorm as in PyTorch until 2.7: six kernels in float32 instead of one."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotated(x, turns):
    """Rotates (batch, tokens, heads, head) by complex numbers (tokens, head / 2)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None, :]).flatten(3).type_as(x)


class Attention(torch.nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.head = width // heads
        self.groups = heads // key_heads
        self.wq = torch.nn.Linear(width, width, bias=False)
        self.wk = torch.nn.Linear(width, key_heads * self.head, bias=False)
        self.wv = torch.nn.Linear(width, key_heads * self.head, bias=False)
        self.wo = torch.nn.Linear(width, width, bias=False)

    def repeated(self, x):
        batch, tokens, heads, head = x.shape
        wide = x[:, :, :, None, :].expand(batch, tokens, heads, self.groups, head)
        return wide.reshape(batch, tokens, heads * self.groups, head)

    def forward(self, x, turns):
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        q, k, v = (part.transpose(1, 2) for part in (q, self.repeated(k), self.repeated(v)))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # PyTorch's default at the time
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(attended.transpose(1, 2).contiguous().view(batch, tokens, -1))


class FeedForward(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1 = torch.nn.Linear(width, hidden, bias=False)
        self.w2 = torch.nn.Linear(hidden, width, bias=False)
        self.w3 = torch.nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.attention = Attention(width, heads, key_heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = RmsNorm(width)
        self.ffn_norm = RmsNorm(width)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(torch.nn.Module):
    """Returns the loss with the inputs as labels, which do not affect costs."""

    def __init__(self, size, length, layers=None):
        super().__init__()
        width, all_layers, heads, key_heads, hidden = SIZES[size]
        self.tok_embeddings = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.ModuleList(Block(width, heads, key_heads, hidden) for _ in range(layers or all_layers))
        self.norm = RmsNorm(width)
        self.output = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("turns", torch.empty(length, width // heads // 2, dtype=torch.complex64))

    def forward(self, ids):
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, self.turns)
        logits = self.output(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
