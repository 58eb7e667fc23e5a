"""Kernels that Python registers for operators, in eager calls, autograd and replay."""

import shutil
import subprocess

import pytest
import torch
from torch import nn

import shadowgraph as sg


class Scanned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        return (x @ self.weight.t()).cumsum(1).tanh()


def scan(seen):
    def cumsum(x, dim, *, dtype=None):
        seen.append((tuple(x.shape), dim))
        if x.dtype != torch.float32:
            return NotImplemented
        return x.cumsum(dim)  # calls the overridden operator

    return cumsum


def test_eager_calls_and_their_gradients_run_it():
    torch.manual_seed(1)
    net, x, seen = Scanned(), torch.randn(3, 6), []
    expected = net(x)
    expected.sum().backward()
    gradient, net.weight.grad = net.weight.grad, None
    with sg.override_kernel("aten::cumsum", scan(seen)) as mine:
        output = net(x)
        output.sum().backward()
        assert torch.equal(torch.ones(3, dtype=torch.float64).cumsum(0), torch.tensor([1.0, 2.0, 3.0]).double())
        assert mine.report() == {"operator": "aten::cumsum", "ran": 2, "declined": 1, "unchecked": 0}
    assert torch.equal(output, expected) and torch.equal(net.weight.grad, gradient)
    assert seen[0] == ((3, 4), 1)
    net(x)
    assert len(seen) == 3 and mine.report() == {}


def test_replays_run_it():
    torch.manual_seed(1)
    net, x, seen = Scanned(), torch.randn(3, 6), []
    compiled = sg.capture(net, "f32[3,6]", train=False).compile(net)
    (expected,) = compiled(x)
    with sg.override_kernel("aten::cumsum", scan(seen)):
        (output,) = compiled(x)
    assert torch.equal(output, expected) and len(seen) == 1


def test_results_are_held_against_the_operators():
    x = torch.randn(2, 3)
    for wrong, said in (
        (lambda x: x.double(), r"result 0 of Double\[2, 3\], but the operator returns Float\[2, 3\]"),
        (lambda x: x[0], r"result 0 of Float\[3\]"),
        (lambda x: x.to("meta"), "result 0 on meta"),
        (lambda x: 3, "returned <class 'int'>, but the operator returns Tensor"),
    ):
        with sg.override_kernel("aten::erf", wrong), pytest.raises(RuntimeError, match=said):
            torch.erf(x)
    one = lambda x, dim, keepdim=False: x  # noqa: E731
    with sg.override_kernel("aten::max.dim", one), pytest.raises(RuntimeError, match="1 results"):
        x.max(1)
    refusal = "a result 0 that is not the argument"
    with sg.override_kernel("aten::erf_", lambda x: x.clone()), pytest.raises(RuntimeError, match=refusal):
        x.clone().erf_()
    with sg.override_kernel("aten::erf", lambda x: 1 / 0), pytest.raises(ZeroDivisionError):
        torch.erf(x)
    assert torch.equal(torch.erf(x), torch.special.erf(x))


def test_in_place_operators_and_results_that_data_decides():
    x = torch.zeros(3)

    def add_one(self, other, *, alpha=1):
        self.fill_(7)
        return self

    with sg.override_kernel("aten::add_.Tensor", add_one):
        y = x
        y += torch.ones(3)
    assert torch.equal(x, torch.full((3,), 7.0))
    with sg.override_kernel("aten::nonzero", lambda x: x.nonzero()) as mine:
        assert torch.tensor([0, 1, 1]).nonzero().tolist() == [[1], [2]]
        assert mine.report()["unchecked"] == 1
    with sg.override_kernel("aten::_local_scalar_dense", lambda x: 5.0) as mine:
        assert torch.ones(1).item() == 5
        assert mine.report()["unchecked"] == 1


@pytest.mark.parametrize("name, call", [
    ("mm", lambda x: x @ x.t()), ("argmax", lambda x: x.argmax(1)), ("cat", lambda x: torch.cat([x, x])),
    ("index_put_", lambda x: x.clone().index_put_((torch.tensor([0, 2]),), torch.ones(6))),
    ("native_batch_norm", lambda x: nn.functional.batch_norm(x, torch.zeros(6), torch.ones(6), training=True)),
    ("convolution", lambda x: torch.conv1d(x[None], torch.ones(2, 4, 3))), ("split.Tensor", lambda x: x.split(2)),
    ("_foreach_add_.List", lambda x: torch._foreach_add_([x.clone()], [x])), ("sort.stable", lambda x: x.sort(1)),
])  # fmt: skip
def test_any_operator(name, call):
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    x = torch.randn(4, 6)
    expected = call(x)
    with sg.override_kernel(f"aten::{name}", lambda *args, **kwargs: operator(*args, **kwargs)) as mine:
        given = call(x)
        assert mine.report() == {"operator": f"aten::{name}", "ran": 1, "declined": 0, "unchecked": 0}
    given, expected = ([out] if isinstance(out, torch.Tensor) else out for out in (given, expected))
    assert all(torch.equal(one, other) for one, other in zip(given, expected, strict=True))


def test_a_call_that_the_operator_refuses():
    with sg.override_kernel("aten::mm", lambda a, b: a) as mine:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        assert mine.report()["declined"] == 1


LIBRARY = """
#include "shadowgraph/kernels/c_kernel.h"

int scan(const struct shadowgraph_tensor* in, int32_t inputs, const struct shadowgraph_tensor* out, int32_t outputs,
         const double* numbers, int32_t count) {
  if (inputs != 1 || outputs != 1 || count != 2 || in->dtype != 6 || in->dims != 1 || numbers[0] != 0) return 1;
  float sum = 0;
  for (int64_t i = 0; i < in->sizes[0]; ++i) {
    sum += ((const float*)in->data)[i * in->strides[0]];
    ((float*)out->data)[i * out->strides[0]] = sum + 100;
  }
  return 0;
}
"""


def test_a_function_of_a_shared_library(tmp_path, request):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "scan.c", tmp_path / "scan.so"
    source.write_text(LIBRARY)
    include = request.config.rootpath / "include"
    if not include.is_dir():
        pytest.skip("the headers are not here")
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    with sg.override_kernel("aten::cumsum", (library, "scan")) as mine:
        assert torch.arange(6.0)[::2].cumsum(0).tolist() == [100, 102, 106]
        assert torch.arange(3).cumsum(0).tolist() == [0, 1, 3]  # the override does not cover this dtype
        assert mine.report() == {"operator": "aten::cumsum", "ran": 1, "declined": 1, "unchecked": 0}
    with pytest.raises(sg.UnsupportedError, match="does not define the function scam"):
        sg.override_kernel("aten::cumsum", (library, "scam"))
    with pytest.raises(sg.UnsupportedError, match="cannot load"):
        sg.override_kernel("aten::cumsum", (tmp_path / "none.so", "scan"))


@pytest.mark.parametrize(
    "call", [lambda: torch.ops.aten.arange.start_step(0, 5, 1), lambda: torch.ops.aten.randperm.default(5)]
)
def test_a_factory_without_a_device(call):
    """Its geometry comes from Meta: nothing is allocated or drawn, and the kernel's own call is the original's."""
    torch.manual_seed(0)
    expected = call()
    name = "aten::arange.start_step" if expected.tolist() == list(range(5)) else "aten::randperm"
    with sg.override_kernel(name, lambda *_, **__: NotImplemented) as mine:
        torch.manual_seed(0)
        assert torch.equal(call(), expected)
        assert mine.report()["declined"] == 1
    with sg.override_kernel(name, lambda *_, **__: torch.zeros(5, dtype=torch.int64)) as mine:
        assert torch.equal(call(), torch.zeros(5, dtype=torch.int64))
        assert mine.report()["ran"] == 1


def test_operators_that_no_kernel_can_be_given_for():
    for op, device, said in (
        ("aten::nothing", "cpu", "unknown operator aten::nothing"),
        ("aten::linear", "cpu", "aten::linear is a composite operator"),
        ("aten::cumsum", "meta", "kernels for meta tensors are not supported"),
    ):
        with pytest.raises(sg.UnsupportedError, match=said):
            sg.override_kernel(op, lambda *_: NotImplemented, device)


def test_what_has_no_compiled_kernel_is_listed_with_the_reason():
    without = sg.operators_without_kernels()
    for op, reason in (("aten::mm", "matrix product"), ("aten::cumsum", "is a scan"),
                       ("aten::argmax", "returns indices"), ("aten::scatter_add", "writes at data-dependent positions"),
                       ("aten::convolution", "a convolution"), ("aten::einsum", "matrix product"),
                       ("aten::_cast_Float", "a composite operator")):  # fmt: skip
        assert reason in without[op], op
    assert not set(without) & set(sg.compilable_operators())
