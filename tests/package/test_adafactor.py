"""torch.optim.Adafactor reads norms on the host: a captured step with these values is bitwise equal to eager's."""

import pytest
import torch

import shadowgraph as sg

INPUTS = "f32[4,16]"


class Net(torch.nn.Module):
    """A matrix, with factored second moments (a row and a column), and vectors, with unfactored ones."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 24)
        self.second = torch.nn.Linear(24, 2, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def loss_of(out):
    return (out * out).mean()


def captured(model, **options):
    return sg.capture_training_step(model, INPUTS, loss=loss_of, optimizer="adafactor", device="cpu", **options)


def test_a_norm_is_data():
    with pytest.raises(sg.DataDependentError, match="item0"):
        captured(Net())


def test_a_step_with_the_norms_that_eager_read_is_eagers(monkeypatch):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 16)
    eager = Net()
    eager.load_state_dict(model.state_dict())
    norms = []
    read = torch.Tensor.item

    def noted(tensor):
        value = read(tensor)
        if tensor.grad_fn is None and not float(value).is_integer():  # skips step counts, which are integers
            norms.append(value)
        return value

    optimizer = torch.optim.Adafactor(eager.parameters())
    loss = loss_of(eager(x))
    loss.backward()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", noted)
        optimizer.step()
    assert len(norms) == 6  # one for each parameter, and one for each update
    answers = {f"item{i}": value for i, value in enumerate(norms)}
    step = captured(model, options={"host_reads": answers}).compile(model)
    assert torch.equal(step.run(x).outputs[0], loss.detach())
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_state_is_rows_and_columns(device):
    model = Net()
    optimizer = torch.optim.Adafactor(model.parameters())
    loss_of(model(torch.randn(4, 16))).backward()
    optimizer.step()
    held = [tensor for state in optimizer.state.values() for tensor in state.values()]
    assert {(), (24, 1), (1, 16), (24,)} <= {tuple(tensor.shape) for tensor in held}
    on_device = [tensor for tensor in held if device == "cpu" or tensor.numel() > 1]  # step counts stay on the CPU
    report = sg.profile(Net, INPUTS, loss=loss_of, optimizer=torch.optim.Adafactor, device=device,
                        options={"host_reads": "finite"}, steady_state=True)  # fmt: skip
    # A steady-state step has optimizer state before it starts, besides x.
    kinds = report.dict()["peak"]["by_kind"]
    assert kinds["input"] == 4 * 16 * 4 and kinds["optimizer_state"] == sum(tensor.numel() * 4 for tensor in on_device)
    found = [tuple(node.outputs[0].shape) for node in report.graph.find("sg::input")][1:]
    assert found == [tuple(tensor.shape) for tensor in held]
