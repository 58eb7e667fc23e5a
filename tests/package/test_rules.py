"""Shape rules in Python, for custom operators and for libtorch's."""

import pytest
import torch

import shadowgraph as sg

library = torch.library.Library("sgrules", "DEF")
library.define("top(Tensor x, int k=2, *, bool sorted=False, ScalarType? dtype=None) -> (Tensor, Tensor)")
library.define("parts(Tensor[] xs, float scale) -> Tensor[]")
library.define("fill_(Tensor(a!) x) -> Tensor(a!)")
library.define("note(Tensor x) -> ()")
library.define("maybe(Tensor x) -> (Tensor, Tensor)")
library.define("unknown(Tensor x) -> Tensor")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: torch.cat([x, x]), "CPU")


@pytest.fixture
def gelu_again():
    """Restores the rule of aten::gelu."""
    yield
    sg.register_rule("aten::gelu", lambda x, *, approximate: torch.empty_like(x))


def test_a_rule_takes_what_the_schema_says():
    seen = []

    @sg.register_rule("sgrules::top")
    def rule(x, k, *, sorted, dtype):
        seen.append((x.device, x.is_cuda, k, sorted, dtype))
        return x.new_empty(x.shape[0], k, dtype=dtype), torch.empty(k, dtype=torch.int64)

    # a rule can be called as a plain function
    assert rule(torch.empty(3, 2), 1, sorted=False, dtype=None)[0].shape == (3, 1)
    seen.clear()
    with sg.Capture("cuda") as session:
        x = torch.empty(5, 8, device="cuda")
        values, indices = torch.ops.sgrules.top(x, 3, dtype=torch.float16)
        torch.ops.sgrules.top(x)
        graph = session.finish([values, indices])
    assert seen == [(torch.device("cuda:0"), True, 3, False, torch.float16),
                    (torch.device("cuda:0"), True, 2, False, None)]  # fmt: skip
    assert values.shape == (5, 3) and values.dtype == torch.float16 and values.is_cuda
    assert indices.shape == (3,) and indices.device.type == "cpu"  # the device on which the rule creates it
    assert [node.target for node in graph] == ["aten::empty.memory_format", *["sgrules::top"] * 2, "sg::output"]
    assert "sgrules::top" in sg.operators_with_rule()


def test_lists_in_place_nothing_and_none():
    sg.register_rule("sgrules::parts", lambda xs, scale: [x.new_empty(int(x.shape[0] * scale)) for x in xs])
    sg.register_rule("sgrules::fill_", lambda x: x)
    sg.register_rule("sgrules::note", lambda x: None)
    sg.register_rule("sgrules::maybe", lambda x: (x.new_empty(2), None))
    with sg.fake("cuda"):
        x = torch.ones(4, device="cuda")
        parts = torch.ops.sgrules.parts([x, x], 1.5)
        assert [part.shape for part in parts] == [(6,), (6,)] and all(part.is_cuda for part in parts)
        assert torch.ops.sgrules.fill_(x) is x
        assert torch.ops.sgrules.note(x) is None
        first, second = torch.ops.sgrules.maybe(x)
        assert first.shape == (2,) and second is None


def test_an_operator_of_libtorch(gelu_again):
    devices = []

    @sg.register_rule("aten::gelu")
    def rule(x, *, approximate):
        devices.append(str(x.device))
        return x.new_empty(x.shape[0] + (7 if x.is_cuda else 3)) if approximate == "tanh" else torch.empty_like(x)

    with sg.fake("cuda"):
        for device, size in (("cuda", 11), ("cpu", 7)):
            made = torch.nn.functional.gelu(torch.empty(4, device=device), approximate="tanh")
            assert made.shape == (size,) and made.device.type == device
    assert devices == ["cuda:0", "cpu"]
    # Pointwise calls take a fast path, which must respect a registered rule.
    with sg.fake("cuda"):
        x = torch.empty(4, 4)
        assert (x + x).shape == (4, 4)
        sg.register_rule("aten::add.Tensor", lambda a, b, *, alpha: a.new_empty(9))
        try:
            assert (x + x).shape == (9,)
        finally:
            sg.register_rule("aten::add.Tensor", lambda a, b, *, alpha: a - b)
        assert (x + x).shape == (4, 4)


def test_gradients_run_through_a_rule(gelu_again):
    sg.register_rule("aten::gelu", lambda x, *, approximate: torch.empty_like(x))
    graph = sg.capture_training_step(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), "f32[2,4]")
    assert len(graph.find("aten::gelu")) == 1 and len(graph.find("aten::gelu_backward")) == 1


def test_composites_by_the_device(gelu_again):
    @sg.register_composite_rule("aten::silu_backward")
    def rule(grad, x):
        return torch.empty_like(x)

    assert rule(torch.ones(2), torch.ones(3)).shape == (3,)
    graph = sg.capture_training_step(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU()), "f32[2,4]")
    assert graph.find("aten::silu") and graph.find("aten::mm")  # backward calls the rule, boxed


def test_rules_that_fail():
    with pytest.raises(sg.Error, match=r"register_rule\('aten::nothing'\): unknown operator"):
        sg.register_rule("aten::nothing", lambda: None)
    with pytest.raises(sg.Error, match="unknown operator"):
        sg.register_rule("aten::add.Tensors", lambda: None)
    with pytest.raises(sg.Error, match="requires a function, got 3"):
        sg.register_rule("sgrules::unknown", 3)
    wrong = {"raises": lambda x: 1 / 0, "number": lambda x: 3, "pair": lambda x: (x, x), "keywords": lambda: None}
    expected = {"raises": ZeroDivisionError, "number": sg.Error, "pair": sg.Error, "keywords": TypeError}
    with sg.fake("cuda"):
        x = torch.empty(3)
        for name, rule in wrong.items():
            sg.register_rule("sgrules::unknown", rule)
            with pytest.raises(expected[name]):
                torch.ops.sgrules.unknown(x)
        sg.register_rule("sgrules::maybe", lambda x: x)
        with pytest.raises(sg.Error, match="the Python rule of sgrules::maybe returned .* does not match the schema"):
            torch.ops.sgrules.maybe(x)
        sg.register_rule("sgrules::unknown", lambda x: torch.empty_like(x))
        assert torch.ops.sgrules.unknown(x).shape == (3,)  # and execution continues


def test_plain_functions_and_operators_as_names(gelu_again):
    def fuse(x):
        return x * 2

    for arguments in ((fuse,), (fuse, fuse), (torch.nn.functional.linear, fuse), (torch.ops.aten.add, fuse)):
        with pytest.raises(sg.Error, match=r"expected an operator with overload.*torch\.library\.custom_op"):
            sg.register_rule(*arguments)
    # What the message says works: the function as an operator with its own rule.
    operator = torch.library.custom_op("rules_test::fuse", fuse, mutates_args=(), schema="(Tensor x) -> Tensor")
    sg.register_rule(torch.ops.rules_test.fuse.default, lambda x: x.new_empty(3, 5))
    assert sg.capture(operator, "f32[2]").find("rules_test::fuse")[0].outputs[0].shape == (3, 5)


def test_unknown_operators_run_on_zeros():
    with sg.fake("cuda"), pytest.raises(sg.NoRuleError):
        torch.ops.sgrules.twice(torch.empty(3, device="cuda"))
    with sg.fake("cuda", allow_fallback_kernels=True):
        made = torch.ops.sgrules.twice(torch.empty(3, device="cuda"))
        assert made.shape == (6,) and made.is_cuda and sg.is_fake(made)
    graph = sg.capture(torch.ops.sgrules.twice, "f32[3]", options={"allow_fallback_kernels": True})
    assert graph.find("sgrules::twice")[0].outputs[0].shape == (6,)
