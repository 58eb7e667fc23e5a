"""python -m shadowgraph from outside."""

import json
import os
import subprocess
import sys
import types

import pytest

from shadowgraph.__main__ import main

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 4,
          "vocab_size": 128}  # fmt: skip


# A torchvision built for another torch fails when it registers its operators' fake kernels; the models need none of them.
STUB = """
import sys, types
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
"""


def run(*arguments, cwd=None, first=None):
    paths = ([str(first)] if first else []) + [path for path in sys.path if path] + [os.path.dirname(__file__)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, "-m", "shadowgraph", *arguments], capture_output=True, text=True, cwd=cwd,
                          env=environment)  # fmt: skip


def test_a_factory_of_a_module(tmp_path):
    done = run("profile", "test_capture:Net", "--input", "f32[8,16]", "--mode", "train", "--optimizer", "adamw", "--json",
               "-o", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["model"] == "Net" and figures["mode"] == "train" and figures["device"] == "cuda:0"
    assert json.loads((tmp_path / "out/profile.json").read_text())["peak"] == figures["peak"]


def test_a_transformers_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sitecustomize.py").write_text(STUB)
    done = run("profile", f"hf:{tmp_path}/config.json", "--mode", "train", "--batch", "2", "--seq", "16", "--dtype", "bf16",
               first=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GPT2LMHeadModel" in done.stdout and "peak" in done.stdout
    done = run("capture", f"hf:{tmp_path}/config.json", "--seq", "16", "-o", str(tmp_path / "g.sg"), first=tmp_path)
    assert done.returncode == 0 and (tmp_path / "g.sg").read_text().startswith("shadowgraph 1")


def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty.json").write_text("{}")
    for arguments, said in (
        (["profile", "test_capture:Net"], "--input"),
        (["profile", "test_capture:Net", "--input", "f32"], "dtype and shape"),
        (["profile", "test_capture:Nothing", "--input", "f32[1]"], "Nothing"),
        (["profile", "no_such_module:Net", "--input", "f32[1]"], "no_such_module"),
        (["profile", "resnet50"], "some.module:factory"),
        (["profile", "hf:nowhere.json"], "nowhere.json"),
        (["profile", f"hf:{tmp_path}/bad.json"], "no JSON"),
        (["profile", f"hf:{tmp_path}/empty.json"], "model_type"),
        (["profile", "test_capture:Net", "--input", "f32[8,17]"], "RuntimeError"),
    ):
        code = main(arguments)  # in this process: starting one takes seconds
        out, error = capsys.readouterr()
        assert code == 1 and said in error and error.count("\n") == 1, error
        assert out == ""
    with pytest.raises(SystemExit) as usage:
        main(["profile"])
    assert usage.value.code == 2
