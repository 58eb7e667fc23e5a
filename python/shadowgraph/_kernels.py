"""Kernels made on demand for operators of eager mode. For graphs: Graph.compile(kernels=True)."""

from collections.abc import Iterable
from typing import Any

import torch

from . import _shadowgraph as _C

__all__ = ["CompiledOperators", "compilable_operators", "compile_operators"]


def compilable_operators() -> list[str]:
    """The operators that kernels are made of, with overloads: "aten::add.Tensor"."""
    return _C.compilable_operators()


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
    $SHADOWGRAPH_CACHE, or ~/.cache/shadowgraph, for the next process. Raises KernelError for what no kernel is made of.
    """
    return CompiledOperators(operators, device, exact, measure)
