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


class Tied(torch.nn.Module):
    """Flatten, a buffer that forward does not read in eval, and a tied parameter."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 10))
        self.alias = self.head

    def forward(self, image):
        return self.alias(self.norm(self.convolution(image)).relu())


@pytest.mark.parametrize("make, sizes, train", [
    (Tied, (8, 3, 8, 8), False),
    (lambda: torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (5, 7, 32), True),
])  # fmt: skip
def test_with_its_model_the_result_is_called_like_the_model(make, sizes, train):
    model, x = make().eval(), torch.randn(sizes)
    graph = sg.capture(model, f"f32[{','.join(map(str, sizes))}]", train=train)
    module = graph.to_fx(model=model)
    assert {name: id(value) for name, value in module.state_dict(keep_vars=True).items()} == {
        name: id(value) for name, value in model.state_dict(keep_vars=True).items()
    }
    assert torch.allclose(module(x), model(x), atol=1e-6)
    module(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # Sizes are constants: another batch is refused, also where no operator would notice.
    name = str(graph.find("sg::input")[0].argument("name"))
    for args, kwargs in (((x[:3],), {}), ((), {name: x[:3]})):
        with pytest.raises(sg.Error, match="capture the model again"):
            module(*args, **kwargs)
    assert len(sg.from_fx(module, x).find("sg::parameter")) == len(list(model.parameters()))


def test_another_model_or_a_training_step_is_refused():
    net = Net()
    graph = sg.capture(net, "f32[5,16]")
    with pytest.raises(sg.Error, match="Linear has not"):
        graph.to_fx(model=torch.nn.Linear(16, 2))
    wider = Net()
    wider.head = torch.nn.Linear(1, 1)
    with pytest.raises(sg.Error, match="head.weight has shape"):
        graph.to_fx(model=wider)
    step = sg.capture_training_step(net, "f32[5,16]")
    with pytest.raises(sg.Error, match="train=False"):
        step.to_fx(model=net)
