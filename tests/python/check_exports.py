#!/usr/bin/env python3
"""Checks that the shared library exports the names declared in include/shadowgraph, and nothing else.

    check_exports.py NM LIBRARY INCLUDE

Every defined dynamic symbol belongs to a class or function of namespace shadowgraph that a public header names.
Instantiations of other libraries' templates over our types (std::vector<shadowgraph::...>) are weak and may be there.
"""

import pathlib
import re
import subprocess
import sys

LINKER = {"__bss_start", "_edata", "_end"}  # present in every library


def exported(nm, library):
    lines = subprocess.run([nm, "-D", "-C", "--defined-only", library], check=True, capture_output=True, text=True)
    for line in lines.stdout.splitlines():
        match = re.match(r"[0-9a-f]* ?([A-Za-z]) (.*)$", line.strip())
        yield match[1], match[2]


def name_of(symbol):
    """Returns shadowgraph::Graph for "vtable for shadowgraph::Graph", members, and types in parameters; else None."""
    symbol = re.sub(r"^(?:vtable|typeinfo|typeinfo name|VTT|guard variable|construction vtable) for ", "", symbol)
    symbol = re.sub(r"^(?:non-)?virtual thunk to ", "", symbol)
    head = symbol.split("(")[0]
    while "<" in head and ">" in head:  # template arguments are not part of the name
        shorter = re.sub(r"<[^<>]*>", "", head)
        if shorter == head:
            break
        head = shorter
    words = head.split()  # a template's return type comes before its name
    match = re.match(r"shadowgraph::(?:rules::)?(~?\w+)", words[-1] if words else "")
    return match[0].replace("~", "") if match else None


def main():
    nm, library, include = sys.argv[1:]
    headers = "\n".join(path.read_text() for path in sorted(pathlib.Path(include).rglob("*.h")))
    declared = set(re.findall(r"\w+", re.sub(r"//.*", "", headers)))
    names, foreign = set(), []
    for kind, symbol in exported(nm, library):
        name = name_of(symbol)
        if name and name.rsplit("::", 1)[1] in declared:
            if kind not in "WVuw":  # the set of weak symbols depends on inlining
                names.add(name)
        elif (symbol not in LINKER and kind not in "WVuw") or (name and name.startswith("shadowgraph::")):
            foreign.append(f"{kind} {symbol}")
    for symbol in foreign:
        print(f"exported, but no public header declares it: {symbol}")
    if not names:
        print("no exported name was found: the check looks at the wrong thing")
    print(f"check_exports: {len(names)} names, {len(foreign)} of them foreign")
    sys.exit(bool(foreign) or not names)


if __name__ == "__main__":
    main()
