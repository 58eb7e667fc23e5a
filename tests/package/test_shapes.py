"""Shapes of a graph's values recomputed for other inputs."""

import pytest
import torch
from test_capture import Net
from torch._subclasses.fake_tensor import FakeTensorMode

import shadowgraph as sg


def forward(batch):
    return sg.capture(Net(), f"f32[{batch},16]", device="cuda", train=True)


def test_other_batches_are_as_captures_of_them():
    for given in ("f32[32,16]", (32, 16), torch.empty(32, 16), torch.empty(32, 16, device="meta")):
        graph = forward(8)
        shapes = graph.propagate(given)
        (relu, *_) = graph.find("aten::relu")
        fake = shapes.tensor(relu.outputs[0])
        assert sg.is_fake(fake) and fake.shape == (32, 16) and str(fake.device) == "cuda:0"
        assert graph.difference(forward(8)) is None  # the graph itself is unchanged
        assert [t.shape for t in shapes.outputs] == [(32, 4)]
        assert shapes.apply() is True and graph.text("short") == forward(32).text("short")
    assert sg.profile(graph).dict()["flops"] == sg.profile(forward(32)).dict()["flops"]


def test_with_the_recorded_inputs_nothing_changes():
    graph = sg.capture_training_step(Net(), "f32[8,16]", optimizer="adamw", device="cuda")
    shapes = graph.propagate()
    assert not shapes.baked and not shapes.paths and shapes.apply() is False


def test_inputs_by_name_dtype_strides_and_parameters():
    def program(x, y):
        return x @ y, y.t()

    graph = sg.capture(program, "f32[4,5]", "f32[5,6]")
    transposed = torch.empty(3, 5).t()
    with sg.fake():
        shapes = graph.propagate(input1=transposed)
    product, view = shapes.outputs
    assert product.shape == (4, 3) and view.stride() == (5, 1) and view.shape == (3, 5)
    halves = graph.propagate(torch.empty(2, 5, dtype=torch.float16), "f16[5,6]").outputs
    assert halves[0].dtype == torch.float16 and halves[0].shape == (2, 6)
    other = FakeTensorMode().from_tensor(torch.empty(9, 5))
    assert graph.propagate(other).outputs[0].shape == (9, 6)
    with sg.fake("cuda"):
        elsewhere = torch.empty(4, 5, device="cuda")
    with pytest.raises(sg.UnsupportedError, match="cuda:0"):
        graph.propagate(elsewhere)

    net = torch.nn.Linear(4, 3)
    graph = sg.capture(net, "f32[2,4]")
    wide = graph.propagate(weight=(7, 4), bias=(7,))
    assert wide.outputs[0].shape == (2, 7)


def test_sizes_that_stand_in_the_graph():
    step = sg.capture_training_step(Net(), "f32[8,16]", optimizer="adamw", device="cuda")
    with pytest.raises(sg.UnsupportedError, match=r"(?s)aten::mm fails with the new inputs.*baked in: .*expand"):
        step.propagate((32, 16))
    graph = sg.capture(lambda x: (x + 1, torch.zeros(x.shape[0], 2)), "f32[8,4]")
    shapes = graph.propagate((16, 4))
    (baked,) = shapes.baked
    assert (baked.argument, baked.number, baked.now) == ("size[0]", 8, 16)
    assert baked.dimension == "size 0 of 'input0'" and baked.node.target.startswith("aten::zeros")
    assert "size[0] = 8" in repr(baked) and "now 16" in repr(baked)
    assert shapes.outputs[1].shape == (8, 2)  # as recorded


def test_the_mode_decides_sizes_and_the_device():
    def program(x):
        return x[x > 0] * 2

    graph = sg.capture(program, "f32[10]", device="cuda", options={"data_sizes": {"nonzero": 4}})
    assert graph.propagate().outputs[0].shape == (4,)
    mode = sg.fake("cuda", profile="a100", data_sizes={"nonzero0": 7})
    assert graph.propagate(mode=mode).outputs[0].shape == (7,)
    with pytest.raises(sg.Error, match="captured on cuda:0"):
        graph.propagate(mode=sg.fake("cpu"))
    with pytest.raises(sg.Error, match="data_sizes as a dict by name"):
        graph.propagate(mode=sg.fake("cuda", data_sizes=lambda *question: 3))
    with pytest.raises(sg.Error, match="no host_reads"):
        graph.propagate(mode=sg.fake("cuda", host_reads="finite"))
    with pytest.raises(sg.Error, match="shadowgraph.fake, not FakeTensorMode"):
        graph.propagate(mode=FakeTensorMode())


def test_what_is_no_input_is_refused():
    graph = sg.capture(lambda x: x + 1, "f32[4]")
    with pytest.raises(sg.Error, match="2 inputs, but the graph has 1: input0"):
        graph.propagate((4,), (4,))
    with pytest.raises(sg.Error, match="multiple values for input0"):
        graph.propagate((4,), input0=(4,))
    with pytest.raises(sg.Error, match="no placeholder named 'y'"):
        graph.propagate(y=(4,))
    with pytest.raises(sg.Error, match="input 'input0' must be a tensor, a shape, or a string such as .* not dict"):
        graph.propagate({})
    with pytest.raises(sg.Error, match="another graph"):
        graph.propagate().tensor(sg.capture(lambda x: x + 1, "f32[4]").nodes[0].outputs[0])
    shapes = graph.propagate((8,))
    assert shapes.apply() and not shapes.apply()
    graph.find("sg::output")[0].erase()
    with pytest.raises(sg.Error, match="edited after propagate"):
        shapes.apply()
