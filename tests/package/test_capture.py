"""Captures of Python programs: graph contents, and that the program and torch are left unchanged."""

import threading

import pytest
import torch

import shadowgraph as sg


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def test_a_module_of_real_tensors_stays_as_it_was():
    net = Net()
    parameters = list(net.parameters())
    before = [p.clone() for p in parameters]
    graph = sg.capture_training_step(net, torch.zeros(8, 16), optimizer=torch.optim.AdamW, device="cuda")
    graph.verify()
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert all(p.grad is None for p in parameters)
    assert net.training


def test_names_modules_phases_and_sources():
    graph = sg.capture_training_step(Net(), "f32[8,16]", optimizer=torch.optim.SGD, device="cuda")
    names = [node.argument("name") for node in graph.find("sg::parameter")]
    assert names == [name for name, _ in Net().named_parameters()]
    (mm,) = [node for node in graph.find("aten::addmm") if node.module == "head" and node.phase == "forward"]
    assert mm.outputs[0].shape == (8, 4) and mm.outputs[0].dtype == torch.float32 and mm.outputs[0].device == "cuda:0"
    assert mm.source.startswith(__file__)
    assert {node.phase for node in graph} == {"forward", "backward", "optimizer"}
    backward = [node for node in graph.find("aten::mm") if node.phase == "backward"]
    assert backward and all(node.forward is not None and node.module for node in backward)
    assert graph.metadata["model"] == "Net" and graph.metadata["device"] == "cuda:0"


def test_regions_of_ones_own_nest():
    with sg.region("before any capture"), sg.Capture() as session:
        with sg.region("outer"):
            x = torch.ones(4).exp()
            with sg.region("inner"):
                y = x.sin()
        graph = session.finish(y.cos())
    places = {node.target: node.region for node in graph}
    inner = places["aten::sin"]
    assert (inner.kind, inner.name, inner.parent) == ("scope", "inner", places["aten::exp"])
    assert places["aten::exp"].name == "outer"
    assert places["aten::exp"].parent == places["aten::cos"] and places["aten::cos"].kind == "root"


def test_several_modules_have_names_of_their_own():
    with sg.fake("cuda"):
        parts = {"generator": torch.nn.Sequential(torch.nn.Linear(4, 8)).cuda(), "critic": torch.nn.Linear(8, 1).cuda()}
    with sg.Capture("cuda") as session:
        for name, part in parts.items():
            session.name_module(part, name)
        penalized = parts["generator"](torch.randn(2, 4, device="cuda")).detach().requires_grad_()
        score = parts["critic"](penalized).sum()
        (slope,) = torch.autograd.grad(score, penalized, create_graph=True)
        (score + slope.square().sum()).backward()
        graph = session.finish([score])
    names = {node.argument("name") for node in graph.find("sg::parameter")}
    assert names == {"generator.0.weight", "generator.0.bias", "critic.weight", "critic.bias"}
    assert {node.module for node in graph.find("aten::addmm")} == {"generator.0", "critic"}


@pytest.mark.parametrize("factory", [True, False], ids=["factory", "converted"])
def test_hooks_at_gradients_run(factory):
    seen = []

    def step_inside_backward(parameter):
        seen.append(sg.is_fake(parameter))
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    def net():
        made = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
        for parameter in made.parameters():
            parameter.register_post_accumulate_grad_hook(step_inside_backward)
        made[0].bias.register_hook(lambda gradient: gradient * 3.5)
        return made

    given = net if factory else net()
    graph = sg.capture_training_step(given, "f32[4,256]", device="cuda")
    assert seen == [True] * 16
    assert graph.text().count("other=3.5") == 1
    plain = sg.capture_training_step(lambda: torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]),
                                     "f32[4,256]", device="cuda")  # fmt: skip
    # The hook consumes each gradient inside backward; the plain step holds all 16 until its end.
    gradients = [len(list(one.find("sg::gradient"))) for one in (graph, plain)]
    assert gradients == [0, 16]


def test_what_autograd_keeps_and_what_dies():
    graph = sg.capture_training_step(Net(), "f32[8,16]", device="cuda")
    relus = graph.find("aten::relu")
    assert len(relus) == 3 and all(node.saved for node in relus)
    assert any(node.frees for node in graph)


def test_text_and_json_come_back():
    graph = sg.capture(Net(), "f32[8,16]")
    assert sg.Graph.parse(graph.text()).difference(graph) is None
    assert sg.Graph.from_json(graph.json()).difference(graph) is None
    with pytest.raises(sg.ParseError, match="line|shadowgraph"):
        sg.Graph.parse("nonsense")


def test_errors_are_typed_where_they_are_raised():
    with sg.fake("cuda"):
        x = torch.empty(3, device="cuda")
        with pytest.raises(sg.DataDependentError):
            x.sum().item()
        with pytest.raises(sg.DataDependentError):
            x.nonzero()
        with pytest.raises(sg.Error):
            x + torch.empty(3)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.empty(2, 3) @ torch.empty(2, 3)


def test_reading_memory_that_is_not_there_is_an_error():
    import copy
    import pickle

    with sg.fake("cuda"):
        x = torch.empty(300, device="cuda")
        y = torch.empty(300)
    for read in (
        lambda: y.numpy(),
        lambda: y.__array__(),
        lambda: pickle.dumps(x),
        lambda: torch.save(y, "/dev/null"),
        lambda: y.__dlpack__(),
        lambda: y.share_memory_(),
        lambda: y.tolist(),
        lambda: torch.utils.dlpack.to_dlpack(y),
    ):
        with pytest.raises(RuntimeError):
            read()
    assert "fake" in repr(x)
    assert copy.deepcopy(x).shape == x.shape


def test_torch_is_as_it_was_outside_modes():
    def torch_now():
        errors = []
        for call in (lambda: torch.empty(2, device="cuda"), lambda: torch.zeros(2).cuda(), torch.cuda.current_device):
            try:
                call()
            except Exception as error:
                errors.append((type(error), str(error)))
        return (torch.cuda.is_available(), torch.cuda.device_count(), errors, repr(torch.ones(2)),
                torch.nn.Module.__dict__["__call__"])  # fmt: skip

    before = torch_now()
    with sg.fake("cuda"):
        assert torch.cuda.is_available() and torch.empty(2, device="cuda").is_cuda
        seen = []
        other = threading.Thread(target=lambda: seen.append(torch.ones(2).sum().item()))
        other.start()
        other.join()
        assert seen == [2.0]
    sg.capture(Net(), "f32[8,16]", device="cuda")
    assert torch_now() == before


def test_streams_events_and_current_devices():
    def program(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            y.record_stream(side)
        torch.cuda.current_stream().wait_event(side.record_event(torch.cuda.Event()))
        with torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
            z = torch.ones(2, device="cuda")
        assert torch.cuda.current_device() == 0 and z.device.index == 1
        assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_name() == "NVIDIA H100"
        with pytest.raises(sg.DataDependentError, match="shadowgraph.profile"):
            torch.cuda.memory_allocated()
        return y

    assert len(sg.capture(program, "f32[4]", device="cuda").find("aten::mul")) == 1
    with pytest.raises(Exception, match="dummy base class|CUDA"):
        torch.cuda.Stream()


def test_real_training_goes_on_between_captures():
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())

    def step(model):
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()

    step(reference)
    sg.capture_training_step(net, "f32[4,16]", device="cuda", optimizer=torch.optim.AdamW)
    step(net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), reference.parameters(), strict=True))


def test_a_step_of_every_optimizer():
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad,
                      torch.optim.Adadelta, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax):  # fmt: skip
        for device in ("cpu", "cuda"):
            graph = sg.capture_training_step(Net(), "f32[4,16]", device=device, optimizer=optimizer)
            graph.verify()
            assert not [node for node in graph if node.target.startswith("profiler::")]
            steady = sg.capture_training_step(Net(), "f32[4,16]", device=device, optimizer=optimizer, steady_state=True)
            steady.verify()


def test_a_capture_ends_with_an_error_of_the_program():
    class Failing(Net):
        def forward(self, x):
            self.head(x)
            raise KeyError("of the program")

    for _ in range(3):
        with pytest.raises(KeyError, match="of the program"):
            sg.capture(Failing(), "f32[8,16]")
    assert not sg.is_fake(torch.ones(2))
    assert len(sg.capture(Net(), "f32[8,16]")) > 10


def test_passes_edit_the_graph():
    graph = sg.capture_training_step(Net(), "f32[8,16]", device="cuda", optimizer=torch.optim.SGD)
    before = len(graph)
    graph.run_passes("functionalize,dce,cse", check=True)
    graph.verify()
    assert len(graph) != before
    with pytest.raises(sg.PassError, match="no-such-pass"):
        graph.run_passes("no-such-pass")
    assert "functionalize" in sg.passes()


def test_threads_capture_on_their_own():
    results = {}

    def work(i):
        results[i] = sg.capture_training_step(Net(), f"f32[{i + 1},16]", device="cuda", optimizer=torch.optim.AdamW)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, graph in results.items():
        graph.verify()
        assert graph.find("aten::relu")[0].outputs[0].shape == (i + 1, 16)
