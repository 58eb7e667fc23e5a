"""Queries of fake modes: the mode of a tensor, known contents, and fakes compared with a real run."""

import re

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


def test_names_of_other_tools_are_explained():
    for name, said in (("fake_mode", "sg.fake"), ("meta_like", 'to("meta")'), ("symbolic_trace", "sg.capture")):
        with pytest.raises(AttributeError, match=re.escape(said)):
            getattr(sg, name)
    assert not hasattr(sg, "nothing_like_this")
