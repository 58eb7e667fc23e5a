"""Queries of fake modes: the mode of a tensor, known contents, and fakes compared with a real run."""

import re
import threading
import weakref

import pytest
import torch
from test_capture import Net

import shadowgraph as sg


def test_the_mode_that_made_a_tensor():
    assert sg.detect_fake_mode() is None and sg.detect_fake_mode(torch.ones(2)) is None
    with sg.fake("cuda") as outer:
        x = torch.empty(3, device="cuda")
        assert sg.detect_fake_mode() is sg.detect_fake_mode(x, torch.ones(2)) is outer
        with sg.fake() as inner:
            y = torch.empty(3)
            assert sg.detect_fake_mode() is inner and sg.detect_fake_mode(x) is outer
            with pytest.raises(sg.Error):
                sg.detect_fake_mode(x, y)
        assert sg.detect_fake_mode(y) is inner  # also after its end
        with sg.Capture("cuda") as session:
            z = torch.empty(3)
            assert sg.detect_fake_mode(z) is session and sg.detect_fake_mode(x) is outer
    assert sg.detect_fake_mode(y) is inner and sg.detect_fake_mode({"args": [x, 3], "name": "a"}, None) is outer
    with sg.fake("cuda") as again:
        assert sg.detect_fake_mode(x) is outer and sg.detect_fake_mode(torch.ones(2)) is again
    with outer:  # a second time
        assert sg.detect_fake_mode([x, torch.ones(2)]) is outer and sg.detect_fake_mode([z, 1]) is session
    assert sg.deferred_init(lambda: sg.detect_fake_mode(torch.ones(2))) is None  # C++ made it


def test_what_a_fake_is_known_to_hold():
    with sg.fake("cuda"):
        x = torch.empty(4, 3, device="cuda")
        rows = torch.arange(x.shape[0], device="cuda") * 2 + 1
        known = sg.known_contents(rows)
        assert sg.known_contents(x) is None and sg.known_contents(x * 0 + 1) is None
    assert not sg.is_fake(known) and known.device.type == "cpu" and torch.equal(known, torch.tensor([1, 3, 5, 7]))
    assert sg.known_contents(torch.ones(2)) is None  # real tensors have no known contents


def test_a_real_run_beside_fakes():
    net, x = Net(), torch.randn(8, 16)
    expected = net(x)
    with sg.CrossRefMode() as check:
        out = net(x)
        out.sum().backward()
        values = torch.nonzero(x > 0)
    assert torch.equal(out, expected) and len(values) > 0 and net.head.weight.grad is not None
    assert check.compared > 10 and check.differences == [] and check.refused == {"aten::nonzero": 1}
    assert torch.ones(2).sum() == 2  # the mode has ended


def test_what_differs_is_told():
    sg.register_rule("aten::cosh", lambda x: x.new_empty(x.shape[::-1]))
    try:
        with sg.CrossRefMode(), pytest.raises(sg.Error, match=r"aten::cosh, result 0: sizes: \[2, 3\]"):
            torch.ones(2, 3).cosh()
        with sg.CrossRefMode(throw_at_first=False) as check:
            assert torch.ones(2, 3).cosh().cosh().shape == (2, 3)
        first, second = check.differences
        assert (first.op, first.where, first.what) == ("aten::cosh", "result 0", "sizes") and str(second) == str(first)
        assert (first.real, first.fake) == ("[2, 3]", "[3, 2]") and "CrossRefDifference aten::cosh" in repr(first)
    finally:
        sg.register_rule("aten::cosh", lambda x: torch.empty_like(x))
    with sg.fake(), pytest.raises(sg.Error, match="FakeTensorMode"), sg.CrossRefMode():
        pass
    check = sg.CrossRefMode()
    with check, pytest.raises(sg.Error, match="already active"), check:
        pass


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(12.0).view(3, 4))
        self.rows = {"view": self.table[1:], "weight": self.first.weight}
        self.hidden = [torch.zeros(2)]


def test_fakeify_copies_a_module():
    real = Shared()
    before = {name: tensor.clone() for name, tensor in real.state_dict().items()}
    inputs = {"x": [torch.ones(2, 4)], "n": 3}
    with sg.fake("cuda") as mode:
        net = mode.fakeify(real, "cuda")
        assert type(net) is Shared and type(net.first.weight) is torch.nn.Parameter
        assert net.first.weight is net.second.weight is net.rows["weight"] and net.first.weight.requires_grad
        assert all(sg.is_fake(each) and each.device == torch.device("cuda:0")
                   for each in (*net.parameters(), *net.buffers(), net.rows["view"], *net.hidden))  # fmt: skip
        assert net.rows["view"].untyped_storage()._cdata == net.table.untyped_storage()._cdata
        assert net.rows["view"].storage_offset() == 4
        again = mode.fakeify(real, "cuda")
        assert again is not net and again.first.weight is net.first.weight and again.table is net.table
        batch = mode.fakeify(inputs, "cuda")
        optimizer = torch.optim.AdamW(net.parameters())
        net.second(net.first(batch["x"][0])).sum().backward()
        optimizer.step()
        assert batch["n"] == 3 and sg.is_fake(net.first.weight.grad)
        assert mode.fakeify(net).first.weight is net.first.weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in real.state_dict().items())
    assert real.first.weight.grad is None and not sg.is_fake(real.hidden[0])
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    with sg.fake() as mode, pytest.raises(sg.UnsupportedError, match=r"sg\.capture"):
        mode.fakeify(scripted)


def test_fakeify_in_a_capture():
    real = torch.nn.Linear(4, 2)
    with sg.Capture("cuda") as session:
        net = session.fakeify(real, "cuda")
        session.name_module(net)
        graph = session.finish(net(torch.empty(3, 4, device="cuda")))
    assert [node.argument("name") for node in graph.find("sg::parameter")] == ["weight", "bias"]


def test_a_mode_can_be_entered_again():
    real, net, other = torch.ones(2, 3), torch.nn.Linear(3, 3), torch.ones(5)
    with sg.fake("cuda", data_sizes={"nonzero0": 1}) as mode:
        x, view, fake_net = mode.from_real(real), mode.from_real(real[1]), mode.fakeify(net)
        assert torch.empty(4, device="cuda").nonzero().shape == (1, 1)
    with pytest.raises(sg.Error, match="not active"):
        mode.from_real(real)
    with sg.fake("cuda") as another:
        assert another.from_real(real) is not x
    for _ in range(2):
        with mode:
            assert mode.from_real(real) is x and mode.fakeify(net).weight is fake_net.weight
            assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
            assert sg.detect_fake_mode(x, torch.empty(2), mode.from_real(other)) is mode
            assert torch.empty(4, device="cuda").nonzero().shape == (1, 1)  # names begin at 0 again
            with pytest.raises(sg.Error, match="already active"), mode:
                pass
    with pytest.raises(ValueError, match="mine"), mode:
        raise ValueError("mine")
    seen = []

    def elsewhere():
        with mode:
            seen.append(mode.from_real(real) is x)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_mode_that_was_left_keeps_no_real_tensor():
    real, mode = torch.ones(2, 3), sg.fake()
    for _ in range(2):
        with mode:
            mode.from_real(real)
    gone = weakref.ref(real)
    del real
    assert gone() is None


def test_names_of_other_tools_are_explained():
    for name, said in (("fake_mode", "sg.fake"), ("meta_like", 'to("meta")'), ("symbolic_trace", "sg.capture")):
        with pytest.raises(AttributeError, match=re.escape(said)):
            getattr(sg, name)
    assert not hasattr(sg, "nothing_like_this")
