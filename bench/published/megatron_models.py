"""GPT, BERT and T5 of Megatron-LM on the last pipeline rank, with their losses."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_attention import CrossAttention, SelfAttention, products
from megatron_experts import Experts
from megatron_kernels import EngineLoss
from megatron_layers import ColumnProduct, Layer, Mlp, Norm, Rank, _Reduced, parameter
from megatron_recompute import Plan
from torch import nn


class VocabularyLoss(torch.autograd.Function):
    """Vocabulary parallel cross entropy. Backward overwrites the saved tensors.

    kept: the logits stay as they are, as in Megatron-DeepSpeed.
    """

    @staticmethod
    def forward(ctx, logits, target, rank, kept=False):
        logits = logits.float()
        most = torch.max(logits, dim=-1)[0]
        rank.all_reduce(most)
        if kept:
            logits = logits - most.unsqueeze(dim=-1)
        else:
            logits -= most.unsqueeze(dim=-1)
        size = logits.shape[-1]
        begin = (rank.tensor - 1) * size
        elsewhere = (target < begin) | (target >= begin + size)
        here = target.clone() - begin
        here.masked_fill_(elsewhere, 0)  # Megatron-LM indexes by the mask, which synchronizes
        here = here.view(-1)
        rows = torch.arange(start=0, end=here.shape[0], device="cuda")
        predicted = logits.view(-1, size)[rows, here]
        predicted = predicted.clone().contiguous().view_as(target)
        predicted.masked_fill_(elsewhere, 0.0)
        fused = rank.arguments.flag("cross-entropy-loss-fusion")
        shares = torch.exp(logits) if fused else torch.exp(logits, out=logits)  # not in place if compiled
        sums = shares.sum(dim=-1)
        rank.all_reduce(predicted)
        rank.all_reduce(sums)
        loss = torch.log(sums) - predicted
        shares.div_(sums.unsqueeze(dim=-1))
        ctx.save_for_backward(shares, elsewhere, here)
        ctx.fused = fused
        return loss

    @staticmethod
    def backward(ctx, gradient):
        shares, elsewhere, here = ctx.saved_tensors
        flat = shares.view(-1, shares.shape[-1])
        rows = torch.arange(start=0, end=flat.shape[0], device="cuda")
        less = 1.0 - elsewhere.view(-1).float()
        flat[rows, here] -= less
        shares.mul_(gradient.unsqueeze(dim=-1))
        return shares.to(torch.bfloat16) if ctx.fused else shares, None, None, None


class Embedding(nn.Module):
    """Vocabulary parallel word embeddings, and position embeddings."""

    def __init__(self, rank, types=0):
        super().__init__()
        arguments = rank.arguments
        self.rank = rank
        self.word = parameter(rank, arguments.words // rank.tensor, arguments.hidden)
        self.position = parameter(rank, arguments.positions, arguments.hidden) if arguments.positions_learned else None
        self.kind = parameter(rank, types, arguments.hidden) if types else None
        self.p = arguments.dropout[0]

    def words_of(self, ids):
        rank = self.rank
        if rank.tensor > 1:
            begin = (rank.tensor - 1) * self.word.shape[0]
            elsewhere = (ids < begin) | (ids >= begin + self.word.shape[0])
            ids = ids.clone() - begin
            ids.masked_fill_(elsewhere, 0)
        found = self.word[ids] if rank.arguments.deterministic else F.embedding(ids, self.word)
        if rank.tensor > 1:
            found.masked_fill_(elsewhere.unsqueeze(-1), 0.0)
        return found

    def forward(self, ids, positions, types=None):
        rank, along = self.rank, self.rank.arguments.sequence_parallel
        x = self.words_of(ids)
        if along and self.position is None:
            x = _Reduced.apply(x.transpose(0, 1).contiguous(), rank)
            return F.dropout(x, self.p, training=True)
        if rank.tensor > 1:
            x = _Summed.apply(x, rank)
        if self.position is not None:
            x = x + F.embedding(positions, self.position)
        x = x.transpose(0, 1).contiguous()
        if types is not None:
            x = x + F.embedding(types, self.kind).permute(1, 0, 2)
        if along:
            x = _Own.apply(x, rank)
        return F.dropout(x, self.p, training=True)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.mark_dirty(x)
        return rank.all_reduce(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Own(torch.autograd.Function):
    """Copy of this rank's part of the sequence, so that the rest can be freed."""

    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return x[-(x.shape[0] // rank.tensor) :].clone()

    @staticmethod
    def backward(ctx, gradient):
        whole = torch.empty(ctx.rank.whole_shape(gradient), dtype=gradient.dtype, device="cuda")
        return ctx.rank.gathered(gradient, whole), None


def output_weight(rank, embedding):
    """Copy of the tied word embeddings on the last stage."""
    if embedding is not None and rank.arguments.tied:
        return None
    return parameter(rank, rank.arguments.words // rank.tensor, rank.arguments.hidden)


def _self(rank, causal, number):
    return SelfAttention(rank, products(rank, causal, number))


def _cross(rank, number):
    return CrossAttention(rank, products(rank, False, number))


class Stack(nn.Module):
    """Layers of one stage, and the final norm."""

    def __init__(self, rank, numbers, causal, cross=False, last=True):
        super().__init__()
        self.layers = nn.ModuleList()
        for number in numbers:
            attention = functools.partial(_self, rank, causal, number)
            mlp = Experts if rank.arguments.experts else Mlp
            self.layers.append(Layer(rank, attention, functools.partial(_cross, rank, number) if cross else None, mlp))
        self.norm = Norm(rank) if last else None
        self.plan = Plan(rank.arguments)

    def forward(self, x, mask, context=None, context_mask=None):
        x = self.plan.run(self.layers, x, mask, context, context_mask)
        return self.norm(x) if self.norm is not None else x


class LanguageModel(nn.Module):
    """Base class of the models: logits and loss."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.bias = None

    def words(self):
        """Returns the weight of the output layer, or None if it is not on this stage."""
        if self.output is not None:
            return self.output
        return self.embedding.word if self.embedding is not None else None

    def losses(self, x, labels):
        rank = self.rank
        words = self.words()
        logits = x if words is None else ColumnProduct.apply(x, words, self.bias, rank, rank.tensor > 1, True)
        labels = labels.transpose(0, 1).contiguous()
        if rank.arguments.given.get("cross-entropy-fusion-impl") == "te":
            loss = EngineLoss.apply(logits, labels)
        else:
            loss = VocabularyLoss.apply(logits, labels, rank)
        return loss.transpose(0, 1).contiguous()


class Gpt(LanguageModel):
    def __init__(self, rank, numbers, first, last):
        super().__init__(rank)
        self.embedding = Embedding(rank) if first else None
        self.decoder = Stack(rank, numbers, causal=True, last=last)
        self.output = output_weight(rank, self.embedding) if last else None
        self.last = last

    def forward(self, batch, x=None):
        if self.embedding is not None:
            x = self.embedding(batch["tokens"], batch["positions"])
        x = self.decoder(x, batch["mask"])
        return self.losses(x, batch["labels"]) if self.last else x


class Bert(LanguageModel):
    def __init__(self, rank, numbers, first, last):
        super().__init__(rank)
        hidden = rank.arguments.hidden
        self.embedding = Embedding(rank, types=2) if first else None
        self.encoder = Stack(rank, numbers, causal=False, last=last)
        self.last = last
        if not last:
            return
        how = {"device": "cuda", "dtype": rank.arguments.dtype}
        self.dense, self.norm = nn.Linear(hidden, hidden, **how), Norm(rank)
        self.output = output_weight(rank, self.embedding)
        self.bias = parameter(rank, rank.arguments.words // rank.tensor)
        binary = not rank.arguments.flag("bert-no-binary-head")
        self.binary = nn.Linear(hidden, 2, **how) if binary else None
        self.pooler = nn.Linear(hidden, hidden, **how) if binary else None

    def forward(self, batch, x=None):
        mask = batch["padding"].unsqueeze(1)
        mask = (mask * batch["padding"].unsqueeze(2)).unsqueeze(1) < 0.5
        if self.embedding is not None:
            x = self.embedding(batch["tokens"], batch["positions"], batch["types"])
        x = self.encoder(x, mask)
        if not self.last:
            return x
        pooled = torch.tanh(self.pooler(x[0, :, :])) if self.binary is not None else None
        after = self.norm(F.gelu(self.dense(x)))
        losses = self.losses(after, batch["labels"])
        return losses, self.binary(pooled).float() if pooled is not None else None


class T5(LanguageModel):
    def __init__(self, rank, numbers, first, last):
        super().__init__(rank)
        arguments = rank.arguments
        self.embedding = Embedding(rank)
        self.encoder = Stack(rank, numbers, causal=False)
        self.decoder = Stack(rank, range(1, arguments.decoder_layers + 1), causal=True, cross=True)
        self.output = output_weight(rank, self.embedding)
        self.bias = parameter(rank, arguments.words // rank.tensor) if arguments.tied else None

    def forward(self, batch, x=None):
        context = self.embedding(batch["tokens"], batch["positions"])
        context = self.encoder(context, batch["mask"])
        x = self.embedding(batch["decoder_tokens"], batch["decoder_positions"])
        x = self.decoder(x, batch["decoder_mask"], context, batch["cross_mask"])
        return self.losses(x, batch["labels"])


MODELS = {"gpt": Gpt, "bert": Bert, "t5": T5}


def chunks(rank):
    """Returns the model chunks of the last pipeline rank, one per virtual stage."""
    arguments = rank.arguments
    stages = arguments.pipeline * arguments.virtual
    each = arguments.layers // stages
    here, made = arguments.last_layers, []
    for number in range(arguments.virtual):
        stage = number * arguments.pipeline + arguments.pipeline - 1
        last = stage == stages - 1
        if arguments.virtual > 1:
            more = sum(arguments.flag(f"account-for-{name}-in-pipeline-split") for name in ("embedding", "loss"))
            each = (arguments.layers + more) // stages
            here = each - (1 if last and arguments.flag("account-for-loss-in-pipeline-split") else 0)
        numbers = range(stage * each + 1, stage * each + here + 1)
        made.append(MODELS[arguments.family](rank, numbers, first=stage == 0, last=last))
    return made


def batch_of(arguments):
    """Returns a micro-batch of the data loader on the device."""
    rows, length = arguments.micro_batch, arguments.sequence // arguments.context
    ids = lambda size: torch.empty(rows, size, dtype=torch.int64, device="cuda")  # noqa: E731
    mask = lambda a, b: torch.empty(rows, 1, a, b, dtype=torch.bool, device="cuda")  # noqa: E731
    weights = lambda size: torch.empty(rows, size, dtype=torch.float32, device="cuda")  # noqa: E731
    if arguments.family == "gpt":
        without = arguments.flag("no-create-attention-mask-in-dataloader")
        return {"tokens": ids(length), "labels": ids(length), "weights": weights(length),
                "mask": None if without else mask(length, arguments.sequence), "positions": ids(length)}  # fmt: skip
    if arguments.family == "bert":
        return {"tokens": ids(length), "types": ids(length), "order": ids(1), "weights": weights(length),
                "labels": ids(length), "padding": ids(length), "positions": ids(length)}  # fmt: skip
    other = arguments.decoder_sequence
    return {"tokens": ids(length), "decoder_tokens": ids(other), "weights": weights(other), "labels": ids(other),
            "mask": mask(length, length), "decoder_mask": mask(other, other), "cross_mask": mask(other, length),
            "positions": ids(length), "decoder_positions": ids(other)}  # fmt: skip


def loss_of(arguments, output, batch):
    """Returns (loss, reported loss)."""
    weights = batch["weights"].view(-1).float()
    if arguments.family == "bert":
        losses, binary = output
        loss = torch.sum(losses.float().view(-1) * weights) / weights.sum()
        if binary is None:
            return loss, loss.clone().detach().view(1)
        other = F.cross_entropy(binary.view(-1, 2).float(), batch["order"].view(-1), ignore_index=-1).float()
        both = torch.cat([loss.clone().detach().view(1), other.clone().detach().view(1)])
        dist.all_reduce(both)
        return loss + other, both / dist.get_world_size()
    loss = torch.sum(output.view(-1).float() * weights)
    tokens = weights.sum().clone().detach().to(torch.int)
    report = torch.cat([loss.clone().detach().view(1), tokens.view(1)])
    if not arguments.flag("calculate-per-token-loss"):
        loss = loss / torch.clamp(tokens, min=1)
    return loss, report


__all__ = ["Rank", "batch_of", "chunks", "loss_of"]
