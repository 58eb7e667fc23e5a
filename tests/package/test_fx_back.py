"""Import of torch.fx modules, and round trips."""

import pytest
import torch
from test_capture import Net
from test_deferred import gpt2

import shadowgraph as sg


def lines(graph):
    """Describes each node except gradients, which are no operators, and constants, which may be created elsewhere."""
    return [(node.target, [(v.shape, v.stride, v.dtype, v.device) for v in node.outputs if v.is_tensor],
             node.module, node.phase, [i for i in node.args if isinstance(i, (int, float, str))])
            for node in graph if node.target not in ("sg::gradient", "sg::constant")]  # fmt: skip


def class_names(graph):
    return {region.name: region.class_name for region in graph.regions if region.kind == "module" and region.class_name}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("make, inputs", [(Net, "f32[8,16]"), (lambda: gpt2(), torch.arange(16).reshape(2, 8)),
                                          (lambda: torch.nn.BatchNorm1d(4), "f32[3,4]")])  # fmt: skip
def test_there_and_back(make, inputs, device):
    step = sg.capture_training_step(make, inputs, loss=lambda out: getattr(out, "logits", out).sum(),
                                    optimizer=torch.optim.AdamW, device=device)  # fmt: skip
    infer = sg.capture(make(), inputs, device=device, train=False)
    for graph in (infer, step):
        again = sg.from_fx(graph.to_fx(), device=device)
        again.verify()
        assert lines(again) == lines(graph)
        assert class_names(again) == class_names(graph)
        assert len(again.find("sg::constant")) == len(graph.find("sg::constant"))
    # A torch.fx module does not record that a program keeps values beyond their last use.
    assert 0 < sg.Profile(sg.from_fx(infer.to_fx(), device=device)).peak_bytes <= sg.Profile(infer).peak_bytes


def test_a_traced_module_keeps_names_and_modules():
    net = Net()
    graph = sg.from_fx(torch.fx.symbolic_trace(net), "f32[8,16]", device="cuda")
    assert lines(graph)[9:] == lines(sg.capture(net, "f32[8,16]", device="cuda"))[9:]
    assert [node.notes["fx"] for node in graph.find("aten::relu")] == ["relu", "relu_1", "relu_2"]
    assert {node.notes["fx"] for node in graph.find("aten::addmm")} == {"layers_0", "layers_1", "layers_2", "head"}
    assert class_names(graph)["layers.1"] == "Linear"
    assert {node.argument("name") for node in graph.find("sg::input")} == {"x"}
    again = graph.to_fx()
    assert "relu_2" in {node.name for node in again.graph.nodes}


def test_an_exported_program_needs_no_example():
    net = Net()
    exported = torch.export.export(net, (torch.zeros(8, 16),))
    graph = sg.from_fx(exported.graph_module, device="cuda")
    graph.verify()
    assert graph.find("aten::addmm")[0].module == "layers.0" and class_names(graph)["head"] == "Linear"
    assert __file__ in {node.source.rpartition(":")[0] for node in graph} or any(
        "test_capture" in node.source for node in graph
    )
    assert graph.nodes[-1].inputs[0].shape == (8, 4)


def test_numbers_defaults_and_methods():
    class Mixed(torch.nn.Module):
        def forward(self, x, scale=3):
            return x.mul(scale).sum(dim=0), [x.t()]

    graph = sg.from_fx(torch.fx.symbolic_trace(Mixed()), "f32[2,5]")
    assert [node.notes["fx"] for node in graph.find("aten::mul")] == ["mul"]
    assert [value.shape for value in graph.nodes[-1].inputs] == [(5,), (5, 2)]
    assert graph.find("aten::mul")[0].argument("other") is not None


def test_what_is_none():
    traced = torch.fx.symbolic_trace(Net())
    for call, said in (
        (lambda: sg.from_fx(Net(), "f32[8,16]"), "torch.fx.GraphModule, got Net"),
        (lambda: sg.from_fx(traced), "no input for placeholder x"),
        (lambda: sg.from_fx(traced, "f32[8,16]", "f32[1]"), "2 inputs, but the module takes x"),
        (lambda: sg.from_fx(traced, y="f32[8,16]"), "has no input y; it takes x"),
        (lambda: sg.from_fx(traced, "f32[8,17]"), "shapes"),
    ):
        with pytest.raises(RuntimeError, match=said):
            call()
    assert not sg.is_fake(torch.ones(1))
