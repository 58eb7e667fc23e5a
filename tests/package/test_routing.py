"""Mixtures of experts: data-dependent routing is assumed balanced or given by data_sizes, and reported either way."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn import functional as F

import shadowgraph as sg

TOKENS, EXPERTS, CHOICES, WIDTH = 10, 4, 2, 8


def by_bincount(scores):
    chosen = scores.topk(CHOICES).indices
    return torch.bincount(chosen.flatten(), minlength=EXPERTS)


def by_histogram(scores):
    chosen = scores.topk(CHOICES).indices
    return torch.histc(chosen.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS).long()


def by_one_hot(scores):
    chosen = scores.topk(CHOICES).indices
    return F.one_hot(chosen, EXPERTS).sum((0, 1))


def by_scatter(scores):
    chosen = scores.topk(CHOICES).indices
    return torch.zeros_like(scores).int().scatter(1, chosen, 1).bool().sum(dim=0)


def by_scatter_in_place(scores):
    chosen = scores.topk(CHOICES).indices
    return chosen.new_zeros((len(chosen), EXPERTS)).scatter_(1, chosen, 1).sum(0)


def by_scatter_add(scores):
    chosen = scores.topk(CHOICES).indices.flatten()
    return chosen.new_zeros(EXPERTS).scatter_add_(0, chosen, torch.ones_like(chosen))


WAYS = [by_bincount, by_histogram, by_one_hot, by_scatter, by_scatter_in_place, by_scatter_add]


def routings(graph):
    return [guard for guard in graph.guards if guard.startswith("routing")]


@pytest.mark.parametrize("count", WAYS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_counts_are_the_even_share(count, device):
    with sg.Capture(device) as capture:
        counts = count(torch.empty(TOKENS, EXPERTS, device=device).normal_())
        # 20 over 4 experts are 5 each; of 21 the first expert would get the remaining one.
        assert counts.tolist() == [5, 5, 5, 5]
        graph = capture.finish([counts])
    graph.verify()
    (guard,) = routings(graph)
    assert guard.startswith("routing0: 20 evenly over 4, assumed, read at") and "test_routing.py" in guard
    report = sg.Profile(graph)
    assert guard in report.dict()["assumptions"] and guard in str(report)


def test_what_does_not_divide_goes_to_the_first():
    with sg.fake("cuda"):
        counts = torch.bincount(torch.empty(11, device="cuda").long(), minlength=4)
        assert counts.tolist() == [3, 3, 3, 2]
        rows = F.one_hot(torch.empty(7, 2, device="cuda").topk(2).indices, 4).sum(1)
        assert rows.sum(0).tolist() == [4, 4, 3, 3]
        assert rows.max().item() == 1  # no token chooses an expert twice


def test_nothing_is_said_of_what_nobody_reads():
    with sg.Capture("cuda") as capture:
        graph = capture.finish([by_one_hot(torch.empty(TOKENS, EXPERTS).normal_()).float().var()])
    assert not routings(graph)
    assert "assumptions" not in sg.Profile(graph).dict()


@pytest.mark.parametrize("count", WAYS)
def test_the_user_says_otherwise(count):
    with sg.Capture("cuda", data_sizes={"routing[1]": 9}) as capture:
        counts = count(torch.empty(TOKENS, EXPERTS, device="cuda").normal_())
        assert counts.tolist() == [4, 9, 4, 3]
        graph = capture.finish([counts])
    assert "routing0[1] = 9" in graph.guards
    graph.propagate()  # uses the recorded counts
    with sg.fake("cuda", data_sizes={"routing0[0]": 2, "routing0[1]": 3, "routing0[2]": 7, "routing0[3]": 8}):
        assert count(torch.empty(TOKENS, EXPERTS, device="cuda").normal_()).tolist() == [2, 3, 7, 8]
        # data_sizes names only the first routing.
        assert count(torch.empty(TOKENS, EXPERTS, device="cuda").normal_()).tolist() == [5, 5, 5, 5]
    with sg.fake("cuda", data_sizes={"routing0[0]": 21}), pytest.raises(sg.Error, match=r"routing0\[0\]"):
        count(torch.empty(TOKENS, EXPERTS, device="cuda").normal_()).tolist()
    all_given = {f"routing[{i}]": 1 for i in range(EXPERTS)}
    with sg.fake("cuda", data_sizes=all_given), pytest.raises(sg.Error, match="leave 16 of 20"):
        count(torch.empty(TOKENS, EXPERTS, device="cuda").normal_()).tolist()


def test_answers_of_the_user_come_before_what_is_assumed():
    with sg.Capture("cuda", host_reads={"item0": 7}, data_sizes={"nonzero0": 3}) as capture:
        counts = by_one_hot(torch.empty(TOKENS, EXPERTS, device="cuda").normal_())
        assert [counts[0].item(), counts[1].item()] == [7, 5]
        assert len(counts.nonzero()) == 3
        assert len((counts > 4).nonzero()) == 4
        graph = capture.finish([])
    read = [guard.partition(", at")[0] for guard in graph.guards if guard.startswith(("item", "nonzero"))]
    assert read == ["item0 = 7", "item1 = 5, assumed by routing0", "nonzero0 = 3",
                    "nonzero1 = 4, assumed by routing0"]  # fmt: skip


def test_a_loop_over_experts():
    """Written as in transformers: each expert's token indices have the length of its count."""
    sizes = []
    with sg.Capture("cuda") as capture:
        x = torch.empty(TOKENS, WIDTH, device="cuda")
        mask = F.one_hot(torch.empty(TOKENS, EXPERTS, device="cuda").topk(CHOICES).indices, EXPERTS).permute(2, 1, 0)
        for expert in (mask.sum((-1, -2)) > 0).nonzero():
            _, token = torch.where(mask[expert[0]])
            sizes.append(len(x[token]))
        graph = capture.finish([])
    graph.verify()
    assert sizes == [5, 5, 5, 5]


def test_other_counts_are_unknown_as_before():
    with sg.fake("cpu"):
        unknown = torch.empty(8).normal_()
        with pytest.raises(sg.DataDependentError):
            torch.bincount(unknown.long())  # the number of bins is unknown
        with pytest.raises(sg.DataDependentError):
            torch.histc(unknown, bins=4, min=-1, max=1).tolist()
        with pytest.raises(sg.DataDependentError):
            unknown.topk(2).indices.tolist()


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_send_what_this_one_does(rank):
    with sg.fake_process_group(2, rank) as world, sg.Capture("cuda") as capture:
        # 11 tokens over 4 experts: 3 3 | 3 2, with two experts per rank.
        counts = torch.bincount(torch.empty(11, device="cuda").long(), minlength=4)
        mine = [[3, 3], [3, 2]][rank]
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        assert arriving.tolist() == mine + mine
        assert funcol.all_to_all_single(counts, None, None, world).tolist() == mine + mine
        parts = [torch.empty(2, dtype=torch.int64, device="cuda") for _ in range(2)]
        dist.all_to_all(parts, list(counts.split(2)))
        assert [part.tolist() for part in parts] == [mine, mine]
        gathered = torch.empty(8, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(gathered, counts)
        assert gathered.tolist() == [3, 3, 3, 2] * 2
        assert funcol.all_gather_tensor(counts, 0, world).tolist() == gathered.tolist()
        each = [torch.empty_like(counts) for _ in range(2)]
        dist.all_gather(each, counts)
        assert each[1].tolist() == [3, 3, 3, 2]
        total = counts.clone()
        dist.all_reduce(total)
        assert total.tolist() == [6, 6, 6, 4] == funcol.all_reduce(counts, "sum", world).tolist()
        # A value known on this rank is unknown for the others.
        own = torch.tensor([rank], device="cuda")
        dist.all_reduce(own)
        with pytest.raises(sg.DataDependentError):
            own.tolist()
        graph = capture.finish([])
    graph.verify()
    assert len(routings(graph)) == 1


class Dispatch:
    """torchtitan's ExpertParallel: counts by histc, exchange of counts, splits on the CPU, tokens, grouped experts."""

    def __init__(self, group, size):
        self.group, self.size = group, size

    def __call__(self, tokens, counts):
        with torch.no_grad():
            arriving = funcol.wait_tensor(funcol.all_to_all_single(counts, None, None, self.group))
            self.sent = counts.view(self.size, -1).sum(1).to("cpu", non_blocking=True).tolist()
            self.received = arriving.view(self.size, -1).sum(1).to("cpu").tolist()
        return funcol.all_to_all_single_autograd(tokens, self.received, self.sent, self.group), arriving

    def back(self, tokens):
        return funcol.all_to_all_single_autograd(tokens, self.sent, self.received, self.group)


class GroupedExperts(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.router = size, torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = torch.nn.Parameter(torch.empty(EXPERTS // size, WIDTH, 2 * WIDTH))
        self.down = torch.nn.Parameter(torch.empty(EXPERTS // size, 2 * WIDTH, WIDTH))

    def forward(self, x):
        scores, chosen = self.router(x).softmax(-1).topk(CHOICES)
        counts = torch.histc(chosen.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS).long()
        order = chosen.view(-1).argsort(stable=True)
        dispatch = Dispatch(dist.group.WORLD, self.size)
        mine, arriving = dispatch(x[order // CHOICES], counts)
        # Reorders rows from by-rank to by-expert.
        pieces = mine.split(arriving.tolist())
        local = EXPERTS // self.size
        by_expert = torch.cat([piece for i in range(local) for piece in pieces[i::local]])
        ends = torch.cumsum(arriving.view(self.size, local).sum(0), 0, dtype=torch.int32)
        hidden = torch._grouped_mm(by_expert.bfloat16(), self.up.bfloat16(), offs=ends).relu()
        out = torch._grouped_mm(hidden, self.down.bfloat16(), offs=ends).type_as(x)
        lengths = [len(piece) for i in range(local) for piece in pieces[i::local]]
        turned = out.split(lengths)
        order_back = [i * self.size + rank for rank in range(self.size) for i in range(local)]
        back = dispatch.back(torch.cat([turned[i] for i in order_back]))
        return torch.zeros_like(x).index_add(0, order // CHOICES, back * scores.view(-1)[order, None])


def test_torchtitans_experts_are_profiled_in_one_line():
    with sg.fake_process_group(2, 1):
        report = sg.profile(lambda: GroupedExperts(2), f"f32[{TOKENS},{WIDTH}]", loss=lambda y: y.sum(), device="cuda",
                            optimizer=torch.optim.AdamW, steady_state=True)  # fmt: skip
    report.graph.verify()
    assert "20 evenly over 4" in str(report)
    # All-to-alls of 20 tokens of 8 floats there and back, of gradients back, and of 4 counts. x requires no gradient.
    kinds = report.dict()["communication"]["kinds"]
    assert kinds["all_to_all"]["calls"] == 4
    assert kinds["all_to_all"]["payload_bytes"] == 3 * 20 * WIDTH * 4 + 4 * 8
    assert report.dict()["parameters"] == WIDTH * EXPERTS + 2 * (EXPERTS // 2) * WIDTH * 2 * WIDTH


def test_a_rank_with_a_favored_expert_holds_more():
    def profiled(rank, **options):
        with sg.fake_process_group(2, rank):
            return sg.profile(lambda: GroupedExperts(2), "f32[64,8]", loss=lambda y: y.sum(), device="cuda", **options)

    even, favored = profiled(0), [profiled(rank, data_sizes={"routing[0]": 96}) for rank in (0, 1)]
    # Expert 0 gets 96 of 128 tokens, the others 11, 11 and 10: rank 0 receives 2 * 107, rank 1 receives 2 * 21.
    shapes = [{node.results[0].shape[0] for node in report.graph.find("aten::_grouped_mm") if node.phase == "forward"}
              for report in (even, *favored)]  # fmt: skip
    assert shapes == [{128}, {2 * 107}, {2 * 21}]
    assert favored[0].peak_bytes > even.peak_bytes > favored[1].peak_bytes
    assert any(guard == "routing0[0] = 96" for guard in favored[0].graph.guards)
