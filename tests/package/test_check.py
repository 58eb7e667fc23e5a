"""`shadowgraph check`: finds and names thirty regressions, raises no false alarm, and reports the same bytes
everywhere."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import _shadowgraph_tool
import pytest
import regressions
import torch

import shadowgraph as sg
from shadowgraph.__main__ import main

GREW = 4
RUNS = int(os.environ.get("SHADOWGRAPH_CHECK_RUNS", "3"))  # 100 in the nightly run


def tool(*words, **environment):
    run = {**_shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch")), **environment}
    return subprocess.run([_shadowgraph_tool.path(), *map(str, words)], env=run, capture_output=True, text=True)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    regressions.captured().save(str(folder / "step.sg"))
    done = tool("check", folder / "baseline.json", folder / "step.sg", "--update")
    assert done.returncode == 0, done.stderr
    return folder / "baseline.json"


@pytest.mark.parametrize("name", regressions.REGRESSIONS)
def test_a_regression_is_found_and_named(name, baseline, tmp_path):
    changed, operator, module = regressions.REGRESSIONS[name]
    regressions.captured(dataclasses.replace(regressions.Choices(), **changed)).save(str(tmp_path / "step.sg"))
    done = tool("check", baseline, tmp_path / "step.sg", "--max-peak", "+1%", "--max-time", "+5%", "--json")
    assert done.returncode == GREW, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["grew"]
    rows = [row for table in ("at_peak", "kernels") for row in said[table][:10]]
    assert all(row["after"] > row["before"] for row in rows)
    assert any(operator in row["operator"] and row["module"].startswith(module) for row in rows), rows


def test_there_are_thirty():
    assert len(regressions.REGRESSIONS) >= 30


def test_no_false_alarm_and_the_same_bytes_in_every_process(baseline, tmp_path):
    for run in range(RUNS):
        step, again = tmp_path / f"step{run}.sg", tmp_path / f"baseline{run}.json"
        environment = {**os.environ, "PYTHONHASHSEED": str(run), "OMP_NUM_THREADS": str(1 + run % 3),
                       "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}  # fmt: skip
        subprocess.run([sys.executable, regressions.__file__, step], check=True, env=environment)
        levels = {"ATEN_CPU_CAPABILITY": ("default", "avx2")[run % 2], "LC_ALL": ("C", "de_DE.UTF-8")[run % 2]}
        assert tool("check", again, step, "--update", **levels).returncode == 0
        assert again.read_bytes() == baseline.read_bytes()
        done = tool("check", baseline, step, "--max-peak", "+0%", "--max-time", "+0%", **levels)
        assert done.returncode == 0 and done.stdout.startswith("within the limits\n"), done.stdout


def test_what_shrinks_is_no_alarm(baseline, tmp_path):
    smaller = dataclasses.replace(regressions.Choices(), blocks=3)
    regressions.captured(smaller).save(str(tmp_path / "step.sg"))
    done = tool("check", baseline, tmp_path / "step.sg")
    assert done.returncode == 0 and "peak memory" in done.stdout and "-" in done.stdout


def test_the_table_in_markdown(baseline, tmp_path):
    wider = dataclasses.replace(regressions.Choices(), hidden=320)
    regressions.captured(wider).save(str(tmp_path / "step.sg"))
    done = tool("check", baseline, tmp_path / "step.sg", "--markdown", "--rows", 3)
    assert done.returncode == GREW
    lines = done.stdout.splitlines()
    assert lines[0] == "### shadowgraph: peak memory grew"
    rows = [line for line in lines if line.startswith("|")]
    assert all(line.count("|") - line.count("\\|") in (6, 7) for line in rows), rows
    (peak,) = [line for line in rows if line.startswith("| peak memory")]
    assert "**above +1%**" in peak
    assert any("aten::mm" in line and "blocks.\\*.up" in line for line in rows), rows
    assert "more (--rows 0)" in done.stdout


def test_names_cannot_break_the_table(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.add_module("a|b`<img src=x>", torch.nn.Linear(16, width))

        def forward(self, x):
            return getattr(self, "a|b`<img src=x>")(x).relu()

    for width, file in ((64, "a.sg"), (96, "b.sg")):
        step = sg.capture_training_step(lambda width=width: Net(width), "f32[64,16]", device="cuda")
        step.save(str(tmp_path / file))
    assert tool("check", tmp_path / "base.json", tmp_path / "a.sg", "--update").returncode == 0
    done = tool("check", tmp_path / "base.json", tmp_path / "b.sg", "--markdown")
    assert done.returncode == GREW and "<img" not in done.stdout
    assert "a\\|b\\`&lt;img src=x&gt;" in done.stdout


def test_limits(baseline, tmp_path):
    regressions.captured(dataclasses.replace(regressions.Choices(), hidden=320)).save(str(tmp_path / "step.sg"))
    for limit, code in (("+10%", 0), ("+1%", GREW), ("+1GiB", 0), ("+1KiB", GREW), ("80GB", 0), ("1MB", GREW)):
        assert tool("check", baseline, tmp_path / "step.sg", "--max-peak", limit).returncode == code, limit
    for wrong in ("1%", "+1", "lots", "-1%", "+x%"):
        done = tool("check", baseline, tmp_path / "step.sg", "--max-peak", wrong)
        assert done.returncode == 2 and "not a limit such as +1%" in done.stderr, wrong
    assert tool("check", baseline, tmp_path / "step.sg", "--max-time", "3s").returncode == 2


def test_what_is_no_baseline(baseline, tmp_path):
    step = baseline.with_name("step.sg")
    for text, said in (("{}", "is not a baseline"), ("[]", "is not a baseline"), ("{", "baseline.json:1")):
        (tmp_path / "baseline.json").write_text(text)
        done = tool("check", tmp_path / "baseline.json", step)
        assert done.returncode == 1 and said in done.stderr, done.stderr
    done = tool("check", tmp_path / "none.json", step)
    assert done.returncode == 1 and "--update" in done.stderr
    done = tool("check", baseline, step, "--spec", "a100")
    assert done.returncode == 1 and "was written for h100, not for a100" in done.stderr
    damaged = json.loads(baseline.read_text())
    damaged["at_peak"][0] = ["kind", "module", "op", -1]
    (tmp_path / "baseline.json").write_text(json.dumps(damaged))
    done = tool("check", tmp_path / "baseline.json", step)
    assert done.returncode == 1 and "at_peak[0][3]" in done.stderr, done.stderr


def test_another_program_is_said(baseline, tmp_path):
    step = sg.capture_training_step(lambda: torch.nn.Linear(4, 4), "f32[2,4]", device="cuda")
    step.save(str(tmp_path / "step.sg"))
    said = tool("check", baseline, tmp_path / "step.sg").stdout
    assert "baseline program: Net, train" in said and "current program:  Linear, train" in said, said


def test_models_in_python(tmp_path, monkeypatch, capfd):
    (tmp_path / "mine.py").write_text("import torch\nWIDTH = 64\ndef net(): return torch.nn.Linear(16, WIDTH)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["check", "baseline.json", "mine:net", "--input", "f32[64,16]", "--mode", "train"]
    assert main([*words, "--update"]) == 0
    assert main(words) == 0 and capfd.readouterr().out.startswith("within the limits")
    sys.modules["mine"].WIDTH = 96
    assert main([*words, "--markdown"]) == GREW
    assert "### shadowgraph: peak memory grew" in capfd.readouterr().out


def test_the_workflow_runs_these_words():
    text = (pathlib.Path(__file__).parents[2] / "examples" / "pull_request_check" / "check.yml").read_text()
    assert "shadowgraph check baseline.json $STEP --max-peak +1% --max-time +5% --markdown" in text
    assert f"test $code -eq {GREW}" in text
