"""Functions that forward keyword arguments: each reaches its target, or an error says which function accepts it."""

import functools

import pytest
import torch
from torch import nn

import shadowgraph as sg


def test_all_keywords_of_deferred_init_are_the_functions():
    described = sg.deferred_init(nn.Linear, 5, 1, device="cuda", dtype=torch.float64, bias=False)
    assert described.weight.device.type == "cuda" and described.weight.dtype == torch.float64
    assert described.bias is None
    torch.manual_seed(3)
    eager = nn.Linear(5, 1, dtype=torch.float64, bias=False)
    torch.manual_seed(3)
    again = sg.deferred_init(nn.Linear, 5, 1, device="cuda", dtype=torch.float64, bias=False)
    assert torch.equal(sg.materialize_module(again, device="cpu").weight, eager.weight)
    on_meta = sg.materialize_module(sg.deferred_init(nn.Linear, 5, 1, device="meta"))
    assert on_meta.weight.is_meta

    def program(fn, args=(), profile="", **rest):
        return fn, args, profile, rest

    given = {"fn": 1, "args": 2, "profile": "p", "kwargs": 3, "self": 4}
    assert sg.deferred_init(program, **given) == (1, 2, "p", {"kwargs": 3, "self": 4})
    with pytest.raises(TypeError, match="device"):
        sg.deferred_init(lambda: torch.rand(2), device="cuda")


def test_the_scope_behind_it_has_the_options():
    with sg.DeferredInit("cuda:1", profile="a100"):
        assert torch.cuda.get_device_capability() == (8, 0)
        joined = sg.deferred_init(nn.Linear, 2, 2)
        # factories in Python pass device="cpu" explicitly
        assert sg.is_deferred(joined) and joined.weight.device.type == "cpu"
    with torch.device("cuda"), sg.DeferredInit("cuda"):
        assert nn.Linear(2, 2).weight.device.type == "cuda"
    with pytest.raises(sg.Error, match="unknown device profile"), sg.DeferredInit(profile="b7"):
        pass
    scope = sg.DeferredInit()
    with scope, pytest.raises(sg.Error, match="already active"), scope:
        pass
    with pytest.raises(ZeroDivisionError), sg.DeferredInit():
        torch.rand(2)
        raise ZeroDivisionError
    assert not sg.is_fake(torch.rand(2))


def with_device(x, device=None, dtype=None):
    return x.to(device) if device is not None else x


class Casting(nn.Module):
    def forward(self, x, dtype=torch.float32):
        return x.to(dtype)


@pytest.mark.parametrize("program, keywords", [
    (with_device, {"device": "cuda"}),
    (with_device, {"dtype": torch.half}),
    (Casting(), {"dtype": torch.half}),
    (functools.partial(with_device, dtype=None), {"device": "cuda"}),
    (torch.zeros_like, {"dtype": torch.half}),  # implemented in C: keywords come from its schema
    (lambda x, *, train: x, {"train": True}),
    (lambda x, options=None: x, {"options": {}}),
])  # fmt: skip
def test_a_keyword_that_capture_and_the_program_take_is_refused(program, keywords):
    name = next(iter(keywords))
    with pytest.raises(TypeError, match=rf"{name}= is ambiguous: .*functools.partial\(fn, {name}=\.\.\.\)"):
        sg.capture(program, "f32[2,3]", **keywords)


def test_either_can_be_given_all_the_same():
    bound = functools.partial(with_device, device=None)
    assert sg.capture(bound, "f32[2]", device="cuda").metadata["device"] == "cuda:0"
    (result,) = sg.capture(Casting(), "f32[2]", torch.half).compile()(torch.ones(2))
    assert result.dtype == torch.half
    assert sg.capture(torch.relu, "f32[2]", device="cuda").metadata["device"] == "cuda:0"
    assert sg.capture(lambda x, **rest: x + 1, "f32[2]", device="cuda").metadata["device"] == "cuda:0"
    taken = {}
    sg.capture(lambda x, fn=None, **rest: taken.update(rest, fn=fn) or x + 1, "f32[2]", fn=5, args=6)
    assert taken == {"fn": 5, "args": 6}


def test_names_of_inputs_are_nobodys_keywords():
    class Net(nn.Module):
        def forward(self, module, device):
            return module + device

    traced = torch.fx.symbolic_trace(Net())
    with pytest.raises(TypeError, match="device= is ambiguous"):
        sg.from_fx(traced, "f32[2]", device="cuda")
    assert sg.from_fx(traced, "f32[2]", "f32[2]").compile().input_names == ("module", "device")
    compiled = sg.capture(lambda self, inputs: self + inputs, self="f32[2]", inputs="f32[2]").compile()
    ones = torch.ones(2)
    assert torch.equal(compiled(self=ones, inputs=ones)[0], 2 * ones)


def test_keywords_of_wrapped_functions_arrive(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    with sg.fake("cuda"):
        loaded = safetensors.load_file(filename=tmp_path / "w.safetensors", device="cuda")
        assert sg.is_fake(loaded["w"]) and loaded["w"].device.type == "cuda"
        assert torch.ones(2).new_tensor([1.0], pin_memory=False).shape == (1,)
        with pytest.raises(sg.NoRuleError, match="layout"):
            torch.ones(2).new_tensor([1.0], layout=torch.sparse_coo)
