"""Runs the steps of docs/many-devices.md, from DDP to a pipeline, line by line."""

import pathlib
import re

import shadowgraph as sg

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "many-devices.md"


def test_the_walk_from_ddp_to_a_pipeline(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    walk = PAGE.read_text().split("## From DDP to a pipeline\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", walk, re.DOTALL)
    assert len(blocks) == 5
    names: dict = {"__name__": "walk"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    told = capsys.readouterr().out
    assert "on this rank, of 67,149,824 on all ranks" in told and "all_reduce" in told
    assert "receive from rank" in told and "waits" in told.lower()
    assert [line.split()[0] for line in told.splitlines()[-4:]] == ["gpipe", "1f1b", "zero_bubble", "zbv"]
    assert "S(0) of [4096,1024]" in sg.Graph.load("rank0.sg").dot(depth=2)
