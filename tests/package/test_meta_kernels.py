"""Graphs are identical whether shapes come from C++ or from the Python meta functions that `import torch` registers."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import torch
from test_hugging_face import make
import shadowgraph as sg
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call" and frame.f_code.co_filename.endswith(("_meta_registrations.py", "decompositions.py"))
for name in sys.argv[1:]:
    factory, inputs = make(name)
    sys.setprofile(count)
    graph = sg.capture_training_step(factory, inputs(), optimizer=torch.optim.AdamW, device="cuda")
    sys.setprofile(None)
    print(graph.text())
print(calls, file=sys.stderr)
"""


def captured(names, **environment):
    here = str(pathlib.Path(__file__).parent)
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM.format(here=here), *names], text=True,
                         capture_output=True, env={**os.environ, **environment}, timeout=600)  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout, int(run.stderr.split()[-1])


@pytest.mark.parametrize("names", [["gpt2", "llama", "t5"], ["resnet", "swin", "mixtral", "whisper"]], ids="-".join)
def test_graphs_with_and_without_pythons_meta_kernels_are_the_same_text(names):
    ours, calls = captured(names)
    theirs, python_calls = captured(names, SHADOWGRAPH_META_KERNELS="python")
    # importing transformers makes a few calls, depending on its version
    assert calls < python_calls / 10 and python_calls > 100
    assert ours.splitlines() == theirs.splitlines()
