"""Compares predictions with Aceso's tables of single operators: forward times of GPT operators in float16.

    PYTHONPATH=build/python python bench/published/operators.py [--csv FILE] [--by op_name] [--json FILE]

The rows in operators.csv are from logs in Dazz993/Mist: operators of Megatron-LM on A100 SXM 40 GB with a sequence
length of 4,096, and on V100 SXM 32 GB with 2,048. Rows have micro-batch size and tensor parallel degree. With `algo` 1
the QKV projection is row parallel.
"""

import math

import torch
import torch.distributed
from comparison import compare
from torch.nn import functional

import shadowgraph as sg

MIB = 2**20
# Width, heads.
SIZES = {"gpt_1_3B": (2048, 32), "gpt_2_6B": (2560, 32), "gpt_6_7B": (4096, 32), "gpt_13B": (5120, 40),
         "gpt_22B": (6144, 64), "gpt_40B": (8192, 64)}  # fmt: skip
VOCABULARY = 51200
TABLE, TITLE, UNIT = "operators.csv", "Single operators, forward", "us"
WORST = ("Eight embedding rows include the first collective of their run, which creates the NCCL communicator. "
         "Megatron-LM's fused softmax over 4,096 keys is slower than all softmax kernels of PyTorch.")  # fmt: skip
SPECS = {"a100": "a100_40gb", "v100": "v100", "l4": "l4", "a10g": "a10g"}


class Piece:
    """Tensors of an operator on one rank. Activations are (sequence, micro-batch, width)."""

    def __init__(self, row):
        self.width, self.heads = SIZES[row["model"]]
        self.batch, self.ranks, self.by_rows = int(row["mbs"]), int(row["tp"]), row["algo"] == "1"
        self.length = _length(row, self.width, self.batch)
        self.head = self.width // self.heads
        self.heads //= self.ranks

    def half(self, *sizes):
        return torch.empty(*sizes, device="cuda", dtype=torch.float16)

    def tokens(self, width=None):
        return self.half(self.length, self.batch, width or self.width)

    def scores(self):
        return self.half(self.batch * self.heads, self.length, self.length)

    def summed(self, x):
        if self.ranks > 1:
            torch.distributed.all_reduce(x)
        return x

    def embedding(self):
        ids = torch.empty(self.batch, self.length, device="cuda", dtype=torch.int64)
        words, places = self.half(VOCABULARY // self.ranks, self.width), self.half(self.length, self.width)

        def run():
            if self.ranks == 1:
                x = functional.embedding(ids, words)
            else:  # tokens of other ranks are zero
                outside = (ids < 0) | (ids >= VOCABULARY // self.ranks)
                inside = ids.clone()
                inside[outside] = 0
                x = functional.embedding(inside, words)
                x[outside, :] = 0.0
                x = self.summed(x)
            x = x + functional.embedding(torch.arange(self.length, device="cuda").expand_as(ids), places)
            return functional.dropout(x.transpose(0, 1).contiguous(), 0.1)

        return run

    def norm(self, *, last=False):
        x, weight, bias = self.tokens(), self.half(self.width), self.half(self.width)

        def run():
            normed = functional.layer_norm(x, (self.width,), weight, bias)
            return normed.transpose(0, 1).contiguous() if last else normed

        return run

    def qkv(self):
        width = 3 * self.width
        if self.by_rows:
            x, weight = self.tokens(self.width // self.ranks), self.half(width, self.width // self.ranks)
            bias = self.half(width)
            heads = self.heads * self.ranks
        else:
            x, weight, bias = self.tokens(), self.half(width // self.ranks, self.width), self.half(width // self.ranks)
            heads = self.heads

        def run():
            mixed = self.summed(functional.linear(x, weight)) + bias if self.by_rows else (
                functional.linear(x, weight, bias))  # fmt: skip
            parts = mixed.view(self.length, self.batch, heads, 3 * self.head).chunk(3, -1)
            return [part.contiguous() for part in parts]

        return run

    def score(self):
        query, key = (self.half(self.length, self.batch * self.heads, self.head) for _ in range(2))
        room = self.scores()
        return lambda: torch.baddbmm(room, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0,
                                     alpha=1 / math.sqrt(self.head))  # fmt: skip

    def softmax(self):
        scores = self.scores()
        return lambda: functional.softmax(scores, -1)

    def dropout(self):
        scores = self.scores()
        return lambda: functional.dropout(scores, 0.1)

    def context(self):
        chances, value = self.scores(), self.half(self.length, self.batch * self.heads, self.head)

        def run():
            context = torch.bmm(chances, value.transpose(0, 1)).view(self.batch, self.heads, self.length, self.head)
            return context.permute(2, 0, 1, 3).contiguous()

        return run

    def product(self, inner, outer, *, by_columns):
        if by_columns:
            x, weight = self.tokens(inner), self.half(outer // self.ranks, inner)
            return lambda: functional.linear(x, weight)
        x, weight = self.tokens(inner // self.ranks), self.half(outer, inner // self.ranks)
        return lambda: self.summed(functional.linear(x, weight))

    def after(self):
        x, residual, bias = self.tokens(), self.tokens(), self.half(self.width)
        return lambda: residual + functional.dropout(x + bias, 0.1)

    def gelu(self):
        x = self.tokens(4 * self.width // self.ranks)
        return lambda: functional.gelu(x, approximate="tanh")  # fused with the bias

    def loss(self):
        x, words = self.tokens(), self.half(VOCABULARY // self.ranks, self.width)
        labels = torch.empty(self.length, self.batch, device="cuda", dtype=torch.int64)

        def run():
            logits = functional.linear(x, words).float()
            logits -= self.summed(logits.max(-1)[0])[..., None]
            mine = self.summed(logits.gather(-1, labels[..., None])[..., 0])
            chances = logits.exp_()
            sums = self.summed(chances.sum(-1))
            return sums.log() - mine, chances.div_(sums[..., None])

        return run


PIECES = {
    "encoder-embedding": Piece.embedding, "enc-1st-layernorm": Piece.norm, "enc-2nd-layernorm": Piece.norm,
    "final-layernorm": lambda piece: piece.norm(last=True), "enc-attention-qkv": Piece.qkv,
    "enc-attention-score": Piece.score, "enc-attention-softmax": Piece.softmax, "enc-attention-dropout": Piece.dropout,
    "enc-attention-context": Piece.context,
    "enc-attention-dense": lambda piece: piece.product(piece.width, piece.width, by_columns=False),
    "enc-post-attention-dropout": Piece.after, "enc-post-MLP-dropout": Piece.after,
    "enc-MLP-GEMM-1": lambda piece: piece.product(piece.width, 4 * piece.width, by_columns=True),
    "enc-MLP-gelu": Piece.gelu,
    "enc-MLP-GEMM-2": lambda piece: piece.product(4 * piece.width, piece.width, by_columns=False),
    "gpt-post-process": Piece.loss,
}  # fmt: skip


def _length(row, width, batch):
    """Returns the sequence length, which the file only contains for embeddings."""
    tokens = {"encoder-embedding": "output_mb"}.get(row["op_name"])
    if tokens:
        return round(float(row["output_mb"]) * MIB / 2 / width / batch)
    return 4096 if row["gpu_set"].startswith("a100") else 2048


GRAPHS = {}


def graph_of(row):
    piece = Piece(row)
    key = (row["op_name"], row["model"], piece.batch, piece.ranks, piece.by_rows and row["op_name"].endswith("qkv"),
           piece.length)  # fmt: skip
    if key not in GRAPHS:

        def program():
            return PIECES[row["op_name"]](piece)()

        if piece.ranks > 1:
            with sg.fake_process_group(piece.ranks):
                GRAPHS[key] = sg.capture(program, device="cuda")
        else:
            GRAPHS[key] = sg.capture(program, device="cuda")
    return GRAPHS[key]


def device_of(row):
    return row["gpu_set"].split("-")[0]


def predicted(row):
    """Returns the device time in microseconds."""
    report = sg.profile(graph_of(row), spec=SPECS[device_of(row)]).dict()
    overlap = report.get("communication", {}).get("overlap")
    return {"predicted": 1e6 * (overlap["seconds"] if overlap else report["time"]["device_seconds"])}


def published(row):
    return float(row["fwd_us"])


def is_compared(row):
    return row["op_name"] in PIECES


def part(row):
    return device_of(row)


def named(row):
    return f"{device_of(row):5} {row['model']:9} {row['mbs']:>3} x {row['tp']} {row['op_name']}"


if __name__ == "__main__":
    compare("operators")
