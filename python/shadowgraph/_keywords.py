"""Keywords of entries that pass others on: one that both sides take is refused, for it would reach one of them only."""

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
    """Lets `entry(fn, *args, own=..., **kwargs)`, which calls fn(*args, **kwargs), refuse what fn takes by name, too.

    Raises TypeError, which says how to give either.
    """
    own = [name for name, each in inspect.signature(entry).parameters.items() if each.kind is each.KEYWORD_ONLY]

    @functools.wraps(entry)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        given = [name for name in own if name in kwargs]
        refuse_shared(entry.__name__, given, names_taken_by(args[0]) if given and args else ())
        return entry(*args, **kwargs)

    return call


def list_options(entry, but=()):
    """Appends what the table of an entry's further keywords says of them to its docstring. Gives the lines, by name."""
    lines = {name: line for name, line in getattr(_C, f"_{entry.__name__}_options")().items() if name not in but}
    wrapped = [textwrap.fill(line, 118, initial_indent=" " * 4, subsequent_indent=" " * 6) for line in lines.values()]
    head = [entry.__doc__.rstrip(), "", "    Further keywords; None is the default:", ""]
    entry.__doc__ = "\n".join([*head, *wrapped, ""])
    return lines


def refuse_shared(entry, given, taken):
    """Raises TypeError for the first of the keywords `given` to sg.entry that is among those the program takes."""
    for name in given:
        if name in taken:
            raise TypeError(
                f"sg.{entry} and the program both take {name}=, and one of them would not get it. Give the program's "
                f"by position, or bind it: functools.partial(fn, {name}=...); {name}= is then sg.{entry}'s"
            )


def names_taken_by(program):
    """The keywords that a program names: of a module, those of its forward; not what a partial has bound already.

    What ends up in a **kwargs is not among them, nor is what takes its arguments by position only.
    """
    bound: set[str] = set()
    while isinstance(program, functools.partial):
        bound |= program.keywords.keys()
        program = program.func
    if isinstance(program, torch.nn.Module):
        program = program.forward
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # a function in C: torch's own have schemas
        name = getattr(program, "__name__", "").rstrip("_")
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        return {argument.name for schema in schemas for argument in schema.arguments} - bound
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name for each in parameters if each.kind in by_name} - bound
