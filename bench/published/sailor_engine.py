"""Training step of one stage in DeepSpeed's pipeline engine, as used by Sailor.

Tensor parallel ranks send partitioned tensors, which the receivers all-gather.
"""

import torch
import torch.distributed as dist
from sailor_models import SEQUENCE, Stage

STEPS = 2


class Engine:
    """ahead: number of forwards before the first backward. The first and last stages load batches."""

    def __init__(self, model, rank, first, last, ahead):
        self.rank, self.ahead = rank, ahead
        self.micro_batch, self.hidden = rank.arguments.micro_batch, rank.arguments.hidden
        self.stage = Stage(model, rank, first, last)
        self.begins, self.ends = first == 0, self.stage.ends
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), fused=True)
        self.mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda")
        self.inputs, self.results = [None] * ahead, [None] * ahead
        self.batches, self.losses = [None] * ahead, [None] * ahead
        self.received = None if self.begins else torch.empty(self._part(), device="cuda")
        self.received_gradient = None if self.ends else torch.empty(self._part(), device="cuda")

    def _part(self):
        return SEQUENCE * self.micro_batch * self.hidden // self.rank.tensor

    def _gathered(self, part):
        """All-gathers a tensor that was received partitioned: into a flat buffer, then copied."""
        flat = torch.zeros(self._part() * self.rank.tensor, device="cuda")
        mine = flat[-self._part() :]
        mine.copy_(part.clone())
        if self.rank.tensor > 1:
            dist.all_gather_into_tensor(flat, mine, group=self.rank.group)
        return flat.view(SEQUENCE, self.micro_batch, self.hidden).clone()

    def _own(self, whole):
        return whole.detach().contiguous().view(-1)[-self._part() :].clone()

    def forward(self, at):
        if self.begins or self.ends:
            ids = lambda dtype=torch.int64: torch.empty(self.micro_batch, SEQUENCE, dtype=dtype, device="cuda")  # noqa: E731
            self.batches[at] = {name: ids() for name in ("tokens", "labels", "positions")}
            self.batches[at]["weights"] = ids(torch.float32)
        if not self.begins:
            self.inputs[at] = self.received.clone()
            self.inputs[at] = self._gathered(self.inputs[at]).requires_grad_()
        result = self.stage(self.batches[at], self.mask, self.inputs[at])
        if self.ends:
            self.results[at] = result  # kept until the logits of the next micro-batch
            self.losses[at] = self.stage.loss(result, self.batches[at])
            return
        part = self._own(result)
        result.data = torch.zeros(1, device="cuda")  # autograd needs its history alone
        self.results[at] = (result, part)

    def backward(self, at):
        if self.ends:
            self.losses[at].backward()
            self.losses[at] = None
        else:
            result, _ = self.results[at]
            gradient = self._gathered(self.received_gradient)
            result.data = gradient
            torch.autograd.backward(result, gradient)
            self.results[at] = None
        if not self.begins:
            self._own(self.inputs[at].grad)
            self.inputs[at] = None

    def reduce(self):
        """Sums gradients over data parallel ranks in one flat copy, also where there is one rank."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.stage.parameters()]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        flat.mul_(1.0)
        dist.all_reduce(flat, group=self.rank.data_group)
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view(gradient.shape))
            at += gradient.numel()

    def step(self, micro_batches):
        ahead = self.ahead
        for k in range(micro_batches + ahead - 1):
            if k < micro_batches:
                self.forward(k % ahead)
            if k >= ahead - 1:
                self.backward((k - ahead + 1) % ahead)
        self.reduce()
        self.optimizer.step()
        self.optimizer.zero_grad()
