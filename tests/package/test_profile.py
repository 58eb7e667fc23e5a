"""Reports compared with a real step on the CPU."""

import base64
import functools
import json
import pickle
import zlib

import pytest
import torch
from test_capture import Net
from torch.utils.flop_counter import FlopCounterMode

import shadowgraph as sg
from shadowgraph import _shadowgraph

ON_TWO_DEVICES = """shadowgraph 1 libtorch 2.13.0
operator aten::neg(Tensor self) -> Tensor
s0 = 4096 {large} input
s1 = 16 {small} input
s2 = 4096 {large} temporary
s3 = 16 {small} temporary
%0 = sg::input(name="large") : f32[1024] @s0
%1 = sg::input(name="small") : f32[4] @s1
%2 = aten::neg(self=%0) : f32[1024] @s2
%3 = aten::neg(self=%1) : f32[4] @s3
sg::output(values=[%2, %3])
"""


@pytest.mark.parametrize("large, small", [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_a_graph_of_no_device_is_of_the_one_that_holds_most(large, small):
    report = sg.profile(sg.Graph.parse(ON_TWO_DEVICES.format(large=large, small=small)))
    assert report.dict()["device"] == large
    assert report.peak_bytes == 2 * 4096
    assert ("device_memory" in report.dict()) == (large != "cpu")
    assert ("H100" in report.dict()["time"]["spec"]) == (large != "cpu")  # CUDA devices have a default spec


def test_flops_are_those_of_flop_counter_mode():
    net = Net()
    report = sg.profile(net, "f32[8,16]", device="cpu", loss=lambda out: out.sum())
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(8, 16)).sum().backward()
    figures = report.dict()
    assert figures["flops"]["forward"] + figures["flops"]["backward"] == counter.get_total_flops()


def test_a_figure_is_the_same_in_json_and_as_an_attribute():
    report = sg.profile(Net, "f32[8,16]", optimizer="adamw", device="cuda", spec="h100")
    known = 0
    for figure in _shadowgraph.profile_metrics():
        value = report.dict()
        for key in figure["key"].split("."):
            value = value and value.get(key)
        known += value is not None
        assert value is not None or not figure["always"]
        assert getattr(super(sg.Profile, report), figure["name"]) == value, figure
        assert getattr(_shadowgraph.Profile, figure["name"]).__doc__ == figure["doc"]
    assert known > 25


class Viewed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, x, shape):
        return (x * self.scale).view(shape)


def test_shapes_alone_are_inputs():
    specs = sg.profile(Net, "f32[8,16]", device="cuda").dict()
    for shapes in ((8, 16), [8, 16], [(8, 16)], (torch.Size([8, 16]),)):
        given = sg.profile(Net, shapes, device="cuda").dict()
        assert given["peak"] == specs["peak"], shapes
    bilinear = sg.profile(lambda: torch.nn.Bilinear(4, 5, 6), [(8, 4), (8, 5)], device="cuda")
    assert "f32[8,4]" in bilinear.graph.text() and "f32[8,5]" in bilinear.graph.text()
    # Among tensor inputs, a tuple of numbers is passed through unchanged.
    viewed = sg.capture_training_step(Viewed, [torch.ones(2, 6), (3, 4)])
    assert "f32[3,4]" in viewed.text()


def test_one_line_for_models_factories_and_structures():
    for model in (Net(), Net, lambda: Net().half()):
        report = sg.profile(model, ["f32[8,16]"], device="cuda", dtype=torch.float32)
        assert report.dict()["parameters"] == sum(p.numel() for p in Net().parameters())
        assert "Net" in str(report) and "<pre>" in report._repr_html_()
    with pytest.raises(sg.Error, match="mode='infer' accepts neither"):
        sg.profile(Net, "f32[8,16]", mode="infer", loss=".loss")
    for malformed in ("f32[8,", "f32[batch,16]", "8,16", ["f32[8,16"]):
        with pytest.raises(sg.Error, match="expected a dtype and sizes"):
            sg.profile(Net, malformed)
    with sg.Capture("cuda") as session, pytest.raises(TypeError, match="pass session.finish"):
        sg.profile(session)
    with pytest.raises(sg.Error, match="unknown dtype 'f33'"):
        sg.profile(Net, "f33[8,16]")
    with pytest.raises(sg.Error, match="cannot create a model"):
        sg.profile(3, "f32[8,16]")


def given_in(page):
    """Returns the overridden values listed in the header of the page's data."""
    data = zlib.decompress(base64.b64decode(page.partition('id="graph-data">')[2].partition("<")[0]))
    return json.loads(data[8 : 8 + int.from_bytes(data[4:8], "little")]).get("given")


def test_the_page(tmp_path):
    report = sg.profile(Net, "f32[8,16]", device="cuda")
    report.save_html(tmp_path / "net.html", "a <title>")
    text = (tmp_path / "net.html").read_text()
    assert text == report.html("a <title>") and "a &lt;title&gt; - shadowgraph" in text
    assert text.startswith("<!doctype html>") and "before-data" not in text.rpartition("<script>")[0]
    other = sg.profile(Net, "f32[4,16]", device="cuda")
    assert 'id="before-data"' in report.html(compare=other, compare_title="half the batch")
    (tmp_path / "old.json").write_text(json.dumps(other.dict()))
    for saved in (other.dict(), tmp_path / "old.json", str(tmp_path / "old.json")):
        page = report.html(compare=saved)
        assert 'id="before-profile"' in page and 'id="before-data"' not in page.rpartition("<script>")[0]
    with pytest.raises(sg.Error, match="not a profile"):
        report.html(compare={"nodes": 3})
    values = {"title": "measured", "unit": "seconds", "nodes": {"n5": 0.25}}
    (tmp_path / "values.csv").write_text("node,a,seconds\n5,1,0.25\n")
    report.save_html(tmp_path / "net.html", color=tmp_path / "values.csv")
    given = given_in(report.html(color=values))
    assert given == {"title": "measured", "unit": "seconds", "values": [[5, 0.25]]}
    assert given_in((tmp_path / "net.html").read_text())["values"] == [[5, 1.0]] and given_in(report.html()) is None
    with pytest.raises(sg.Error, match="no node 'n99999'"):
        report.html(color={"n99999": 1})
    cell = report.page(height=500)._repr_html_()
    assert cell.startswith("<iframe") and "height: 500px" in cell and "<script" not in cell


def test_what_is_saved(tmp_path):
    report = sg.profile(Net, "f32[8,16]", device="cuda", optimizer=torch.optim.SGD)
    three = {"graph.sg", "profile.json", "report.html"}
    assert set(report.save(tmp_path / "net")) == {path.name for path in (tmp_path / "net").iterdir()} == three
    names = ["svg", "dot", "nodes-csv", "storages-csv", "trace", "model-explorer", "snapshot"]
    written = report.save(str(tmp_path / "all"), export=names)
    assert set(written) == {path.name for path in (tmp_path / "all").iterdir()} == three | {
        "graph.dot", "graph.svg", "nodes.csv", "storages.csv", "trace.json", "model_explorer.json",
        "snapshot.pickle"}  # fmt: skip
    with pytest.raises(sg.Error, match=r"unknown export 'nodescsv' \(did you mean nodes-csv\?\)"):
        report.save(tmp_path / "none", export=["nodescsv"])
    assert not (tmp_path / "none").exists()
    assert json.loads((tmp_path / "net/profile.json").read_text())["peak"]["bytes"] == report.peak_bytes
    assert sg.Graph.load(str(tmp_path / "net/graph.sg")).difference(report.graph) is None


def test_a_memory_snapshot_is_one_that_torch_reads(tmp_path):
    from torch.cuda import _memory_viz as viz

    report = sg.profile(Net, "f32[8,16]", device="cuda", optimizer=torch.optim.AdamW)
    report.save(tmp_path / "net", export=["snapshot"])
    with open(tmp_path / "net/snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    reserved = report.dict()["device_memory"]["reserved_peak_bytes"]
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == reserved
    assert "Summary of segments" in viz.segsum(snapshot)
    assert "cudaMalloc" in viz.trace(snapshot)
    assert "<html>" in viz.trace_plot(snapshot).lower() or len(viz.trace_plot(snapshot)) > 1000
    frames = [block["frames"] for segment in snapshot["segments"] for block in segment["blocks"] if block["frames"]]
    assert any(frame["name"].startswith("sg::parameter") for stack in frames for frame in stack)


def test_estimates_take_the_device_and_the_allocator_that_are_asked_for():
    small = sg.profile(Net, "f32[8,16]", device="cuda").dict()
    assert small["time"]["spec"].startswith("NVIDIA H100")
    other = sg.profile(Net, "f32[8,16]", device="cuda", spec="a100", allocator="expandable_segments:True").dict()
    assert other["time"]["spec"].startswith("NVIDIA A100")
    with pytest.raises(sg.Error, match="a1000"):
        sg.profile(Net, "f32[8,16]", spec="a1000")
    with pytest.raises(sg.Error, match="expandable"):
        sg.profile(Net, "f32[8,16]", allocator="expandable:1")
    full = sg.profile(Net, "f32[8,16]", device="cuda", device_memory=1 << 20)
    assert "out_of_memory" in full.dict() and "does not fit" in str(full)


def test_scratch_is_measured_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bare = sg.profile(Net, "f32[8,16]", device="cpu").dict()
    known = sg.profile(Net, "f32[8,16]", device="cpu", measure=True).dict()
    assert known["peak"]["bytes"] == bare["peak"]["bytes"] <= known["peak_with_scratch"]["bytes"]
    assert len(known["unknown_scratch"]) <= len(bare["unknown_scratch"])
    assert (tmp_path / "shadowgraph/measured-calls.json").exists()


class Compiled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize("how", ["before", "inside", "in place"])
def test_a_compiled_model_is_profiled_as_eager_and_says_so(how):
    def make():
        model = Compiled()
        if how == "in place":
            model.compile()
            return model
        return torch.compile(model)

    made = make if how == "inside" else make()
    options = {"loss": torch.mean, "optimizer": "sgd", "device": "cuda"}
    report = sg.profile(made, "f32[8,64]", **options)
    assert report.peak_bytes == sg.profile(Compiled, "f32[8,64]", **options).peak_bytes
    assert report.dict()["assumptions"] == ["torch.compile is ignored: compiled programs use less memory and time"]
    assert "torch.compile is ignored" in str(report)
    # Outside the context it is compiled, as before.
    counted = []

    def backend(graph, inputs):
        counted.append(graph)
        return graph.forward

    torch.compile(Compiled(), backend=backend)(torch.zeros(8, 64))
    assert counted


def test_utilization_counts_the_scores_that_a_causal_mask_leaves():
    """PyTorch counts all scores; of 131,072 keys, a causal kernel computes half, which is all that can be utilized."""
    attend = torch.nn.functional.scaled_dot_product_attention
    times = []
    for causal in (False, True):
        fn = functools.partial(attend, is_causal=causal)
        graph = sg.capture(lambda q, fn=fn: fn(q, q, q), "bf16[1,8,131072,128]", device="cuda")
        figures = sg.profile(graph, spec="h100").dict()
        times.append(figures["time"])
        assert figures["flops"]["forward"] == 4 * 8 * 131072**2 * 128
    done = [time["flop_utilization"] * time["seconds"] for time in times]
    assert done[1] / done[0] == pytest.approx((131072 + 1) / (2 * 131072))
    assert times[1]["flop_utilization"] < 1 and times[1]["seconds"] < 0.6 * times[0]["seconds"]


def test_an_exported_program_is_profiled_in_its_mode():
    class Net(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(4, 4), torch.nn.Dropout())

    exported = torch.export.export(Net().eval(), (torch.ones(2, 4),)).module()
    for model in (exported, lambda: exported):
        report = sg.profile(model, "f32[2,4]", device="cuda", mode="infer")
        assert report.dict()["peak"]["bytes"] == 4 * (4 * 4 + 4 + 2 * 4 + 2 * 4)  # weights, input, result
        assert "mode in which it was exported" in str(report)
    assert not sg.is_fake(next(exported.parameters()))
    trained = sg.profile(exported, "f32[2,4]", loss=torch.sum, optimizer="sgd", device="cuda").graph
    assert not trained.find("aten::native_dropout") and not trained.find("aten::bernoulli_")
