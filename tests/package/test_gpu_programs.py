"""Predictions compared with peaks and step times measured on an H100 (bench/gpu/h100)."""

import importlib
import json
import pathlib
import sys

import pytest
import torch

GPU = pathlib.Path(__file__).parents[2] / "bench/gpu"
MEASURED = json.loads((GPU / "h100/programs.json").read_text())["programs"]
# In 2.12 only, FSDP2 keeps a group's packed gradients alive through a loop variable in post_backward() while it packs
# the next group's. Blocks then alternate, and the allocator splits others. The H100 ran 2.11.
RESERVED_BY_2_12 = {"fsdp_8b_64_kept": 39923482624} if torch.__version__.startswith("2.12.") else {}


@pytest.fixture(scope="module")
def predict():
    sys.path.insert(0, str(GPU))
    try:
        yield importlib.import_module("predict")
    finally:
        sys.path.remove(str(GPU))


def peaks(predict, name):
    said = predict.predicted(predict.programs.PROGRAMS[name], "h100")
    return said, MEASURED[name]


@pytest.mark.parametrize("name", ["fsdp_8b_64_kept", "hsdp_8b_8x8", "tensor_parallel_8_of_70b", "ddp_1b"])
def test_a_rank_takes_what_it_took_on_an_h100(predict, name):
    said, row = peaks(predict, name)
    assert abs(said["allocated"] - row["peaks"]["allocated"]) <= 2**20
    for ours, measured in ((said["reserved"], row["peaks"]["reserved"]),
                           (said["reserved_after_steps"][-1], row["reserved_after_steps"][-1])):  # fmt: skip
        assert ours == pytest.approx(RESERVED_BY_2_12.get(name, measured), rel=0.005)


@pytest.mark.parametrize("name", ["torch_transformer", "lstm_large", "transformer_encoder"])
def test_modules_of_pytorch_take_what_they_took(predict, name):
    said, row = peaks(predict, name)
    assert said["allocated"] == pytest.approx(row["peaks"]["allocated"], rel=0.1)
    assert said["time"]["seconds"] == pytest.approx(row["seconds"], rel=0.45)


def test_seconds_of_sharded_steps_are_near(predict):
    said, row = peaks(predict, "fsdp_8b_64")
    assert said["time"]["device_seconds"] == pytest.approx(row["seconds"], rel=0.12)


def test_products_in_tf32_are_noted():
    import shadowgraph as sg

    def metadata():
        with sg.Capture("cuda") as session:
            torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
            return session.finish(None).metadata

    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        assert "float32_matmul" not in metadata()
        torch.backends.cuda.matmul.allow_tf32 = True
        assert metadata()["float32_matmul"] == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_autocast_runs_recurrent_layers_in_half():
    import shadowgraph as sg

    with sg.fake("cuda"):
        for kind, layers in (("LSTM", 2), ("GRU", 1)):
            module = getattr(torch.nn, kind)(16, 32, layers).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                out = module(torch.randn(5, 3, 16, device="cuda"))[0]
            assert out.dtype == torch.float16  # regardless of autocast's dtype
            out.sum().backward()
            assert {(each.grad.dtype, each.grad.shape == each.shape) for each in module.parameters()} == {
                (torch.float32, True)
            }
