"""Kernels made on demand for operators of eager mode. For graphs: Graph.compile(kernels=True)."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import _shadowgraph as _C

__all__ = ["CompiledOperators", "UsedKernel", "compilable_operators", "compile_operators", "operators_without_kernels",
           "use_kernel"]  # fmt: skip


def compilable_operators() -> list[str]:
    """The operators that kernels are made of, with overloads: "aten::add.Tensor"."""
    return _C.compilable_operators()


def operators_without_kernels() -> dict[str, str]:
    """The other operators of libtorch, each with the reason why no kernel is made of it."""
    return _C.operators_without_kernels()


class CompiledOperators:
    """Operators that run kernels until `close()`, or the end of a `with` block. Made by `compile_operators`."""

    def __init__(self, operators: Iterable[str] | None, device: str | torch.device, exact: bool, measure: bool):
        names = _C.compilable_operators() if operators is None else list(operators)
        self._compiled: _C.CompiledOperators | None = _C.compile_operators(names, str(device), exact, measure)

    def report(self) -> list[dict[str, Any]]:
        """Counts calls by operator: those that ran a kernel, that waited for one, that no kernel does, and why not.

        `original`: calls that went the way they had gone, to be measured or because it is faster.
        """
        return [] if self._compiled is None else self._compiled.report()

    def wait(self) -> None:
        """Until no kernel is being compiled."""
        if self._compiled is not None:
            self._compiled.wait()

    def close(self) -> None:
        """All calls run as they did before."""
        self._compiled = None

    def __enter__(self) -> "CompiledOperators":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compile_operators(operators: Iterable[str] | None = None, device: str | torch.device = "cpu", *,
                      exact: bool = False, measure: bool = True) -> CompiledOperators:  # fmt: skip
    """Calls of these operators run kernels that are compiled for the dtypes and layouts that they meet.

        with sg.compile_operators(["aten::gelu", "aten::gelu_backward"]) as compiled:
            loss.backward()
        compiled.report()

    operators: names with overloads; None: all of compilable_operators().
    device: cpu, or a device of one's own (PrivateUse1) whose memory is the host's.
    exact: what is not rounded exactly (exp, sums) stays libtorch's.
    measure: the first calls go both ways in turn, and the faster way is kept; False: a kernel that is there runs.

    A call runs as it did while its kernel is compiled, and for good where there is none. Kernels are kept in
    $SHADOWGRAPH_CACHE, or ~/.cache/shadowgraph, for the next process. Raises UnsupportedError for what no kernel is
    made of.
    """
    return CompiledOperators(operators, device, exact, measure)


class UsedKernel:
    """A kernel of one's own that calls of an operator run until `close()`, or the end of a `with` block."""

    def __init__(self, used: _C.UsedKernel):
        self._used: _C.UsedKernel | None = used

    def report(self) -> dict[str, Any]:
        """Counts calls: `ran`, `passed_on`, and among those that ran `unchecked`, where only data decides results."""
        return {} if self._used is None else self._used.report()

    def close(self) -> None:
        """Calls run as they did before."""
        self._used = None

    def __enter__(self) -> "UsedKernel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def use_kernel(operator: str, kernel: Callable[..., Any] | tuple[str | os.PathLike[str], str],
               device: str | torch.device = "cpu") -> UsedKernel:  # fmt: skip
    """Calls of this operator run a kernel of your own, in eager mode and in replays of graphs.

        def cumsum(x, dim, *, dtype=None):
            return my_library.cumsum(x, dim) if x.dtype == torch.float32 and dtype is None else NotImplemented

        with sg.use_kernel("aten::cumsum", cumsum) as mine:
            loss.backward()
        mine.report()

    operator: with overload, "aten::add_.Tensor".
    kernel: a callable, which gets the operator's arguments as its schema has them, below autograd. It returns the
        result (several: a tuple), for an in-place operator the argument that it wrote, or NotImplemented for a call
        that it does not take; that call runs as it would have. Or (library, symbol): a C function of a shared library,
        as shadowgraph/kernels/c_kernel.h declares it.
    device: whose tensors it gets.

    Results of another dtype, size or device than the operator's raise UnsupportedError in the call. Raises
    UnsupportedError for an operator that does not exist or that libtorch makes of others, and for a library or symbol
    that is not there.
    """
    if callable(kernel):
        return UsedKernel(_C.use_kernel(operator, kernel, str(device)))
    library, symbol = kernel
    return UsedKernel(_C.use_library_kernel(operator, os.fspath(library), symbol, str(device)))
