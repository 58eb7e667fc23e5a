"""The command shadowgraph run as a program: the tool itself, and its commands for models in Python."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import types

import pytest
import torch

import shadowgraph as sg
from shadowgraph.__main__ import main

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 4,
          "vocab_size": 128}  # fmt: skip


# A torchvision built for another torch fails when it registers its operators' fake kernels; no model needs them.
STUB = """
import sys, types
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
"""


def run(*arguments, cwd=None, first=None, python=("-m", "_shadowgraph_tool")):
    paths = ([str(first)] if first else []) + [path for path in sys.path if path] + [os.path.dirname(__file__)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, *python, *arguments], capture_output=True, text=True, cwd=cwd, env=environment
    )


def test_torch_is_imported_for_models_in_python_alone():
    done = run("list", "models", "--json", python=("-X", "importtime", "-m", "_shadowgraph_tool"))
    assert done.returncode == 0 and "llama3_8b" in done.stdout, done.stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "importlib" in imported and not imported & {"torch", "shadowgraph"}
    package = run("list", "models", "--json", python=("-m", "shadowgraph"))
    assert package.returncode == 0 and package.stdout == done.stdout
    for arguments in (["--help"], ["profile", "--help"]):
        said = run(*arguments), run(*arguments, python=("-m", "shadowgraph"))
        assert said[0].stdout == said[1].stdout and said[0].returncode == said[1].returncode
        assert "some.module:factory" in said[0].stdout + said[0].stderr


def test_a_factory_of_a_module(tmp_path):
    done = run("profile", "test_capture:Net", "--input", "f32[8,16]", "--mode", "train", "--optimizer", "adamw",
               "--json", "-o", str(tmp_path / "out"), "--export", "nodes-csv,dot")  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["model"] == "Net" and figures["mode"] == "train" and figures["device"] == "cuda:0"
    assert json.loads((tmp_path / "out/profile.json").read_text())["peak"] == figures["peak"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"graph.sg", "profile.json", "report.html",
                                                                    "nodes.csv", "graph.dot"}  # fmt: skip


def test_a_transformers_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sitecustomize.py").write_text(STUB)
    done = run("profile", f"hf:{tmp_path}/config.json", "--mode", "train", "--batch", "2", "--seq", "16", "--dtype",
               "bf16", first=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GPT2LMHeadModel" in done.stdout and "peak" in done.stdout
    done = run("capture", f"hf:{tmp_path}/config.json", "--seq", "16", "-o", str(tmp_path / "g.sg"), first=tmp_path)
    assert done.returncode == 0 and (tmp_path / "g.sg").read_text().startswith("shadowgraph 1")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Saves one module as net.pt, net.pt2 and net.sg."""
    folder = tmp_path_factory.mktemp("files")
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
    torch.jit.trace(net, torch.ones(4, 16)).save(folder / "net.pt")
    torch.export.save(torch.export.export(net, (torch.ones(4, 16),)), folder / "net.pt2")
    sg.capture(net, "f32[4,16]", train=False).save(str(folder / "net.sg"))
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_commands_of_the_tool(files):
    done = run("list", "models", "--json")
    assert done.returncode == 0, done.stderr
    assert {"resnet50", "llama3_8b"} <= {model["name"] for model in json.loads(done.stdout)}
    for source in ("net.pt", "net.pt2", "net.sg"):
        given = ["--input", "f32[4,16]"] if source == "net.pt" else []
        given += [] if source == "net.sg" else ["--device", "cpu"]  # a graph records the device of its capture
        done = run("profile", source, *given, "--json", cwd=files)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["parameters"] == 16 * 8 + 8, source
    done = run("opt", "net.sg", "--pass", "dce", cwd=files)
    assert done.returncode == 0 and done.stdout.startswith("shadowgraph 1")
    done = run("capture", "nowhere.sg", cwd=files)
    assert done.returncode == 1 and "nowhere.sg" in done.stderr
    done = run("profil")
    assert done.returncode == 2 and "did you mean profile" in done.stderr
    done = run("--help")
    assert done.returncode == 0 and "calibrate" in done.stdout and "hf:CONFIG.json" in done.stdout


def test_options_do_what_they_do_in_the_tool(tmp_path, capfd):
    def ran(*arguments):
        assert main([*arguments]) == 0
        return capfd.readouterr()

    net = ["test_capture:Net", "--input", "f32[batch,16]", "--mode", "train"]
    otherwise = json.loads(ran("profile", *net, "--what-if", "zero=1,ranks=8", "--what-if", "optimizer=adamw",
                               "--json").out)  # fmt: skip
    assert otherwise["peak_bytes"] != otherwise["peak_bytes_before"]
    text = ran("capture", *net).out
    ran("capture", *net, "-o", str(tmp_path / "g.sg"))
    assert (tmp_path / "g.sg").read_text() == text != ran("capture", *net, "--preset", "short").out
    assert "every invariant holds" in ran("capture", *net, "--verify").out
    table = ran("fit", *net, "--batch", "4..8:2", "--memory", "1GiB").out
    assert [line.split()[0] for line in table.splitlines()[:4]] == ["BATCH", "4", "6", "8"]
    assert "largest batch within 1.00 GiB: 8" in table
    by = ran("fit", *net, "--batch", "4..5", "--memory", "3MiB").out
    assert "no batch of the range fits in 3.00 MiB (bytes on the device)" in by
    reserved = json.loads(ran("fit", *net, "--batch", "4..5", "--memory", "1GiB", "--by", "reserved", "--json").out)
    assert reserved["by"] == "reserved" and reserved["batches"][0]["reserved_bytes"] % (2 << 20) == 0
    figures = json.loads(ran("fit", *net, "--batch", "4..5", "--memory", "1MiB", "--json").out)
    assert [row["batch"] for row in figures["batches"]] == [4, 5] and figures["largest_batch"] is None
    by_operator = ran("profile", *net, "--group", "operator", "--rows", "0").out
    assert "operator x3   aten::relu" in by_operator and "aten::relu" not in ran("profile", *net, "--depth", "1").out
    ran("capture", *net, "--batch", "3", "--json", "-o", str(tmp_path / "g.json"))
    assert json.loads((tmp_path / "g.json").read_text())["metadata"]["model"] == "Net"
    plain = json.loads(ran("profile", *net, "--batch", "64", "--json").out)
    again = json.loads(ran("profile", *net, "--batch", "64", "--json", "--checkpoint", "*").out)
    assert again["flops"]["backward"] > plain["flops"]["backward"]
    attention = ["test_shell:Attention", "--input", "f32[2,4,64,32]", "-o", str(tmp_path / "a.sg")]
    for kind, operator in (("device", "_scaled_dot_product_efficient_attention"), ("math", "_safe_softmax")):
        ran("capture", *attention, "--attention", kind)
        assert f"aten::{operator}" in (tmp_path / "a.sg").read_text()


class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_what_is_wrong_is_said_in_one_line(tmp_path, capfd):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty.json").write_text("{}")
    for arguments, said in (
        (["profile", "test_capture:Net"], "--input"),
        (["profile", "test_capture:Net", "--input", "f32"], "sizes in brackets"),
        (["profile", "test_capture:Nothing", "--input", "f32[1]"], "Nothing"),
        (["profile", "no_such_module:Net", "--input", "f32[1]"], "no_such_module"),
        (["fit", "test_capture:Net", "--input", "f32[8,16]", "--batch", "1..9"], "f32[batch,"),
        (["fit", "test_capture:Net", "--input", "f32[batch,16]", "--batch", "1..9", "--by", "live"], "--memory"),
        (["profile", "hf:nowhere.json"], "nowhere.json"),
        (["profile", f"hf:{tmp_path}/bad.json"], "bad.json is not valid JSON"),
        (["profile", f"hf:{tmp_path}/empty.json"], "model_type"),
        (["profile", "test_capture:Net", "--input", "f32[8,17]"], "RuntimeError"),
    ):
        code = main(arguments)  # in this process, because starting a new one takes seconds
        out, error = capfd.readouterr()
        assert code == 1 and said in error and error.count("\n") == 1, error
        assert out == ""
    for wrong in (["--batch", "0"], ["--batch", "1..9"], ["--export", "pdf"], ["--export", "svg"], ["--device", "tpu"],
                  ["--memory", "many"], ["--depth", "-1"], ["--what-if", "zerro=1"]):  # fmt: skip
        assert main(["profile", "test_capture:Net", *wrong]) == 2
    assert main(["profile"]) == 2


OF_MANY = """\
import torch
from torch import nn
from torch.distributed import get_rank, get_world_size
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

def make():
    stage = PipelineStage(nn.Linear(64, 64), get_rank(), get_world_size(), torch.device("cuda"))
    return Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean())

def copies():
    return nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
"""


def test_ranks_of_a_program_of_many(tmp_path, capfd, monkeypatch):
    (tmp_path / "of_many.py").write_text(OF_MANY)
    monkeypatch.chdir(tmp_path)
    rows = ["--input", "f32[16,64]", "--mode", "train"]
    both = ["profile", "of_many:make", *rows, "--target", "f32[16,64]", "--world", "3", "--ranks", "all"]
    assert main([*both, "-o", "out"]) == 0
    shown = capfd.readouterr().out
    assert "stage 1" in shown and "worst" in shown and "receive from rank 2" in shown
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"stage-0", "stage-1", "stage-2", "trace.json"}
    assert (tmp_path / "out" / "stage-2" / "report.html").exists()
    assert main([*both, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [role["rank"] for role in found["roles"]] == [0, 1, 2] and found["step"]["seconds"] > 0
    # A single rank of many, and several of them.
    assert main(["profile", "of_many:copies", *rows, "--world", "4"]) == 0
    assert "all_reduce" in capfd.readouterr().out
    assert main(["profile", "of_many:copies", *rows, "--world", "4", "--ranks", "0,3"]) == 0
    assert "rank 3" in capfd.readouterr().out
    for wrong, message in (
        (["--ranks", "all"], "requires --world, the number of processes"),
        (["--world", "2", "--ranks", "all", "--run"], "--run: applies to a single process"),
        (["--world", "2", "--ranks", "0,5"], "rank 5"),
    ):
        assert main(["profile", "of_many:copies", *rows, *wrong]) in (1, 2)
        assert message in capfd.readouterr().err


def test_what_is_mistyped_is_guessed(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\ndef net(): return torch.nn.Linear(16, 4)\n")
    for words, code, said in (
        (("profile", "mine:net", "--input", "f32[8,16]", "--optimzer", "adamw"), 2, "did you mean --optimizer?"),
        (("profile", "mine:nett", "--input", "f32[8,16]"), 1, "module mine has no attribute 'nett'; did you mean net?"),
        (("profile", "mien:net", "--input", "f32[8,16]"), 1, "no module named 'mien'; did you mean mine?"),
        (("check", "b.json", "mine:net", "--input", "f32[8,16]", "--max-paek", "+1%"), 2, "did you mean --max-peak?"),
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == code and said in done.stderr, done.stderr


@pytest.mark.parametrize("option", [("--optimizer", "adamw"), ("--steady-state",), ("--accumulate", "2"), ("--run",),
                                    ("--clip-grad-norm", "1"), ("--grad-scaler",), ("--ema", "0.9"), ("--zero-grads",)])
def test_options_of_a_training_step_want_one(option, tmp_path, monkeypatch, capfd):
    (tmp_path / "mine.py").write_text("import torch\ndef net(): return torch.nn.Linear(16, 4)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "mine:net", "--input", "f32[8,16]", *option]) == 2
    assert f"{option[0]}: applies to training only; add --mode train" in capfd.readouterr().err
    assert main(["profile", "mine:net", "--input", "f32[8,16]", "--mode", "train", *option]) == 0


def test_a_failed_lazy_import_names_its_cause(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "late.py").write_text("""
class Lazy(type):
    pass
def factory():
    try:
        import torchvision
    except RuntimeError as error:
        raise ModuleNotFoundError("Could not import module 'Config'.") from error
""")
    done = run("profile", "late:factory", "--input", "f32[8,16]", cwd=tmp_path, first=tmp_path)
    assert done.returncode == 1
    assert "Could not import module 'Config'. The cause is RuntimeError: operator torchvision::nms" in done.stderr


@pytest.mark.parametrize("python", [("-m", "_shadowgraph_tool"), ("-m", "shadowgraph")])
@pytest.mark.parametrize("during", ["import", "capture"])
def test_ctrl_c_ends_in_a_second_with_one_line(python, during, tmp_path):
    (tmp_path / "slow.py").write_text("""
import time, torch
class Net(torch.nn.Linear):
    def forward(self, x):
        for _ in range(10**6):
            x = super().forward(x)
        return x
def factory():
    return Net(16, 16)
""")
    paths = [str(tmp_path), *filter(None, sys.path), os.path.dirname(__file__)]
    master, terminal = pty.openpty()
    out = tmp_path / "out"
    command = [sys.executable, *python, "profile", "slow:factory", "--input", "f32[8,16]", "-o", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}) as process:  # fmt: skip
        os.close(terminal)
        said = b""
        while during == "capture" and b"capturing" not in said:  # the line of progress
            said += os.read(master, 1 << 16)
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        while "libtorch" not in maps.read_text():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        printed = process.communicate(timeout=60)[0]
        waited = time.monotonic() - begin
    with contextlib.suppress(OSError):  # the terminal has no writers
        while part := os.read(master, 1 << 16):
            said += part
    os.close(master)
    assert process.returncode == -signal.SIGINT and printed == b""
    assert not out.exists() or not list(out.iterdir())  # the folder is made before the work, to refuse a bad path first
    assert said.decode().splitlines()[-1] == "shadowgraph: interrupted" and b"Traceback" not in said
    # A second on a quiet machine. Loading libtorch is not interrupted.
    assert waited < (5 if during == "capture" else 60), waited


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    (tmp_path / "slow.py").write_text("""
import time, torch
def factory():
    time.sleep(4)
    return torch.nn.Linear(16, 16)
""")
    paths = [str(tmp_path), *filter(None, sys.path)]
    command = [sys.executable, "-m", "_shadowgraph_tool", "profile", "slow:factory", "--input", "f32[8,16]"]
    said = {}
    for kind, (reader, writer) in {"pipe": os.pipe(), "terminal": pty.openpty()}.items():
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writer, cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}) as process:  # fmt: skip
            os.close(writer)
            text = b""
            with contextlib.suppress(OSError):  # a terminal without writers
                while part := os.read(reader, 1 << 16):
                    text += part
        os.close(reader)
        said[kind] = text.decode()
        assert process.returncode == 0, text
    assert said["pipe"] == ""
    assert "\r\033[Kshadowgraph: capturing slow:factory (2 s)" in said["terminal"]
    assert said["terminal"].endswith("\r\033[K")


def test_words_are_completed():
    done = run("completion")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    completed = f"""{done.stdout}
for line in "shadowgraph ch" "shadowgraph profile --mod" "shadowgraph fit --by " "shadowgraph draw resn" \\
    "shadowgraph plan gpt2 --tensor "; do
  COMP_WORDS=($line); [[ $line == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
  COMPREPLY=(); _shadowgraph; echo "${{COMPREPLY[*]}}"
done"""
    words = subprocess.run(["bash", "-c", completed], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[0] == "checkpoint check" and words[1] == "--mode"
    assert set(words[2].split()) == {"live", "reserved", "device"}
    assert {"resnet18", "resnet50"} <= set(words[3].split()) and "resnet50" not in words[4]


def on_a_terminal(arguments, columns, **environment):
    """Returns what the tool prints to a terminal of this many columns."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
    command = [sys.executable, "-m", "_shadowgraph_tool", *arguments]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # at the end
            while some := os.read(master, 1 << 16):
                said += some
    os.close(master)
    assert process.returncode == 0, said
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_has_folded_lines_and_colors():
    arguments = ["profile", "resnet18", "--batch", "2", "--memory", "l4"]
    plain = run(*arguments).stdout
    assert "\x1b" not in plain and max(map(len, plain.splitlines())) > 80
    folded = on_a_terminal(arguments, 80, NO_COLOR="1")
    assert "\x1b" not in folded and max(map(len, folded.splitlines())) <= 80
    assert folded.replace("-", "").split() == plain.replace("-", "").split()  # nothing is lost or moved
    colored = on_a_terminal(arguments, 300)
    assert "\x1b[32mfits" in colored and re.sub("\x1b\\[[0-9]*m", "", colored) == plain
    figures = json.loads(on_a_terminal([*arguments, "--json"], 40))
    assert figures["peak"] == json.loads(run(*arguments, "--json").stdout)["peak"]
