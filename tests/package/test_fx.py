"""Graphs exported to torch.fx and run on real tensors, compared with the original module."""

import pytest
import torch
from test_capture import Net

import shadowgraph as sg


def run(graph, **tensors):
    module = graph.to_fx(device="cpu")
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    return module, module(*(tensors[name] for name in names))


def flat_names(module):
    return {name.replace(".", "_"): tensor for name, tensor in module.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inference_gives_what_the_module_gives(device):
    net = Net().eval()
    x = torch.randn(5, 16)
    graph = sg.capture(net, "f32[5,16]", device=device, train=False)
    with torch.no_grad():
        module, (output,) = run(graph, **flat_names(net), input0=x)
        assert torch.equal(output, net(x))
    assert {node.meta["module"] for node in module.graph.nodes if node.op == "call_function"} >= {"layers.0", "head"}


def test_a_training_step_does_what_the_step_does():
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    x = torch.randn(5, 16)
    graph = sg.capture_training_step(net, "f32[5,16]", loss=lambda out: out.sum(), optimizer=torch.optim.SGD)
    with torch.no_grad():
        run(graph, **flat_names(net), input0=x)  # updates the parameters in place, as the program does
    reference(x).sum().backward()
    torch.optim.SGD(reference.parameters()).step()
    for mine, expected in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, expected)


def test_lists_several_results_numbers_and_dtypes():
    def program(x):
        a, b = x.split(2)
        values, indices = torch.stack([a, b]).max(dim=0)
        return values.to(torch.float64), indices, torch.full((2,), 3, dtype=torch.int32), torch.tensor([1.0, 2.0])

    x = torch.randn(4, 3)
    graph = sg.capture(program, "f32[4,3]")
    _, outputs = run(graph, input0=x)
    for mine, expected in zip(outputs, program(x), strict=True):
        assert mine.dtype == expected.dtype and torch.equal(mine, expected)


def test_calls_of_one_module_have_keys_of_their_own():
    """Keys follow torch's tracers ("fc", then "fc@1"), so that from_fx can distinguish the calls."""

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x))

    module = sg.capture(Twice(), "f32[2,4]").to_fx()
    keys = [list(node.meta["nn_module_stack"]) for node in module.graph.nodes if "addmm" in str(node.target)]
    assert [stack[-1] for stack in keys] == ["fc", "fc@1"]
    back = sg.from_fx(module)
    assert [(region.name, region.call) for region in back.regions if region.name == "fc"] == [("fc", 0), ("fc", 1)]
