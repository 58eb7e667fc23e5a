"""Names and programs from a stranger's file: none runs, none breaks emitted code or leaves its place in an output."""

import ast
import builtins
import importlib.util
import json
import keyword
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile

import hostile_names
import pytest
import torch

import shadowgraph as sg
from shadowgraph import _shadowgraph

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
             "errno", "SYS_read", "M_PIf", "P_tmpdir", "st_mtime", "si_pid", "sa_handler", "sched_priority", "int64_t",
             "math_errhandling", *PAYLOADS]  # fmt: skip
    sum_of(names, model=PAYLOADS[7]).emit_cpp(str(tmp_path))
    from torch.utils.cpp_extension import include_paths

    run = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", *(f"-I{path}" for path in include_paths()),
                          "-include", "climits", "-include", "cmath", "-include", "csignal", "-include", "cerrno",
                          "-include", "cstdio", "-include", "complex.h", "-include", "sys/stat.h",
                          "-include", "sys/syscall.h", "-include", "sched.h", str(tmp_path / "graph.cpp")],
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
import warnings
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


# ---- All writers


@pytest.fixture(scope="module")
def programs():
    return hostile_names.programs()


@pytest.mark.parametrize("seed", range(8))
def test_no_name_escapes(seed, programs, tmp_path):
    hostile_names.run_round(programs, seed, str(tmp_path))


@pytest.mark.parametrize("check, escaped", [
    ("python", "x = 1\ncanary()"), ("python", "# \u2028"), ("python", "x = '"), ("cpp", "/* */ canary(); /* */"),
    ("cpp", "// a ??/\n"), ("cpp", '"a'), ("terminal", "a\n \t::error::b"), ("terminal", "\x1b[31m"),
    ("terminal", "##[x]"),
    ("html", "<p>&lt;a><canary>"), ("html", "<p onload='x'>"), ("svg", "<svg><canary/></svg>"), ("svg", "<svg>"),
    ("dot", 'digraph "a" { canary }'), ("json", '{"a": "\\x"}'), ("csv", "a,b\n=x,1\n"), ("csv", "a,b\n1\n"),
    ("markdown", "| a | @name | | | |\n"), ("markdown", "<canary>"), ("text", "canary"), ("visible", "\u202e"),
])  # fmt: skip
def test_the_checks_find_escaped_names(check, escaped):
    with pytest.raises((AssertionError, SyntaxError, ValueError)):
        getattr(hostile_names, f"check_{check}")(escaped)


def test_the_checks_accept_what_is_escaped():
    hostile_names.check_python('x = "\\ncanary()"  # canary()')
    hostile_names.check_cpp('int canary = f("canary()"); // canary()\n/* canary() */')
    hostile_names.check_csv('a,b\n"\'=canary()",-1.5\n')
    hostile_names.check_dot('digraph "canary" { n1 [label="\\"canary"]; }')


# ---- Operators


def calling(declaration, call):
    version = torch.__version__.split("+")[0]
    return sg.Graph.parse(f"""shadowgraph 1 libtorch {version}
operator {declaration}
s0 = 8 cpu input
s1 = 8 cpu activation
n0: %0 = sg::input(name="x") : f32[2] @s0
n1: %1 = {call} : f32[2] @s1
n2: sg::output(values=[%1])
""")


@pytest.mark.parametrize("name", [
    "load_library::__self__.load_library", "load_library::__func__", "import_module::x", "loaded_libraries::add",
    "aten::__class__.mro", "__class__::mro", "load_library",
])  # fmt: skip
def test_operators_are_no_attributes_of_torch_ops(name, tmp_path):
    graph = calling(f"{name}(str path) -> Tensor", f'{name}(path="/nowhere/canary.so")')
    with pytest.raises(sg.UnsupportedError, match="attribute of torch.ops"):
        graph.emit_python(str(tmp_path))
    with pytest.raises(sg.Error, match="does not call a torch operator"):
        graph.to_fx()
    graph.emit_cpp(str(tmp_path))  # calls through the dispatcher, by name


def test_keywords_name_operators_and_arguments(tmp_path):
    parsed = 0
    for word in (*keyword.kwlist, *keyword.softkwlist, "INT_MAX", "print", "self"):
        for name, argument in ((f"{word}::x", "a"), (f"my::{word}", "a"), (f"my::x.{word}", "a"), ("my::x", word)):
            try:
                graph = calling(f"{name}(Tensor x, *, int {argument}) -> Tensor", f"{name}(x=%0, {argument}=3)")
            except sg.ParseError:  # a keyword of TorchScript's schemas, too
                continue
            graph.emit_python(str(tmp_path))
            hostile_names.check_python((tmp_path / "graph.py").read_text())
            parsed += 1
    assert parsed > 40


# ---- Messages


def test_messages_show_control_characters():
    for make in (lambda text: sg.Error(text), lambda text: sg.ParseError(text)):
        assert str(make("a\x1b[31m\n::error::x")) == "a\\u001b[31m\n\\u003a:error::x"
    with pytest.raises(sg.Error) as found:
        sg.Graph.parse('shadowgraph 1 "\x1b[31m')
    hostile_names.check_terminal(str(found.value))
    graph = sum_of(["a", "b"])
    broken = graph.text().replace('name="a"', 'name="\\xff\\xfe"')
    with pytest.raises(sg.ReplayError):  # not UnicodeDecodeError
        sg.Graph.parse(broken).compile()()


# ---- TorchScript


def renamed(path, change):
    """Writes the archive with other names of its records."""
    copy = path.with_name("renamed.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for record in source.infolist():
            target.writestr(change(record.filename), source.read(record.filename))
    return copy


@pytest.mark.parametrize("change", [
    lambda name: name.replace("code/", "CODE/"), lambda name: name.replace(".py", ".PY"),
    lambda name: name.replace("code/__torch__.py", "Code/__Torch__.pY"),
])  # fmt: skip
def test_records_in_capitals_are_code_too(change, tmp_path, capfd):
    target = tmp_path / "target"
    path = renamed(script(tmp_path, f"        torch.save(x, '{target}')\n        return x"), change)
    target.unlink(missing_ok=True)
    torch.jit.load(str(path))  # libtorch finds the records
    assert _shadowgraph.run_tool(["capture", str(path), "--input", "f32[16]"]) == 1 and not target.exists()
    assert "calls 'save'" in capfd.readouterr().err


def test_programs_print_to_stderr_escaped(tmp_path, capfd):
    path = script(tmp_path, """        print("\\x1b[31m canary")
        print("::error::canary")
        warnings.warn("\\x1b[32m canary")
        return x""").rename(tmp_path / "prints.pt")  # fmt: skip
    capfd.readouterr()
    assert _shadowgraph.run_tool(["capture", str(path), "--input", "f32[16]"]) == 0
    out, err = capfd.readouterr()
    assert "canary" not in out and err.count("canary") == 3
    hostile_names.check_terminal(err)


ENDLESS = """
        print("started")
        while bool(x.numel() > 0):
            self.count = self.count + 1
        return x"""


@pytest.mark.parametrize("at_load", [False, True])
def test_an_endless_loop_ends_by_ctrl_c(at_load, tmp_path):
    methods = "    count: int\n    def __init__(self):\n        super().__init__()\n        self.count = 0\n"
    if at_load:
        methods += """
    @torch.jit.export
    def __getstate__(self):
        return (torch.zeros(2), self.training)
    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.training = state[1]
        self.count = 0
        print("started")
        while bool(state[0].numel() > 0):
            self.count = self.count + 1
"""
    path = script(tmp_path, "        return x" if at_load else ENDLESS, methods)
    tool = subprocess.Popen([sys.executable, "-m", "shadowgraph", "capture", str(path), "--input", "f32[16]"],
                            stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert any("started" in line for line in tool.stderr)
        tool.send_signal(signal.SIGINT)
        begin = time.monotonic()
        tool.wait(20)
        assert time.monotonic() - begin < 1 and tool.returncode == -signal.SIGINT
    finally:
        tool.kill()


# ---- Sources that run code


def test_untrusted_refuses_sources_that_run_code(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    page = pathlib.Path(__file__).parents[2] / "docs" / "untrusted-files.md"
    (tmp_path / "stranger.py").write_text("open('ran', 'w')\nimport torch\nmake = lambda: torch.nn.Linear(2, 2)\n")
    path = script(tmp_path, "        return x * 2")
    sg.capture(torch.nn.Linear(2, 2), "f32[4,2]").save("graph.sg")
    for source in (str(path), "stranger:make"):
        for words in (["profile", source], ["capture", source], ["draw", source], ["emit", source, "-o", "out"],
                      ["check", "base.json", source, "--update"], ["compare", "graph.sg", source],
                      ["compare", source, "graph.sg"], ["shard", source, "--mesh", "2"], ["checkpoint", source],
                      ["fit", source, "--memory", "l4"], ["pipeline", source, "--ranks", "2"],
                      ["plan", source, "--devices", "2xh100", "--samples-per-step", "2"]):  # fmt: skip
            for arguments in ([*words, "--untrusted"], [words[0], "--untrusted", *words[1:]]):
                capfd.readouterr()
                code = _shadowgraph.run_tool([*arguments, "--input", "f32[4,2]"])
                err = capfd.readouterr().err
                assert code == 1 and "refused by --untrusted" in err, (arguments, err)
                runs = err.partition("which runs ")[2].partition(": refused")[0]
                assert runs in page.read_text()
    assert not (tmp_path / "ran").exists()
    for words in (["profile", "graph.sg"], ["compare", "graph.sg", "graph.sg"], ["capture", "resnet18"]):
        assert _shadowgraph.run_tool([*words, "--untrusted"]) == 0, words
    assert _shadowgraph.run_tool(["capture", "stranger:make", "--input", "f32[4,2]"]) == 0
    assert (tmp_path / "ran").exists()


LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}  # fmt: skip


@pytest.mark.parametrize("named", [
    {"architectures": ["logging"]}, {"architectures": ["pipeline", "Trainer", "AutoModel", "__class__"]},
    {"architectures": [7]}, {"auto_map": {"AutoModelForCausalLM": "stranger.Model"}, "trust_remote_code": True},
])  # fmt: skip
def test_configurations_name_no_code(named, tmp_path, monkeypatch, capfd):
    pytest.importorskip("transformers")
    # A torchvision built for another torch fails when it registers its operators' fake kernels.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text("open('ran', 'w')")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | named))
    code = _shadowgraph.run_tool(["capture", "hf:config.json", "--seq", "8", "--untrusted", "-o", "graph.sg"])
    assert code == 0, capfd.readouterr().err
    assert "aten::" in (tmp_path / "graph.sg").read_text() and not (tmp_path / "ran").exists()


def test_configurations_load_no_kernels_of_the_hub(tmp_path, capfd):
    pytest.importorskip("transformers")
    for where in ({"_attn_implementation": "owner/kernel"}, {"sub": [{"attn_implementation": "owner/kernel@main:f"}]}):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | where))
        assert _shadowgraph.run_tool(["capture", f"hf:{tmp_path}/config.json", "--seq", "8"]) == 1
        assert "names code of the Hugging Face Hub" in capfd.readouterr().err


# ---- Caches


@pytest.mark.parametrize("attack", ["writable", "file"])
def test_without_home_a_cache_of_others_is_refused(attack, tmp_path):
    place = tmp_path / f"shadowgraph-{os.geteuid()}"
    if attack == "writable":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.write_text("mine")
    hidden = ("HOME", "XDG_CACHE_HOME", "SHADOWGRAPH_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-m", "shadowgraph", "calibrate"], env=environment, capture_output=True,
                         text=True, preexec_fn=lambda: os.umask(0))  # fmt: skip
    assert run.returncode == 1 and str(place) in run.stderr, run.stderr
    assert attack == "file" or not list(place.iterdir())


def test_without_home_and_umask_files_are_private(tmp_path):
    hidden = ("HOME", "XDG_CACHE_HOME", "SHADOWGRAPH_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "shadowgraph", "calibrate"], env=environment, check=True,
                   capture_output=True, preexec_fn=lambda: os.umask(0))  # fmt: skip
    place = tmp_path / f"shadowgraph-{os.geteuid()}"
    assert list(place.iterdir()) and not any(path.stat().st_mode & 0o077 for path in (place, *place.iterdir()))
