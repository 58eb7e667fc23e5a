"""Schedules beside those of torch.distributed.pipelining, and a step cut into the stages of one."""

import json

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import schedules as theirs

import shadowgraph as sg

RANKS = (2, 3, 4, 8)


class Stage:
    """What torch's schedules ask of a stage before they run."""

    def __init__(self, index, ranks, stages, rank=0):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = ranks, rank
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward = True
        self.submod = nn.Identity()
        self.stage_index_to_group_rank = {i: i % ranks for i in range(stages)}


CLASSES = {
    "gpipe": theirs.ScheduleGPipe,
    "1f1b": theirs.Schedule1F1B,
    "interleaved": theirs.ScheduleInterleaved1F1B,
    "looped_bfs": theirs.ScheduleLoopedBFS,
    "zero_bubble": theirs.ScheduleInterleavedZeroBubble,
    "zbv": theirs.ScheduleZBVZeroBubble,
    "dualpipe_v": theirs.ScheduleDualPipeV,
}


def torch_schedule(name, ranks, stages_per_rank, microbatches):
    """Actions by rank as torch writes them."""
    kind, stages = CLASSES[name], ranks * stages_per_rank
    if name in ("gpipe", "1f1b"):
        return kind(Stage(0, ranks, stages), microbatches, loss_fn=torch.mean)._get_pipeline_order()
    own = [0, stages - 1] if name in ("zbv", "dualpipe_v") else [k * ranks for k in range(stages_per_rank)]
    return kind([Stage(index, ranks, stages) for index in own], microbatches, loss_fn=torch.mean).pipeline_order


def with_transfers(order, name, ranks, stages):
    """torch's sends and receives between these actions."""
    rank_of = (lambda s: min(s, stages - 1 - s)) if name in ("zbv", "dualpipe_v") else (lambda s: s % ranks)
    computing = {rank: [a for a in row if a is not None and a.is_compute_op] for rank, row in order.items()}
    return theirs._add_send_recv(computing, rank_of, stages)


def texts(row):
    left_out = (theirs.REDUCE_GRAD, theirs.UNSHARD, theirs.RESHARD)
    return [str(action) for action in row if action is not None and action.computation_type not in left_out]


def our_rows(schedule):
    return {rank: line.split(",") for rank, line in enumerate(schedule.csv().splitlines())}


@pytest.mark.parametrize("name", CLASSES)
def test_orders_are_those_of_torch(name):
    compared = 0
    for ranks in RANKS:
        for microbatches in (ranks, 2 * ranks, 3 * ranks):
            stages_per_rank = {"gpipe": 1, "1f1b": 1, "zbv": 2, "dualpipe_v": 2}.get(name, 3)
            if name == "dualpipe_v" and microbatches < 2 * ranks:
                continue
            order = torch_schedule(name, ranks, stages_per_rank, microbatches)
            if name == "1f1b":  # its table has the last rank begin with micro-batch 1; what it runs does not
                order[ranks - 1] = [a and a._replace(microbatch_index=a.microbatch_index - 1)
                                    if a and a.computation_type is theirs.F else a for a in order[ranks - 1]]  # fmt: skip
            ours = sg.PipelineSchedule(name, ranks, microbatches, stages_per_rank)
            assert our_rows(ours) == {rank: texts(row) for rank, row in order.items()}
            theirs_with = with_transfers(order, name, ranks, ranks * stages_per_rank)
            assert our_rows(ours.with_transfers()) == {rank: texts(row) for rank, row in theirs_with.items()}
            compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", ["zbv", "v_half", "v_min", "interleaved"])
def test_torch_reads_our_csv(name, tmp_path):
    schedule = sg.PipelineSchedule(name, 4, 8)
    stages = [Stage(index, 4, 8) for index in (0, 7 if name != "interleaved" else 4)]
    runtime = theirs._PipelineScheduleRuntime(stages, 8, loss_fn=torch.mean)
    for kind, written in (("compute_only", schedule), ("compute_comms", schedule.with_transfers())):
        path = tmp_path / f"{kind}.csv"
        path.write_text(written.csv())
        runtime._load_csv(str(path), format=kind)
        # Reading actions alone, torch puts in what gathers parameters, too, and then its own transfers.
        rows = runtime.pipeline_order if kind == "compute_only" else runtime.pipeline_order_with_comms
        assert {rank: texts(row) for rank, row in rows.items()} == our_rows(written)
    assert sg.PipelineSchedule.read(str(path)).csv() == written.csv()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture(scope="module")
def step():
    return sg.capture_training_step(Net, "f32[32,64]", loss=torch.mean, optimizer=torch.optim.AdamW, device="cuda")


def test_a_step_as_a_pipeline(step):
    run = sg.pipeline(step, "1f1b", ranks=4, microbatches=8)
    figures = run.dict()
    assert [stage["begins"] for stage in figures["stages"]] == [f"layers.{i}.0" for i in (0, 2, 4, 6)]
    weights = 2 * (64 * 256 * 2 + 256 + 64) * 4
    assert [stage["parameter_bytes"] for stage in figures["stages"]] == [weights] * 4
    assert [rank["microbatches_peak"] for rank in figures["ranks"]] == [4, 3, 2, 1]
    assert run.seconds > 0 and 0 < run.bubble < 1 and run.worst_rank == 0
    assert [action for action, *_ in run.actions(3) if "F" in action][:2] == ["3RECV_F0", "3F0"]
    assert len(json.loads(run.chrome_trace())["traceEvents"]) > 100
    assert "most memory: rank 0" in str(run)
    # Cuts of one's own, and any order.
    run = sg.pipeline(step, sg.PipelineSchedule.from_csv("0F0,0B0\n1F0,1B0"), cuts=["layers.3"])
    assert run.dict()["stages"][1]["begins"] == "layers.3.0"


def test_what_cannot_be_is_said(step):
    with pytest.raises(sg.Error, match="needs ranks= and microbatches="):
        sg.pipeline(step, "1f1b")
    with pytest.raises(sg.Error, match="has its ranks"):
        sg.pipeline(step, sg.PipelineSchedule("1f1b", 2, 2), ranks=2)
    with pytest.raises(sg.Error, match="there is no schedule '2f2b'"):
        sg.PipelineSchedule("2f2b", 2, 2)
    with pytest.raises(sg.ParseError, match="line 1, cell 2"):
        sg.PipelineSchedule.from_csv("0F0,0Q0")
    with pytest.raises(sg.Error, match="no module layers.9"):
        sg.pipeline(step, "1f1b", ranks=2, microbatches=2, cuts=["layers.9"])
    with pytest.raises(sg.Error, match="has 2 stages, and the step is cut into 3"):
        sg.pipeline(step, "1f1b", ranks=2, microbatches=2, cuts=["layers.2", "layers.3"])
    with pytest.raises(sg.Error, match="no backward"):
        sg.pipeline(sg.capture(Net(), "f32[2,64]"), "1f1b", ranks=2, microbatches=2)
