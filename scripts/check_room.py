#!/usr/bin/env python3
"""Builds and runs the tests of one folder: make check ROOM=core/fake/rules.

    check_room.py BUILD JOBS ROOM

tests/CMakeLists.txt assigns folders to test programs (shadowgraph_test_program). For a program that tests several
folders, only the suites of this folder run.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = re.compile(r"^shadowgraph_test_program\((\w+) \d+ ([^)]+)\)", re.MULTILINE)
SUITE = re.compile(r"^(?:TYPED_)?TEST(_F|_P)?\((\w+),", re.MULTILINE)
# Folders tested by ctest: {folder: (targets, pattern of tests)}.
BY_CTEST = {"cli": (["shadowgraph_tool"], "^tool$"), "python": (["shadowgraph_python"], "^python_")}


def programs():
    found = PROGRAM.findall((ROOT / "tests/CMakeLists.txt").read_text())
    return {folder: program for program, folders in found for folder in folders.split()}


def filters_of(folder):
    for source in sorted((ROOT / "tests" / folder).glob("*.cpp")):
        for kind, suite in SUITE.findall(source.read_text()):
            yield f"*{suite}*.*" if kind == "_P" else f"{suite}.*"


def main():
    build, jobs, room = sys.argv[1], sys.argv[2], sys.argv[3].strip("/")
    if not (ROOT / room).is_dir():
        sys.exit(f"folder {room} does not exist")
    by_folder = programs()
    inside = [folder for folder in by_folder if folder == room or folder.startswith(room + "/")]
    around = [folder for folder in by_folder if room.startswith(folder + "/")]
    top = room.split("/")[0]
    if inside or around:
        folders = inside or [max(around, key=len)]
        wanted = {}
        for folder in folders:
            wanted.setdefault(by_folder[folder], []).extend(filters_of(folder))
        commands = [[f"{build}/bin/{program}", "--gtest_brief=1", "--gtest_filter=" + ":".join(dict.fromkeys(suites))]
                    for program, suites in wanted.items()]  # fmt: skip
        targets = list(wanted)
    elif top in BY_CTEST:
        targets, pattern = BY_CTEST[top]
        commands = [["ctest", "--test-dir", build, "--output-on-failure", "-j", jobs, "-R", pattern]]
    else:
        sys.exit(f"{room} has no test program; folders with one are {', '.join([*by_folder, *BY_CTEST])}")
    subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", *targets], check=True)
    failed = [command for command in commands if subprocess.run(command, cwd=ROOT).returncode != 0]
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
