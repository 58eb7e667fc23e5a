"""Pipeline schedules compared with those of torch.distributed.pipelining, and a step split into pipeline stages."""

import json

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import schedules as theirs

import shadowgraph as sg

RANKS = (2, 3, 4, 8)


class Stage:
    """The attributes of a stage that torch's schedules use before they run."""

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
    """Returns the actions of each rank in torch's format."""
    kind, stages = CLASSES[name], ranks * stages_per_rank
    if name in ("gpipe", "1f1b"):
        return kind(Stage(0, ranks, stages), microbatches, loss_fn=torch.mean)._get_pipeline_order()
    own = [0, stages - 1] if name in ("zbv", "dualpipe_v") else [k * ranks for k in range(stages_per_rank)]
    return kind([Stage(index, ranks, stages) for index in own], microbatches, loss_fn=torch.mean).pipeline_order


def with_transfers(order, name, ranks, stages):
    """Inserts torch's sends and receives between these actions."""
    rank_of = (lambda s: min(s, stages - 1 - s)) if name in ("zbv", "dualpipe_v") else (lambda s: s % ranks)
    computing = {rank: [a for a in row if a is not None and a.is_compute_op] for rank, row in order.items()}
    return theirs._add_send_recv(computing, rank_of, stages)


def texts(row):
    left_out = ("REDUCE_GRAD", "UNSHARD", "RESHARD", "WAIT_REDUCE_GRAD")  # the last was added in 2.15
    return [str(action) for action in row if action is not None and action.computation_type.name not in left_out]


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
            if name == "1f1b":  # its table starts the last rank at micro-batch 1, but execution does not
                last = order[ranks - 1]
                for i, action in enumerate(last):
                    if action and action.computation_type is theirs.F:
                        last[i] = action._replace(microbatch_index=action.microbatch_index - 1)
            ours = sg.PipelineSchedule(name, ranks, microbatches, stages_per_rank)
            assert our_rows(ours) == {rank: texts(row) for rank, row in order.items()}
            theirs_with = with_transfers(order, name, ranks, ranks * stages_per_rank)
            assert our_rows(ours.with_transfers()) == {rank: texts(row) for rank, row in theirs_with.items()}
            if hasattr(theirs, "_add_wait_send"):  # added in 2.15
                waited = theirs._add_wait_send(theirs_with)
                waits = our_rows(ours.with_transfers().with_send_waits())
                assert waits == {rank: texts(row) for rank, row in waited.items()}
            compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", ["zbv", "v_half", "v_min", "interleaved"])
def test_torch_reads_our_csv(name, tmp_path):
    schedule = sg.PipelineSchedule(name, 4, 8)
    stages = [Stage(index, 4, 8) for index in (0, 7 if name != "interleaved" else 4)]
    runtime = theirs._PipelineScheduleRuntime(stages, 8, loss_fn=torch.mean)
    whole = schedule.with_transfers()
    if hasattr(theirs, "_add_wait_send"):
        whole = whole.with_send_waits()
    for kind, written in (("compute_only", schedule), ("compute_comms", whole)):
        path = tmp_path / f"{kind}.csv"
        path.write_text(written.csv())
        runtime._load_csv(str(path), format=kind)
        # Given compute actions only, torch inserts parameter all-gathers and then its own transfers.
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
    # Explicit cut points, and an arbitrary order.
    run = sg.pipeline(step, sg.PipelineSchedule.from_csv("0F0,0B0\n1F0,1B0"), cuts=["layers.3"])
    assert run.dict()["stages"][1]["begins"] == "layers.3.0"


def test_gradients_that_stay_are_there_from_the_beginning(step):
    kept = sg.capture_training_step(Net, "f32[32,64]", loss=torch.mean, optimizer=torch.optim.AdamW, device="cuda",
                                    zero_grads=True, steady_state=True)  # fmt: skip
    figures = sg.pipeline(kept, "1f1b", ranks=4, microbatches=8).dict()
    dropped = sg.pipeline(step, "1f1b", ranks=4, microbatches=8).dict()
    for with_them, without in zip(figures["stages"], dropped["stages"]):
        assert with_them["gradient_bytes"] == without["gradient_bytes"] == without["parameter_bytes"]
    for with_them, without in zip(figures["ranks"], dropped["ranks"]):
        assert with_them["resident_bytes"] - without["resident_bytes"] == 2 * (64 * 256 * 2 + 256 + 64) * 4


def test_what_cannot_be_is_said(step):
    with pytest.raises(sg.Error, match="requires ranks= and microbatches="):
        sg.pipeline(step, "1f1b")
    with pytest.raises(sg.Error, match="cannot be combined with a PipelineSchedule"):
        sg.pipeline(step, sg.PipelineSchedule("1f1b", 2, 2), ranks=2)
    with pytest.raises(sg.Error, match="unknown schedule '2f2b'"):
        sg.PipelineSchedule("2f2b", 2, 2)
    with pytest.raises(sg.ParseError, match="line 1, cell 2"):
        sg.PipelineSchedule.from_csv("0F0,0Q0")
    with pytest.raises(sg.Error, match="module layers.9 does not run in forward"):
        sg.pipeline(step, "1f1b", ranks=2, microbatches=2, cuts=["layers.9"])
    with pytest.raises(sg.Error, match="has 2 stages, but the step is split into 3"):
        sg.pipeline(step, "1f1b", ranks=2, microbatches=2, cuts=["layers.2", "layers.3"])
    twice = sg.capture_training_step(Net, "f32[2,64]", loss=torch.mean, optimizer="sgd", accumulate=2)
    with pytest.raises(sg.Error, match="accumulates gradients over 2"):
        sg.pipeline(twice, "1f1b", ranks=2, microbatches=2)
    with pytest.raises(sg.Error, match="no backward"):
        sg.pipeline(sg.capture(Net(), "f32[2,64]"), "1f1b", ranks=2, microbatches=2)


# ---- Traces


def fields(message):
    """Yields (number, value) of the fields of a Protocol Buffers message: varints and bytes."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = varint()
        assert key & 7 in (0, 2)
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint()
            yield key >> 3, message[at : at + size]
            at += size


def messages(path):
    """Returns the messages of a file in which each is preceded by its length."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        size, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield data[at : at + size]
        at += size


def chakra_nodes(path):
    """Returns the nodes of et_def.proto, with their attributes by name."""
    head, *rest = messages(path)
    assert dict(fields(head)) == {1: b"0.0.4"}
    for message in rest:
        node = {"deps": [], "attr": {}}
        for number, value in fields(message):
            if number == 10:
                name, content = fields(value)
                node["attr"][name[1].decode()] = content[1]
            elif number == 5:
                node["deps"].append(value)
            else:
                node[{1: "id", 2: "name", 3: "type", 6: "start", 7: "duration", 8: "inputs"}[number]] = value
        yield node


COMPUTES, SENDS, RECEIVES, COLLECTS = 4, 5, 6, 7


def test_chakra_traces_pair_and_add_up(step, tmp_path):
    run = sg.pipeline(step, "zbv", ranks=4, microbatches=8, rank_stride=2)
    assert run.write_chakra(str(tmp_path), "net", processes_per_stage=2) == 8
    ends, sends, receives = [], [], []
    for rank in range(8):
        computing = 0
        seen = set()
        for node in chakra_nodes(tmp_path / f"net.{rank}.et"):
            assert node["id"] not in seen and set(node["deps"]) <= seen  # the dependencies have no cycle
            seen.add(node["id"])
            assert "is_cpu_op" in node["attr"]
            if node["type"] == COMPUTES:
                assert {"num_ops", "tensor_size"} <= node["attr"].keys()
                computing += node["duration"]
                ends.append(node["start"] + node["duration"])
            elif node["type"] in (SENDS, RECEIVES):
                key = tuple(node["attr"][name] for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                assert node["attr"]["comm_src" if node["type"] == SENDS else "comm_dst"] == rank
                (sends if node["type"] == SENDS else receives).append(key)
        of_rank = run.dict()["ranks"][rank // 2]["computing_seconds"]
        steps = sum(run.dict()["stages"][s]["optimizer_seconds"] for s in run.dict()["ranks"][rank // 2]["stages"])
        assert computing == pytest.approx((of_rank - steps) * 1e6, abs=60)
    assert sorted(sends) == sorted(receives) and len(set(sends)) == len(sends) == 2 * 8 * 6 * 2
    assert max(ends) <= run.seconds * 1e6 + 1


class Halves(nn.Module):
    """Two layers split over two processes, as in tensor parallel."""

    def __init__(self, group):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.group = group

    def forward(self, x):
        from torch.distributed._functional_collectives import all_reduce

        for layer in self.layers:
            x = all_reduce(layer(x), "sum", self.group)
        return x


@pytest.mark.parametrize("apart", [1, 2])
def test_collectives_inside_a_stage_are_among_its_processes(apart, tmp_path):
    with sg.fake_process_group(2 * apart, rank=0):
        group = torch.distributed.new_group([0, apart])
        step = sg.capture_training_step(lambda: Halves(group), "f32[32,64]", loss=torch.mean, optimizer="sgd",
                                        device="cuda")  # fmt: skip
    run = sg.pipeline(step, "1f1b", ranks=2, microbatches=3, rank_stride=4)
    assert run.write_chakra(str(tmp_path), processes_per_stage=4) == 8
    for rank in range(8):
        nodes = list(chakra_nodes(tmp_path / f"trace.{rank}.et"))
        collectives = [node for node in nodes if node["type"] == COLLECTS]
        assert len(collectives) >= 2 * 3
        assert all(node["attr"]["comm_size"] == 32 * 64 * 4 for node in collectives)
        groups = json.loads(dict(fields(nodes[0]["inputs"]))[1])
        first = rank - rank // apart % 2 * apart
        assert groups == [{"pg_name": "0", "ranks": [first, first + apart]}]
    with pytest.raises(sg.Error, match="not an axis of the 3 processes"):
        run.write_chakra(str(tmp_path / "odd"), processes_per_stage=3)


def test_chrome_trace_has_what_trace_readers_ask_for(step):
    trace = json.loads(sg.pipeline(step, "interleaved", ranks=2, microbatches=4).chrome_trace())
    assert {"schemaVersion", "distributedInfo", "traceEvents"} <= trace.keys()
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["cat"] in ("kernel", "send", "receive")
    begins = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "f"}
    assert begins.keys() == ends.keys() and all(begins[key] <= ends[key] for key in begins)


# ---- Pieces


def test_pieces_compute_the_gradients_of_the_step():
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16)) for _ in range(6)])
    step = sg.capture_training_step(net, "f32[4,16]", loss=lambda y: y.square().mean(), device="cpu")
    run = sg.pipeline(step, "1f1b", ranks=3, microbatches=2, spec="h100")
    x = torch.randn(4, 16)
    known = dict(net.named_parameters()) | {"input": x, "input0": x}

    def do(stage, work):
        graph, inputs, outputs = run.piece(step, stage, work)
        graph.verify()
        known.update(zip(outputs, graph.compile()(*(known[name].detach() for name in inputs))))

    for stage in range(3):
        do(stage, "F")
    for stage in (2, 1, 0):
        do(stage, "I")
        do(stage, "W")
    expected = step.compile(net).run(x).gradients
    found = {node.args[0].producer.argument("name"): known[node.args[1].name]
             for node in step if node.target == "sg::gradient"}  # fmt: skip
    assert found.keys() == expected.keys() == dict(net.named_parameters()).keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(sg.Error, match="work must be F, B, I or W, not 'X'"):
        run.piece(step, 0, "X")
    with pytest.raises(sg.Error, match="stage 3 does not exist"):
        run.piece(step, 3, "F")


# ---- Collectives inside a stage


def sharded_step(tokens):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make():
        mesh = init_device_mesh("cuda", (8,))
        net = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(8)])
        for layer in net:
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    with sg.fake_process_group(8):
        return sg.capture_training_step(make, f"f32[{tokens},4096]", loss=lambda y: y.mean(), device="cuda",
                                        optimizer="adamw", steady_state=True)  # fmt: skip


def test_collectives_inside_a_stage_hide_behind_its_kernels():
    step = sharded_step(8192)
    run = sg.pipeline(step, "1f1b", ranks=2, microbatches=4, spec="h100", interconnect="h100", rank_stride=8)
    whole = sg.profile(step, spec="h100", interconnect="h100").dict()["communication"]
    stages = run.dict()["stages"]
    # FSDP gathers in backward while another layer computes; every parameter still belongs to one stage.
    assert run.dict()["notes"] == [] and sum(of["parameter_bytes"] for of in stages) == 8 * 4096 * 4096 * 4 // 8
    assert stages[0]["sends_forward_bytes"] == stages[1]["sends_backward_bytes"] == 8192 * 4096 * 4
    assert all(of["input_gradient_seconds"] > 0 and of["weight_gradient_seconds"] > 0 for of in stages)
    exposed = sum(of["exposed_seconds"] for of in stages)
    assert 0 < exposed < 0.7 * whole["seconds"]
    # Forward all-gathers and gradient reductions are counted once each.
    gathers, sums = whole["kinds"]["all_gather"]["seconds"], whole["kinds"]["reduce_scatter"]["seconds"]
    assert sum(of["reduce_gradients_seconds"] for of in stages) == pytest.approx(sums, rel=1e-6)
    assert gathers / 2 * (1 - 1e-9) <= sum(of["unshard_seconds"] for of in stages) <= gathers


def test_a_schedule_that_gathers_parameters_itself():
    step = sharded_step(64)  # each shard takes longer to gather than to compute with
    plain = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    gathered = "0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1UNSHARD,1F0,1B0,1F1,1B1,1REDUCE_GRAD\n"
    runs = [sg.pipeline(step, sg.PipelineSchedule.from_csv(text), spec="h100", interconnect="h100", rank_stride=8)
            for text in (plain, gathered)]  # fmt: skip
    assert runs[1].seconds < runs[0].seconds
    waits = [rank["waits"] for rank in runs[1].dict()["ranks"]]
    assert all(each["reduce"] > 0 for each in waits) and waits[0]["before"] > 0
    assert all(rank["waits"]["reduce"] == 0 for rank in runs[0].dict()["ranks"])
