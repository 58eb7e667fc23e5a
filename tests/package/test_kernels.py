"""Generated kernels from Python: compiled graphs, eager operators, emitted code. Uses a separate cache."""

import os
import tempfile

import pytest
import torch

import shadowgraph as sg

# Read when the first kernel is requested.
_FOLDER = tempfile.TemporaryDirectory()
os.environ["SHADOWGRAPH_CACHE"] = _FOLDER.name


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(12, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.outer = torch.nn.Linear(24, 5)

    def forward(self, x):
        h = self.inner(x)
        return self.outer(torch.nn.functional.gelu(self.norm(h * 2 + 1) * 0.5))


def step_of(kernels, steps=14):
    """Returns the losses of some steps, and the module after them."""
    torch.manual_seed(3)
    net = Net()
    x = torch.randn(7, 12)
    graph = sg.capture_training_step(net, x, loss=lambda out: out.square().mean(),
                                     optimizer=lambda p: torch.optim.SGD(p, lr=0.1))  # fmt: skip
    run = graph.compile(net, kernels=kernels)
    losses = [run(x)[0].item()]
    if kernels:
        run.kernels.wait()
    losses += [run(x)[0].item() for _ in range(steps)]
    return losses, net, run


def test_a_compiled_step_with_kernels_trains_as_without():
    losses, net, _ = step_of(False)
    for kernels in (True, "exact"):
        found, trained, run = step_of(kernels)
        assert found == pytest.approx(losses, rel=1e-5)
        for key, tensor in net.state_dict().items():
            assert torch.allclose(trained.state_dict()[key], tensor, rtol=1e-5, atol=1e-6), key
        rows = run.kernels.report()
        assert {row["state"] for row in rows} <= {"kernel", "nodes", "measuring"}
        assert sum(row["kernel_runs"] for row in rows) > 0
        assert run.kernels.summary()
        if kernels == "exact":
            assert found == losses
            assert "aten::gelu" not in {name for row in rows for name in row["operators"]}


def test_kernels_and_autograd_exclude_one_another():
    graph = sg.capture(Net(), "f32[2,12]", train=True)
    with pytest.raises(ValueError, match="history"):
        graph.compile(Net(), autograd=True, kernels=True)
    with pytest.raises(ValueError, match="'fast'"):
        graph.compile(Net(), kernels="fast")
    assert graph.compile(Net()).kernels is None


def test_operators_of_eager_mode():
    x = torch.randn(100)
    expected = x * 3
    with sg.compile_operators(["aten::mul.Tensor"], measure=False) as compiled:
        x * 3
        compiled.wait()
        assert torch.equal(x * 3, expected)
        (row,) = compiled.report()
        assert row["operator"] == "aten::mul.Tensor" and row["ran"] >= 1
    assert compiled.report() == []
    assert torch.equal(x * 3, expected)
    assert "aten::gelu" in sg.compilable_operators()
    with pytest.raises(sg.UnsupportedError, match="aten::mm"):
        sg.compile_operators(["aten::mm"])
    with pytest.raises(sg.UnsupportedError, match="cuda"):
        sg.compile_operators(["aten::neg"], "cuda")


def test_emitted_code_has_kernels(tmp_path):
    net = Net()
    graph = sg.capture(net, "f32[7,12]", train=False)
    plain = {path.name for path in graph.emit_cpp(tmp_path / "plain", name="net")}
    files = {path.name for path in graph.emit_cpp(tmp_path / "kernels", name="net", kernels=True)}
    assert files - plain == {"net_kernels.cpp", "net_kernels.h"}
    source = (tmp_path / "kernels" / "net_kernels.cpp").read_text()
    assert "#include" not in source and "for (i64 j" in source
    assert "net_kernels::group" in (tmp_path / "kernels" / "net.cpp").read_text()
    with pytest.raises(ValueError, match="another graph"):
        graph.emit_cpp(tmp_path / "other", kernels=sg.capture(net, "f32[7,12]", train=False).compile(net))
