"""Rejects keywords that both a public function and the program to which it forwards keywords accept."""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from . import _shadowgraph as _C

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def keywords_apart(entry: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorates `entry(fn, *args, own=..., **kwargs)`, which calls fn(*args, **kwargs), to reject ambiguous keywords.

    Raises TypeError if a keyword of `entry` is also a parameter of fn.
    """
    own = [name for name, each in inspect.signature(entry).parameters.items() if each.kind is each.KEYWORD_ONLY]

    @functools.wraps(entry)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        given = [name for name in own if name in kwargs]
        taken = names_taken_by(args[0]) if given and args else ()
        if shared := [name for name in given if name in taken]:
            name, public = shared[0], f"sg.{entry.__name__}"
            raise TypeError(
                f"{name}= is ambiguous: {public} and the program both accept it. Pass the program's argument by "
                f"position or bind it with functools.partial(fn, {name}=...); {name}= then applies to {public}"
            )
        return entry(*args, **kwargs)

    return call


def list_options(entry, but=()):
    """Appends the descriptions of an entry's further keywords to its docstring. Returns {keyword: description}."""
    lines = {name: line for name, line in getattr(_C, f"_{entry.__name__}_options")().items() if name not in but}
    wrapped = [textwrap.fill(line, 118, initial_indent=" " * 4, subsequent_indent=" " * 6) for line in lines.values()]
    head = [entry.__doc__.rstrip(), "", "    Further keywords, None by default:", ""]
    entry.__doc__ = "\n".join([*head, *wrapped, ""])
    return lines


def names_taken_by(program):
    """Returns the named keywords of a program (for a module, of its forward), except those bound by a partial.

    Excludes **kwargs and positional-only parameters.
    """
    bound: set[str] = set()
    while isinstance(program, functools.partial):
        bound |= program.keywords.keys()
        program = program.func
    if isinstance(program, torch.nn.Module):
        program = program.forward
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # a C function; those of torch have schemas
        name = getattr(program, "__name__", "").rstrip("_")
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        return {argument.name for schema in schemas for argument in schema.arguments} - bound
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name for each in parameters if each.kind in by_name} - bound
