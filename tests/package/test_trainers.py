"""Trainer libraries on simulated CUDA, and the peak memory in their logs: one device, unless more are requested."""

import math

import pytest
import torch
import trainers
from trainers import READS

import shadowgraph as sg


def recorded(program, device="cuda", **options):
    with sg.Capture(device, host_reads=READS, **options) as session:
        result = program()
        graph = session.finish()
    graph.verify()
    return graph, result


def products(graph, phase):
    return sum(node.target in ("aten::mm", "aten::addmm", "aten::bmm") for node in graph if node.phase == phase)


def check_training(graph, steps, parameters, groups=1):
    report = sg.profile(graph, spec="h100")
    figures = report.dict()
    assert figures["time"]["steps"] == steps
    assert figures["parameters"] == parameters and figures["mode"] == "train" and figures["device"] == "cuda:0"
    kernels = ("aten::_foreach_addcdiv_", "aten::_fused_adamw_")
    stepped = [node for node in graph if node.target.startswith(kernels)]
    assert len(stepped) == steps * groups and {node.phase for node in stepped} == {"optimizer"}
    at_peak = figures["peak"]["by_kind"]
    assert at_peak["parameter"] >= 4 * parameters and at_peak["optimizer_state"] >= 8 * parameters
    assert products(graph, "forward") > 0 and products(graph, "backward") > 0 and products(graph, "optimizer") == 0
    return report


LLAMA = sum(parameter.numel() for parameter in trainers.llama().parameters())
MLP = sum(parameter.numel() for parameter in trainers.mlp().parameters())


def test_trainer_takes_one_device():
    def train():
        made = trainers.trainer()
        assert made.args.n_gpu == 1 and str(made.args.device) == "cuda:0"
        made.train()
        assert not isinstance(made.model_wrapped, torch.nn.DataParallel)
        return made

    check_training(recorded(train)[0], 2, LLAMA, groups=2)


def test_trainer_with_autocast_and_accumulation():
    graph, _ = recorded(lambda: trainers.trainer(bf16=True, gradient_accumulation_steps=2).train())
    check_training(graph, 2, LLAMA, groups=2)
    assert any("autocast" in mode for node in graph for mode in node.modes)


def test_sft():
    check_training(recorded(lambda: trainers.sft().train())[0], 2, LLAMA, groups=2)


def test_sft_of_adapters():
    graph, made = recorded(lambda: [made := trainers.sft(adapters=True), made.train()][0])
    # LoRA of rank 8 at q_proj (64 to 64) and v_proj (64 to 32) of two layers.
    trained = 2 * (8 * (64 + 64) + 8 * (64 + 32))
    assert sum(p.numel() for p in made.model.parameters() if p.requires_grad) == trained
    report = sg.profile(graph)
    assert report.dict()["parameters"] == LLAMA + trained
    assert 8 * trained <= report.dict()["peak"]["by_kind"]["optimizer_state"] <= 8 * trained + 4 * 8


def test_dpo_has_two_models():
    graph, _ = recorded(lambda: trainers.dpo().train())
    report = sg.profile(graph)
    assert report.dict()["parameters"] == 2 * LLAMA  # the policy and the reference model
    assert 8 * LLAMA <= report.dict()["peak"]["by_kind"]["optimizer_state"] < 8 * LLAMA + 1024


def test_lightning():
    graph, loop = recorded(trainers.fit)
    assert loop.num_devices == 1 and loop.global_step == 2
    check_training(graph, 2, MLP)


def test_lightning_with_several_devices_is_asked_for():
    with sg.Capture("cuda", device_count=4):
        import lightning

        assert lightning.pytorch.accelerators.CUDAAccelerator.auto_device_count() == 4


def test_accelerate():
    graph, loop = recorded(trainers.accelerated)
    assert loop.num_processes == 1 and str(loop.device) == "cuda"
    check_training(graph, 2, MLP)


@pytest.mark.parametrize("asked", [False, True])
def test_accelerate_that_ran_on_the_cpu_before(asked):
    from accelerate import PartialState
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    before = PartialState(cpu=asked).device
    graph, loop = recorded(trainers.accelerated)
    expected = "cpu" if asked else "cuda:0"  # an explicit request for the CPU is respected
    assert {node.outputs[0].device for node in graph if node.target == "aten::addmm"} == {expected}
    assert before.type == "cpu" and loop.device == before
    AcceleratorState._reset_state(reset_partial_state=True)


def test_training_script_of_diffusers():
    graph, _ = recorded(trainers.diffusion)
    model = next(node for node in graph if "parameter" in node.notes)
    assert model.notes["parameter"].startswith("conv_in")
    report = sg.profile(graph)
    parameters = report.dict()["parameters"]
    assert report.dict()["peak"]["by_kind"]["optimizer_state"] >= 8 * parameters
    assert products(graph, "optimizer") == 0


# ---- The simulated device


def test_how_many_devices(monkeypatch):
    with sg.fake("cuda"):
        assert torch.cuda.device_count() == 1
        assert torch.empty(2, device="cuda:7").device.index == 7  # tensors on a device with an explicit index work
        with sg.Capture("cuda"):
            assert torch.cuda.device_count() == 1
    with sg.fake("cuda", device_count=3), sg.Capture("cuda"):
        assert torch.cuda.device_count() == 3
    with sg.fake("cuda", device_count=8):
        assert torch.cuda.device_count() == 8
    with sg.fake_process_group(16, rank=3), sg.fake("cuda"):
        assert torch.cuda.device_count() == 8
    for visible, count in (("0,1", 2), ("3", 1), ("GPU-1,GPU-2,GPU-3", 3), ("0,-1,2", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with sg.fake("cuda"):
            assert torch.cuda.device_count() == count
            with pytest.raises(sg.Error):
                torch.empty(2, device=f"cuda:{count}")
        with sg.fake("cuda", device_count=5):  # an explicit count takes precedence
            assert torch.cuda.device_count() == 5
        with sg.fake_process_group(16, rank=3), sg.fake("cuda"):
            assert torch.cuda.device_count() == 8 and torch.empty(2, device="cuda:3").device.index == 3
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with sg.fake("cpu"):
            assert torch.cuda.device_count() == 0 and not torch.cuda.is_available()
        with sg.fake("cuda"):  # hiding the real GPU does not hide the simulated one
            assert torch.cuda.device_count() == 1


@pytest.mark.parametrize("profile, name, capability, gibibytes", [("h100", "NVIDIA H100", (9, 0), 79.2),
                                                                   ("a100", "NVIDIA A100", (8, 0), 79.2)])  # fmt: skip
def test_properties(profile, name, capability, gibibytes):
    with sg.fake("cuda", profile=profile):
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, (properties.major, properties.minor)) == (name, capability)
        assert torch.cuda.get_device_properties("cuda").total_memory == properties.total_memory
        assert math.isclose(properties.total_memory / 2**30, gibibytes, abs_tol=0.1)
        assert properties.multi_processor_count == {"h100": 132, "a100": 108}[profile]
        with pytest.raises(AttributeError, match="L2_cache_size is not available: the simulated device"):
            _ = properties.L2_cache_size
        with pytest.raises(sg.Error):
            torch.cuda.get_device_properties(8)


# ---- Predicted and measured peaks


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("make", [trainers.trainer, trainers.sft], ids=["trainer", "sft"])
def test_peaks_in_the_logs_of_trainer(make):
    graph, _ = recorded(lambda: make("cpu").train(), device="cpu")
    made = make("cpu", steps=3, callbacks=[sg.integrations.trainer_callback(sg.profile(graph))])
    made.train()
    first, second, third = made.state.log_history[:3]
    assert "measured_peak_bytes" not in first and first["predicted_peak_bytes"] == second["predicted_peak_bytes"]
    assert second["measured_peak_bytes"] == third["measured_peak_bytes"]
    # Including the states of the CPU's generator that TRL saves.
    assert math.isclose(second["predicted_peak_bytes"], second["measured_peak_bytes"], rel_tol=0.001)


@pytest.mark.usefixtures("one_thread")
def test_peaks_in_the_logs_of_lightning():
    graph, _ = recorded(lambda: trainers.fit("cpu"), device="cpu")
    loop = trainers.fit("cpu", steps=3, callbacks=[sg.integrations.lightning_callback(sg.profile(graph))])
    logged = {name: value.item() for name, value in loop.callback_metrics.items()}
    batch = 16 * 64 * 4  # the second batch, which exists from the start of the graph
    assert math.isclose(logged["predicted_peak_bytes"] - batch, logged["measured_peak_bytes"], rel_tol=0.001)


def test_callbacks_without_a_prediction_and_inside_a_mode():
    made = trainers.trainer("cpu", steps=2, callbacks=[sg.integrations.trainer_callback()])
    made.train()
    assert "predicted_peak_bytes" not in made.state.log_history[1] and made.state.log_history[1]["measured_peak_bytes"]
    _, inside = recorded(lambda: [made := trainers.trainer(callbacks=[sg.integrations.trainer_callback(5)]),
                                  made.train()][0])  # fmt: skip
    assert inside.state.log_history[0]["predicted_peak_bytes"] == 5
    assert "measured_peak_bytes" not in inside.state.log_history[1]
    with pytest.raises(sg.Error, match="at least 1"):
        sg.integrations.trainer_callback(steps=0)
