"""Streams of captured programs, and how much communication overlaps kernels."""

import json
import pathlib

import parallel_programs
import pytest
import torch
from parallel_programs import BATCH, LENGTH, PROGRAMS, optimizer_of
from torch.nn import functional as F

import shadowgraph as sg

# Since 2.15, FSDP2 copies differently, and backward work follows the last reduction.
SINCE_2_15 = hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype")
CHUNK_CAT = "fsdp::chunk_cat_mixed_dtype" if SINCE_2_15 else "fsdp::chunk_cat"


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Each collective takes one second and each block's products take longer (1 MFLOP/s); everything else is free."""
    folder = tmp_path_factory.mktemp("figures")
    spec, links = folder / "spec.json", folder / "links.json"
    spec.write_text(json.dumps({"version": 1, "bandwidth": 1e30, "matmul": {"float32": 1e6}}))
    links.write_text(json.dumps({"version": 1, "base": 1.0, "levels": [{"name": "wire", "bandwidth": 1e30}]}))
    return {"spec": str(spec), "interconnect": str(links)}


def loss_of(logits):
    return F.cross_entropy(logits.flatten(0, 1), torch.zeros(BATCH * LENGTH, dtype=torch.int64, device="cuda"))


def profiled(name, size, **figures):
    with sg.fake_process_group(size, rank=0):
        report = sg.profile(lambda: PROGRAMS[name](size, "cuda"), f"i64[{BATCH},{LENGTH}]", loss=loss_of,
                            optimizer=optimizer_of(name), device="cuda", steady_state=True, **figures)  # fmt: skip
    report.graph.verify()
    return report


def streams_of(graph, operator):
    return {dict(node.notes).get("stream", "0") for node in graph.find(operator)}


def test_fsdp2_runs_on_its_streams():
    graph = profiled("hsdp", 4).graph
    copies_in, gathers = streams_of(graph, "fsdp::all_gather_copy_in"), streams_of(graph, "c10d::_allgather_base_")
    scatters, sums = streams_of(graph, "c10d::_reduce_scatter_base_"), streams_of(graph, "c10d::allreduce_")
    for streams in (copies_in, gathers, scatters, sums):
        assert len(streams) == 1 and "0" not in streams
    assert len(copies_in | gathers | scatters | sums) == 4
    assert streams_of(graph, "fsdp::split_with_sizes_copy") == streams_of(graph, CHUNK_CAT) == {"0"}
    assert sg.Graph.parse(graph.text()).text() == graph.text()


def test_fsdp2_copies_move_bytes_and_keep_tables():
    report = profiled("fsdp in bf16", 2)
    assert not {each["op"] for each in report.dict()["unknown_scratch"]} & {
        "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", CHUNK_CAT}  # fmt: skip

    def of(operator):
        nodes = [node for node in report.nodes if node.target == operator]
        assert all(node.flops == node.elementwise_flops == 0 for node in nodes)
        return min((node.bytes_read, node.bytes_written, node.scratch_bytes) for node in nodes)

    # The root group: two of 96 x 64 and two of 64, half of each on this rank; gradients are cast to float32 on the way.
    # int64 tables have 4 or 6 entries per tensor, one or two more for reductions, and one per block of 2,048 bytes.
    elements = 2 * 96 * 64 + 2 * 64
    assert of("fsdp::all_gather_copy_in") == (elements, elements, 0)
    assert of("fsdp::split_with_sizes_copy") == (2 * elements, 2 * elements, 8 * (4 * 4 + 1 + 3 + 3 + 1 + 1))
    assert of(CHUNK_CAT) == (2 * elements, 4 * elements, 8 * (6 * 4 + 2 + 6 + 6 + 1 + 1))


def test_what_fsdp2_waits_for(figures):
    communication = profiled("fsdp", 2, **figures).dict()["communication"]
    overlap = communication["overlap"]
    # Four parameter groups: four all-gathers in forward, three in backward (all but the root's), and four reductions.
    # In forward, the gathers of the root and of the first block are exposed. So are the last two reductions: the root's
    # waits for the buffer of the previous one.
    assert communication["seconds"] == pytest.approx(4 + 3 + 4)
    assert overlap["exposed_seconds"] == pytest.approx(4, rel=1e-3)
    assert overlap["slowed_seconds"] == 0
    causes = {each["text"]: round(each["seconds"], 3) for each in overlap["causes"]}
    sums = {"reduce_scatter of group 0, backward": 1, "reduce_scatter of group 0, backward, until the optimizer": 1}
    if SINCE_2_15:
        sums = {"reduce_scatter of group 0, backward": 2}
    assert causes == {"all_gather of group 0, forward": 2} | sums


def test_tensor_parallel_sums_are_waited_for(figures):
    overlap = profiled("fsdp x tp", 4, **figures).dict()["communication"]["overlap"]
    causes = {each["text"]: (each["waits"], round(each["seconds"], 3)) for each in overlap["causes"]}
    assert causes["all_reduce of tp, forward"] == (6, 6)


def test_collectives_of_one_group_are_serial_however_early_they_are_issued(figures):
    def explicit(size, device):
        model = parallel_programs.fsdp(size, device)
        model.set_modules_to_forward_prefetch([model.blocks[0]])
        return model

    PROGRAMS["fsdp, told what to prefetch"] = explicit
    try:
        overlap = profiled("fsdp, told what to prefetch", 2, **figures).dict()["communication"]["overlap"]
    finally:
        del PROGRAMS["fsdp, told what to prefetch"]
    assert overlap["exposed_seconds"] == pytest.approx(4, rel=1e-3)


def test_a_device_share_slows_what_is_beside(figures, tmp_path):
    links = json.loads(pathlib.Path(figures["interconnect"]).read_text())
    (tmp_path / "links.json").write_text(json.dumps(links | {"device_share": 0.5}))
    how = figures | {"interconnect": str(tmp_path / "links.json")}
    overlap = profiled("fsdp", 2, **how).dict()["communication"]["overlap"]
    # Seven of the eleven seconds of collectives overlap kernels, which then run at half speed.
    assert overlap["slowed_seconds"] == pytest.approx(3.5, rel=1e-2)


def test_streams_and_events_of_a_program():
    def program(x):
        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side != other
            z = y + 1
            with other:
                assert torch.cuda.current_stream() == other
                y.record_stream(other)
            assert torch.cuda.current_stream() == side
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        happened = side.record_event()
        torch.cuda.current_stream().wait_event(happened)
        torch.cuda.current_stream().wait_event(happened)
        return z.relu()

    graph = sg.capture(program, "f32[4]", device="cuda")
    notes = {node.target: dict(node.notes) for node in graph.nodes if node.notes}
    assert notes == {
        "aten::mul.Tensor": {"event": "1", "used_on": "2"},
        "aten::add.Tensor": {"stream": "1", "event": "2", "waits": "1"},
        "aten::relu": {"waits": "2"},
    }


def test_streams_of_any_accelerator():
    def program(x):
        side, event = torch.Stream(device="cuda"), torch.Event(device="cuda")
        y = x * 2
        event.record(torch.accelerator.current_stream())
        side.wait_event(event)
        with side:
            z = y + 1
        torch.accelerator.current_stream().wait_stream(side)
        return z.relu()

    graph = sg.capture(program, "f32[4]", device="cuda")
    assert [dict(node.notes) for node in graph.nodes if node.notes] == [
        {"event": "1"}, {"stream": "1", "event": "2", "waits": "1"}, {"waits": "2"}]  # fmt: skip


def test_backward_runs_on_the_stream_of_forward():
    def program(x, w):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (x @ w).tanh()
        torch.cuda.current_stream().wait_stream(side)
        y.sum().backward()
        return w.grad

    with sg.Capture("cuda") as capture:
        w = torch.ones(4, 4, device="cuda", requires_grad=True)
        graph = capture.finish([program(torch.ones(4, 4, device="cuda"), w)])
    assert streams_of(graph, "aten::tanh") == streams_of(graph, "aten::tanh_backward") == {"1"}
    assert streams_of(graph, "aten::sum") == {"0"}


def test_streams_of_both_kinds_are_one():
    """torch.Stream and torch.Event beside those of torch.cuda, in all pairs: the waits are the same."""

    def program(make_stream, make_event, current):
        def run(x):
            side, event = make_stream(), make_event()
            assert isinstance(side, torch.Stream) and isinstance(event, torch.Event)
            y = x * 2
            event.record(current())
            side.wait_event(event)
            with side:
                z = y + 1
            current().wait_stream(side)
            return z.relu()

        return run

    streams = (torch.cuda.Stream, lambda: torch.Stream(device="cuda"))
    events = (torch.cuda.Event, lambda: torch.Event(device="cuda"))
    currents = (torch.cuda.current_stream, torch.accelerator.current_stream)
    for case in ((stream, event, current) for stream in streams for event in events for current in currents):
        graph = sg.capture(program(*case), "f32[4]", device="cuda")
        assert [dict(node.notes) for node in graph.nodes if node.notes] == [
            {"event": "1"}, {"stream": "1", "event": "2", "waits": "1"}, {"waits": "2"}]  # fmt: skip


def test_a_stream_of_cuda_is_torchs():
    with sg.fake("cuda"):
        side = torch.cuda.Stream(priority=-1)
        assert isinstance(side, torch.cuda.Stream) and side.priority == -1 and side.cuda_stream == side.stream_id != 0
        assert isinstance(torch.cuda.Event(enable_timing=True), torch.cuda.Event)
        torch.accelerator.set_stream(side)
        assert torch.cuda.current_stream() == torch.accelerator.current_stream() == side
        assert hash(torch.cuda.current_stream()) == hash(side) and torch.cuda.default_stream() != side
        with torch.cuda.stream(torch.Stream(device="cuda:1")):
            assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() != side
        assert torch.cuda.current_device() == 0 and torch.cuda.current_stream() == side
        assert torch.cuda.ExternalStream(7, device=1) == torch.cuda.get_stream_from_external(7, 1)
        for event in (torch.cuda.Event(enable_timing=True), torch.Event(device="cuda", enable_timing=True)):
            event.record()
            with pytest.raises(sg.DataDependentError, match="runs nothing"):
                event.elapsed_time(event)
    with sg.fake("cuda"):  # as on a new machine
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_device_set_in_one_capture_is_not_that_of_the_next():
    def program(x):
        device = torch.ones(2, device="cuda").device.index
        torch.cuda.set_device(1)
        torch.cuda.set_stream(torch.cuda.Stream())
        return torch.ones(2, device="cuda") + device

    first, second = (sg.capture(program, "f32[4]", device="cuda").text() for _ in range(2))
    assert first == second
