"""Kernels compiled on demand for operators in eager mode. For graphs, see Graph.compile(kernels=True)."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import _shadowgraph as _C
from ._shadowgraph import CompiledOperators, ScopedKernelOverride


def compile_operators(operators: Iterable[str] | None = None, device: str | torch.device = "cpu", *,
                      exact: bool = False, measure: bool = True) -> CompiledOperators:  # fmt: skip
    """Runs calls of these operators with kernels compiled for the dtypes and layouts of their arguments.

        with sg.compile_operators(["aten::gelu", "aten::gelu_backward"]) as compiled:
            loss.backward()
        compiled.report()

    operators: names with overloads. Defaults to all of compilable_operators().
    device: "cpu", or a custom backend (PrivateUse1) whose memory is host memory.
    exact: use libtorch for operators whose kernels are not bitwise equal (exp, sums).
    measure: the first calls alternate between both implementations, and the faster one is kept; with False, a
      compiled kernel is always used.

    Calls use the original implementation until the kernel is compiled, or if there is none. Kernels are cached in
    $SHADOWGRAPH_CACHE, by default ~/.cache/shadowgraph. Raises UnsupportedError for an operator that kernels cannot be
    compiled for.
    """
    names = _C.compilable_operators() if operators is None else list(operators)
    return _C.compile_operators(names, str(device), exact, measure)


def override_kernel(operator: str, kernel: Callable[..., Any] | tuple[str | os.PathLike[str], str],
               device: str | torch.device = "cpu") -> ScopedKernelOverride:  # fmt: skip
    """Runs calls of an operator with a user-defined kernel, in eager mode and in compiled graphs.

        def cumsum(x, dim, *, dtype=None):
            return my_library.cumsum(x, dim) if x.dtype == torch.float32 and dtype is None else NotImplemented

        with sg.override_kernel("aten::cumsum", cumsum) as mine:
            loss.backward()
        mine.report()

    operator: name with overload, "aten::add_.Tensor".
    kernel: a callable that is called below autograd with the arguments of the operator's schema. It returns the result
        (a tuple for several), the mutated argument for an in-place operator, or NotImplemented to fall back to the
        original implementation. Or (library, symbol): a C function of a shared library, as declared in
        shadowgraph/kernels/c_kernel.h.
    device: device whose calls use the kernel.

    A call whose result has another dtype, size or device than the operator's raises UnsupportedError. Raises
    UnsupportedError for an unknown or composite operator, and for a missing library or symbol.
    """
    if callable(kernel):
        return _C.override_kernel(operator, kernel, str(device))
    library, symbol = kernel
    return _C.override_library_kernel(operator, os.fspath(library), symbol, str(device))
