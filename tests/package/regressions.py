"""A small language model, and thirty changes to it that increase memory or time."""

import dataclasses

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import shadowgraph as sg

BATCH, LENGTH, WIDTH, HEADS, WORDS = 8, 64, 64, 4, 512


@dataclasses.dataclass(frozen=True)
class Choices:
    """Options of the original model; a regression changes one of them."""

    blocks: int = 4
    hidden: int = 256
    words: int = WORDS
    checkpointed: int = 2
    inplace: bool = True
    dropout: float = 0.0
    attention: str = "fused"
    dtype: torch.dtype = torch.bfloat16
    optimizer: str = "sgd"
    tied: bool = True
    activation: str = "leaky"
    extra: str = ""  # name of an optional extra line below
    training: tuple[tuple[str, object], ...] = ()


class Block(torch.nn.Module):
    def __init__(self, choices):
        super().__init__()
        self.choices = choices
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, choices.hidden, bias=False)  # with a bias, the result would be a view
        self.down = torch.nn.Linear(choices.hidden, WIDTH)

    def forward(self, x):
        x = x + self.attend(self.normed(x))
        return x + self.mlp(self.normed(x))

    def normed(self, x):
        if self.choices.extra == "norm in float32":
            return F.layer_norm(x.float(), (WIDTH,), self.norm.weight.float(), self.norm.bias.float()).to(x.dtype)
        return self.norm(x)

    def attend(self, x):
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.choices.extra == "keys repeated":
            k, v = (part.repeat_interleave(4, 2) for part in (k, v))
        if self.choices.extra == "contiguous":
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        if self.choices.attention == "fused":
            mask = None
            if self.choices.extra == "mask":
                mask = torch.ones(x.shape[0], HEADS, LENGTH, LENGTH, device=x.device, dtype=x.dtype).tril()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) / 4
            scores = scores.float() if self.choices.attention == "softmax in float32" else scores
            y = scores.softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def mlp(self, x):
        h = self.up(x)
        if self.choices.activation == "gelu by hand":
            h = 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * h * h * h)))
        else:
            h = F.leaky_relu(h, 0.1, inplace=self.choices.inplace)
        if self.choices.extra == "clone":
            h = h.clone()
        if self.choices.extra == "wide sum":
            h = h + (h.unsqueeze(-1) * torch.ones(4, device=h.device, dtype=h.dtype)).sum(-1)
        return self.down(F.dropout(h, self.choices.dropout))


class Net(torch.nn.Module):
    def __init__(self, choices):
        super().__init__()
        self.choices = choices
        self.embedding = torch.nn.Embedding(choices.words, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(choices) for _ in range(choices.blocks))
        self.head = torch.nn.Linear(WIDTH, choices.words, bias=False)
        if choices.tied:
            self.head.weight = self.embedding.weight
        if choices.extra == "buffer":
            self.register_buffer("positions", torch.zeros(8, LENGTH, LENGTH))
        self.kept = []

    def forward(self, words):
        if self.choices.extra == "padded":
            words = F.pad(words, (0, LENGTH // 4))
        if self.choices.extra == "batch twice":
            words = torch.cat([words, words])
        if self.choices.extra == "one-hot":
            x = F.one_hot(words, self.choices.words).to(self.embedding.weight.dtype) @ self.embedding.weight
        else:
            x = self.embedding(words)
        states = []
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if i < self.choices.checkpointed else block(x)
            states.append(x * 2 if self.choices.extra == "hidden states" else x)
            if self.choices.extra == "detached copies":
                self.kept.append(x.detach().float())
        if self.choices.extra == "hidden states":
            x = torch.stack(states).mean(0)
        logits = self.head(x)
        scaled = logits.float() if self.choices.extra == "logits in float32" else logits
        if self.choices.extra == "retained graph":
            self.kept.append(logits.exp())
        if self.choices.extra == "unused head":
            with torch.no_grad():
                for _ in range(12):
                    self.head(x).argmax(-1)
        if self.choices.extra == "probabilities":
            return -(scaled.softmax(-1) + 1e-6).log().flatten(0, -2)[:, 0].mean()
        if self.choices.extra == "soft targets":
            targets = F.one_hot(words, self.choices.words).to(scaled.dtype)
            return F.cross_entropy(scaled.flatten(0, -2), targets.flatten(0, -2))
        return F.cross_entropy(scaled.flatten(0, -2), words.flatten())


# The change, and the operator and the module that the report must name.
REGRESSIONS = {
    "wider layer": (dict(hidden=320), "aten::", "blocks.*"),
    "one more block": (dict(blocks=5), "aten::", "blocks.4"),
    "more words": (dict(words=640), "aten::", "head"),
    "lost checkpoint": (dict(checkpointed=1), "aten::", "blocks.1"),
    "no checkpoint": (dict(checkpointed=0), "aten::", "blocks.*"),
    "not in place": (dict(inplace=False), "aten::leaky_relu", "blocks.*"),
    "dropout": (dict(dropout=0.1), "aten::native_dropout", "blocks.*"),
    "attention by hand": (dict(attention="by hand"), "aten::_softmax", "blocks.*"),
    "softmax in float32": (dict(attention="softmax in float32"), "aten::_softmax", "blocks.*"),
    "float32": (dict(dtype=torch.float32), "aten::", "blocks.*"),
    "adamw": (dict(optimizer="adamw"), "aten::", ""),
    "adam": (dict(optimizer="adam"), "aten::", ""),
    "untied": (dict(tied=False), "head.weight", ""),
    "gelu by hand": (dict(activation="gelu by hand"), "aten::mul", "blocks.*"),
    "norm in float32": (dict(extra="norm in float32"), "aten::", "blocks.*"),
    "keys repeated": (dict(extra="keys repeated"), "aten::", "blocks.*"),
    "contiguous": (dict(extra="contiguous"), "aten::clone", "blocks.*"),
    "mask": (dict(extra="mask"), "aten::", "blocks.*"),
    "clone": (dict(extra="clone"), "aten::clone", "blocks.*"),
    "wide sum": (dict(extra="wide sum"), "aten::", "blocks.*"),
    "buffer": (dict(extra="buffer"), "sg::buffer positions", ""),
    "padded": (dict(extra="padded"), "aten::", "blocks.*"),
    "batch twice": (dict(extra="batch twice"), "aten::", "blocks.*"),
    "one-hot": (dict(extra="one-hot"), "aten::", ""),
    "hidden states": (dict(extra="hidden states"), "aten::mul", ""),
    "detached copies": (dict(extra="detached copies"), "aten::_to_copy", ""),
    "retained graph": (dict(extra="retained graph"), "aten::exp", ""),
    "work for nothing": (dict(extra="unused head"), "aten::argmax", ""),
    "logits in float32": (dict(extra="logits in float32"), "aten::_to_copy", ""),
    "probabilities": (dict(extra="probabilities"), "aten::", ""),
    "soft targets": (dict(extra="soft targets"), "aten::", ""),
    "moving average": (dict(training=(("ema", 0.999),)), "aten::", ""),
    "gradients stay": (dict(training=(("zero_grads", True),)), "aten::", ""),
}


def captured(choices=Choices()):
    """Captures the second training step of the model."""
    return sg.capture_training_step(lambda: Net(choices), f"i64[{BATCH},{LENGTH}]", loss=lambda loss: loss,
                                    optimizer=choices.optimizer, device="cuda", dtype=choices.dtype,
                                    steady_state=True, **dict(choices.training))  # fmt: skip


if __name__ == "__main__":
    import sys

    captured().save(sys.argv[1])
