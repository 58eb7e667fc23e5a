#!/usr/bin/env python3
"""Puts mistakes into the code and says which of them the tests notice.

    mutate.py [--build build] [--only 3,17-20] [--jobs 2] [--list] [--check] [--keep] [--filter GTEST_FILTER]

The mistakes are in tests/mutation/mistakes.txt:

    @ passes/simplify/dce.cpp          the file, for all that follow; of this name in any folder, where it has moved
    - used && !written                 an expression as it stands there, once
    + used                             what it is by mistake
    ~ carried.finish(value_of);        a statement, which is left out

All that are tried are compiled in at once, behind a switch: fifty cost one build. SHADOWGRAPH_MISTAKE=number puts on
one at a time. The files are put back afterwards (--keep leaves them, for another run of some of these with --only).

The tests of each mistake's folder run until one program fails. Which these are follows from tests/CMakeLists.txt, and
from MORE for folders whose mistakes others notice. Without a mistake all of them must pass first. Random programs are
SHADOWGRAPH_RANDOM_PROGRAMS a suite, 400 unless set. --filter runs those tests alone.

--check builds nothing: every expression must stand in its file once, and every folder must have a program.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SWITCH = "mistake_is_on"
HEADER = f"""#include <cstdlib>
inline bool {SWITCH}(int number) {{
  static const int on = [] {{
    const char* text = std::getenv("SHADOWGRAPH_MISTAKE");
    return text == nullptr ? 0 : std::atoi(text);
  }}();
  return on == number;
}}
"""
TOOL = "tool"
PACKAGE = "python_package"
# By folder, the programs that test it beside those of its own tests, the quickest first. TOOL is the script
# tests/python/check_tool.py, PACKAGE is pytest over tests/package.
MORE = {
    "support/": ("ir_tests", "profiler_tests", "kernels_tests"),
    "ir/": ("passes_tests", "profiler_tests", "core_tests", "replay_tests"),
    "core/fake/": ("replay_tests", "deferred_tests"),
    "core/capture/": ("profiler_tests", "replay_tests"),
    "core/calls/": ("passes_tests", "replay_tests", "core_tests"),
    "core/replay/": ("passes_tests", "deferred_tests"),
    "passes/": ("replay_tests", "codegen_tests"),
    "models/": ("core_tests",),
    "cli/": (TOOL,),
    "python/": (PACKAGE,),
}
# What ninja builds for them, where it is not called so: `shadowgraph` is the library, the tool's file has its name.
# Tests of the package run the tool, too.
TARGETS = {TOOL: ["shadowgraph_tool"], PACKAGE: ["shadowgraph_python", "shadowgraph_tool"]}
LONGEST = 3600  # seconds of a program; those of the package take ten minutes beside other work


class Mistake:
    def __init__(self, number, file, old, new):
        self.number, self.file, self.old, self.new = number, file, old, new

    def __str__(self):
        return f"{self.number:3} {self.file}: {self.old}" + (f"  ->  {self.new}" if self.new else "  left out")

    def problem(self):
        path = ROOT / self.file
        if not path.exists():
            return "the file is not there"
        if any(text.endswith(";") for text in (self.old, self.new) if self.new):
            return "an expression has no semicolon; a statement that is left out begins with ~"
        count = path.read_text().count(self.old)
        return "" if count == 1 else f"is in the file {count} times"

    def is_in(self):
        return self.on() in (ROOT / self.file).read_text()

    def on(self):
        if self.file.endswith(".py"):
            return f'(__import__("os").environ.get("SHADOWGRAPH_MISTAKE") == "{self.number}")'
        return f"{SWITCH}({self.number})"

    def switched(self, text):
        on = self.on()
        if self.file.endswith(".py"):
            made = f"({self.new} if {on} else {self.old})" if self.new else f"if not {on}: {self.old}"
            return text.replace(self.old, made)
        if not self.new:
            return text.replace(self.old, f"if (!{on}) {self.old}")
        return text.replace(self.old, f"({on} ? ({self.new}) : ({self.old}))")


def read_mistakes():
    mistakes, file, old = [], None, None
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for line in (ROOT / "tests/mutation/mistakes.txt").read_text().splitlines():
        mark, rest = line[:1], line[2:].strip()
        if mark == "@":
            moved = [path for path in tracked if pathlib.PurePath(path).name == pathlib.PurePath(rest).name]
            file = moved[0] if rest not in tracked and len(moved) == 1 else rest
        elif mark == "-":
            old = rest
        elif mark in "+~" and mark:
            mistakes.append(Mistake(len(mistakes) + 1, file, rest if mark == "~" else old, rest if mark == "+" else ""))
    return mistakes


def programs_by_folder():
    """The folders of tests/ by their program, as tests/CMakeLists.txt has them: the longest folder first."""
    text = (ROOT / "tests/CMakeLists.txt").read_text()
    folders = {}
    for name, given in re.findall(r"^shadowgraph_test_program\((\w+) \d+ ([^)]+)\)", text, re.MULTILINE):
        for folder in given.split():
            folders.setdefault(folder + "/", []).append(name)
    return dict(sorted(folders.items(), key=lambda entry: -len(entry[0])))


def programs_of(mistake, by_folder):
    own = next((names for folder, names in by_folder.items() if mistake.file.startswith(folder)), [])
    more = next((names for folder, names in MORE.items() if mistake.file.startswith(folder)), ())
    return list(dict.fromkeys([*own, *more]))


def check(mistakes):
    """What is wrong with the list, a line each."""
    by_folder = programs_by_folder()
    known = {name for names in by_folder.values() for name in names} | set(TARGETS)
    named = {name for names in MORE.values() for name in names}
    found = [f"MORE: no program is called {name}" for name in sorted(named - known)]
    for mistake in mistakes:
        if problem := mistake.problem():
            found.append(f"{mistake}\n    {problem}")
        elif not programs_of(mistake, by_folder):
            found.append(f"{mistake}\n    no program tests its folder")
    return found


def put_in(mistakes):
    originals = {}
    for mistake in mistakes:
        path = ROOT / mistake.file
        originals.setdefault(path, path.read_text())
    changed = dict(originals)
    for mistake in mistakes:
        path = ROOT / mistake.file
        changed[path] = mistake.switched(changed[path])
    (ROOT / "tests/mutation/switch.h").write_text("#pragma once\n" + HEADER)
    for path, text in changed.items():
        path.write_text(text if path.suffix == ".py" else '#include "tests/mutation/switch.h"\n' + text)
    return originals


def fails(build, program, number, gtest_filter):
    """Whether the program notices, and after how many seconds."""
    environment = {"SHADOWGRAPH_RANDOM_PROGRAMS": "400", **os.environ, "SHADOWGRAPH_MISTAKE": str(number)}
    if program == TOOL:
        command = [sys.executable, ROOT / "tests/python/check_tool.py", build / "bin/shadowgraph"]
    elif program == PACKAGE:
        command = [ROOT / ".venv/bin/python", "-m", "pytest", "-qx", "-p", "no:cacheprovider", ROOT / "tests/package"]
        # Out of a wheel the tool lies beside python; out of a build, tests look for it in PATH.
        environment |= {"PYTHONPATH": f"{build / 'python'}:{ROOT / 'tests/package'}", "HF_HUB_OFFLINE": "1",
                        "PATH": f"{build / 'bin'}:{environment['PATH']}"}  # fmt: skip
    else:
        command = [build / "bin" / program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={gtest_filter}"]
    began = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, capture_output=True, timeout=LONGEST, cwd=ROOT).returncode
    except subprocess.TimeoutExpired:
        code = "timeout"
    return code, time.monotonic() - began


def numbers_of(text):
    numbers = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def run(arguments, build, chosen):
    """Tries all that are chosen; returns how many are noticed."""
    by_folder = programs_by_folder()
    programs = list(dict.fromkeys(name for mistake in chosen for name in programs_of(mistake, by_folder)))
    targets = [target for name in programs for target in TARGETS.get(name, [name])]
    subprocess.run(["ninja", "-C", build, f"-j{arguments.jobs}", *targets], check=True, stdout=subprocess.DEVNULL)

    def alone(program):
        return program, *fails(build, program, 0, arguments.filter)

    def try_out(mistake):
        for program in programs_of(mistake, by_folder):
            code, seconds = fails(build, program, mistake.number, arguments.filter)
            if code:
                return mistake, f"noticed by {program} ({code}, {seconds:.0f} s)"
        return mistake, ""

    noticed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        broken = []
        for program, code, seconds in pool.map(alone, programs):
            result = f"FAILS ({code})" if code else "passes"
            print(f"without a mistake: {program} {result}, {seconds:.0f} s", flush=True)
            broken += [program] if code else []
        if broken:
            raise SystemExit(f"{', '.join(broken)}: fails without a mistake, so its failures say nothing")
        for mistake, verdict in pool.map(try_out, chosen):
            noticed += bool(verdict)
            print(f"{mistake}\n    {verdict or 'MISSED'}", flush=True)
    return noticed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="numbers and ranges, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mistakes tried at a time")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="only whether each mistake can be put in")
    parser.add_argument("--keep", action="store_true", help="leave the mistakes in the files")
    parser.add_argument("--filter", default="*", help="of GoogleTest; these tests alone")
    arguments = parser.parse_args()
    mistakes = read_mistakes()
    if arguments.list:
        print(*mistakes, sep="\n")
    kept = (ROOT / "tests/mutation/switch.h").exists()
    problems = [] if kept else check(mistakes)
    if problems or arguments.list or arguments.check:
        print(*problems, sep="\n", end="\n" if problems else "")
        return len(problems) > 0
    only = numbers_of(arguments.only)
    chosen = [mistake for mistake in mistakes if not only or mistake.number in only]
    if kept and (absent := [str(mistake.number) for mistake in chosen if not mistake.is_in()]):
        raise SystemExit(f"the files that --keep left are without {', '.join(absent)}: put them back with git first")
    originals = {} if kept else put_in(chosen)
    try:
        noticed = run(arguments, (ROOT / arguments.build).resolve(), chosen)
    finally:
        if not arguments.keep and not kept:
            (ROOT / "tests/mutation/switch.h").unlink()
            for path, text in originals.items():
                path.write_text(text)
    print(f"{noticed} of {len(chosen)} noticed")
    return noticed * 10 < len(chosen) * 9


if __name__ == "__main__":
    sys.exit(main())
