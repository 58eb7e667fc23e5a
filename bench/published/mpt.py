"""MPT as in llm-foundry: a GPT with pre-layer norm, biases, learned positions and flash attention."""

import torch
from torch.nn import functional

import shadowgraph as sg

# Width, heads, layers.
SIZES = {"125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24),
         "3b": (2560, 20, 32), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48),
         "70b": (8192, 64, 80)}  # fmt: skip
VOCABULARY = 50368


class _RowsOf(torch.autograd.Function):
    """Unpadding of flash-attn, which copies the rows of tokens; here without padding."""

    @staticmethod
    def forward(context, x, rows):
        context.save_for_backward(rows)
        context.whole = x.shape
        return x.gather(0, rows[:, None].expand(-1, x.shape[1]))

    @staticmethod
    def backward(context, gradients):
        (rows,) = context.saved_tensors
        whole = gradients.new_zeros(context.whole)
        return whole.scatter_(0, rows[:, None].expand(-1, whole.shape[1]), gradients), None


class _BackIntoRows(torch.autograd.Function):
    @staticmethod
    def forward(context, x, rows, count):
        context.save_for_backward(rows)
        whole = x.new_zeros(count, x.shape[1])
        whole[rows] = x
        return whole

    @staticmethod
    def backward(context, gradients):
        return gradients[context.saved_tensors[0]], None, None


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, rows):
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (_RowsOf.apply(part.flatten(0, 1), rows).view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in parts)  # fmt: skip
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = _BackIntoRows.apply(attended.transpose(1, 2).reshape(-1, width), rows, batch * length)
        x = x + self.out(attended.view(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Mpt(torch.nn.Module):
    def __init__(self, size, length, layers=None):
        super().__init__()
        width, heads, all_layers = SIZES[size]
        self.words, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers or all_layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        rows = torch.arange(ids.numel(), device=ids.device)
        for block in self.blocks:
            x = block(x, rows)
        logits = functional.linear(self.norm(x), self.words.weight)
        return cross_entropy(logits.flatten(0, 1), ids.flatten())


@torch.library.custom_op("published::cross_entropy", mutates_args=())
def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.logsumexp(logits.float(), -1)
    return sums - logits.float().gather(1, labels[:, None])[:, 0], sums


@_cross_entropy.register_fake
def _(logits, labels):
    rows = logits.new_empty(logits.shape[0], dtype=torch.float32)
    return rows, torch.empty_like(rows)


@torch.library.custom_op("published::cross_entropy_backward", mutates_args={"logits"})
def _cross_entropy_backward(gradients: torch.Tensor, logits: torch.Tensor, sums: torch.Tensor,
                            labels: torch.Tensor) -> None:  # fmt: skip
    chances = (logits.float() - sums[:, None]).exp()
    chances.scatter_add_(1, labels[:, None], -torch.ones_like(chances[:, :1]))
    logits.copy_(chances * gradients[:, None])


@_cross_entropy_backward.register_fake
def _(gradients, logits, sums, labels):
    return None


class _FusedCrossEntropy(torch.autograd.Function):
    """Cross entropy of flash-attn: float32 internally, the gradient overwrites the logits."""

    @staticmethod
    def forward(context, logits, labels):
        losses, sums = _cross_entropy(logits, labels)
        context.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(context, gradients):
        logits, sums, labels = context.saved_tensors
        _cross_entropy_backward(gradients, logits, sums, labels)
        return logits, None


def cross_entropy(logits, labels):
    return _FusedCrossEntropy.apply(logits, labels).mean()


# Kernels of flash-attn read operands and write results only.
for _name in ("published::cross_entropy", "published::cross_entropy_backward"):
    sg.register_cost(_name, scratch=lambda call: 0)
