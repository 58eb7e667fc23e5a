#!/usr/bin/env python3
"""Each public header compiles alone, from an installed package.

    check_headers.py CXX FOLDER -- FLAGS...     FOLDER/shadowgraph/*.h; FLAGS: include paths and definitions of libtorch
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys


def main():
    split = sys.argv.index("--")
    compiler, folder = sys.argv[1:split]
    flags = sys.argv[split + 1 :]
    headers = sorted(pathlib.Path(folder, "shadowgraph").rglob("*.h"))

    def compile_alone(header):
        line = f'#include "{header.relative_to(folder)}"\n'
        command = [compiler, "-std=c++20", "-fsyntax-only", "-w", f"-I{folder}", *flags, "-x", "c++", "-"]
        return header, subprocess.run(command, input=line, capture_output=True, text=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, result in pool.map(compile_alone, headers):
            if result.returncode != 0:
                failed += 1
                print(f"{header} does not compile alone:\n{result.stderr[:4000]}")
    print(f"check_headers: {len(headers)} headers, {failed} do not compile alone")
    sys.exit(failed != 0 or not headers)


if __name__ == "__main__":
    main()
