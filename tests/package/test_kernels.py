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
    with pytest.raises(ValueError, match="do not support autograd"):
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


def test_every_operator_at_once_beside_a_real_program(tmp_path):
    def program():
        torch.manual_seed(5)
        net, x = Net(), torch.randn(6, 12)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            loss = torch.nn.functional.cross_entropy(net(x), torch.arange(6) % 5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        torch.save(net.state_dict(), tmp_path / "net.pt")
        saved = torch.load(tmp_path / "net.pt")
        half = torch.ones(2, dtype=torch.float16)
        return losses, [x.mean().item(), bool((x > -9).all()), str(x), repr(half), str(torch.tensor(3)),
                        f"{x[0, 0]:.4f}", x.isfinite().sum().item(), x.double().std().item(),
                        str(x.tolist()), str(saved["inner.bias"].shape), torch.ones(3).add(torch.ones(3)).tolist(),
                        str(torch.zeros(2, dtype=torch.complex64) + 1j)]  # fmt: skip

    losses, values = program()
    with sg.compile_operators(measure=False) as compiled:
        for _ in range(2):  # while kernels are compiled, and by them
            found, read = program()
            assert found == pytest.approx(losses, rel=1e-4)
            assert read[1:5] + read[8:] == values[1:5] + values[8:]
            assert [read[0], read[6], read[7]] == pytest.approx([values[0], values[6], values[7]], rel=1e-5)
            compiled.wait()
        assert sum(row["ran"] for row in compiled.report()) > 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_complex_numbers_run_the_original(dtype):
    x = torch.ones(3, dtype=dtype)
    calls = {
        "aten::mul.Tensor": lambda: x * (1 + 2j),
        "aten::add.Tensor": lambda: x + 2j,
        "aten::sub.Tensor": lambda: x - 2j,
        "aten::div.Tensor": lambda: x / 2j,
        "aten::eq.Scalar": lambda: x == 1j,
        "aten::pow.Tensor_Scalar": lambda: x**2j,
        "aten::where.self": lambda: torch.where(x == 1, x, 2j),
    }
    for name, call in calls.items():
        expected = call()
        with sg.compile_operators([name], measure=False) as compiled:
            for _ in range(2):
                assert torch.equal(call(), expected), name
                compiled.wait()


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
