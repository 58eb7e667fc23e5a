"""Sharded steps on PyTorch's process groups (gloo, one process per rank), compared with the unsharded step."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import shadowgraph as sg

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "sharded_training" / "train.py"


@pytest.mark.parametrize("mesh, ranks", [("dp=2", 2), ("dp=2,tp=2", 4)])
def test_ranks_over_gloo_compute_what_one_process_does(mesh, ranks, tmp_path):
    tool = shutil.which("shadowgraph", path=str(pathlib.Path(sys.executable).parent)) or "shadowgraph"
    run = subprocess.run([sys.executable, str(EXAMPLE), "--mesh", mesh, "--tool", tool, "--folder", str(tmp_path)],
                         capture_output=True, text=True, timeout=600)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(re.findall(r"rank \d: \d+ nodes", run.stdout)) == ranks
    # Includes reductions: several ranks compute partial weight gradients from their parts of the batch.
    sums = {"_c10d_functional::all_reduce", "_c10d_functional::reduce_scatter_tensor"}
    for rank in range(ranks):
        graph = sg.Graph.load(str(tmp_path / f"rank{rank}.sg"))
        graph.verify()
        assert sums & {node.target for node in graph}
