"""Writes the type stubs of the built extension module from the signatures that pybind11 puts in its docstrings.

    make_stub.py build/python/shadowgraph

Functions that the package adds to the classes refer to their definitions. A Python without torch, for which only the
extension is built (scripts/make_wheels.sh), keeps the stubs of the one that has it.
"""

import importlib.util
import pathlib
import re
import sys

HEAD = '''"""Type stubs of the extension module, written by python/make_stub.py."""

import collections.abc
import typing
from typing import Any, Final

import torch

'''
TYPES = {"count": "int", "bytes": "int", "seconds": "float", "ratio": "float"}
# Types of the docstrings, as type checkers should see them.
WORDS = [(r"shadowgraph\._shadowgraph\.", ""), (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
         (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"), (r"torch\.StorageBase", "torch.UntypedStorage"),
         (r'typing\.Annotated\[([^"]*), "[^"]*"\]', r"\1"), (r"\bobject\b", "Any"),
         (r"\bdict\b(?![\[(])", "dict[str, Any]"), (r"\blist\b(?![\[(])", "list[Any]"),
         (r"\btuple\b(?![\[(])", "tuple[Any, ...]"), (r"self: \w+", "self"), (r"= <[^>]*>", "= ..."),
         (r"collections\.abc\.Sequence(?!\[)", "collections.abc.Sequence[Any]"),
         (r"(?<!None) = None", " | None = None"),
         (r"shadowgraph::[\w:<> ]+", "Any")]  # a class that is declared after its use  # fmt: skip


def signature(entry, name=r"\w*"):
    """Returns the "(arguments) -> result" in the first line of a docstring."""
    text = re.match(rf"{name}(\(.*\) -> .*)", (entry.__doc__ or "").strip())
    if text is None:
        sys.exit(f"make_stub.py: {entry} has no signature")
    found = text[1]
    for before, after in WORDS:
        found = re.sub(before, after, found)
    return found


def definition(name, entry):
    """Returns the line of a function, or a reference to one that Python code defines."""
    if hasattr(entry, "__code__"):
        return f"{name} = {entry.__module__}.{entry.__name__}"
    return f"def {name}{signature(entry, name)}: ..."


def members(entry, figures):
    for name, member in vars(entry).items():
        if name in vars(object) and name != "__init__":
            continue
        if isinstance(member, property):
            what = figures.get(name) if entry.__name__ == "Profile" else None
            yield f"{name}: Final[{what or signature(member.fget).rpartition(' -> ')[2]}]"
        elif isinstance(member, staticmethod):
            yield from ("@staticmethod", definition(name, member.__func__))
        elif hasattr(member, "__code__") or (member.__doc__ or "").startswith(f"{name}("):
            yield definition(name, member)


def main(folder):
    stub = folder / "_shadowgraph.pyi"
    if importlib.util.find_spec("torch") is None:
        sys.exit(0 if stub.exists() else f"make_stub.py: {sys.executable} has no torch")
    sys.path.insert(0, str(folder.parent))
    from shadowgraph import _shadowgraph as module

    figures = {figure["name"]: TYPES[figure["unit"]] + ("" if figure["always"] else " | None")
               for figure in module.profile_metrics()}  # fmt: skip
    lines = []
    for name, entry in vars(module).items():
        if isinstance(entry, type):
            base = entry.__base__.__name__
            inside = [f"    {line}" for line in members(entry, figures)]
            lines += [f"class {name}{'' if base == 'pybind11_object' else f'({base})'}:", *(inside or ["    ..."])]
        elif callable(entry):
            lines.append(definition(name, entry))
        elif not name.startswith("__"):
            lines.append(f"{name}: {type(entry).__name__}")
    imports = sorted(set(re.findall(r" = (shadowgraph\.\w+)\.", "\n".join(lines))))
    stub.unlink(missing_ok=True)  # a link to the sources in older build folders
    stub.write_text(HEAD + "\n".join([*(f"import {name}" for name in imports), "", *lines, ""]))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
