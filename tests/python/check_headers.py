#!/usr/bin/env python3
"""Each public header compiles alone, from an installed package.

    check_headers.py CXX FOLDER -- FLAGS...     FOLDER/shadowgraph/*.h; FLAGS: include paths and definitions of libtorch
    check_headers.py CXX FOLDER --whole -- FLAGS...     the same without the precompiled header

Most compile time is spent on libtorch's headers, included by graph.h. Headers that include graph.h, directly or not,
before any declaration are unaffected if a precompiled graph.h comes first, so they share one. Other headers are
compiled without it.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SHARED = "shadowgraph/graph/graph.h"


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def own_includes(header, folder):
    """Returns the project headers that `header` includes, or None if an include follows a declaration."""
    found, declared = [], False
    for line in without_comments(header.read_text()).splitlines():
        include = re.match(r'\s*#\s*include\s*["<](shadowgraph/[^">]+)[">]', line)
        if include:
            if declared:
                return None
            found.append(folder / include[1])
        elif line.strip() and not line.lstrip().startswith("#"):
            declared = True
    return found


def reaches_shared(header, folder, seen):
    if header == folder / SHARED:
        return True
    seen.add(header)
    return any(reaches_shared(other, folder, seen) for other in own_includes(header, folder) or [] if other not in seen)


def main():
    split = sys.argv.index("--")
    compiler, folder, *options = sys.argv[1:split]
    folder = pathlib.Path(folder)
    headers = sorted((folder / "shadowgraph").rglob("*.h"))
    flags = ["-std=c++20", "-w", f"-I{folder}", *sys.argv[split + 1 :]]

    with tempfile.TemporaryDirectory() as scratch:
        shared = pathlib.Path(scratch, "shared.h")
        shared.write_text(f'#include "{SHARED}"\n')
        precompiled = "--whole" not in options and subprocess.run(
            [compiler, *flags, "-x", "c++-header", shared, "-o", f"{shared}.gch"]).returncode == 0

        def compile_alone(header):
            first = []
            if precompiled and header != folder / SHARED and reaches_shared(header, folder, set()):
                first = ["-Winvalid-pch", "-include", shared]
            line = f'#include "{header.relative_to(folder)}"\n'
            command = [compiler, *flags, *first, "-fsyntax-only", "-x", "c++", "-"]
            return header, bool(first), subprocess.run(command, input=line, capture_output=True, text=True)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(compile_alone, headers))
    failed = [(header, result) for header, _, result in results if result.returncode != 0]
    for header, result in failed:
        print(f"{header} does not compile alone:\n{result.stderr[:4000]}")
    print(f"check_headers: {len(headers)} headers, {sum(first for _, first, _ in results)} behind a precompiled"
          f" {SHARED}, {len(failed)} do not compile alone")
    sys.exit(bool(failed) or not headers)


if __name__ == "__main__":
    main()
