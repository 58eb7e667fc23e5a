"""Models with published plans, as plain modules: GPT as in tables of Megatron-LM, Llama 3, OPT and GPT-Neo."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads, key_heads, rotary, bias):
        super().__init__()
        self.head, self.grouped, self.rotary = width // heads, key_heads != heads, rotary
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, key_heads * self.head, bias=bias)
        self.v_proj = nn.Linear(width, key_heads * self.head, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x, turns):
        batch, tokens, _ = x.shape
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(x).view(batch, tokens, -1, self.head).transpose(1, 2) for part in parts)
        if self.rotary:
            q, k = rotated(q, turns), rotated(k, turns)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


def rotated(x, turns):
    cos, sin = turns
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin


class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Plain(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up_proj = nn.Linear(width, inner)
        self.down_proj = nn.Linear(inner, width)

    def forward(self, x):
        return self.down_proj(functional.gelu(self.up_proj(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, width, heads, key_heads, inner, gated):
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.input_layernorm, self.post_attention_layernorm = norm(width), norm(width)
        self.self_attn = Attention(width, heads, key_heads, rotary=gated, bias=not gated)
        self.mlp = Gated(width, inner) if gated else Plain(width, inner)

    def forward(self, x, turns):
        x = x + self.self_attn(self.input_layernorm(x), turns)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Returns the loss with the inputs as labels, which do not affect costs."""

    def __init__(self, *, layers, width, heads, words, length, key_heads=None, inner=None, gated=False):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.embed_positions = None if gated else nn.Embedding(length, width)
        inner = inner or 4 * width
        self.layers = nn.ModuleList(Layer(width, heads, key_heads or heads, inner, gated) for _ in range(layers))
        self.norm = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.head = width // heads

    def forward(self, ids):
        x = self.embed_tokens(ids)
        turns = None
        if self.embed_positions is None:
            steps = torch.arange(0, self.head, 2, device=ids.device) / self.head
            angles = torch.outer(torch.arange(ids.shape[1], device=ids.device), 500000.0**-steps)
            angles = torch.cat((angles, angles), -1)
            turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        else:
            x = x + self.embed_positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, turns)
        logits = self.lm_head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def flops(*, layers, width, heads, words, length, key_heads=None, inner=None, gated=False):
    """Returns FLOPs of forward and backward for one sequence. Causal attention counts half of the scores."""
    keys = (key_heads or heads) / heads
    inner = inner or 4 * width
    layer = 2 * width * width * (1 + keys) + (3 if gated else 2) * width * inner
    return 6 * length * (layers * (layer + 2 * width * length / 2) + width * words)
