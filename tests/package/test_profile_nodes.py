"""Costs of single nodes, profilers with custom rules, and reports of graphs that were captured earlier."""

import pytest
import torch
import torch.distributed as dist
from test_capture import Net

import shadowgraph as sg


@torch.library.custom_op("sgnodes::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


odd.register_fake(torch.empty_like)
odd.register_autograd(lambda ctx, grad: grad)


def step(**options):
    return sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD, device="cuda", **options)


def test_a_graph_is_profiled_as_its_model_is(tmp_path):
    of_model = sg.profile(Net(), "f32[8,16]", optimizer=torch.optim.SGD, spec="a100")
    expected = of_model.dict()
    del expected["capture_seconds"]
    of_model.graph.save(str(tmp_path / "step.sg"))
    for graph in (of_model.graph, sg.Graph.load(str(tmp_path / "step.sg")), step()):
        report = sg.profile(graph, spec="a100")
        assert report.dict() == expected and report.graph is graph
    with sg.Capture("cpu") as session:
        graph = session.finish(torch.ones(4, 5) @ torch.ones(5, 6))
    assert sg.profile(graph).dict()["flops"]["forward"] == 2 * 4 * 5 * 6
    assert sg.profile(graph, device=torch.device("cpu")).dict()["device"] == "cpu"
    with sg.Capture("cuda") as session:  # no device is given, so the one with most bytes is used, with its metrics
        graph = session.finish(torch.ones(9, 9, device="cuda") @ torch.ones(9, 1).cuda())
    metrics = sg.profile(graph).dict()
    assert metrics["device"] == "cuda:0" and metrics["time"]["spec"].startswith("NVIDIA H100")


def test_what_concerns_capturing_is_refused_for_a_graph():
    graph = step()
    for name, value in dict(loss=".loss", optimizer="sgd", dtype=torch.float16, mode="train", options={},
                            steady_state=True, run=True, accumulate=2, host_reads="finite").items():  # fmt: skip
        with pytest.raises(sg.Error, match=f"of a Graph does not accept {name}, which applies to capturing"):
            sg.profile(graph, **{name: value})
    with pytest.raises(sg.Error, match="of a Graph does not accept inputs, loss, which apply to capturing"):
        sg.profile(graph, "f32[8,16]", loss=".loss")
    with pytest.raises(TypeError, match="did you mean 'accumulate'"):
        sg.profile(graph, acumulate=2)
    with pytest.raises(TypeError, match="requires inputs"):
        sg.profile(Net())


def test_nodes_have_figures():
    report = sg.profile(step(), spec="h100")
    (head,) = [node for node in report.nodes if node.module == "head" and node.target == "aten::addmm"]
    assert isinstance(head, sg.Node) and head in set(report.graph)
    assert head.flops == 2 * 8 * 16 * 4
    assert (head.bytes_read, head.bytes_written) == (4 * (4 + 8 * 16 + 16 * 4), 4 * 8 * 4)
    assert head.allocated_bytes == 8 * 4 * 4 and head.seconds > 0
    (relu, *_) = [node for node in report.nodes if node.target == "aten::relu"]
    assert relu.saved_bytes == relu.allocated_bytes == 8 * 16 * 4  # its result, which the next layer saves
    assert relu.elementwise_flops == 8 * 16 and relu.flops == relu.transcendental == relu.wire_bytes == 0

    metrics = report.dict()
    for phase, flops in metrics["flops"].items():
        assert sum(node.flops for node in report.nodes if node.phase == phase) == flops
    assert sum(node.saved_bytes for node in report.nodes) == metrics["saved_activation_bytes"] > 0
    assert [node.name for node in report.nodes] == [node.name for node in report.graph]
    assert report.node(head.inputs[1].producer).flops == 0


def test_what_is_not_known_is_none():
    graph = sg.capture(lambda x: odd(x).exp(), "f32[8,16]")
    report = sg.Profile(graph, device="cuda")
    (node,) = [node for node in report.nodes if node.target == "sgnodes::odd"]
    assert node.flops is node.elementwise_flops is node.transcendental is node.scratch_bytes is None
    assert node.bytes_read == 8 * 16 * 4
    (exp,) = [report.node(node) for node in graph.find("aten::exp")]
    assert (exp.flops, exp.transcendental, exp.scratch_bytes) == (0, 128, 0)
    meta = sg.Profile(graph, device="xpu")  # no spec exists for this device
    assert all(node.seconds is None for node in meta.nodes)


def test_collectives_have_their_own_seconds():
    with sg.fake_process_group(8), sg.Capture("cuda") as session:
        x = torch.ones(1024, device="cuda")
        dist.all_reduce(x)
        graph = session.finish(x + 1)
    (sent,) = [node for node in sg.profile(graph, spec="h100").nodes if node.wire_bytes]
    assert sent.wire_bytes == 2 * 7 * 1024 * 4 // 8 and sent.seconds is None and sent.communication_seconds > 0
    added = sg.profile(graph, spec="h100").node(graph.find("aten::add.Tensor")[0])
    assert (added.wire_bytes, added.communication_seconds) == (0, 0) and added.seconds > 0
    table = sg.GraphProfiler(sg.TimeProfiler(), sg.CommunicationProfiler()).run(sg.profile(graph, spec="h100"))
    assert table.at(sent, "seconds").unknown == 1 and table.at(sent, "communication_seconds").unknown == 0


def test_nodes_that_the_profile_does_not_know_are_refused():
    graph = step()
    report = sg.profile(graph)
    with pytest.raises(sg.Error, match="another graph"):
        report.node(next(iter(step())))
    (gone,) = [node for node in report.nodes if node.target == "sg::output"]
    gone.erase()
    with pytest.raises(sg.GraphError, match="erased"):
        _ = gone.flops
    before = len(graph)
    graph.run_passes("decompose")
    assert len(graph) > before
    new = [node for node in graph if node not in set(report.nodes)]
    with pytest.raises(sg.Error, match="after the graph was profiled"):
        report.node(new[0])


def test_profilers_with_rules_of_ones_own():
    graph = step()
    report = sg.profile(graph, spec="h100")

    class Dimensions:
        def metrics(self):
            return [("most", ""), ("least", "")]

        def measure(self, node):
            ranks = [len(value.shape) for value in node.outputs]
            return (max(ranks), min(ranks)) if ranks else (None, None)

    profilers = sg.GraphProfiler(sg.FlopProfiler(), sg.MemoryProfiler(), sg.TimeProfiler(), Dimensions())
    assert profilers.add("energy", "J", lambda node: 2e-12 * node.flops) is profilers
    table = profilers.run(report)
    assert table.metrics == [("matmul_flops", "FLOP"), ("elementwise_flops", "FLOP"), ("transcendental", ""),
                             ("allocated_bytes", "B"), ("saved_bytes", "B"), ("scratch_bytes", "B"),
                             ("moved_bytes", "B"), ("seconds", "s"), ("most", ""), ("least", ""),
                             ("energy", "J")]  # fmt: skip
    (head,) = [node for node in table.nodes if node.module == "head" and node.target == "aten::addmm"]
    one = 2 * 8 * 16 * 4
    assert table.at(head, "matmul_flops").forward == one and table.at(head, "matmul_flops").backward == 2 * one
    assert table.at(head, "energy").backward == pytest.approx(2e-12 * 2 * one)
    assert table.at(head, "most").forward == table.at(head, "least").forward == 2
    assert table.total("matmul_flops").forward == report.dict()["flops"]["forward"]
    lines = table.csv().splitlines()
    assert lines[0].startswith("node,phase,module,op,source,matmul_flops,") and len(lines) == len(table.nodes) + 1
    (output,) = [node for node in table.nodes if node.target == "sg::output"]
    assert table.at(output, "most").unknown == 1 and "unknown=1" in repr(table.at(output, "most"))
    backward = [node for node in report.nodes if node.forward is not None]
    with pytest.raises(sg.Error, match="part of its forward node"):
        table.at(backward[0], "energy")
    with pytest.raises(sg.Error, match="unknown metric 'power'; the profilers have matmul_flops"):
        table.total("power")


def test_rules_that_fail_say_where():
    report = sg.profile(step())
    failing = {"raised ZeroDivisionError": lambda node: 1 / 0, "returned 'much'": lambda node: "much",
               "returned nan": lambda node: float("nan")}  # fmt: skip
    for message, rule in failing.items():
        with pytest.raises(sg.Error, match=f"the rule for 'mine' {message}"):
            sg.GraphProfiler().add("mine", "", rule).run(report)

    class Short:
        def metrics(self):
            return [("a", ""), ("b", "")]

        def measure(self, node):
            return [1]

    with pytest.raises(sg.Error, match=r"returned \[1\] instead of a sequence of 2 values"):
        sg.GraphProfiler(Short()).run(report)
    profilers = sg.GraphProfiler(sg.FlopProfiler())
    with pytest.raises(sg.Error, match="two profilers define a metric 'matmul_flops'"):
        profilers.add("matmul_flops", "", lambda node: 0)
    with pytest.raises(sg.Error, match="'mine' requires rule="):
        profilers.add("mine", "B")
    with pytest.raises(sg.Error, match="profiler= must be a profiler"):
        sg.GraphProfiler(3)
    with pytest.raises(sg.Error, match="expected a report"):
        profilers.run(report.graph)
