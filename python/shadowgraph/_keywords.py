"""Keywords of entries that pass others on: one that both sides take is refused, for it would reach one of them only."""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

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


def list_options(entry, lines):
    """Appends what the tables of options say of an entry's further keywords, by name, to its docstring."""
    indent = " " * (len(entry.__doc__) - len(entry.__doc__.rstrip(" ")))
    wrapped = [textwrap.fill(line, 118, initial_indent=indent, subsequent_indent=indent + "  ") for line in lines.values()]
    entry.__doc__ += "\n".join(["", f"{indent}Further keywords; None is the default:", "", *wrapped, indent])


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
