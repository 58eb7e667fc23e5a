"""A process that forks while operators are compiled: kernels of parent and child are complete, and both end."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, signal, torch, shadowgraph as sg
x = torch.linspace(-3, 3, 1000)
compiled = sg.compile_operators(["aten::add.Tensor", "aten::mul.Tensor"], measure=False)
y = x + x
{before}
child = os.fork()
if child == 0:
    signal.alarm(280)
    for dtype in (torch.double, torch.half):
        z = x.to(dtype) * x.to(dtype)
    if "{end}" != "exit":
        compiled.wait()
        assert torch.equal(x + x, 2 * x)
        assert torch.equal(x.double() * x.double(), x.double() ** 2)
        rows = {{row["operator"]: row["ran"] for row in compiled.report()}}
        assert all(rows[name] > 0 for name in ("aten::add.Tensor", "aten::mul.Tensor")), compiled.report()
    if "{end}" == "close":
        compiled.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
compiled.wait()
x + x
(row,) = [row for row in compiled.report() if row["operator"] == "aten::add.Tensor"]
assert row["ran"] > 0, row
compiled.close()
"""


@pytest.mark.parametrize("before", ["pass", "compiled.wait()"], ids=["compiling", "idle"])
@pytest.mark.parametrize("end", ["wait", "exit", "close"])
def test_a_child(tmp_path, monkeypatch, before, end):
    monkeypatch.setenv("SHADOWGRAPH_CACHE", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", PROGRAM.format(before=before, end=end)], check=True, timeout=300)
