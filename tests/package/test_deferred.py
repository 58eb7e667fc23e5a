"""Deferred initialization of Python modules against eager construction, bit for bit."""

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
    assert torch.equal(torch.rand(3), after)  # the generator state is the same as in eager
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
    with pytest.raises(sg.DeferredError):
        sg.materialize_tensor(x)
    real = torch.ones(2)
    assert sg.materialize_tensor(real) is real and not sg.is_deferred(real)

    def failing():
        torch.empty(3)
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        sg.deferred_init(failing)
    assert not sg.is_fake(torch.ones(2))


def real_module_of(tensor):
    with sg.unfake():
        return torch.nn.ParameterDict({"w": torch.nn.Parameter(tensor)})


WRITES = {
    "in place": lambda t: t.add_(1),
    "an item": lambda t: t.__setitem__(0, 5),
    "a view": lambda t: t[1:].zero_(),
    "a view of a view": lambda t: t.view(2, 2).t().fill_(1),
    "detached": lambda t: t.detach().zero_(),
    ".data": lambda t: t.data.zero_(),
    ".data =": lambda t: setattr(t, "data", torch.rand(4)),
    "out=": lambda t: torch.add(torch.rand(4), 1, out=t),
    "a copy": lambda t: t.copy_(torch.rand(4)),
    "a draw": lambda t: torch.nn.init.normal_(t),
    "a list": lambda t: torch._foreach_add_([torch.rand(4), t], 1),
    "an index": lambda t: t.index_fill_(0, torch.tensor([0]), 3.0),
    "a mask": lambda t: t.masked_fill_(torch.rand(4) > 2, 0),
    "a composite": lambda t: t.clamp_(0, 1),
    "statistics": lambda t: torch.nn.functional.batch_norm(torch.rand(3, 4), t, t, training=True),
    "geometry": lambda t: t.unsqueeze_(0),
    "size": lambda t: t.resize_(9),
    "memory": lambda t: t.set_(torch.rand(2)),
    "a module": lambda t: real_module_of(t).half(),
    "under no_grad": lambda t: torch.no_grad()(lambda: t.mul_(2))(),
    "in inference mode": lambda t: torch.inference_mode()(lambda: t.mul_(2))(),
}


@pytest.mark.parametrize("how", WRITES)
def test_every_write_to_a_tensor_from_outside_is_one_error(how):
    outside = torch.tensor([2.0, 3.0, 4.0, 5.0])
    memory = outside.data_ptr()
    with pytest.raises(sg.DeferredError, match="created outside of deferred_init .*nothing was written"):
        sg.deferred_init(WRITES[how], outside)
    assert type(outside) is torch.Tensor and not sg.is_fake(outside)
    assert outside.tolist() == [2, 3, 4, 5] and outside.shape == (4,) and outside.data_ptr() == memory
    described = sg.deferred_init(torch.rand, 4)
    with pytest.raises(sg.DeferredError, match="created outside of deferred_init .*nothing was written"):
        outside.copy_(described)
