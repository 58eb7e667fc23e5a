"""Shape rules in Python, for operators of one's own and for those of libtorch."""

from collections.abc import Callable
from typing import Any

from . import _process
from . import _shadowgraph as _C
from ._shadowgraph import operators_with_rule

__all__ = ["operators_with_rule", "register_composite_rule", "register_rule"]


def register_rule(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """What the results of an operator look like: a function in place of its kernel, called on fakes.

        @sg.register_rule("aten::gelu")
        def _(x, *, approximate):
            return torch.empty_like(x)

    name: "aten::add.Tensor", with the overload.
    function: takes all that the operator's schema says, keyword-only arguments by name, and gives what the schema says.
        Fakes tell the pretended device (`x.is_cuda`). A result is where the function makes it; what it makes on "meta"
        is where the operator's results are (`register_devices`). It must not read data, and what it calls is in no
        capture.

    Registering again replaces any earlier rule, built-in ones too, for the whole process.

    Raises Error for an operator that torch does not know. What the function raises, the operator's call raises.
    """
    return _register(name, function, register_rule, False)


def register_composite_rule(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function in place of a composite operator's decomposition, above autograd, on fakes on a pretended GPU.

    For composites that pick a kernel by asking the device. Arguments and errors are those of `register_rule`.
    """
    return _register(name, function, register_composite_rule, True)


def _register(name, function, register, composite):
    if function is None:
        return lambda decorated: register(name, decorated)
    _process.install()
    _C.register_rule(name, function, composite)
    return function
