"""Deferred initialisation of Python modules against eager construction, bit for bit."""

import sys
import types

import pytest
import torch
from test_capture import Net

import shadowgraph as sg

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def gpt2():
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=128))


def made_twice(make):
    torch.manual_seed(7)
    eager = make()
    after = torch.rand(3)
    torch.manual_seed(7)
    deferred = sg.deferred_init(make)
    assert torch.equal(torch.rand(3), after)  # the generator is where eager leaves it
    return eager, deferred


def assert_same(a, b):
    a, b = a.state_dict(keep_vars=True), b.state_dict(keep_vars=True)
    assert list(a) == list(b)
    for name in a:
        assert type(a[name]) is type(b[name]) and a[name].requires_grad == b[name].requires_grad
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("make", [Net, gpt2, lambda: torch.nn.LSTM(8, 16, 2), lambda: torch.nn.Conv2d(3, 8, 3),
                                  lambda: torch.nn.BatchNorm2d(4),
                                  lambda: torch.nn.TransformerEncoderLayer(32, 4)])  # fmt: skip
def test_whole_modules(make):
    eager, deferred = made_twice(make)
    assert sg.is_deferred(deferred) and all(sg.is_fake(p) for p in deferred.parameters())
    held = list(deferred.parameters())
    assert sg.materialize_module(deferred) is deferred and not sg.is_deferred(deferred)
    assert all(a is b for a, b in zip(held, deferred.parameters(), strict=True))
    assert_same(eager, deferred)


def test_parts_in_any_order():
    eager, deferred = made_twice(gpt2)
    sg.materialize_module(deferred.transformer.h[1])
    assert sg.is_deferred(deferred.transformer.h[0])
    weight = deferred.transformer.h[0].attn.c_attn.weight
    part = sg.materialize_shard(weight, 0, 8, 4)
    assert torch.equal(part, eager.transformer.h[0].attn.c_attn.weight[8:12]) and sg.is_deferred(weight)
    sg.materialize_module(deferred, check_fn=lambda module: isinstance(module, torch.nn.LayerNorm))
    assert sg.is_deferred(deferred.transformer.wte)
    sg.materialize_module(deferred)
    assert_same(eager, deferred)
    assert deferred.lm_head.weight is deferred.transformer.wte.weight
    ids = torch.arange(8).reshape(1, 8)
    assert torch.equal(eager.eval()(ids).logits, deferred.eval()(ids).logits)


def test_training_goes_on_from_there():
    eager, deferred = made_twice(Net)
    optimizer = torch.optim.AdamW(deferred.parameters())
    sg.materialize_module(deferred)
    reference = torch.optim.AdamW(eager.parameters())
    for model, steps in ((deferred, optimizer), (eager, reference)):
        model(torch.ones(2, 16)).sum().backward()
        steps.step()
    assert_same(eager, deferred)


def test_other_devices_dtypes_and_files(tmp_path):
    eager, deferred = made_twice(Net)
    assert sg.save_weights(deferred, tmp_path / "w.pt")[0] == len(eager.state_dict())
    loaded = torch.load(tmp_path / "w.pt", weights_only=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in eager.state_dict().items())
    sg.materialize_module(deferred, dtype=torch.bfloat16)
    assert torch.equal(deferred.head.weight, eager.head.weight.to(torch.bfloat16))


def test_errors_are_typed():
    with sg.fake():
        x = torch.empty(3)
    with pytest.raises(sg.NotDeferredError):
        sg.materialize_tensor(x)
    real = torch.ones(2)
    assert sg.materialize_tensor(real) is real and not sg.is_deferred(real)

    def failing():
        torch.empty(3)
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        sg.deferred_init(failing)
    assert not sg.is_fake(torch.ones(2))
