"""Cost functions of custom operators, registered from Python."""

import threading

import pytest
import torch

import shadowgraph as sg


@torch.library.custom_op("sgtest::gated", mutates_args=())
def gated(x: torch.Tensor, weight: torch.Tensor, groups: int, scales: list[int]) -> torch.Tensor:
    return (x @ weight).relu() * groups


@gated.register_fake
def _(x, weight, groups, scales):
    return x.new_empty(x.shape[0], weight.shape[1])


def program(x, w):
    return gated(x, w, 3, [1, 2]) + 1


def profile():
    graph = sg.capture(program, "f32[8,16]", "f32[16,4]", device="cuda")
    return sg.Profile(graph).dict()


def test_flops_bytes_and_scratch_are_counted():
    seen = []

    def flops(call):
        x, weight, groups, scales = call.arguments
        seen.append((x.shape, x.element_bytes, weight.elements, groups, scales, call.results[0].bytes))
        return 2 * x.elements * weight.shape[1]

    before = profile()
    sg.register_cost("sgtest::gated", flops=flops, bytes=lambda call: call.arguments[0].bytes + call.results[0].bytes,
                     scratch=lambda call: 1 << 20)  # fmt: skip
    figures = profile()
    assert seen[0] == ((8, 16), 4, 64, 3, (1, 2), 128)
    assert figures["flops"]["forward"] - before["flops"]["forward"] == 2 * 8 * 16 * 4
    assert figures["peak"]["bytes"] >= 1 << 20 > before["peak"]["bytes"]
    (row,) = figures["custom_operators"]
    assert row["calls"] == 1 and row["bytes"] == 8 * 16 * 4 + 128 and row["scratch_bytes"] == 1 << 20

    # Registering again replaces the functions; None means that the cost is unknown.
    sg.register_cost("sgtest::gated", flops=lambda call: None, bytes=lambda call: 7, scratch=lambda call: 0)
    figures = profile()
    assert figures["flops"]["forward"] == before["flops"]["forward"]
    assert figures["custom_operators"][0]["calls_without_cost"] == 1

    # Cost functions are called from several threads at once.
    threads = [threading.Thread(target=profile) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def failing(call):
        raise ValueError("no idea")

    for rule, said in ((failing, "flops rule of sgtest::gated raised ValueError: no idea"),
                       (lambda call: -1, "returned -1"), (lambda call: "many", "returned 'many'")):  # fmt: skip
        sg.register_cost("sgtest::gated", flops=rule, bytes=lambda call: 7, scratch=lambda call: 0)
        with pytest.raises(sg.Error, match=said):
            profile()
    sg.register_cost("sgtest::gated", flops=lambda call: 0, bytes=lambda call: 7, scratch=lambda call: 0)
    profile()
    with pytest.raises(sg.Error, match="pass the same ones"):
        sg.register_cost("sgtest::gated", flops=lambda call: 0)


def test_a_mistyped_operator_is_named():
    with pytest.warns(UserWarning, match="aten::gelo.*no operator has this name yet"):
        sg.register_cost("aten::gelo", flops=lambda call: 0)


def test_what_is_no_rule_is_refused():
    for call, said in (
        (lambda: sg.register_cost("no name", flops=lambda call: 0), "no name"),
        (lambda: sg.register_cost("sgtest::nothing"), "at least one"),
        (lambda: sg.register_cost("sgtest::number", flops=3), "must be a function"),
    ):
        with pytest.raises(sg.Error, match=said):
            call()
