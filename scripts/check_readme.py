#!/usr/bin/env python3
"""Checks that docs/cpp.md contains examples/readme/main.cpp, which the tests build and run.

    scripts/check_readme.py            fails if the code block differs
    scripts/check_readme.py --update   updates the code block

The block is the ```cpp fence after the line <!-- examples/readme/main.cpp -->. Without the program, there must be no
block.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/cpp.md"
PROGRAM = ROOT / "examples/readme/main.cpp"
MARK = "<!-- examples/readme/main.cpp -->\n"
BLOCK = re.compile(re.escape(MARK) + r"(?:```cpp\n(.*?)```\n)?", re.S)


def main():
    text = PAGE.read_text()
    match = BLOCK.search(text)
    if not match:
        sys.exit(f"docs/cpp.md: the line {MARK.strip()} is missing")
    program = PROGRAM.read_text() if PROGRAM.exists() else None
    if match[1] == program:
        return
    if "--update" not in sys.argv[1:]:
        sys.exit("docs/cpp.md differs from examples/readme/main.cpp; run scripts/check_readme.py --update")
    block = MARK + (f"```cpp\n{program}```\n" if program else "")
    PAGE.write_text(text[: match.start()] + block + text[match.end():])


if __name__ == "__main__":
    main()
