"""Training step of nanotron on one stage: float32 gradients and parameters, data parallelism, ZeRO 1, AdamW."""

import torch
import torch.distributed as dist
from nanotron_models import SEQUENCE, SIZES, Rank, Stage

BUCKET = 25 * 2**20  # bucket size of DistributedDataParallel in bytes
STEPS = 2


class Training:
    """zero: 1 shards float32 parameters and AdamW state over data parallel ranks; 0 uses DDP."""

    def __init__(self, row, stage, first, last):
        self.rank = Rank(row["tp"], row["dp"])
        self.stage = stage(self.rank)
        self.shape = (row["mbs"], SEQUENCE)
        self.begins, self.ends, self.width = first, last, SIZES[row["model_B"]][1]
        self.zero, self.overlaps = row["zero"], row["zero"] == 0 and row["dp"] > 1
        self.parameters = list(self.stage.parameters())
        count = sum(p.numel() for p in self.parameters)
        make = lambda size, dtype: torch.zeros(size, dtype=dtype, device="cuda", requires_grad=False)  # noqa: E731
        self.gradients = make(count, torch.float32)
        self.shares = row["dp"] if self.zero else 1
        self.wide = torch.zeros(count // self.shares, dtype=torch.float32, device="cuda")
        self.wide.requires_grad_()
        self.optimizer = torch.optim.AdamW([self.wide], fused=True)
        self.buckets = make(count, torch.bfloat16) if self.overlaps else None
        self.places, at = {}, 0
        for p in self.parameters:
            self.places[p] = (at, at + p.numel())
            at += p.numel()
        self.last = False
        if self.overlaps:
            for p in self.parameters:
                p.register_post_accumulate_grad_hook(self._into_bucket)

    def _into_bucket(self, p):
        """Hook of DDP for a gradient of the last micro-batch."""
        if not self.last:
            return
        begin, end = self.places[p]
        bucket = self.buckets[begin:end]
        bucket.copy_(p.grad.view(-1))
        self.gradients[begin:end].add_(bucket)
        self.waiting.append((begin, end))
        if 2 * sum(b - a for a, b in self.waiting) >= BUCKET or p is self.parameters[0]:
            low, high = min(self.waiting)[0], max(self.waiting)[1]
            self.works.append(dist.all_reduce(self.gradients[low:high], group=self.rank.data_group, async_op=True))
            self.waiting = []

    def forward(self):
        ids = torch.empty(self.shape, dtype=torch.int64, device="cuda")
        received = None
        if not self.begins:
            part = SEQUENCE // self.rank.tensor
            received = torch.empty(part, self.shape[0], self.width, dtype=torch.bfloat16, device="cuda")
            received.requires_grad_()
        return self.stage(ids, received), received

    def backward(self, output):
        output.backward(None if self.ends else torch.empty_like(output))
        for p in self.parameters:
            if not (self.last and self.overlaps):
                begin, end = self.places[p]
                self.gradients[begin:end].add_(p.grad.view(-1))
            p.grad = None

    def step(self, micro_batches, ahead):
        kept, self.works, self.waiting = [], [], []
        for k in range(micro_batches + ahead - 1):
            if k < micro_batches:
                kept.append(self.forward())
            if k >= ahead - 1:
                self.last = k == micro_batches + ahead - 2
                output, received = kept.pop(0)
                self.backward(output)
                del output, received
        for work in self.works:
            work.wait()
        self.update()

    def update(self):
        if not self.overlaps and self.rank.data > 1:
            dist.all_reduce(self.gradients, group=self.rank.data_group)
        norm = torch.linalg.vector_norm(self.gradients)
        self.gradients.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        size = self.wide.numel()
        self.wide.grad = self.gradients[-size:]
        self.optimizer.step()
        if self.shares == 1:
            for p in self.parameters:
                begin, end = self.places[p]
                p.data.copy_(self.wide.detach()[begin:end].view(p.shape))
        else:
            narrow = torch.empty(size, dtype=torch.bfloat16, device="cuda").copy_(self.wide.detach())
            whole = torch.empty(size * self.shares, dtype=torch.bfloat16, device="cuda")
            dist.all_gather_into_tensor(whole, narrow, group=self.rank.data_group)
        self.gradients.zero_()


def stage_of(model, layers, begins, ends):
    return lambda rank: Stage(model, rank, layers, begins, ends)
