"""Programs of torch.distributed.pipelining, captured for one rank and compared with real ranks over gloo."""

import subprocess
import sys

import pipeline_programs
import pytest
import torch
from parallel_programs import RealRanks, collectives_of
from pipeline_programs import ALL, LENGTH, PROGRAMS, WIDTH
from torch.distributed.pipelining.stage import _RecvInfo

import shadowgraph as sg

RANKS = 4
IDS = f"i64[{ALL},{LENGTH}]"


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    return RealRanks(tmp_path_factory.mktemp("pipelines"), pipeline_programs.__file__, {RANKS: list(PROGRAMS)})


def profiled(name, rank, device="cpu", **options):
    options = {"optimizer": pipeline_programs.optimizer_of(name), "steady_state": True, **options}
    with sg.fake_process_group(RANKS, rank):
        report = sg.profile(lambda: PROGRAMS[name](device), IDS, target=IDS, device=device, **options)
    report.graph.verify()
    return report


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_holds_and_sends_what_a_real_one_does(name, real):
    reports = [profiled(name, rank) for rank in range(RANKS)]

    def check(ranks):
        for rank, (report, there) in enumerate(zip(reports, ranks, strict=True)):
            held = report.peak_bytes  # a mesh's table of ranks is not captured; scalars that the host writes are
            assert abs(held - there["peak"]) <= 16, (rank, held, there["peak"], there["at"])
            assert collectives_of(report.graph) == there["collectives"]

    real.agree(name, check)


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_steps_of_real_ranks(name, real):
    """In the first step, a real rank exchanges shapes with its neighbors before and during an extra run of all
    stages."""
    reports = [profiled(name, rank, steady_state=False) for rank in range(RANKS)]

    def check(ranks):
        for rank, (report, of) in enumerate(zip(reports, ranks, strict=True)):
            there = of["first"]
            # Scalars of the optimizer step are constants of the graph, allocated from the start. With tensor parallel a
            # real rank has 24 more bytes.
            constants = sum(node.results[0].nbytes for node in report.graph if node.target == "sg::constant")
            assert -24 <= report.peak_bytes - there["peak"] <= 16 + constants, (rank, report.peak_bytes, there)
            besides = iter(there["collectives"])
            assert all(call in besides for call in collectives_of(report.graph))

    real.agree(name, check)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_first_steps(name, device):
    """Shape inference in the first step runs all stages once more, on the shapes received from neighbors."""
    for rank in range(RANKS):
        # DDP rebuilds its buckets in the second step.
        first, second = ([call for call in collectives_of(profiled(name, rank, device, steady_state=steady).graph)
                          if call[0] in ("c10d::send", "c10d::recv_")] for steady in (False, True))  # fmt: skip
        assert first[-len(second) :] == second


def test_sends_and_receives_are_nodes():
    graph = profiled("1f1b", 1).graph
    sent, received = graph.find("c10d::send"), graph.find("c10d::recv_")
    assert len(sent) == len(received) == 2 * pipeline_programs.MICRO_BATCHES
    assert {node.argument("dst") for node in sent} == {node.argument("src") for node in received} == {0, 2}
    assert {node.argument("tag") for node in sent + received} == {0}
    buffers = {node.argument("tensors")[0].storage for node in received}
    assert len(buffers) == len(received)
    names = {node.argument("name") for node in graph if node.target == "sg::input"}
    kept = {"stage1.received_activation0.0", "stage1.received_gradient0.7"}
    # Up to 2.14, torch keeps a buffer per micro-batch and direction; later versions allocate one per receive.
    assert not kept & names if hasattr(_RecvInfo, "allocate_buffer") else kept <= names


@pytest.mark.skipif(not hasattr(torch.distributed.config, "pipeline_per_edge_p2p"), reason="since torch 2.15")
def test_a_communicator_for_each_edge():
    sent = collectives_of(profiled("1f1b", 1).graph)
    with torch.distributed.config.patch(pipeline_per_edge_p2p=True):
        assert collectives_of(profiled("1f1b", 1).graph) == sent


# ---- Shape inference between stages


def loop_of(name, device, rank):
    """Captures a user-written loop; returns its graph."""
    with sg.Capture(device) as session:
        schedule = PROGRAMS[name](device)
        for stage, module in pipeline_programs.modules_of(schedule).items():
            session.name_module(module, f"stage{stage}")
        ids = torch.zeros(ALL, LENGTH, dtype=torch.int64, device=device)
        schedule.step(*[ids] * (rank == 0), target=ids if rank == RANKS - 1 else None)
        return session.finish()


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_loop_of_ones_own(rank):
    with sg.fake_process_group(RANKS, rank):
        shapes = sg.pipeline_shapes(lambda: PROGRAMS["1f1b"]("cuda"), IDS, target=IDS, device="cuda")
        with shapes:
            graph = loop_of("1f1b", "cuda", rank)
    graph.verify()
    assert collectives_of(graph) == collectives_of(profiled("1f1b", rank, "cuda", steady_state=False).graph)
    assert str(shapes).split("\n")[2].split() == ["1", f"f32[1,{LENGTH},{WIDTH}]", f"f32[1,{LENGTH},{WIDTH}]"]


def test_a_handshake_that_nobody_answers():
    for rank in range(RANKS):
        with (sg.fake_process_group(RANKS, rank),
              pytest.raises(sg.DataDependentError, match="input_args= and output_args=")):  # fmt: skip
            loop_of("1f1b", "cpu", rank)
        with sg.fake_process_group(RANKS, rank):
            loop_of("1f1b with shapes given", "cpu", rank).verify()


def test_shapes_of_two_tensors():
    with sg.fake_process_group(RANKS, 1):
        shapes = sg.pipeline_shapes(lambda: pipeline_programs.two_tensors("cpu"), IDS, target=IDS, device="cpu")
    tensor, mask = shapes.forward[1].forward_metas
    assert tensor.shape == (1, LENGTH, WIDTH) and tensor.requires_grad
    assert mask.dtype == torch.bool and not mask.requires_grad
    gradient, none = shapes.backward[2].backward_metas
    assert gradient.shape == (1, LENGTH, WIDTH) and none is None


def test_pipelining_may_be_imported_in_a_fake_group():
    script = """if True:
        import sys, types
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
        import torch, shadowgraph as sg
        def make():
            from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
            rank = torch.distributed.get_rank()
            stage = PipelineStage(torch.nn.Linear(4, 4), rank, 3, torch.device("cpu"))
            return ScheduleGPipe(stage, 2, loss_fn=lambda y, t: (y - t).sum())
        with sg.fake_process_group(3, 1):
            assert "torch.distributed.pipelining" not in sys.modules
            print(len(sg.profile(make, "f32[4,4]", target="f32[4,4]", device="cpu").graph.find("c10d::send")))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "4\n", done.stderr


def test_shapes_of_another_program():
    other = f"i64[{ALL},{LENGTH // 2}]"
    with sg.fake_process_group(RANKS, 0):
        shapes = sg.pipeline_shapes(lambda: PROGRAMS["1f1b"]("cpu"), other, target=other, device="cpu")
        with shapes, pytest.raises(sg.Error, match="stage 0 sends .* but .* was inferred"):
            loop_of("1f1b", "cpu", 0)
    with sg.fake_process_group(RANKS, 1):
        shapes = sg.pipeline_shapes(lambda: PROGRAMS["1f1b"]("cpu"), IDS, target=IDS, device="cpu")
        with shapes, pytest.raises(sg.DataDependentError, match="inferred for a pipeline of 4 stages"):
            loop_of("interleaved", "cpu", 1)


def test_what_is_sent_must_be_contiguous():
    class Transposed(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).t()

    def make():
        rank = torch.distributed.get_rank()
        stage = pipeline_programs.PipelineStage(Transposed(8, 8), rank, RANKS, torch.device("cpu"))
        return pipeline_programs.schedules.ScheduleGPipe(stage, 1, loss_fn=lambda y, t: (y - t).sum())

    with sg.fake_process_group(RANKS, 1), pytest.raises(RuntimeError, match="must be contiguous"):
        sg.profile(make, "f32[8,8]", target="f32[8,8]", device="cpu")


def test_a_function_that_makes_the_same_stage_for_every_rank():
    with sg.fake_process_group(RANKS, 1):
        from torch.distributed.device_mesh import init_device_mesh

        rank = init_device_mesh("cpu", (RANKS,)).get_local_rank()
        world = torch.distributed.group.WORLD

        def make(group=None):
            stage = pipeline_programs._stage(rank, RANKS, "cpu", group)
            return pipeline_programs.schedules.ScheduleGPipe(stage, 8, loss_fn=pipeline_programs.loss_of)

        with pytest.raises(sg.Error, match="created stages 1 of 4; the function must read the rank"):
            sg.profile(make, IDS, target=IDS, device="cpu")
        with pytest.raises(sg.Error, match="as rank 1, the function raised ValueError(.|\n)*must read the rank"):
            sg.profile(lambda: make(world), IDS, target=IDS, device="cpu")


# ---- Arguments of a schedule


def test_what_is_refused():
    def make():
        return PROGRAMS["gpipe"]("cpu")

    with sg.fake_process_group(RANKS, 3):
        cases = [
            ({"loss": ".loss", "target": IDS}, "has its own loss function"),
            ({"optimizer": "sgd"}, "pass target="),
            ({"target": IDS, "accumulate": 2}, "has micro-batches"),
            ({"target": IDS, "grad_scaler": True, "optimizer": "sgd"}, "has micro-batches"),
        ]
        for options, message in cases:
            with pytest.raises(sg.Error, match=message):
                sg.profile(make, IDS, device="cpu", **options)
        for options in ({"target": "f32[2,2]"}, {"return_outputs": False, "mode": "infer"}):
            with pytest.raises(sg.Error, match="apply to schedules"):
                sg.profile(torch.nn.Linear(2, 2), "f32[2,2]", device="cpu", **options)
        with pytest.raises(sg.Error, match="torch.distributed.pipelining, but returned Linear"):
            sg.pipeline_shapes(lambda: torch.nn.Linear(2, 2), IDS)
    with pytest.raises(sg.Error, match="fake_process_group"):
        sg.pipeline_shapes(make, IDS)


@pytest.mark.parametrize("options", [{"ema": 0.99}, {"clip_grad_norm": 1.0}, {"autocast": torch.bfloat16},
                                     {"run": True}, {"zero_grads": True}, {"dtype": torch.bfloat16}])  # fmt: skip
def test_what_a_loop_does_besides(options):
    plain, other = (profiled("interleaved", 1, "cuda", **more) for more in ({}, options))
    assert collectives_of(plain.graph) == collectives_of(other.graph) or "dtype" in options
    if "ema" in options:
        assert other.dict()["buffer_bytes"] == plain.dict()["parameter_bytes"] + 8  # and the count of averaged steps
    elif "dtype" in options:
        assert 2 * other.dict()["parameter_bytes"] == plain.dict()["parameter_bytes"]
        sent = [sum(size for _, size in collectives_of(report.graph)) for report in (plain, other)]
        assert sent[0] == 2 * sent[1]


def test_a_schedule_and_its_modules():
    def make(extra=None):
        schedule = PROGRAMS["interleaved"]("cpu")
        return schedule, list(pipeline_programs.modules_of(schedule).values()) + ([extra()] if extra else []), True

    with sg.fake_process_group(RANKS, 1):
        both = sg.profile(make, IDS, target=IDS, device="cpu")
        assert both.peak_bytes == profiled_in_group("interleaved").peak_bytes
        with pytest.raises(sg.Error, match="parameter weight of LayerNorm is not in any stage"):
            sg.profile(lambda: make(lambda: torch.nn.LayerNorm(3)), IDS, target=IDS, device="cpu")


def profiled_in_group(name):
    return sg.profile(lambda: PROGRAMS[name]("cpu"), IDS, target=IDS, device="cpu")


def test_an_error_of_a_stage_keeps_its_type():
    class Reads(torch.nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    def make():
        stage = pipeline_programs.PipelineStage(Reads(), 0, 1, torch.device("cpu"))
        return pipeline_programs.schedules._ScheduleForwardOnly(stage, 1)

    with sg.fake_process_group(1), pytest.raises(sg.DataDependentError, match="item"):
        sg.profile(make, "f32[2,2]", device="cpu", mode="infer")


def test_inference_sends_forward_alone():
    graph = profiled("interleaved", 1, mode="infer", optimizer=None, steady_state=False).graph
    assert len(graph.find("c10d::send")) == len(graph.find("c10d::recv_")) == 2 * pipeline_programs.MICRO_BATCHES
    assert not [node for node in graph if node.phase == "backward"]


def test_outputs_that_nobody_wants():
    whole, none = (profiled("gpipe", 3, return_outputs=outputs) for outputs in (True, False))
    logits = ALL * LENGTH * pipeline_programs.WORDS * 4
    made = [[node for node in report.graph if node.target == "aten::cat"] for report in (whole, none)]
    assert [node.results[0].nbytes for node in made[0]] == [logits] and made[1] == []
    # Until the step ends, the first rank keeps the logits of every micro-batch, the second only tensors for its
    # backward.
    assert whole.peak_bytes > none.peak_bytes
