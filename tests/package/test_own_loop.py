"""Captures of user-written training loops, compared with sg.profile() and real steps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import shadowgraph as sg


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))


def storages_of(graph, kind):
    return sum(storage.nbytes for storage in graph.storages if storage.kind == kind)


def loop_of_a_newcomer():
    """Autocast, a grad scaler, gradient accumulation, a schedule and weight averaging, built from PyTorch's classes."""
    rows = TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    with sg.Capture("cuda", host_reads="finite") as session:
        model = Net().cuda()
        average = copy.deepcopy(model)
        session.name_module(average, "average", state=True)  # never called as a module
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=4)
        scaler = torch.amp.GradScaler("cuda")
        for step, (images, labels) in enumerate(DataLoader(rows, batch_size=8, shuffle=True)):
            images, labels = images.cuda(), labels.cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels) / 2
            scaler.scale(loss).backward()
            if step % 2 == 1:
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                        kept.lerp_(now, 0.01)
        graph = session.finish(loss)
    return graph


def test_a_loop_as_people_write_it():
    graph = loop_of_a_newcomer()
    text = str(sg.profile(graph, spec="l4"))
    graph.verify()
    parameters = sum(parameter.numel() for parameter in Net().parameters())
    kept = parameters + 2 * sum(buffer.numel() for buffer in Net().buffers())
    assert f"parameters     {parameters:,} (" in text and f"buffers        {kept:,} (" in text
    assert "device         cuda:0" in text and "mode           train" in text and "model          Net" in text
    assert "estimated for NVIDIA L4" in text
    report = sg.profile(graph)
    figures = report.dict()
    assert set(figures["phase_peaks"]) == {"init", "forward", "backward", "optimizer"}
    assert storages_of(graph, "input") >= 8 * 8 * 3 * 32 * 32 * 4  # eight batches of images and labels
    steps = [node for node in graph if node.target == "aten::_foreach_addcdiv_.ScalarList"]
    assert len(steps) == 4 and {node.phase for node in steps} == {"optimizer"}
    # The same loop, described by keywords of sg.profile().
    def loss(outputs):
        return nn.functional.cross_entropy(outputs, torch.zeros(8, dtype=torch.int64, device="cuda"))

    line = sg.profile(Net, "f32[8,3,32,32]", loss=loss, optimizer=torch.optim.AdamW, autocast=torch.float16,
                      grad_scaler=True, ema=0.99, accumulate=2, steady_state=True)  # fmt: skip
    expected = line.dict()
    assert figures["parameters"] == expected["parameters"]
    matmul = expected["flops"]["forward"] + expected["flops"]["backward"]
    assert figures["flops"]["forward"] + figures["flops"]["backward"] == 4 * matmul
    # Labels that came from the loader, and scalars of the grad scaler and scheduler.
    assert abs(report.peak_bytes - line.peak_bytes) <= 0.001 * line.peak_bytes + 1024


def loop(device, steps=2):
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(16, 64, device=device)).square().mean().backward()
        optimizer.step()
    return model


def test_what_the_program_makes_is_named():
    with sg.Capture("cuda") as session:
        loop("cuda")
        graph = session.finish()
    weights = 4 * (64 * 96 + 96 + 96 * 32 + 32)
    assert storages_of(graph, "parameter") == weights
    assert storages_of(graph, "gradient") == 2 * weights
    assert storages_of(graph, "input") == 2 * 4 * 16 * 64
    report = sg.profile(graph)
    at_peak = report.dict()["peak"]["by_kind"]
    assert at_peak["optimizer_state"] >= 2 * weights
    assert {node.phase for node in graph if node.target == "aten::uniform_"} == {"init"}
    assert graph.metadata == {"device": "cuda:0", "mode": "train", "model": "Sequential", "steps": "2"}


def test_a_second_model_and_a_loss():
    with sg.Capture("cuda") as session:
        first, second = nn.Linear(4, 8).cuda(), nn.Linear(8, 4).cuda()
        nn.MSELoss()(second(first(torch.ones(2, 4, device="cuda"))), torch.zeros(2, 4, device="cuda")).backward()
        graph = session.finish()
    noted = {node.notes["parameter"] for node in graph if "parameter" in node.notes}
    assert noted == {"weight", "bias", "Linear.weight", "Linear.bias"}
    assert sg.profile(graph).dict()["parameters"] == 4 * 8 + 8 + 8 * 4 + 4
    assert storages_of(graph, "input") == 4 * 2 * 4 + 4 * 2 * 4  # inputs of the first model and of the loss


def test_closures_run_in_the_middle_of_a_step():
    with sg.Capture("cuda", host_reads=["finite", {"bool": False}]) as session:
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8, device="cuda")).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.step(closure=closure)
        graph = session.finish()
    products = [node.phase for node in graph if node.target in ("aten::addmm", "aten::mm")]
    assert products == ["forward", "backward"] * 2
    assert sum(node.phase == "optimizer" for node in graph) > 10


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("mine" if closure is None else closure())


def test_a_step_that_raises_ends_its_phase():
    with sg.Capture("cuda") as session:
        model = nn.Linear(8, 4).cuda()
        optimizer = Failing(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="mine"):
            optimizer.step()
        with pytest.raises(ValueError, match="yours"):
            optimizer.step(lambda: "yours")
        model(torch.ones(2, 8, device="cuda"))
        graph = session.finish()
    assert [node.phase for node in graph if node.target == "aten::addmm"] == ["forward"]


def test_a_profile_inside_a_capture_is_its_own():
    with sg.Capture("cuda") as session:
        outer = nn.Linear(4, 4).cuda()
        y = outer(torch.ones(2, 4, device="cuda"))
        inner = sg.profile(lambda: nn.Linear(8, 8), "f32[2,8]", optimizer="adamw").graph
        nn.ReLU()(y)
        graph = session.finish()
    assert inner.metadata["model"] == "Linear" and sg.profile(graph).dict()["parameters"] == 4 * 4 + 4
    assert {node.phase for node in graph} == {"init", "forward"}


# ---- Seconds are a step's


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def steps_of_a_loop(steps, closure=False, accumulate=1, twice=1):
    """A loop of `steps` steps, each of `accumulate` micro-batches; a second optimizer steps `twice` as often."""
    with sg.Capture("cuda") as session:
        model, other = Mlp().cuda(), Mlp().cuda()
        optimizer, second = torch.optim.AdamW(model.parameters()), torch.optim.SGD(other.parameters())
        x = torch.empty(32, 64, device="cuda")

        def backward():
            for _ in range(accumulate):
                loss = other(model(x)).pow(2).mean()
                loss.backward()
            return loss

        for _ in range(steps):
            loss = optimizer.step(backward) if closure else backward()
            if not closure:
                optimizer.step()
            for _ in range(twice):
                second.step()
            optimizer.zero_grad()
            second.zero_grad()
        graph = session.finish(loss)
    return sg.profile(graph, spec="h100")


@pytest.mark.parametrize("how", [{}, {"closure": True}, {"accumulate": 3}])
def test_seconds_of_a_loop_are_those_of_a_step(how):
    one, _, _, four = reports = [steps_of_a_loop(steps, **how) for steps in (1, 2, 3, 4)]
    assert [each.dict()["time"]["steps"] for each in reports] == [1, 2, 3, 4]
    for name in ("seconds", "device_seconds", "host_seconds"):
        first, *_, mean = means = [each.dict()["time"][name] for each in reports]
        steady = 3 * means[2] - 2 * means[1]  # of the third step
        assert steady > 0 and 4 * mean - 3 * means[2] == pytest.approx(steady, rel=0.01)
        # Only the first step also creates the models and the optimizers' state.
        assert steady < mean < first and mean == pytest.approx(steady + (first - steady) / 4, rel=0.01)
    assert sum(four.dict()["time"]["classes"].values()) == pytest.approx(four.dict()["time"]["device_seconds"])
    assert four.dict()["time"]["calls"] > 3 * one.dict()["time"]["calls"]
    assert " a step, the mean of 4 captured steps, estimated for" in str(four)
    assert " a step, estimated for" in str(one)


def test_unknown_steps_are_said():
    """Two optimizers that step unequally, or no optimizer and repeated calls: nothing to divide by."""
    unequal = steps_of_a_loop(2, twice=2)
    assert unequal.dict()["time"]["steps"] == 0
    with sg.Capture("cuda") as session:
        model = Mlp().cuda()
        calls = [model(torch.empty(8, 64, device="cuda")) for _ in range(3)]
        graph = session.finish(calls)
    several = sg.profile(graph, spec="h100")
    for report in (unequal, several):
        assert " for everything captured, which may be several steps, estimated for" in str(report)
    with sg.Capture("cuda") as session:
        model = Mlp().cuda()
        graph = session.finish(model(torch.empty(8, 64, device="cuda")))
    assert sg.profile(graph, spec="h100").dict()["time"]["steps"] == 1


def test_a_run_has_its_steps():
    inputs = "f32[32,64]"
    graph, _ = sg._capture.of_model(Mlp, inputs, device="cuda", optimizer="adamw", mode="train", run_steps=3)
    time = sg.profile(graph, spec="h100").dict()["time"]
    one = sg.profile(Mlp, inputs, optimizer="adamw", device="cuda", spec="h100").dict()["time"]
    assert time["steps"] == 3 and time["seconds"] == pytest.approx(one["seconds"], rel=0.2)
