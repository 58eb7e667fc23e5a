"""Activation checkpoints planned on forward graphs and executed in emitted Python and in torch.fx, against eager."""

import importlib.util
import re
import weakref

import pytest
import torch
import torch.utils.checkpoint
from test_shell import run as run_tool
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph as sg


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def forward(self, x):
        return self.down(nn.functional.dropout(nn.functional.gelu(self.up(x)), 0.2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix, self.mlp = nn.LayerNorm(width), nn.Linear(width, width), Mlp(width)

    def forward(self, x):
        x = x + nn.functional.dropout(torch.tanh(self.mix(self.norm(x))), 0.1)
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, width=16, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class WithStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.block = nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.block(x).mean((2, 3)))


class LiveBytes(TorchDispatchMode):
    """Tracks the peak of live bytes in storages that operators allocated."""

    def __init__(self, given):
        super().__init__()
        self.live = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in given}

    def _let_go(self, key, size):
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, (list, tuple)) else [results]:
            if not isinstance(result, torch.Tensor):
                continue
            storage = result.untyped_storage()
            if storage._cdata not in self._known and storage.nbytes():
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._let_go, storage._cdata, storage.nbytes())
        return results


def saved_bytes(run, known):
    """Returns the bytes that autograd keeps after `run`, except in known storages."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return sum(size for size, _ in kept.values()), result


def step(net, call, x):
    """Returns loss, gradients, buffers afterwards, and bytes: saved after forward, and at the peak."""
    net.zero_grad(set_to_none=True)
    given = [*net.parameters(), *net.buffers(), x]
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    torch.manual_seed(3)
    kept, output = saved_bytes(lambda: call(x), known)
    del output
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    torch.manual_seed(3)
    with LiveBytes(given) as bytes_:
        call(x).square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    torch.manual_seed(3)
    return {"output": call(x).detach(), "gradients": gradients, "kept": kept, "peak": bytes_.peak, "buffers": buffers}


def given_bytes(net, x):
    return sum(tensor.nbytes for tensor in [*net.state_dict().values(), x])


def emitted(graph, net, folder, name):
    graph.emit_python(str(folder), name=name, autograd=True)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda x: module.forward({**net.state_dict(keep_vars=True), "input0": x, "x": x})["output0"]


def as_fx(graph, net):
    module = graph.to_fx()
    tensors = net.state_dict(keep_vars=True)
    names = [node.meta["name"] for node in module.graph.nodes if node.op == "placeholder"]
    return lambda x: module(*(tensors.get(name, x) for name in names))[0]


def carried_out(graph, net, folder):
    return {"python": emitted(graph, net, folder, "planned"), "fx": as_fx(graph, net)}


def assert_same(mine, eager):
    assert torch.equal(mine["output"], eager["output"])
    assert all(torch.equal(mine["gradients"][name], gradient) for name, gradient in eager["gradients"].items())


X = torch.randn(32, 16)


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net()


def forward_graph(net):
    return sg.capture(net, "f32[32,16]", train=True)


@pytest.mark.parametrize("plan, depth", [("modules=layers.*", 1), ("modules=layers.*+layers.*.mlp", 2),
                                         ("modules=layers.*;policy=sqrt", 1)])  # fmt: skip
def test_a_plan_by_module(net, tmp_path, plan, depth):
    eager = step(net, net, X)
    graph = forward_graph(net)
    report = graph.run_passes(f"checkpoint{{{plan}}}", check=True)
    before, after = map(int, re.search(r"saved for backward: (\d+) before, (\d+) after", report).groups())
    peaks = [int(peak) - given_bytes(net, X) for peak in re.search(r"live bytes: (\d+) before, (\d+)", report).groups()]
    assert eager["peak"] == pytest.approx(peaks[0], rel=0.02)
    text = graph.to_fx().code
    assert max(line.index("def ") for line in text.splitlines() if "def _checkpointed" in line) == 4 * depth
    for name, call in carried_out(graph, net, tmp_path).items():
        mine = step(net, call, X)
        assert_same(mine, eager)
        assert (eager["kept"], mine["kept"]) == (before, after), name
        assert after < before / 2
        assert mine["peak"] == pytest.approx(peaks[1], rel=0.02), name


def test_a_checkpoint_within_another_lowers_the_peak_of_its_second_run(tmp_path):
    net = nn.Sequential(Net(layers=6), nn.Linear(4, 4))
    peaks = {}
    for plan in ("0", "0+0.layers.*"):
        graph = forward_graph(net)
        graph.run_passes(f"checkpoint{{modules={plan}}}", check=True)
        peaks[plan] = [step(net, call, X)["peak"] for call in carried_out(graph, net, tmp_path).values()]
    for whole, nested in zip(peaks["0"], peaks["0+0.layers.*"], strict=True):
        assert nested < 0.7 * whole


@pytest.mark.parametrize("share", [0.75, 0.5, 0.35])
def test_a_plan_by_the_solver_keeps_its_budget(tmp_path, share):
    torch.manual_seed(1)
    net = Net(layers=8)
    x = torch.randn(256, 16)
    eager = step(net, net, x)
    given = given_bytes(net, x)
    graph = sg.capture(net, "f32[256,16]", train=True)
    budget = int(share * eager["peak"]) + given
    graph.run_passes(f"checkpoint{{policy=optimal;bytes={budget}}}", check=True)
    assert any(region.kind == "checkpoint" for region in graph.regions)
    for call in carried_out(graph, net, tmp_path).values():
        mine = step(net, call, x)
        assert_same(mine, eager)
        assert mine["peak"] + given <= budget


@pytest.mark.parametrize("way", ["python", "fx"])
def test_running_statistics(tmp_path, way):
    """Emitted code updates running statistics once; torch.fx updates them twice, like torch.utils.checkpoint."""
    torch.manual_seed(1)
    net, reference = WithStatistics(), WithStatistics()
    reference.load_state_dict(net.state_dict())
    x = torch.randn(4, 3, 8, 8)
    graph = sg.capture(net, "f32[4,3,8,8]", train=True)
    graph.run_passes("checkpoint{modules=block}", check=True)
    call = carried_out(graph, net, tmp_path)[way]
    if way == "fx":
        inner = reference.block.forward
        reference.block.forward = lambda x: torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
    for module, run in ((reference, reference), (net, call)):
        module.zero_grad()
        run(x).square().sum().backward()
    for mine, eager in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, eager.grad)
    for name, buffer in reference.named_buffers():
        assert torch.equal(dict(net.named_buffers())[name], buffer), name


class GradientsOff(nn.Module):
    """Disables gradients before its layers, and within them."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.layers = nn.ModuleList(GradientsOffLayer() for _ in range(2))

    def forward(self, x):
        with torch.no_grad():
            table = (self.scale * 2).cos()
        for layer in self.layers:
            x = layer(x, table)
        return x * self.scale


class GradientsOffLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(16, 16), Normed()

    def forward(self, x, table):
        return torch.tanh(self.norm(self.mix(x) * table))


class Normed(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            size = (x * x).mean(1, keepdim=True).add(1).sqrt().reciprocal().exp()
        return torch.sigmoid(x * size)


@pytest.mark.parametrize("plan", ["layers.*", "layers.*+layers.*.norm"])
def test_gradients_that_the_program_turns_off_stay_off(tmp_path, plan):
    torch.manual_seed(1)
    net = GradientsOff()
    eager = step(net, net, X)
    graph = forward_graph(net)
    graph.run_passes(f"checkpoint{{modules={plan}}}", check=True)
    for name, call in carried_out(graph, net, tmp_path).items():
        mine = step(net, call, X)
        assert_same(mine, eager)
        assert mine["kept"] < eager["kept"], name
    again = sg.from_fx(graph.to_fx())
    assert [node.target for node in again.find("aten::detach")] == [node.target for node in graph.find("aten::detach")]


def annotated(labels):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            h = nn.functional.dropout(torch.relu(self.a(x)), 0.5)
            k = torch.tanh(self.b(h))
            return self.c(torch.sigmoid(k) + h)

    torch.manual_seed(2)
    net = Small()
    traced = torch.fx.symbolic_trace(net)
    for node in traced.graph.nodes:
        if node.name in labels:
            node.meta["activation_checkpoint"] = labels[node.name]
    return net, traced


NESTED = {"a": [0], "relu": [0], "dropout": [0, None], "b": [0, 1], "tanh": [0, 1], "sigmoid": 2}


def test_an_annotated_module_becomes_nested_checkpoints(tmp_path):
    net, traced = annotated(NESTED)
    eager = step(net, net, X)
    graph = sg.from_fx(traced, "f32[32,16]")
    graph.verify()
    inner = next(node for node in graph if node.target == "aten::tanh").region
    path = []
    while inner is not None:
        path += [inner.name] if inner.kind == "checkpoint" else []
        inner = inner.parent
    assert path == ["checkpoint 1", "checkpoint 0"]
    calls = carried_out(graph, net, tmp_path) | {"module": sg.checkpoint_fx(traced)}
    for name, call in calls.items():
        mine = step(net, call, X)
        assert_same(mine, eager)
        assert mine["kept"] < eager["kept"], name


def test_there_and_back_keeps_checkpoints(net):
    graph = forward_graph(net)
    graph.run_passes("checkpoint{modules=layers.*+layers.*.mlp}", check=True)
    there = graph.to_fx()
    again = sg.from_fx(there)
    again.verify()

    def marks(graph):
        found = []
        for node in graph:
            region, path = node.region, []
            while region is not None:
                path += [region.name] if region.kind == "checkpoint" else []
                region = region.parent
            if node.target not in ("sg_random::get_state", "sg::constant"):
                found.append((node.target, node.module, path))
        return found

    assert marks(again) == marks(graph)
    assert [node.meta.get("activation_checkpoint") for node in again.to_fx().graph.nodes] == [
        node.meta.get("activation_checkpoint") for node in there.graph.nodes
    ]


def test_a_step_that_has_its_backward_says_where_its_checkpoints_are(net):
    graph = sg.capture_training_step(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), "f32[32,16]")
    graph.run_passes("checkpoint{modules=1+2}", check=True)
    module = graph.to_fx()
    marked = {node.target for node in module.graph.nodes if "activation_checkpoint" in node.meta}
    assert torch.ops.aten.tanh.default in marked
    assert "torch.utils.checkpoint" not in module.code  # the backward graph recomputes tensors itself


def test_plans_that_come_to_nothing_say_so(net):
    graph = forward_graph(net)
    with pytest.raises(RuntimeError, match="no region matches modules=layer.0"):
        graph.run_passes("checkpoint{modules=layer.0}")
    with pytest.warns(UserWarning, match="no region of the graph is marked"):
        graph.run_passes("checkpoint")
    with pytest.warns(UserWarning, match=r"autograd saves nothing that is produced in layers.0.mlp.down"):
        graph.run_passes("checkpoint{modules=layers.*.mlp.down}")
    with torch.no_grad():
        inference = sg.capture(net, "f32[32,16]", train=False)
    with pytest.warns(UserWarning, match="no output of this forward graph requires a gradient"):
        inference.run_passes("checkpoint{modules=layers.*}")
    with pytest.raises(RuntimeError, match="no output of this forward graph requires a gradient"):
        inference.run_passes("checkpoint{policy=optimal;bytes=1000}")
    assert "segments" in inference.run_passes("checkpoint{policy=optimal;bytes=1GB}")  # the budget is large enough
    with pytest.raises(RuntimeError, match="the budget is 1000 bytes"):
        graph.run_passes("checkpoint{policy=optimal;bytes=1000}")
    graph.run_passes("checkpoint{modules=layers.*}")
    with pytest.raises(RuntimeError, match="already has checkpoints"):
        graph.run_passes("checkpoint{policy=optimal;bytes=1GB}")
    with pytest.warns(UserWarning, match="nothing is recomputed for 4 segments"):
        graph.run_passes("checkpoint{modules=layers.*}")
    with pytest.warns(UserWarning, match="ignores activation checkpoints"):
        graph.compile(net, autograd=True)


def test_what_cannot_run_twice_is_left_alone():
    class Writes(nn.Module):
        def forward(self, x, count):
            count += x.detach().sum()
            return torch.tanh(x) * count

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.writes, self.b = nn.Linear(4, 4), Writes(), nn.Linear(4, 4)

        def forward(self, x, count):
            return self.b(torch.sigmoid(self.writes(self.a(x), count)))

    graph = sg.capture(Outer(), "f32[2,4]", torch.zeros(1), train=True)
    with pytest.warns(UserWarning, match="writes to a tensor from outside the segment"):
        graph.run_passes("checkpoint{modules=writes}")


def test_annotations_that_mean_nothing_are_refused():
    for labels, said in (
        ({"a": [0], "tanh": [0]}, r"checkpoint \[0\] .* continues at the torch.fx node tanh"),
        ({"a": 1.5}, "is 1.5; expected an id, or a list"),
    ):
        _, traced = annotated(labels)
        for call in (sg.checkpoint_fx, lambda module: sg.from_fx(module, "f32[32,16]")):
            with pytest.raises(RuntimeError, match=said):
                call(traced)
    with pytest.raises(RuntimeError, match="no node has meta"):
        sg.checkpoint_fx(annotated({})[1])
    with pytest.raises(RuntimeError, match="expects a torch.fx.GraphModule, got Net"):
        sg.checkpoint_fx(Net())


def test_the_tool_plans_forward_graphs(net, tmp_path):
    forward_graph(net).save(str(tmp_path / "forward.sg"))
    budget = "230KB"
    planned = run_tool("checkpoint", tmp_path / "forward.sg", "--bytes", budget, "-o", tmp_path / "less.sg")
    assert planned.returncode == 0 and "RECOMPUTE" in planned.stdout, planned.stderr
    eager = step(net, net, X)
    for call in carried_out(sg.Graph.load(str(tmp_path / "less.sg")), net, tmp_path).values():
        mine = step(net, call, X)
        assert_same(mine, eager)
        assert mine["kept"] < eager["kept"]
    done = run_tool("opt", tmp_path / "forward.sg", "--pass", "checkpoint{modules=layers.*.mlp.down}")
    assert "warning: nothing is recomputed for 4 segments" in done.stderr
    done = run_tool("checkpoint", tmp_path / "forward.sg", "--bytes", "1KB")
    assert done.returncode == 1 and "no plan fits in" in done.stderr
