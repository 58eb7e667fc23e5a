"""Graph tools of the Python package: tables, diagrams, replay and generated code, compared bitwise with eager."""

import importlib.util
import io
import subprocess
import sys

import pytest
import torch
from test_capture import Net
from test_deferred import gpt2

import shadowgraph as sg


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(16, 8, 2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


MODELS = {
    "linear": (Net, lambda: torch.randn(4, 16)),
    "convolutional": (Convolutional, lambda: torch.randn(2, 3, 8, 8)),
    "attention": (Attention, lambda: torch.randn(2, 5, 16)),
    "recurrent": (Recurrent, lambda: torch.randn(2, 5, 16)),
    "gpt2": (lambda: gpt2(), lambda: torch.arange(16).reshape(2, 8)),
}


def twice(name):
    """Returns two equal modules and an input."""
    make, inputs = MODELS[name]
    torch.manual_seed(3)
    first = make()
    torch.manual_seed(3)
    return first, make(), inputs()


def first_tensor(outputs):
    return outputs if isinstance(outputs, torch.Tensor) else outputs.logits


# ---- Tables and pictures


def test_a_table_like_that_of_torch_fx(capsys):
    graph = sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD, device="cuda")
    graph.print_tabular()
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert lines[0].split() == ["name", "operator", "args", "results", "module", "phase"]
    assert len(lines) == len(graph) + 2
    head = graph.find("aten::addmm")[-1]
    (line,) = [line for line in lines if line.startswith(head.name + " ")]
    assert "aten::addmm" in line and f"{head.outputs[0].name} f32[8,4]" in line and " head " in line
    assert line.endswith("forward") and head.inputs[0].name in line
    file = io.StringIO()
    graph.print_tabular(file=file)
    assert file.getvalue().rstrip("\n").split("\n") == lines == graph.tabular().split("\n")
    assert max(map(len, lines)) < 300


def test_a_table_names_keyword_arguments():
    graph = sg.capture(lambda x: torch.full_like(x, 2, dtype=torch.float64).sum(dim=0, dtype=torch.float32), "f32[3,4]")
    (made,) = [line for line in graph.tabular().split("\n") if "aten::full_like" in line]
    assert "dtype=" in made


def test_a_notebook_shows_a_picture():
    shown = sg.capture(Net(), "f32[8,16]")._repr_html_()
    assert shown.startswith("<p>") and "nodes" in shown and ("<svg" in shown or "no picture" in shown)


def test_pictures_of_a_part_by_color_and_of_differences():
    graph = sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD, device="cuda")
    head = graph.find("aten::addmm")[-1]
    near = graph.dot(around=head.name, radius=1)
    assert "selected" in near and f"{head.name} [" in near and len(near) < len(graph.dot())
    assert graph.dot(around=[head.name, "head"]).count("penwidth=2.5") >= 1
    assert "omitted" in graph.dot(path=(graph.find("aten::addmm")[0].name, head.name))
    assert "matmul FLOPs" in graph.dot(color="flops")
    assert "estimated time on" in graph.dot(color="time", spec="h100")
    smaller = graph.copy()
    smaller.run_passes("cse,dce")
    assert "the graphs are identical" in graph.dot(before=graph.copy())
    changed = graph.dot(before=smaller)
    assert ("added" in changed) == (graph.difference(smaller) is not None)
    assert graph.dot(rows=0) != "" and "--rows 0" in graph.dot(rows=3)
    with pytest.raises(sg.Error, match="nothing in the graph is named 'nobody'"):
        graph.dot(around="nobody")
    with pytest.raises(sg.Error, match="unknown coloring 'beauty'"):
        graph.svg(color="beauty")


def test_nodes_and_values_tell_all_that_there_is():
    graph = sg.capture_training_step(Net(), "f32[8,16]", device="cuda")
    node = graph.find("aten::addmm")[0]
    assert node.arg_names == ["self", "mat2", "mat1"] or node.arg_names[:3] == ["self", "mat1", "mat2"]
    assert len(node.arg_names) == len(node.args) and node.previous.next == node and not node.is_erased
    assert node.modes == ["grad_mode"] and graph.nodes[0].previous is None and graph.nodes[-1].next is None
    value = node.outputs[0]
    assert (value.kind, value.layout, value.elements, value.is_contiguous) == ("tensor", "Strided", 128, True)
    assert value.nbytes == 512 and value.name.startswith("%")
    transposed = graph.find("aten::t")[0].outputs[0]
    assert not transposed.is_contiguous and transposed.storage.kind == "parameter"


# ---- Replay


@pytest.mark.parametrize("name", MODELS)
def test_inference_gives_the_same_bits(name):
    module, reference, x = twice(name)
    module.eval(), reference.eval()
    # Captured for CUDA, convolutions, attention and recurrent layers call kernels that do not exist on the CPU.
    captured_on = "cuda" if name == "linear" else "cpu"
    run = sg.capture(module, x, device=captured_on, train=False).compile(module, device="cpu", check_results=True)
    assert len(run.input_names) == 1
    with torch.no_grad():
        for _ in range(2):
            outputs = run(x)
            assert torch.equal(outputs[0], first_tensor(reference(x)))
            assert outputs[0].grad_fn is None


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_gives_the_same_bits(name):
    module, reference, x = twice(name)
    graph = sg.capture_training_step(module, x, loss=lambda out: first_tensor(out).float().mean(),
                                     optimizer=lambda p: torch.optim.SGD(p, lr=0.1))  # fmt: skip
    step = graph.compile(module)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for seed in range(2):
        torch.manual_seed(seed)
        replay = step.run(x)
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss = first_tensor(reference(x)).float().mean()
        loss.backward()
        optimizer.step()
        assert torch.equal(replay.outputs[0], loss.detach())
        for key, parameter in reference.named_parameters():
            assert torch.equal(replay.gradients[key], parameter.grad), key
        for key, tensor in reference.state_dict().items():
            assert torch.equal(module.state_dict()[key], tensor), key


def test_by_name_without_a_module_and_without_writing():
    net, x = Net(), torch.randn(8, 16)
    graph = sg.capture_training_step(net, "f32[8,16]", optimizer=torch.optim.SGD)
    run = graph.compile(copy_inputs=True)
    assert run.input_names[:2] == ("layers.0.weight", "layers.0.bias") and run.input_names[-1] == "input0"
    tensors = {**net.state_dict(), "input0": x}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    (loss,) = run(tensors)
    assert torch.equal(loss, run(*(tensors[name] for name in run.input_names))[0])
    assert torch.equal(loss, run(*list(tensors.values())[:-1], input0=x)[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors.items())


def test_a_steady_step_takes_what_the_optimizer_keeps():
    net, reference, x = twice("linear")
    graph = sg.capture_training_step(net, "f32[4,16]", loss=lambda out: out.sum(), steady_state=True,
                                     optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))  # fmt: skip
    step = graph.compile(net)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    momenta = [torch.zeros_like(parameter) for parameter in net.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        reference(x).sum().backward()
        optimizer.step()
        step(x, *momenta)
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    # x, and the momentum buffers, which the capture sees only as inputs.
    assert list(step.input_names) == [f"input{i}" for i in range(1 + len(momenta))]


def test_outputs_with_a_history():
    net, reference, x = twice("linear")
    run = sg.capture(net, "f32[4,16]", train=True).compile(net, autograd=True)
    run(x)[0].sum().backward()
    reference(x).sum().backward()
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_what_cannot_run_says_why():
    net, x = Net(), torch.randn(8, 16)
    graph = sg.capture(net, "f32[8,16]", device="cuda", train=False)
    if not torch.cuda.is_available():
        with pytest.raises(sg.ReplayError, match="cuda"):
            graph.compile(net)(x)
    run = graph.compile(net, device="cpu")
    for call, said in (
        (lambda: run(), "no tensor for input0"),
        (lambda: run(x, x), "got 2 tensors, expected 1"),
        (lambda: run(torch.randn(7, 16)), "input0"),
        (lambda: run(x.double()), "input0"),
        (lambda: run(x, other=x), "other"),
        (lambda: graph.compile(torch.nn.Linear(2, 2), device="cpu")(x), "Linear has no parameter"),
    ):
        with pytest.raises(sg.ReplayError, match=said):
            call()


def test_operators_of_python_run_too():
    @torch.library.custom_op("sgtest::twice_compiled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(lambda x: torch.empty_like(x))
    x = torch.randn(3)
    graph = sg.capture(lambda x: doubled(x) + 1, "f32[3]")
    assert torch.equal(graph.compile()(x)[0], x * 2 + 1)


# ---- Code


def test_python_code_gives_the_same_bits(tmp_path):
    net, x = Net(), torch.randn(8, 16)
    graph = sg.capture_training_step(net, "f32[8,16]", optimizer=torch.optim.SGD)
    files = graph.emit_python(tmp_path / "made", name="one_step")
    assert [file.name for file in files][:1] == ["one_step.py"] and all(file.exists() for file in files)
    spec = importlib.util.spec_from_file_location("one_step", files[0])
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    outputs = made.forward({**{name: tensor.clone() for name, tensor in net.state_dict().items()}, "input0": x})
    replay = graph.compile(net, copy_inputs=True).run(x)
    assert torch.equal(outputs["output0"], replay.outputs[0])
    assert torch.equal(outputs["gradient.head.weight"], replay.gradients["head.weight"])


def test_code_needs_torch_alone(tmp_path):
    graph = sg.capture(Net(), "f32[8,16]", device="cuda", train=False)
    graph.emit_python(tmp_path, name="net", device="cpu")
    (names,) = {tuple(graph.compile(device="cpu").input_names)}
    sizes = {node.argument("name"): node.outputs[0].shape for node in graph if node.is_placeholder}
    code = (f"import torch, sys, net\ntensors = {{name: torch.ones(sizes) for name, sizes in {sizes!r}.items()}}\n"
            "assert net.forward(tensors)['output0'].shape == (8, 4) and 'shadowgraph' not in sys.modules")  # fmt: skip
    assert set(sizes) == set(names)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_cpp_code_is_written_and_refusals_are_typed(tmp_path):
    graph = sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD)
    files = {file.name for file in graph.emit_cpp(tmp_path, name="step", only=["output0"])}
    assert {"step.cpp", "step.h", "CMakeLists.txt"} <= files
    assert "namespace step" in (tmp_path / "step.h").read_text()
    with pytest.raises(sg.UnsupportedError, match="no-such"):
        graph.emit_cpp(tmp_path, only=["no-such"])
    with pytest.raises(sg.UnsupportedError):
        graph.emit_python(tmp_path, autograd=True)
