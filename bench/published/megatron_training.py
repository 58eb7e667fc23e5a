"""Training step of Megatron-LM on the last rank: gradient and parameter buffers, optimizer, 1F1B schedule."""

import torch
import torch.distributed as dist
from megatron_kernels import kernels
from megatron_models import batch_of, loss_of

ALIGNED = 64  # alignment of parameters in elements if buffers are sharded
BUCKET_MULTIPLE = 128
LEAST_BUCKET, BUCKET_A_RANK = 40_000_000, 1_000_000


def _padded(count, multiple):
    return -(-count // multiple) * multiple


class Buffers:
    """Buffer for all gradients of a chunk in order of backward; also for parameters with a distributed optimizer."""

    def __init__(self, rank, parameters, bucketed, of_experts):
        self.group = rank.experts_data_group if of_experts else rank.data_group
        arguments = self.arguments = rank.arguments
        self.ranks = arguments.sharers(of_experts)
        self.parameters = list(reversed(parameters))
        cut = arguments.distributed_optimizer
        self.places, self.buckets = {}, []
        limit = max(LEAST_BUCKET, BUCKET_A_RANK * self.ranks)
        limit = limit if bucketed and arguments.flag("overlap-grad-reduce") else float("inf")
        at = begin = 0
        for p in self.parameters:
            at = _padded(at, ALIGNED) if cut else at
            self.places[p] = (at, at + p.numel())
            at += p.numel()
            if at - begin >= limit:
                at = self._end(begin, at, cut)
                begin = at
        if at > begin:
            at = self._end(begin, at, cut)
        make = lambda dtype: torch.zeros(at, dtype=dtype, device="cuda", requires_grad=False)  # noqa: E731
        self.values = make(arguments.dtype) if cut else None
        self.gradients = make(arguments.gradients)
        for p in self.parameters:
            first, last = self.places[p]
            if cut:
                new = self.values[first:last].view(p.shape)
                new.copy_(p.detach())
                p.data = new
            p.main_grad = self.gradients[first:last].view(p.shape)
            p.added = False
            p.register_post_accumulate_grad_hook(_add_to_buffer)

    def _end(self, begin, end, cut):
        multiple = BUCKET_MULTIPLE * self.ranks // _common(BUCKET_MULTIPLE, self.ranks)
        end = _padded(end, multiple) if cut else end
        self.buckets.append((begin, end))
        return end

    def own(self, p):
        """Returns the range of a parameter that the last data parallel rank updates, or None."""
        first, last = self.places[p]
        for begin, end in self.buckets:
            if begin <= first < end:
                lower = max(first, end - (end - begin) // self.ranks)
                return (lower - first, last - first) if lower < last else None
        raise AssertionError("parameter is not in any bucket")

    def reduce(self):
        for begin, end in self.buckets:
            part = self.gradients[begin:end]
            if self.arguments.distributed_optimizer:
                own = part[(self.ranks - 1) * (end - begin) // self.ranks :]
                dist.reduce_scatter_tensor(own, part, group=self.group)
            else:
                dist.all_reduce(part, group=self.group)

    def gather(self):
        for begin, end in self.buckets:
            part = self.values[begin:end]
            own = part[(self.ranks - 1) * (end - begin) // self.ranks :]
            dist.all_gather_into_tensor(part, own, group=self.group)


def _common(a, b):
    while b:
        a, b = b, a % b
    return a


def _add_to_buffer(p):
    if not p.added:
        p.main_grad.add_(p.grad)
    p.grad = None
    p.added = False


class Optimizer:
    """Adam on float32 copies of the parameters or of this rank's shard."""

    def __init__(self, arguments, buffers):
        self.arguments, self.buffers = arguments, buffers
        self.pairs = []  # (parameter, range or None, float32 copy)
        for of in buffers:
            for p in reversed(of.parameters):
                where = of.own(p) if arguments.distributed_optimizer else (0, p.numel())
                if where is not None:
                    part = p.detach().view(-1)[where[0] : where[1]]
                    part = part if arguments.distributed_optimizer else part.view(p.shape)
                    main = part if p.dtype == torch.float32 else part.clone().float()
                    self.pairs.append((p, where, main))
        self.state = None
        self.gradients = []
        scalar = lambda dtype=torch.float32: torch.zeros(1, dtype=dtype, device="cuda")  # noqa: E731
        self.scalars = [scalar(), scalar(torch.int)] if arguments.loss_scale else [scalar()]
        self.scale = self.scalars[0]

    def zero(self):
        self.gradients = []

    @torch.no_grad()
    def step(self):
        part = lambda p, where: p.main_grad.view(-1)[where[0] : where[1]]  # noqa: E731
        gradients = self.gradients = [part(p, where).float() for p, where, _ in self.pairs]
        if self.arguments.loss_scale:
            kernels.unscale_(gradients, self.scalars[0], self.scale)
        total = kernels.norm(gradients)
        dist.all_reduce(total)
        kernels.scale_(gradients, total)
        if self.arguments.flag("log-num-zeros-in-grad"):
            self.count_zeros(gradients)
        if self.state is None:
            self.state = [(torch.zeros_like(main), torch.zeros_like(main)) for _, _, main in self.pairs]
        mains = [main for _, _, main in self.pairs]
        kernels.adam_(mains, gradients, [first for first, _ in self.state], [second for _, second in self.state])
        kernels.copy_all_(mains, [p.detach().view(-1)[where[0] : where[1]] for p, where, _ in self.pairs])
        if self.arguments.distributed_optimizer:
            for of in self.buffers:
                of.gather()

    def count_zeros(self, gradients):
        zeros = torch.zeros(1, dtype=torch.int64, device="cuda")
        for gradient in gradients:
            zeros = zeros + (gradient.numel() - (gradient != 0).sum())
        dist.all_reduce(zeros)


class Training:
    """1F1B steps of the last rank, after the warm-up forwards of its virtual stages."""

    def __init__(self, rank, chunks):
        self.rank, self.arguments, self.chunks = rank, rank.arguments, chunks
        first_stage = rank.arguments.pipeline == 1
        self.buffers = []
        for i, chunk in enumerate(chunks):
            for of_experts in (False, True):
                own = [p for p in chunk.parameters() if getattr(p, "expert", False) == of_experts]
                if own:
                    self.buffers.append(Buffers(rank, own, first_stage and i == 0, of_experts))
        self.optimizer = Optimizer(rank.arguments, self.buffers)
        self.reports = []

    def received(self):
        arguments = self.arguments
        length = arguments.sequence // arguments.context
        length //= arguments.tensor if arguments.sequence_parallel else 1
        return torch.empty(length, arguments.micro_batch, arguments.hidden, dtype=arguments.dtype, device="cuda",
                           requires_grad=True)  # fmt: skip

    def forward(self, number, x):
        batch = batch_of(self.arguments)
        self.chunks[number].given = x  # kept until the next one
        output = self.chunks[number](batch, x)
        if number + 1 < len(self.chunks):
            return output
        batch = {name: batch[name] for name in ("weights", "order") if name in batch}
        loss, report = loss_of(self.arguments, output, batch)
        self.reports.append(report)
        return loss / self.arguments.micro_batches

    def backward(self, x, output):
        if x is not None:
            x.retain_grad()
        if output.dim() == 0:
            (output * self.optimizer.scale).backward()
        else:
            gradient = self.received().detach()
            torch.autograd.Variable._execution_engine.run_backward(
                (output,), (gradient,), keep_graph=False, create_graph=False, inputs=(), allow_unreachable=True,
                accumulate_grad=True)  # fmt: skip

    def step(self, micro_batches):
        self.reports = []
        for of in self.buffers:
            of.gradients.zero_()
        self.optimizer.zero()
        self.run(micro_batches)
        self.rank.deferred.drain()
        for of in self.buffers:
            of.reduce()
        self.optimizer.step()

    def run(self, micro_batches):
        """Interleaved schedule: all virtual stages but the last run a group of forwards before the first backward."""
        pipeline, count = self.arguments.pipeline, len(self.chunks)
        group = self.arguments.number("microbatch-group-size-per-virtual-pipeline-stage", pipeline)
        order = [number for first in range(0, micro_batches, group) for number in range(count)
                 for _ in range(first, min(first + group, micro_batches))]  # fmt: skip
        before = min((count - 1) * group, len(order))
        kept = [[] for _ in self.chunks]
        x = self.received() if pipeline > 1 else None
        for k in range(len(order) + before):
            if k < len(order):
                number = order[k]
                output = self.forward(number, x)
                kept[number].append((x, output))
                if number + 1 < count:  # frees the sent output but keeps its autograd graph
                    output.data = torch.empty(1, dtype=output.dtype, device="cuda")
                x = self.received() if pipeline > 1 and k + 1 < len(order) else None
            if k >= before:
                self.backward(*kept[count - 1 - order[k - before]].pop(0))
