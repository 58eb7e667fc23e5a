"""The executable shadowgraph and the Python entry point give the same output, JSON and errors for every command."""

import json
import re
import subprocess
import sys

import _shadowgraph_tool
import pytest
import torch

import shadowgraph as sg
from shadowgraph.__main__ import main

VERBS = {  # arguments, and arguments that are refused; {g}: a graph, {s}: a TorchScript file
    "profile": ("{g}", "{g} --depth -1"),
    "fit": ("{s} --input f32[batch,16] --memory 900MiB", "{g} --memory 1GiB"),
    "checkpoint": ("{g} --pareto", "{g} --bytes many"),
    "shard": ("{g} --mesh dp=2 --parallelism data-parallel", "{g}"),
    "pipeline": ("{g} --ranks 2 --microbatches 2", "{g} --schedule none"),
    "plan": ("{g} --devices 2xh100 --samples-per-step 8 --micro-batch 4", "{g} --devices x"),
    "compare": ("{g} {g}", "{g} nowhere.sg"),
    "check": ("{b} {g}", "nowhere.json {g}"),
    "draw": ("{g}", "{g} -o a.gif"),
    "capture": ("{s} --input f32[4,16] --mode train", "{s} --input f32"),
    "opt": ("{g} --pass dce", "{g} --pass none"),
    "emit": ("{g} --lang cpp -o out", "{g} --lang none"),
    "list": ("devices", "none"),
    "operator": ("aten::relu", "aten::none"),
    "completion": ("", "x"),
    "calibrate": ("--help", "--spec none"),
}  # fmt: skip
JSON = {"profile", "fit", "checkpoint", "shard", "pipeline", "plan", "compare", "check", "capture", "list", "operator"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    torch.jit.script(net).save(str(folder / "net.pt"))
    step = sg.capture_training_step(net, "f32[4,16]", optimizer="sgd", device="cuda", steady_state=True)
    step.save(str(folder / "net.sg"))
    assert main(["check", str(folder / "base.json"), str(folder / "net.sg"), "--update"]) == 0
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_both_programs_say_the_same(verb, files, monkeypatch, capfd):
    monkeypatch.chdir(files)
    names = {"g": "net.sg", "s": "net.pt", "b": "base.json"}
    good, refused = (words.format(**names).split() for words in VERBS[verb])
    asked = [good, refused, ["--help"], *([[*good, "--json"]] if verb in JSON else [])]
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    for words in asked:
        command = [_shadowgraph_tool.path(), verb, *words]
        program = subprocess.run(command, capture_output=True, text=True, env=environment)
        code, said = main([verb, *words]), capfd.readouterr()
        assert code == program.returncode and (code != 0) == (words is refused), program.stderr
        assert without_times(said.out) == without_times(program.stdout)
        assert without_times(said.err) == without_times(program.stderr)


def test_both_programs_know_the_same_of_all_operators():
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    names = sorted({name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()})
    for word in ("aten", "quantized", "prims"):
        some = [name for name in names if name.startswith(f"{word}::")]
        command = [_shadowgraph_tool.path(), "operator", *some, "--json"]
        program = subprocess.run(command, capture_output=True, text=True, env=environment)
        # Runs in a new process, because other tests register rules in this one.
        module = [sys.executable, "-m", "shadowgraph", "operator", *some, "--json"]
        said = subprocess.run(module, capture_output=True, text=True)
        assert (said.returncode, said.stderr) == (program.returncode, program.stderr)
        assert (said.returncode == 0) == (word != "prims")
        if word != "prims":  # prims exist in Python only
            mine, of_program = json.loads(said.stdout), json.loads(program.stdout)
            assert len(mine) > 100
            assert [pair for pair in zip(mine, of_program, strict=True) if pair[0] != pair[1]] == []


def without_times(text):
    """Removes numbers that may be measured times."""
    try:
        return without_seconds(json.loads(text))
    except ValueError:
        return [re.sub(r"\d+\.\d+( [mu]?s)? *", "#", line) for line in text.splitlines()]


def without_seconds(found):
    if isinstance(found, dict):
        return {name: without_seconds(value) for name, value in found.items() if "seconds" not in name}
    return [without_seconds(each) for each in found] if isinstance(found, list) else found
