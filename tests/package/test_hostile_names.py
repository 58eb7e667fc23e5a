"""Names from a stranger's file in emitted code: none runs, none breaks the code."""

import ast
import builtins
import importlib.util
import keyword
import shutil
import subprocess
import sys

import pytest
import torch

import shadowgraph as sg

PAYLOADS = ['"""\nraise SystemExit("ran")\n"""', "'''\nraise SystemExit('ran')\n'''", "x\\", "# \n raise SystemExit",
            "\x1b]0;t\x07", "a\r\nraise SystemExit", "\u2028raise SystemExit", "*/ int main(){} /*", "??/\nint x;",
            "\\u0022; system(0); //", "../../up", "${HOME}`id`", "{0}{name}%s"]  # fmt: skip


def sum_of(names, model=""):
    """A graph whose inputs have these names and which returns their sum."""
    quote = lambda text: '"' + "".join(c if c.isalnum() else f"\\x{ord(c):02x}" if ord(c) < 128 else c  # noqa: E731
                                       for c in text) + '"'  # fmt: skip
    lines = ["shadowgraph 1 libtorch " + torch.__version__.split("+")[0], f"meta {quote('model')} = {quote(model)}",
             "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"]  # fmt: skip
    lines += [f"s{i} = 8 cpu input" for i in range(len(names))]
    lines += [f"s{len(names) + i} = 8 cpu activation" for i in range(len(names) - 1)]
    for i, name in enumerate(names):
        lines.append(f"n{i}: %{i} = sg::input(name={quote(name)}) : f32[2] @s{i}")
    total = 0
    for i in range(1, len(names)):
        value = len(names) + i - 1
        lines.append(f"n{value}: %{value} = aten::add.Tensor(self=%{total}, other=%{i}) : f32[2] @s{value}")
        total = value
    lines.append(f"n{total + 1}: sg::output(values=[%{total}])")
    return sg.Graph.parse("\n".join(lines) + "\n")


def load(path):
    spec = importlib.util.spec_from_file_location("emitted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_python(graph, names, folder):
    graph.emit_python(str(folder))
    module = load(folder / "graph.py")
    inputs = {name: torch.full((2,), float(i)) for i, name in enumerate(names)}
    assert module.forward(inputs)["output0"].tolist() == [sum(range(len(names)))] * 2


def test_every_name_of_python_can_be_an_input(tmp_path):
    names = [*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "torch", "os", "struct", "math", "CONSTANTS",
             "expect", "forward", "WITH_GRADIENTS", "StatisticsOnce", "tensors"]  # fmt: skip
    names = list(dict.fromkeys(names))
    check_python(sum_of(names), names, tmp_path)


def test_hostile_names_are_inputs_like_others(tmp_path):
    check_python(sum_of(PAYLOADS), PAYLOADS, tmp_path)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_hostile_model_name_stays_text(payload, tmp_path):
    graph = sum_of(["a", "b"], model=payload)
    check_python(graph, ["a", "b"], tmp_path)
    tree = ast.parse((tmp_path / "graph.py").read_text())
    assert not any(isinstance(node, ast.Raise) for node in tree.body)
    plan = sg.shard(graph, "dp=2").to_python()
    assert not any(isinstance(node, ast.Raise) for node in ast.parse(plan).body)


def test_names_of_macros_compile(tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    names = ["INT_MAX", "M_PI", "I", "EOF", "BUFSIZ", "SIGINT", "NULL", "TORCH_CHECK", "unix", "linux", "stdin",
             "errno", *PAYLOADS]  # fmt: skip
    sum_of(names, model=PAYLOADS[7]).emit_cpp(str(tmp_path))
    from torch.utils.cpp_extension import include_paths

    run = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", *(f"-I{path}" for path in include_paths()),
                          "-include", "climits", "-include", "cmath", "-include", "csignal", "-include", "cerrno",
                          "-include", "cstdio", "-include", "complex.h", str(tmp_path / "graph.cpp")],
                         capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 0, run.stderr[:3000]


def test_constants_load_without_running_code(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(5000.0)

        def forward(self, x):
            return x + self.table

    graph = sg.capture(Model(), torch.zeros(5000))
    graph.emit_python(str(tmp_path))
    constants = tmp_path / "graph_constants.pt"
    assert load(tmp_path / "graph.py").forward({"input0": torch.ones(5000)})["output0"].equal(torch.arange(5000.0) + 1)

    class Payload:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"constant.0": Payload()}, constants)
    run = subprocess.run([sys.executable, tmp_path / "graph.py"], capture_output=True, text=True)
    assert run.returncode != 0 and "ran" not in run.stdout and "eights only load failed" in run.stderr


def script(tmp_path, body, methods=""):
    source = f"""
import torch
class Net(torch.nn.Module):
{methods}
    def forward(self, x: torch.Tensor) -> torch.Tensor:
{body}
"""
    path = tmp_path / "net_source.py"
    path.write_text(source)
    module = load(path)
    torch.jit.script(module.Net()).save(str(tmp_path / "net.pt"))
    return tmp_path / "net.pt"


@pytest.mark.parametrize("body, name", [
    ("        torch.save(x, '{file}')\n        return x", "save"),
    ("        return x + torch.from_file('{file}', True, 16)", "from_file"),
    ("        t = torch\n        return x + t.from_file('{file}', True, 16)", "from_file"),
    ("        return x + torch.ops.aten.from_file('{file}', True, 16)", "from_file"),
])  # fmt: skip
@pytest.mark.parametrize("at_load", [False, True])
def test_torchscript_touches_no_files(body, name, at_load, tmp_path):
    target = tmp_path / "target"
    body = body.replace("{file}", str(target))
    if at_load:
        state = """
    @torch.jit.export
    def __getstate__(self):
        return torch.zeros(16)
    @torch.jit.export
    def __setstate__(self, x: torch.Tensor):
        self.run(x)
    @torch.jit.export
    def run(self, x: torch.Tensor) -> torch.Tensor:
""" + body + "\n"  # fmt: skip
        state = state.replace("self.run(x)", "self.run(x)\n        self.training = False")
        path = script(tmp_path, "        return x", state)
    else:
        path = script(tmp_path, body)
    target.unlink(missing_ok=True)  # scripting itself may have made it
    from shadowgraph import _shadowgraph

    code = _shadowgraph.run_tool(["capture", str(path), "--input", "f32[16]"])
    assert code == 1 and not target.exists()


def test_torchscript_of_usual_names_loads(tmp_path):
    path = script(tmp_path, "        return self.layers(x) + self.saved(x)", """
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    def saved(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2
""")  # fmt: skip
    from shadowgraph import _shadowgraph

    assert _shadowgraph.run_tool(["capture", str(path), "--input", "f32[2,16]"]) == 0


def test_a_capture_and_a_measurement_create_no_file(tmp_path):
    target = tmp_path / "target"

    class Model(torch.nn.Module):
        def forward(self, x):
            return x + torch.from_file(str(target), True, 16)

    graph = sg.capture(Model(), torch.zeros(16))
    assert not target.exists() and "from_file" in str(graph)
    sg.Graph.parse(graph.text()).propagate()
    graph.copy().run_passes("const-fold")
    sg.profile(graph, device="cpu", measure=True)
    assert not target.exists()
