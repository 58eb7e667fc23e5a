"""sg.profile(..., ranks="all"): groups identical ranks into roles, with a report for each role."""

import json

import pipeline_programs
import pytest
import torch
from parallel_programs import BATCH, LENGTH, Decoder, fsdp, optimizer_of
from pipeline_programs import ALL, PROGRAMS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shadowgraph as sg
from shadowgraph import _capture

IDS = f"i64[{ALL},{LENGTH}]"


class Peak:
    """A report that has only a peak."""

    graph = None

    def __init__(self, **by_kind):
        self.peak_bytes = sum(by_kind.values())
        self._peak = {"phase": "backward", "by_kind": by_kind}

    def dict(self):
        return {"peak": self._peak}


def test_the_worst_says_what_it_holds_beyond_the_least():
    roles = [sg.Role("first", 0, [0], Peak(parameter=4 << 20, gradient=1 << 20, activation=6 << 20)),
             sg.Role("last", 1, [1, 2], Peak(parameter=3 << 20, gradient=1 << 20, activation=2 << 20))]  # fmt: skip
    assert sg.RankProfiles(3, roles).why == ("first peaks in backward, 5.00 MiB above last: activation 4.00 MiB more, "
                                      "parameter 1.00 MiB more")  # fmt: skip
    assert sg.RankProfiles(2, roles[:1]).why == "every role peaks at 11.00 MiB"


@pytest.fixture
def captures(monkeypatch):
    """Lists the captured ranks, in order."""
    ranks = []
    original = _capture.of_model

    def counted(*args, **kwargs):
        ranks.append(torch.distributed.get_rank())
        return original(*args, **kwargs)

    monkeypatch.setattr(_capture, "of_model", counted)
    return ranks


def pipeline(name, world=4, **options):
    options = {"optimizer": "adamw", "steady_state": True, "ranks": "all", **options}
    return sg.profile(lambda: PROGRAMS[name]("cuda"), IDS, target=IDS, device="cuda", world=world, **options)


def mean(y):
    return y.float().mean()


def test_roles_of_a_pipeline(captures):
    assert [role.name for role in pipeline("zbv").roles] == ["stages 0, 7", "stages 1, 6", "stages 2, 5", "stages 3, 4"]
    found = pipeline("interleaved")
    assert captures == [0, 1, 2, 3] * 2
    for rank in range(4):
        with sg.fake_process_group(4, rank):
            alone = sg.profile(lambda: PROGRAMS["interleaved"]("cuda"), IDS, target=IDS, device="cuda",
                               optimizer="adamw", steady_state=True)  # fmt: skip
        name = found.role_of(rank)
        assert found.graphs[name].difference(alone.graph) is None
        assert found.profiles[name].peak_bytes == alone.peak_bytes
    assert found.worst.profile.peak_bytes == max(report.peak_bytes for report in found.profiles.values())
    lines = str(found).split("\n")
    assert lines[0].split() == ["ROLE", "RANK", "RANKS", "PARAMETERS", "PEAK", "SECONDS"]
    assert [line.endswith("worst") for line in lines[1:-1]] == [role is found.worst for role in found.roles]
    assert lines[-1].startswith(f"{found.worst.name} peaks in ") and " more" in lines[-1]


def test_ranks_along_a_data_axis_do_the_same(captures):
    found = pipeline("1f1b x fsdp")
    assert {role.name: role.ranks for role in found.roles} == {"stage 0": [0, 1], "stage 1": [2, 3]}
    assert captures == [0, 1, 2]  # also captures the last rank of the first role, for comparison
    assert pipeline("1f1b x fsdp", ranks=[3]).profiles["rank 3"].peak_bytes == found.profiles["stage 1"].peak_bytes


def test_an_order_that_sets_decide():
    """Torch iterates over weights of a zero-bubble schedule in the order of their addresses."""
    for _ in range(4):
        assert [role.ranks for role in pipeline("zbv x tp", optimizer=None).roles] == [[0, 1], [2, 3]]


def test_a_thousand_ranks_in_eight_roles(captures):
    """8 pipeline stages x 32 data parallel x 4 tensor parallel: one capture per stage, and one for comparison."""

    def make():
        mesh = init_device_mesh("cuda", (8, 32, 4), mesh_dim_names=("pp", "dp", "tp"))
        module = torch.nn.Linear(256, 256, device="cuda")
        fully_shard(module, mesh=mesh["dp"])
        rank, group = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
        stage = pipeline_programs.PipelineStage(module, rank, 8, torch.device("cuda"), group=group)
        return pipeline_programs.schedules.Schedule1F1B(stage, 8, loss_fn=lambda y, t: (y - t).square().mean())

    found = sg.profile(make, "f32[64,256]", target="f32[64,256]", world=1024, ranks="all")
    assert [(role.name, len(role.ranks)) for role in found.roles] == [(f"stage {i}", 128) for i in range(8)]
    assert found.role_of(1023) == "stage 7" and found.role_of(127) == "stage 0"
    assert captures == [0, 127, *range(128, 1024, 128)]
    assert repr(found) == "<shadowgraph.RankProfiles: 1024 ranks in 8 roles>"


def test_uneven_shards_are_roles_of_their_own(captures):
    """Ten rows over four ranks: 3, 3, 3, 1; over six: 2, 2, 2, 2, 2, 0."""

    def make():
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        return fully_shard(torch.nn.Linear(4, 10, bias=False), mesh=mesh)

    for world, last, rows in ((4, 3, (3, 1)), (6, 5, (2, 0))):
        found = sg.profile(make, "f32[2,4]", loss=mean, device="cpu", world=world, ranks="all")
        assert [role.ranks for role in found.roles] == [list(range(last)), [last]]
        assert [role.name for role in found.roles] == ["like rank 0", f"like rank {last}"]
        assert [role.profile.dict()["parameters"] for role in found.roles] == [4 * count for count in rows]
    assert captures == [0, 2, 3, 0, 4, 5]


def test_one_role():
    found = sg.profile(lambda: fsdp(4, "cpu"), f"i64[{BATCH},{LENGTH}]", loss=mean, optimizer=optimizer_of("fsdp"),
                       device="cpu", world=4, ranks="all")  # fmt: skip
    assert [(role.name, role.ranks) for role in found.roles] == [("all", [0, 1, 2, 3])]
    assert str(found).split("\n")[-1].startswith("every role peaks at ")


def test_a_loss_function_needs_a_target():
    how = dict(device="cpu", world=4, ranks="all")
    for options in ({"optimizer": "sgd"}, {"mode": "train"}, {"mode": "infer"}, {}):
        with pytest.raises(sg.Error, match="pass target="):
            sg.profile(lambda: PROGRAMS["1f1b"]("cpu"), IDS, **how, **options)
    found = sg.profile(lambda: PROGRAMS["1f1b"]("cpu"), IDS, target=IDS, mode="infer", **how)
    assert len(found.roles) == 4
    assert not [node for graph in found.graphs.values() for node in graph if node.phase == "backward"]


def test_a_rank_that_does_something_else():
    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.first = Decoder(), torch.distributed.get_rank() == 0

        def forward(self, ids):
            y = self.net(ids)
            return y.square() if self.first else y

    how = dict(loss=mean, device="cpu", world=4, ranks="all")
    with pytest.raises(sg.Error, match=r"ranks 0 and 3 create the same model.* only rank 0 .*aten::pow"):
        sg.profile(First, f"i64[{BATCH},{LENGTH}]", **how)
    found = sg.profile(First, f"i64[{BATCH},{LENGTH}]", roles=lambda rank: "first" if rank == 0 else "others", **how)
    assert [(role.name, role.rank, len(role.ranks)) for role in found.roles] == [("first", 0, 1), ("others", 1, 3)]
    again = sg.profile(First, f"i64[{BATCH},{LENGTH}]", roles={"first": [0], "others": [1, 2, 3]}, **how)
    assert again.profiles["others"].peak_bytes == found.profiles["others"].peak_bytes


def test_what_is_refused():
    how = dict(loss=mean, device="cpu")
    cases = [
        (dict(ranks="all"), "the world size is unknown"),
        (dict(world=2), "require ranks='all'"),
        (dict(ranks="all", world=2, roles={"a": [0]}), r"each of the 2 ranks once; check \[1\]"),
        (dict(ranks="all", world=2, roles={"a": [0, 1], "b": [1]}), r"check \[1\]"),
        (dict(ranks="all", world=2, roles=3), "to ranks, not int"),
        (dict(ranks=[0], world=2, roles=str), "roles= requires ranks='all'"),
        (dict(ranks=[2], world=2), "rank 2 is out of range"),
    ]
    for options, message in cases:
        with pytest.raises(sg.Error, match=message):
            sg.profile(Decoder, f"i64[{BATCH},{LENGTH}]", **how, **options)
    with pytest.raises(sg.Error, match="requires a function that returns the model"):
        sg.profile(torch.nn.Linear(2, 2), "f32[2,2]", **how, ranks="all", world=2)
    with sg.fake_process_group(2), pytest.raises(sg.Error, match="the active fake process group of 2"):
        sg.profile(Decoder, f"i64[{BATCH},{LENGTH}]", **how, ranks="all", world=4)
    with pytest.raises(sg.Error, match="rank 9 of 2 was not profiled"):
        sg.profile(Decoder, f"i64[{BATCH},{LENGTH}]", **how, ranks="all", world=2).role_of(9)
    graph = sg.capture(torch.nn.Linear(2, 2), "f32[2,2]")
    with pytest.raises(sg.Error, match="does not accept ranks, which applies to capturing"):
        sg.profile(graph, ranks="all")


# ---- Ranks waiting for each other


def rank_graph(rank, program, world=2):
    with sg.fake_process_group(world, rank):
        return sg.capture(program, "f32[1024,1024]", device="cuda")


def seconds_of(graph, *targets):
    found = sg.profile(graph, spec="h100").nodes
    return sum(node.seconds or 0 for node in found if node.target in targets)


def first(x):
    y = x @ x
    torch.distributed.send(y, 1)
    return (y @ y) @ y


def second(x):
    y = x @ x @ x  # overlaps the first collective
    torch.distributed.recv(y, 0)
    return y @ x


def test_a_rank_waits_for_what_it_receives():
    graphs = [rank_graph(0, first), rank_graph(1, second)]
    run = sg.DistributedRun(graphs, [[0], [1]], spec="h100", interconnect="h100")
    one = seconds_of(graphs[0], "aten::mm") / 3
    figures = run.dict()["ranks"]
    assert figures[0]["waits"].get("send to rank 1") is None
    sent = run.seconds - 3 * one if run.seconds > 3.5 * one else None
    # The receiver posts after two products, the sender after one; the transfer starts after both have.
    waits = figures[1]["waits"]
    assert figures[1]["end_seconds"] == pytest.approx(3 * one + waits["receive from rank 0"] + waits["the host"])
    assert figures[1]["waits"]["receive from rank 0"] > 0
    assert sent is None or sent > 0
    events = json.loads(run.chrome_trace())["traceEvents"]
    assert {event["id"] for event in events if event["ph"] == "s"} == {e["id"] for e in events if e["ph"] == "f"}
    assert "receive from rank 0" in str(run)


def test_a_pipeline_takes_what_its_ranks_wait_for():
    found = pipeline("1f1b")
    run = found.run(spec="h100")
    figures = run.dict()["ranks"]
    assert len(figures) == 4
    for role, row in zip(found.roles, figures):
        assert row["rank"] == role.rank
        assert run.seconds == pytest.approx(row["computing_seconds"] + row["waiting_seconds"])
    # Ranks in the middle wait for both neighbors, the first only for its successor.
    assert {"receive from rank 1", "receive from rank 3"} <= figures[2]["waits"].keys()
    assert not any("receive" in cause and cause != "receive from rank 1" for cause in figures[0]["waits"])


def test_ranks_that_do_the_same_meet_in_one():
    found = pipeline("1f1b x fsdp")
    assert len(found.run(spec="h100").dict()["ranks"]) == 2


def test_ranks_that_wait_for_ever_are_named():
    def waits(other):
        def program(x):
            torch.distributed.recv(x, other)
            torch.distributed.send(x, other)

        return program

    graphs = [rank_graph(0, waits(1)), rank_graph(1, waits(0))]
    with pytest.raises(sg.Error, match="deadlock: rank 0 waiting for receive from rank 1; rank 1 waiting"):
        sg.DistributedRun(graphs, [[0], [1]])
    with pytest.raises(sg.Error, match="rank 0 has two graphs"):
        sg.DistributedRun(graphs, [[0], [0]])
    with pytest.raises(sg.Error, match="rank 1, with which other ranks communicate, has no graph"):
        sg.DistributedRun(graphs[:1], [[0]])
    with pytest.raises(sg.Error, match="lists of the same length"):
        sg.DistributedRun(graphs, [[0]])
    half = rank_graph(1, lambda x: torch.distributed.recv(x[:512], 0))
    with pytest.raises(sg.Error, match="mismatched communication"):
        sg.DistributedRun([rank_graph(0, first), half], [[0], [1]])
