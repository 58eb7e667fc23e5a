#!/usr/bin/env python3
"""Puts mistakes into the code and says which of them the tests notice.

    mutate.py [--build build] [--only 3,17] [--jobs 2] [--list] [--keep]

The mistakes are in tests/mutation/mistakes.txt:

    @ passes/simplify/dce.cpp          the file, for all that follow
    - used && !written                 an expression as it stands there, once
    + used                             what it is by mistake
    ~ carried.finish(value_of);        a statement, which is left out

All of them are compiled in at once, behind a switch: fifty cost one build. SHADOWGRAPH_MISTAKE=number puts on one at a
time. The files are put back afterwards (--keep leaves them, for another run with --only). The tests of
each mistake's folder run until one program fails; random programs are SHADOWGRAPH_RANDOM_PROGRAMS a suite, 400 unless
set.
"""

import argparse
import concurrent.futures
import os
import pathlib
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
# By folder, the programs that test it, the quickest first.
PROGRAMS = {
    "ir/": ("ir_tests", "passes_tests", "profiler_tests", "core_tests", "replay_tests"),
    "core/dispatch/": ("core_tests", "replay_tests", "deferred_tests"),
    "core/mode/": ("core_tests",),
    "core/process/": ("core_tests",),
    "core/fake/": ("core_tests", "replay_tests", "deferred_tests"),
    "core/rules/": ("core_tests",),
    "core/capture/": ("core_tests", "profiler_tests", "replay_tests"),
    "core/checkpoint/": ("core_tests", "replay_tests"),
    "core/replay/": ("replay_tests", "passes_tests", "deferred_tests"),
    "core/deferred/": ("deferred_tests",),
    "passes/codegen/": ("codegen_tests",),
    "passes/": ("passes_tests", "replay_tests"),
    "profiler/": ("profiler_tests",),
    "sharding/": ("sharding_tests",),
    "viz/": ("profiler_tests",),
    "models/": ("profiler_tests", "core_tests"),
    "cli/": ("shadowgraph",),
}


class Mistake:
    def __init__(self, number, file, old, new):
        self.number, self.file, self.old, self.new = number, file, old, new
        self.programs = next(programs for folder, programs in PROGRAMS.items() if file.startswith(folder))

    def __str__(self):
        return f"{self.number:3} {self.file}: {self.old}" + (f"  ->  {self.new}" if self.new else "  left out")

    def switched(self, text):
        if text.count(self.old) != 1:
            raise SystemExit(f"{self}\n    is in the file {text.count(self.old)} times")
        on = f"{SWITCH}({self.number})"
        if not self.new:
            return text.replace(self.old, f"if (!{on}) {self.old}")
        return text.replace(self.old, f"({on} ? ({self.new}) : ({self.old}))")


def read_mistakes():
    mistakes, file, old = [], None, None
    for line in (ROOT / "tests/mutation/mistakes.txt").read_text().splitlines():
        mark, rest = line[:1], line[2:].strip()
        if mark == "@":
            file = rest
        elif mark == "-":
            old = rest
        elif mark in "+~" and mark:
            mistakes.append(Mistake(len(mistakes) + 1, file, rest if mark == "~" else old, rest if mark == "+" else ""))
    return mistakes


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
        path.write_text('#include "tests/mutation/switch.h"\n' + text)
    return originals


def fails(build, program, number):
    """Whether the program notices, and after how many seconds."""
    tool = build / "bin" / program
    command = [tool, "--gtest_brief=1", "--gtest_fail_fast"]
    if program == "shadowgraph":
        command = [sys.executable, ROOT / "tests/python/check_tool.py", tool]
    environment = {"SHADOWGRAPH_RANDOM_PROGRAMS": "400", **os.environ, "SHADOWGRAPH_MISTAKE": str(number)}
    began = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, capture_output=True, timeout=900, cwd=ROOT).returncode
    except subprocess.TimeoutExpired:
        code = "timeout"
    return code, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="numbers, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mistakes tried at a time")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the mistakes in the files")
    arguments = parser.parse_args()
    build = (ROOT / arguments.build).resolve()
    mistakes = read_mistakes()
    if arguments.list:
        return print(*mistakes, sep="\n")
    only = {int(number) for number in arguments.only.split(",") if number}
    chosen = [mistake for mistake in mistakes if not only or mistake.number in only]
    programs = sorted({program for mistake in chosen for program in mistake.programs})
    kept = (ROOT / "tests/mutation/switch.h").exists()
    originals = {} if kept else put_in(mistakes)
    noticed = 0
    try:
        subprocess.run(["ninja", "-C", build, f"-j{arguments.jobs}", *programs], check=True, stdout=subprocess.DEVNULL)
        for program in programs:
            code, seconds = fails(build, program, 0)
            result = "passes" if code == 0 else f"FAILS ({code})"
            print(f"without a mistake: {program} {result}, {seconds:.0f} s", flush=True)

        def try_out(mistake):
            for program in mistake.programs:
                code, seconds = fails(build, program, mistake.number)
                if code:
                    return mistake, f"noticed by {program} ({code}, {seconds:.0f} s)"
            return mistake, ""

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for mistake, verdict in pool.map(try_out, chosen):
                noticed += bool(verdict)
                print(f"{mistake}\n    {verdict or 'MISSED'}", flush=True)
    finally:
        if not arguments.keep and not kept:
            (ROOT / "tests/mutation/switch.h").unlink()
            for path, text in originals.items():
                path.write_text(text)
    print(f"{noticed} of {len(chosen)} noticed")
    return noticed * 10 < len(chosen) * 9


if __name__ == "__main__":
    sys.exit(main())
