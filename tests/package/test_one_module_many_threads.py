"""One module, captured on several threads and run or trained for real on others.

SHADOWGRAPH_THREAD_ROUNDS=1000 runs more rounds.
"""

import copy
import os
import pickle
import threading

import pytest
import torch

import shadowgraph as sg

ROUNDS = int(os.environ.get("SHADOWGRAPH_THREAD_ROUNDS", "20"))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(32, 4)
        self.last.bias = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.last(self.drop(torch.nn.functional.gelu(self.norm(self.first(x)))))


def run_together(*works):
    """Runs each function in a thread; raises the first error."""
    errors = []
    start = threading.Barrier(len(works))

    def run(work):
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def profiles(net, text, rounds=ROUNDS):
    def work():
        for _ in range(rounds):
            report = sg.profile(net, "f32[8,16]", loss=torch.sum, optimizer="adamw", device="cuda", source_lines=False)
            assert report.graph.text() == text
            sg.capture(net, "f32[8,16]", train=True)

    return work


def text_of(net):
    report = sg.profile(net, "f32[8,16]", loss=torch.sum, optimizer="adamw", device="cuda", source_lines=False)
    return report.graph.text()


def test_profiles_beside_real_gradients():
    net, x = Net().eval(), torch.randn(8, 16)
    before, parameters = copy.deepcopy(net.state_dict()), list(net.parameters())

    def gradients():
        y = net(x)
        return [y.detach(), *torch.autograd.grad(y.sum(), list(net.parameters()))]

    want, text = gradients(), text_of(net)
    done = threading.Event()

    def real():
        while not done.is_set():
            assert all(map(torch.equal, gradients(), want))
            assert not net.drop.training and not any(part.training for part in net.modules())
            assert list(net.state_dict()) == list(before)
            assert not any(sg.is_fake(each) for each in (*net.parameters(), *net.buffers()))

    def profiling():
        try:
            run_together(*[profiles(net, text)] * 8)
        finally:
            done.set()

    run_together(profiling, *[real] * 8)
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert type(net.first._parameters) is dict and "training" in vars(net)


def test_a_training_run_is_the_same_bit_for_bit():
    alone, net = Net(), None
    net = copy.deepcopy(alone)

    def train(net, steps=10 * ROUNDS):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(0)
        net.drop.p = 0.0
        for step in range(steps):
            net.train(step % 5 != 4)
            optimizer.zero_grad()
            net(torch.randn(8, 16, generator=generator)).square().sum().backward()
            optimizer.step()
            assert all(parameter.grad is not None for parameter in net.parameters())

    def profiling():
        for _ in range(ROUNDS):
            sg.profile(net, "f32[8,16]", loss=torch.sum, optimizer="adamw", device="cuda", source_lines=False)

    train(alone)
    run_together(lambda: train(net), *[profiling] * 4)
    for name, value in alone.state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name


def test_each_thread_sees_its_own_tensors():
    net = Net()
    inside, checked = threading.Event(), threading.Event()
    seen = {}

    def look(module, args):
        inside.set()
        assert checked.wait(60)
        assert sg.is_fake(module.first.weight) and module.training
        assert all(sg.is_fake(each) for each in module.state_dict().values())
        module.register_buffer("added", torch.ones(2))  # is not left in the module

    net.eval()
    hook = net.register_forward_pre_hook(look)

    def other():
        try:
            assert inside.wait(60)
            seen["real"] = not any(sg.is_fake(each) for each in net.state_dict().values())
            seen["eval"] = not net.training
            seen["copy"] = type(copy.deepcopy(net).first._parameters), type(copy.copy(net.first._parameters))
            hook.remove()
            net.__dict__["_forward_pre_hooks"].clear()
            seen["pickle"] = type(pickle.loads(pickle.dumps(net)).first._parameters)
            net.last.register_parameter("more", torch.nn.Parameter(torch.ones(3)))
            net.train()
            net.eval()
        finally:
            checked.set()

    run_together(lambda: sg.profile(net, "f32[8,16]", loss=torch.sum), other)
    assert seen == {"real": True, "eval": True, "copy": (dict, dict), "pickle": dict}
    assert "more" in net.last._parameters and "added" not in net._buffers and not net.training


def test_an_error_in_a_capture_leaves_the_module_as_it_was():
    net = Net().eval()
    table = net.first._parameters

    def fail(output):
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            sg.profile(net, "f32[8,16]", loss=fail)
        assert net.first._parameters is table and not sg.is_fake(net.first.weight) and not net.training


def test_a_scripted_module_is_refused_on_a_second_thread():
    net = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    inside, done = threading.Event(), threading.Event()
    errors = []

    def loss(output):
        inside.set()
        assert done.wait(60)
        return output.sum()

    def second():
        try:
            assert inside.wait(60)
            sg.profile(net, "f32[2,4]", loss=torch.sum)
        except sg.UnsupportedError as error:
            errors.append(str(error))
        finally:
            done.set()

    run_together(lambda: sg.profile(net, "f32[2,4]", loss=loss), second)
    assert len(errors) == 1 and "another thread" in errors[0]
    assert not any(sg.is_fake(each) for each in net.parameters())
    sg.profile(net, "f32[2,4]", loss=torch.sum)
