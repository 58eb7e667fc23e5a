#!/usr/bin/env python3
"""Mutation testing: inserts mistakes into the code and reports which of them the tests detect.

    mutate.py [--build build] [--only 3,17-20] [--jobs 2] [--list] [--check] [--keep] [--filter GTEST_FILTER]

tests/mutation/mistakes.txt contains the mistakes:

    @ passes/simplify/dce.cpp          file of the following mistakes; if it was moved, the only file of that name
    - used && !written                 expression, which must occur exactly once in the file
    + used                             its replacement
    ~ carried.finish(value_of);        statement to remove

All selected mistakes are compiled in one build, behind a switch. SHADOWGRAPH_MISTAKE=number enables one of them. The
files are restored at the end, unless --keep is given (for further runs with --only).

For each mistake, the test programs of its folder run until one fails: those in tests/CMakeLists.txt, and those in MORE.
Without a mistake all of them must pass. SHADOWGRAPH_RANDOM_PROGRAMS is the number of random programs per suite (400).
--filter selects tests.

--check only checks that every expression occurs once in its file, and that every folder has a test program.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
# {folder: further test programs, fastest first}. TOOL is tests/python/check_tool.py, PACKAGE pytest on tests/package.
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
# {program: build targets}, where the names differ. Tests of the package also run the tool.
TARGETS = {TOOL: ["shadowgraph_tool"], PACKAGE: ["shadowgraph_python", "shadowgraph_tool"]}
TIMEOUT = 3600  # seconds per program; tests of the package take ten minutes on a busy machine


class Mistake:
    def __init__(self, number, file, old, new):
        self.number, self.file, self.old, self.new = number, file, old, new

    def __str__(self):
        return f"{self.number:3} {self.file}: {self.old}" + (f"  ->  {self.new}" if self.new else "  removed")

    def problem(self):
        path = ROOT / self.file
        if not path.exists():
            return "the file does not exist"
        if any(text.endswith(";") for text in (self.old, self.new) if self.new):
            return "expressions must not end with a semicolon; use ~ to remove a statement"
        count = path.read_text().count(self.old)
        return "" if count == 1 else f"occurs {count} times in the file"

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
    """Returns {folder: test programs} from tests/CMakeLists.txt, longest folder first."""
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
    """Returns the problems of the list, one line each."""
    by_folder = programs_by_folder()
    known = {name for names in by_folder.values() for name in names} | set(TARGETS)
    named = {name for names in MORE.values() for name in names}
    found = [f"MORE: there is no program {name}" for name in sorted(named - known)]
    for mistake in mistakes:
        if problem := mistake.problem():
            found.append(f"{mistake}\n    {problem}")
        elif not programs_of(mistake, by_folder):
            found.append(f"{mistake}\n    its folder has no test program")
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
    """Runs a test program with a mistake. Returns (exit code, seconds)."""
    environment = {"SHADOWGRAPH_RANDOM_PROGRAMS": "400", **os.environ, "SHADOWGRAPH_MISTAKE": str(number)}
    if program == TOOL:
        command = [sys.executable, ROOT / "tests/python/check_tool.py", build / "bin/shadowgraph"]
    elif program == PACKAGE:
        command = [ROOT / ".venv/bin/python", "-m", "pytest", "-qx", "-p", "no:cacheprovider", ROOT / "tests/package"]
        # Tests find the tool in PATH, unless it is installed from a wheel.
        environment |= {"PYTHONPATH": f"{build / 'python'}:{ROOT / 'tests/package'}", "HF_HUB_OFFLINE": "1",
                        "PATH": f"{build / 'bin'}:{environment['PATH']}"}  # fmt: skip
    else:
        command = [build / "bin" / program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={gtest_filter}"]
    began = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT, cwd=ROOT).returncode
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
    """Tests all chosen mistakes. Returns the number of detected ones."""
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
                return mistake, f"detected by {program} ({code}, {seconds:.0f} s)"
        return mistake, ""

    detected = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        broken = []
        for program, code, seconds in pool.map(alone, programs):
            result = f"FAILS ({code})" if code else "passes"
            print(f"without a mistake: {program} {result}, {seconds:.0f} s", flush=True)
            broken += [program] if code else []
        if broken:
            raise SystemExit(f"{', '.join(broken)}: fails without a mistake; fix it first")
        for mistake, verdict in pool.map(try_out, chosen):
            detected += bool(verdict)
            print(f"{mistake}\n    {verdict or 'MISSED'}", flush=True)
    return detected


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="numbers and ranges, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mistakes to test in parallel")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="only check that each mistake can be inserted")
    parser.add_argument("--keep", action="store_true", help="do not restore the files")
    parser.add_argument("--filter", default="*", help="GoogleTest filter of the tests to run")
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
        raise SystemExit(f"mistakes {', '.join(absent)} are not in the files left by --keep; restore them with git")
    originals = {} if kept else put_in(chosen)
    try:
        detected = run(arguments, (ROOT / arguments.build).resolve(), chosen)
    finally:
        if not arguments.keep and not kept:
            (ROOT / "tests/mutation/switch.h").unlink()
            for path, text in originals.items():
                path.write_text(text)
    print(f"{detected} of {len(chosen)} detected")
    return detected * 10 < len(chosen) * 9


if __name__ == "__main__":
    sys.exit(main())
