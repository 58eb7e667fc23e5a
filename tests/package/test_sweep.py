"""Costs swept over sizes, compared with captures at these sizes."""

import pytest
import torch
from test_capture import Net

import shadowgraph as sg

STEP = dict(loss=lambda out: out.sum(), optimizer=torch.optim.SGD, device="cuda")


def figures_of(batch):
    figures = sg.profile(Net, f"f32[{batch},16]", **STEP).dict()
    return figures["peak"]["bytes"], figures["flops"]["forward"] + figures["flops"]["backward"]


def test_many_batches_from_a_few_captures():
    table = sg.sweep(Net, lambda batch: f"f32[{batch},16]", range(1, 65), progress=False, **STEP)
    assert len(table) == 64 and table.why_captured is None
    assert [row.batch for row in table if row.captured] == [1]
    for row in (table.rows[0], table.rows[1], table.rows[31], table.rows[63]):
        assert (row.peak_bytes, row.flops) == figures_of(row.batch)
    limit = table.rows[40].peak_bytes
    assert table.largest(limit).batch == 41 and table.largest(1) is None
    for row in (table.rows[0], table.rows[63]):
        memory = sg.profile(Net, f"f32[{row.batch},16]", **STEP).dict()["device_memory"]
        assert (row.reserved_bytes, row.footprint_bytes) == (memory["reserved_peak_bytes"], memory["footprint_bytes"])
        assert row.bytes("reserved") == row.reserved_bytes > row.peak_bytes
    assert table.largest(table.rows[40].footprint_bytes, by="device").batch >= 41
    assert table.largest(table.rows[0].reserved_bytes - 1, by="reserved") is None
    with pytest.raises(sg.Error, match="one of live, reserved, device"):
        table.largest(limit, by="peak")
    text = str(table)
    assert "RESERVED" in text and "PEAK" in text and "batch" in text.split("FLOPs:")[1]
    assert "<pre>" in table._repr_html_()
    assert table.dict()[3]["batch"] == 4


def test_few_batches_are_captured():
    table = sg.sweep(Net, lambda batch: f"f32[{batch},16]", [8, 4], progress=True, **STEP)
    assert [(row.batch, row.captured) for row in table] == [(8, True), (4, True)] and table.symbolic is None
    assert [(row.peak_bytes, row.flops) for row in table] == [figures_of(8), figures_of(4)]


def test_settings_of_the_allocator_and_the_cpu():
    def wide(**how):
        return sg.sweep(lambda: torch.nn.Linear(1024, 4096), lambda batch: f"f32[{batch},1024]", range(60, 100),
                        progress=False, **how)  # fmt: skip

    plain, growing = wide(), wide(allocator="expandable_segments:True")
    assert [row.peak_bytes for row in plain] == [row.peak_bytes for row in growing]
    assert [row.reserved_bytes for row in plain] != [row.reserved_bytes for row in growing]
    on_cpu = wide(device="cpu")
    assert on_cpu.rows[0].reserved_bytes is None and "-" in str(on_cpu).splitlines()[1]
    with pytest.raises(sg.Error, match="no caching allocator"):
        on_cpu.largest(1 << 30, by="reserved")


def test_a_program_that_changes_with_the_size_is_captured_there():
    class Branching(Net):
        def forward(self, x):
            return super().forward(torch.cat([x, x]) if x.shape[0] > 20 else x)

    table = sg.sweep(Branching, lambda batch: f"f32[{batch},16]", range(2, 41, 2), progress=False, device="cuda")
    assert "the program at batch 40 differs from that at 7" in table.why_captured
    for row in table:
        assert row.captured == (row.batch > 7)
        assert row.peak_bytes == sg.profile(Branching, f"f32[{row.batch},16]").peak_bytes


def test_fit_in_two_sizes():
    def inputs(batch, length):
        return f"f32[{batch},{length},16]"

    sizes = [dict(batch=b, length=n) for b in (2, 3, 5) for n in (4, 6, 8)]
    symbolic = sg.fit(Net, inputs, sizes, device="cuda", mode="infer", progress=False)
    at = dict(batch=7, length=10)
    graph = sg.capture(Net, inputs(**at), device="cuda", train=False)
    graph.set_metadata("mode", "infer")
    assert symbolic.instantiate(at).difference(symbolic.instantiate(at)) is None
    assert symbolic.cost(at)["flops"] == sg.profile(Net, inputs(**at), device="cuda").dict()["flops"]["forward"]
    assert symbolic.cost(at)["peak_bytes"] == sg.profile(Net, inputs(**at), device="cuda").peak_bytes
    assert symbolic.difference_from(at, graph) is None
    assert set(symbolic.dimensions) == {"batch", "length"} and symbolic.dimensions["batch"][0] == 2
    assert "batch" in str(symbolic) and "batch*length" in symbolic.flops["forward"] and symbolic.polynomials
    assert "smallest" in symbolic.refusal(dict(batch=1, length=4)) or symbolic.refusal(dict(batch=1, length=4))
    with pytest.raises(sg.UnsupportedError):
        symbolic.cost(dict(batch=1, length=4))


def test_arguments_that_are_none():
    for call, said in (
        (lambda: sg.sweep(Net, lambda batch: f"f32[{batch},16]", []), "empty"),
        (lambda: sg.sweep(Net, lambda batch: f"f32[{batch},16]", [0, 1]), "positive ints"),
        (lambda: sg.sweep(Net, "f32[4,16]", [1]), "must be a function"),
        (lambda: sg.sweep(Net, lambda batch: f"f32[{batch},16]", [1], mode="test"), "'train' or 'infer'"),
        (lambda: sg.fit(Net, lambda b: f"f32[{b},16]", [dict(batch=2)]), "accepts the keywords batch"),
    ):
        with pytest.raises(sg.Error, match=said):
            call()
    with pytest.raises(sg.UnsupportedError):
        sg.fit(Net, lambda batch: f"f32[{batch},16]", [dict(batch=2), dict(batch=3)], progress=False)
