#!/usr/bin/env python3
"""Runs clang-tidy on the sources, most relevant first, within a time budget; or ruff and mypy on Python.

    scripts/lint.py              files changed since the merge base with --base, then others until the budget is used
    scripts/lint.py --all        all files, without a budget
    scripts/lint.py FILE...      only these files
    scripts/lint.py --python     ruff on all Python files and notebooks, mypy on the package in build/python

A source has changed if it or a header that it includes, directly or not, has changed. The order of the others rotates
with each commit, so that every file is checked eventually. A source with libtorch's headers takes 4 s, one with
<torch/torch.h> 13 s. Debian's clang-tidy 14 takes 12 s and 35 s; scripts/setup.sh --lint installs a newer one that
skips system headers. Clean results are cached in build-lint/ by a hash of the source, its headers and the checks. The
number of skipped files is printed.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-lint"


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def find(program):
    own = ROOT / ".venv/bin" / program
    return str(own) if own.exists() else program


def configure():
    """Writes compile_commands.json with each file compiled alone, without GCC's precompiled headers, which
    clang-tidy cannot read and which hide missing includes."""
    command = ["cmake", "--preset", "release", "-B", str(BUILD), "--log-level=WARNING",
               "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", "-DSHADOWGRAPH_GROUP_BYTES=0",
               "-DSHADOWGRAPH_BUILD_BENCH=ON"]
    if any(ROOT.glob(".venv/lib/python3*/site-packages/torch/lib/libtorch_python.so")):
        command += ["-DSHADOWGRAPH_BUILD_PYTHON=ON", f"-DPython_EXECUTABLE={ROOT}/.venv/bin/python"]
    if os.environ.get("TORCH_DIR"):
        command.append(f"-DTORCH_DIR={os.environ['TORCH_DIR']}")
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    # codegen/cpp_call.cpp includes a generated table.
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "cpp_operators"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    tracked = set(git("ls-files", "-co", "--exclude-standard", "--", "*.cpp").splitlines())
    files = {os.path.relpath(entry["file"], ROOT) for entry in commands}
    # Tests and benchmarks are formatted but not linted: most findings would be about GoogleTest macros and one-off
    # lambdas.
    return sorted(name for name in files & tracked if not name.startswith(("tests/", "bench/")))


def included(path, seen):
    """Adds to `seen` the project files that `path` includes, directly or not, and itself."""
    pending = [path]
    while pending:
        current = pending.pop()
        if current in seen or not (ROOT / current).is_file():
            continue
        seen.add(current)
        pending += re.findall(r'^\s*#include\s+"([^"]+)"', (ROOT / current).read_text(), re.M)
    return seen


def lint_python():
    if not (ROOT / "build/python/shadowgraph/_shadowgraph.pyi").exists():
        sys.exit("lint.py: mypy needs the type stubs of a build; run make python")
    commands = ([find("ruff"), "check", "--no-cache", "--output-format", "concise", "."],
                [find("mypy"), "--cache-dir", os.devnull])
    return max(subprocess.run(command, cwd=ROOT).returncode for command in commands)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--base", default=os.environ.get("LINT_BASE", "origin/main"))
    parser.add_argument("--budget", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.python:
        sys.exit(lint_python())

    clang_tidy = find("clang-tidy")
    sources = configure()
    if arguments.files:
        wanted = {os.path.relpath(os.path.abspath(name), ROOT) for name in arguments.files}
        sources = [source for source in sources if source in wanted]
    needs = {source: included(source, set()) for source in sources}

    checks = (ROOT / ".clang-tidy").read_bytes() + subprocess.check_output([clang_tidy, "--version"])
    text = {}

    def key(source):
        digest = hashlib.sha256(checks)
        for name in sorted(needs[source]):
            if name not in text:
                text[name] = (ROOT / name).read_bytes()
            digest.update(name.encode() + b"\0" + text[name])
        return digest.hexdigest()

    store = BUILD / "clean.json"
    clean = set(json.loads(store.read_text())) if store.exists() else set()
    keys = {source: key(source) for source in sources}
    todo = [source for source in sources if keys[source] not in clean]

    base = git("merge-base", "HEAD", arguments.base)
    changed = set(git("diff", "--name-only", base).splitlines()) if base else set()
    changed |= set(git("ls-files", "-o", "--exclude-standard").splitlines())
    head = git("rev-parse", "HEAD")
    first = [source for source in todo if needs[source] & changed]
    rest = sorted((source for source in todo if not needs[source] & changed),
                  key=lambda source: hashlib.sha256((head + source).encode()).digest())
    limited = not arguments.all and not arguments.files
    end = time.monotonic() + arguments.budget
    left_out = []

    def lint(source):
        if limited and time.monotonic() > end:
            left_out.append(source)
            return source, 0, ""
        run = subprocess.run([clang_tidy, "--quiet", "-p", str(BUILD), source], cwd=ROOT, capture_output=True,
                             text=True, stdin=subprocess.DEVNULL)
        # stderr only counts warnings, unless clang-tidy could not run.
        output = run.stdout if run.stdout.strip() else run.stderr
        if run.returncode == 0:
            clean.add(keys[source])
        return source, run.returncode, output

    failed = []
    shown = set()
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for source, status, output in pool.map(lint, first + rest):
            if status:
                failed.append(source)
                # Reports a finding in a header once, not for every source that includes it.
                for finding in re.split(r"^(?=\S+:\d+:\d+: (?:error|warning): )", output.strip(), flags=re.M):
                    if finding not in shown:
                        shown.add(finding)
                        own = finding.startswith((f"{ROOT}/{source}:", f"{source}:"))
                        print(finding.rstrip() + ("" if own else f"\n      seen from {source}"), flush=True)
    store.write_text(json.dumps(sorted(clean & set(keys.values()) if not arguments.files else clean)))

    linted = len(todo) - len(left_out)
    print(f"lint: {linted} files in {time.monotonic() - started:.0f} s, {len(sources) - len(todo)} clean since before, "
          f"{len(failed)} with findings" + (f", {len(left_out)} left out by the budget of {arguments.budget:.0f} s"
                                            if left_out else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
