"""Reports, against what a real step on the CPU shows."""

import json

import pytest
import torch
from test_capture import Net
from torch.utils.flop_counter import FlopCounterMode

import shadowgraph as sg


def test_flops_are_those_of_flop_counter_mode():
    net = Net()
    report = sg.profile(net, "f32[8,16]", device="cpu", loss=lambda out: out.sum())
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(8, 16)).sum().backward()
    figures = report.dict()
    assert figures["flops"]["forward"] + figures["flops"]["backward"] == counter.get_total_flops()


def test_one_line_for_models_factories_and_structures():
    for model in (Net(), Net, lambda: Net().half()):
        report = sg.profile(model, ["f32[8,16]"], device="cuda", dtype=torch.float32)
        assert report.dict()["parameters"] == sum(p.numel() for p in Net().parameters())
        assert "Net" in str(report) and "<pre>" in report._repr_html_()
    with pytest.raises(sg.Error, match="mode='infer' takes neither"):
        sg.profile(Net, "f32[8,16]", mode="infer", loss=".loss")
    with pytest.raises(sg.Error, match="no dtype 'f33'"):
        sg.profile(Net, "f33[8,16]")
    with pytest.raises(sg.Error, match="no model"):
        sg.profile(3, "f32[8,16]")


def test_what_is_saved(tmp_path):
    report = sg.profile(Net, "f32[8,16]", device="cuda", optimizer=torch.optim.SGD)
    report.save(tmp_path / "net")
    assert sorted(path.name for path in (tmp_path / "net").iterdir()) == ["graph.dot", "graph.sg", "graph.svg",
                                                                          "profile.json"]  # fmt: skip
    assert json.loads((tmp_path / "net/profile.json").read_text())["peak"]["bytes"] == report.peak_bytes
    assert sg.Graph.load(str(tmp_path / "net/graph.sg")).difference(report.graph) is None
