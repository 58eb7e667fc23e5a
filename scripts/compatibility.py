#!/usr/bin/env python3
"""Builds and tests shadowgraph with another version of PyTorch in a separate virtual environment.

    scripts/compatibility.py 2.15.0                      installs, builds and runs all tests
    scripts/compatibility.py 2.15.0 --steps build,unit   runs some steps; results of other steps are kept
    scripts/compatibility.py 2.15.0 --lean               runs steps without Python: a third of the disk and download
    scripts/compatibility.py --second                    runs the CI check with the newest other version available
    scripts/compatibility.py --schemas OLD NEW           lists operator schemas that differ between two versions
    scripts/compatibility.py --list                      lists the steps

`make compatibility VERSION=2.15.0` runs the first command. Results are a row of docs/figures/19-compatibility.json. The
build folder is build-torch-VERSION (--build), and the environment is env/ in it (--env). It contains torch and
torchvision of that version; other packages come from .venv by a .pth file. On Linux the wheels on PyPI are CUDA builds
of about 5 GB. With --lean, only torch, the CUDA runtime and CUPTI are installed, which libtorch_cpu links. This
suffices for the library, the tool and the C++ tests, but not for `import torch`.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import torch_versions
import write_figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs/figures/19-compatibility.json"
UNIT = ("ir_tests", "core_tests", "deferred_tests", "kernels_tests", "profiler_tests", "sharding_tests",
        "parallel_tests")  # fmt: skip
MODELS = ("resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet", "lstm_lm")
INSTALL_SECONDS = 240  # time limit of CI for the installation of a version
COLUMNS = ["torch", "date", "unit tests", "pass tests", "replay tests", "OpInfo conformance", "package tests",
           "training steps like those of the default"]  # fmt: skip


class CompatibilityError(Exception):
    """Raised when a version cannot be installed or a step fails."""


class Build:
    """Build folder and virtual environment of one version."""

    def __init__(self, version, folder=None, environment=None, jobs=1, lean=False):
        self.version, self.jobs, self.lean = version, jobs, lean
        self.folder = pathlib.Path(folder or ROOT / f"build-torch-{version}").resolve()
        self.environment = pathlib.Path(environment or self.folder / "env").resolve()
        self.python = self.environment / "bin/python"

    def run(self, *command, check=True, seconds=None, **environment):
        """Runs a command with output to the terminal."""
        print("+", *command, flush=True)
        try:
            done = subprocess.run([*map(str, command)], cwd=ROOT, env={**os.environ, **environment}, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CompatibilityError(f"{command[0]} timed out after {seconds} s") from None
        if check and done.returncode:
            raise CompatibilityError(f"{command[0]} failed with exit code {done.returncode}")

    def text_of(self, *command, shown=True, **environment):
        """Returns stdout and stderr of a command, ignoring its exit code. `shown`: also print it immediately."""
        print("+", *command, flush=True)
        lines = []
        with subprocess.Popen([*map(str, command)], cwd=ROOT, env={**os.environ, **environment}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:  # fmt: skip
            for line in running.stdout:
                lines.append(line)
                if shown:
                    print(line, end="", flush=True)
        return "".join(lines)

    def site_packages(self):
        (folder,) = self.environment.glob("lib/python3*/site-packages")
        return folder

    def installed(self):
        """Returns the version of torch in the environment, or None."""
        if not self.python.exists():
            return None
        found = [*self.site_packages().glob("torch-*.dist-info/RECORD")]
        return found[0].parent.name.removesuffix(".dist-info").partition("-")[2].split("+")[0] if found else None

    def lacks(self, *packages):
        """Returns True if a package is missing in the environment; `--second` only installs torch."""
        return any(not [*self.site_packages().glob(f"{name}-*.dist-info/RECORD")] for name in packages)

    def pip_install(self, *what, seconds=None):
        self.run(self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *what,
                 seconds=seconds)  # fmt: skip

    def install(self, *more, seconds=None):
        without_dependencies = self.environment / "lean"  # marker file
        lean_before = without_dependencies.exists() and not self.lean
        if self.installed() != self.version or lean_before or (not self.lean and self.lacks(*more)):
            self.run(ROOT / ".venv/bin/python", "-m", "venv", self.environment)
            if self.lean:
                without_dependencies.touch()
                self.pip_install("--no-deps", f"torch=={self.version}", seconds=seconds)
                self.pip_install(*self.linked_by_libtorch_cpu(), seconds=seconds)
            else:
                self.pip_install(f"torch=={self.version}", "numpy", *more, seconds=seconds)
                without_dependencies.unlink(missing_ok=True)
        # Always updated, because the environment may be from another checkout.
        (checkout,) = ROOT.glob(".venv/lib/python3*/site-packages")
        (self.site_packages() / "zz_of_the_checkout.pth").write_text(f"{checkout}\n")

    def linked_by_libtorch_cpu(self):
        """Returns the requirements for the CUDA libraries that libtorch_cpu links; none for a CPU build."""
        (metadata,) = self.site_packages().glob("torch-*.dist-info/METADATA")
        found = re.search(r"^Requires-Dist: cuda-toolkit\[.*\]==([0-9.]+)", metadata.read_text(), re.M)
        return [f"cuda-toolkit[cudart,cupti]=={found[1]}"] if found else []

    def configure(self, *more):
        self.run("cmake", "-S", ROOT, "-B", self.folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 "-DSHADOWGRAPH_BUILD_BENCH=OFF", f"-DSHADOWGRAPH_BUILD_PYTHON={'OFF' if self.lean else 'ON'}",
                 f"-DPython_EXECUTABLE={self.python}", f"-DTORCH_DIR={self.site_packages() / 'torch'}",
                 "--log-level=WARNING", *more)  # fmt: skip

    def compile(self, *targets, check=True):
        self.run("cmake", "--build", self.folder, "-j", self.jobs, "--target", *targets, check=check)

    def of_package(self):
        """Returns the environment variables to import the package of this build."""
        return {"PYTHONPATH": f"{self.folder / 'python'}:tests/package"}


def install(build):
    build.install("torchvision")


def build_all(build):
    build.configure("-DSHADOWGRAPH_BUILD_TESTS=ON")  # `--second` disables them
    of_python = () if build.lean else ("shadowgraph_python", "conformance")
    build.compile("shadowgraph", "shadowgraph_tool", *of_python, *UNIT, "passes_tests", "replay_tests")


def google_tests(build, *programs):
    """Returns "1,234 of 1,240" passed tests, and prints the failed ones."""
    passed = failed = 0
    for program in programs:
        output = build.text_of(build.folder / "bin" / program, "--gtest_color=no", "--gtest_brief=1",
                               OMP_NUM_THREADS="1", VIRTUAL_ENV=str(ROOT / ".venv"))  # to find HiGHS # fmt: skip
        found = re.search(r"\[  PASSED  \] (\d+) tests?", output)
        if found is None:
            raise CompatibilityError(f"{program} did not finish: {output[-2000:]}")
        passed += int(found[1])
        names = sorted(set(re.findall(r"^\[  FAILED  \] (\S+\.\S+?),? ", output, re.M)))
        failed += len(names)
        print(*names, sep="\n")
    return f"{passed:,} of {passed + failed:,}"


def conformance(build):
    samples = build.folder / "fixtures/opinfo.pt"
    samples.parent.mkdir(exist_ok=True)
    build.run(build.python, "tests/conformance/export_samples.py", samples, **build.of_package())
    output = build.text_of(build.folder / "bin/conformance", samples, "--allow", "tests/conformance/allow_list.txt",
                         "--jobs", build.jobs)  # fmt: skip
    found = re.search(r"([\d,]+) samples?.*", output)
    if found is None:
        raise CompatibilityError("conformance printed no number of samples")
    return found[0].strip()


def package(build):
    path = f"{build.folder / 'bin'}:{os.environ['PATH']}"
    output = build.text_of(build.python, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "tests/package",
                         PATH=path, VIRTUAL_ENV=str(ROOT / ".venv"), HF_HUB_OFFLINE="1",
                         **build.of_package())  # fmt: skip
    last = output.strip().splitlines()[-1]
    passed, failed = (int((re.search(rf"(\d+) {word}", last) or [0, 0])[1]) for word in ("passed", "failed"))
    if passed == 0:
        raise CompatibilityError(f"no test of the package passed: {last}")
    return f"{passed:,} of {passed + failed:,}"


def training_step(tool, model, device):
    """Returns the lines of the graph of a training step, without the version line."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "step.sg"
        command = [tool, "capture", model, "--mode", "train", "--device", device, "--optimizer", "adamw", "-o", path]
        subprocess.run(command, check=True, capture_output=True)
        return path.read_text().splitlines()[1:]


def graphs(build):
    """Compares captured training steps with those of the default build; prints differences."""
    same, notes = 0, []
    for model in MODELS:
        for device in ("cuda", "cpu"):
            theirs, ours = (training_step(folder / "bin/shadowgraph", model, device)
                            for folder in (ROOT / "build", build.folder))  # fmt: skip
            if theirs == ours:
                same += 1
                continue
            differing = sum(a != b for a, b in zip(theirs, ours)) + abs(len(theirs) - len(ours))
            notes.append(f"{model} on {device}: {differing:,} of {len(theirs):,} lines")
            print(notes[-1])
    return f"{same} of {2 * len(MODELS)}" + (f" ({'; '.join(notes)})" if notes else "")


# {step: (function that returns its cell of the table, column)}
STEPS = {"install": (install, None), "build": (build_all, None),
         "unit": (lambda build: google_tests(build, *UNIT), "unit tests"),
         "passes": (lambda build: google_tests(build, "passes_tests"), "pass tests"),
         "replay": (lambda build: google_tests(build, "replay_tests"), "replay tests"),
         "conformance": (conformance, "OpInfo conformance"), "package": (package, "package tests"),
         "graphs": (graphs, COLUMNS[-1])}  # fmt: skip
NEED_PYTHON = ("conformance", "package")  # steps that import torch


def write_row(version, cells):
    document = json.loads(FIGURES.read_text())
    table = document["tables"][0]
    rows = {row[0]: dict(zip(table["columns"], row)) for row in table["rows"]}
    row = rows.setdefault(version, dict.fromkeys(COLUMNS, "not run") | {"torch": version})
    row |= cells | {"date": datetime.date.today().isoformat()}
    known = [each.text for each in torch_versions.supported()]
    table["columns"] = COLUMNS
    table["rows"] = [[rows[each][column] for column in COLUMNS] for each in known if each in rows]
    document["measured"] = max(row[1] for row in table["rows"])
    write_figures.write(FIGURES, document)


ONE_CAPTURE = """
import torch, shadowgraph as sg
report = sg.profile(lambda: torch.nn.Linear(64, 64), "f32[8,64]", optimizer=torch.optim.AdamW, device="cuda")
report.graph.verify()
print("captured a training step with torch", torch.__version__, "of", len(report.graph), "nodes")
"""


def second(jobs, seconds):
    """Configures, compiles and runs one capture with the newest other version that can be installed.

    Not finishing within the time limit is reported, but is not a failure.
    """
    for row in reversed(torch_versions.supported()):
        if row.default:
            continue
        build = Build(row.text, jobs=jobs)
        try:
            build.install(seconds=INSTALL_SECONDS)
            break
        except CompatibilityError as error:
            print(f"compatibility: torch {row.text} cannot be installed here: {error}")
    else:
        print("compatibility: SKIPPED, no other version of torch can be installed")
        return 0
    build.configure("-DSHADOWGRAPH_BUILD_TESTS=OFF")
    deadline = time.monotonic() + seconds
    command = ["cmake", "--build", build.folder, "-j", jobs, "--target"]
    for target in ("sg_core_libtorch", "shadowgraph_python"):
        print("+", *command, target, flush=True)
        # A new session, so that the compilers can be terminated with it.
        compiling = subprocess.Popen([*map(str, command), target], cwd=ROOT, start_new_session=True)
        try:
            if compiling.wait(max(1, deadline - time.monotonic())):
                print(f"compatibility: {target} does not compile with torch {build.version}")
                return 1
        except subprocess.TimeoutExpired:
            os.killpg(compiling.pid, signal.SIGTERM)
            compiling.wait()
            print(f"compatibility: {target} was not finished after {seconds} s (COMPATIBILITY_SECONDS); all compiled "
                  f"files are compatible with torch {build.version}, and the next run continues")  # fmt: skip
            return 0
    build.run(build.python, "-c", ONE_CAPTURE, **build.of_package())
    return 0


ALL_SCHEMAS = "import torch\nprint(*sorted(str(s) for s in torch._C._jit_get_all_schemas()), sep='\\n')"


def schemas_of(build):
    return set(re.findall(r"^[\w.]+::.*", build.text_of(build.python, "-c", ALL_SCHEMAS, shown=False), re.M))


def schemas(old, new):
    before, after = (schemas_of(Build(version)) for version in (old, new))
    changes = [(text, "-") for text in before - after] + [(text, "+") for text in after - before]
    for text, sign in sorted(changes):
        print(sign, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?")
    for flag in ("--lean", "--list", "--second"):
        parser.add_argument(flag, action="store_true")
    for option in ("--steps", "--env", "--build"):
        parser.add_argument(option)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--schemas", nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.list:
        return print(*STEPS, sep="\n")
    if given.schemas:
        return schemas(*given.schemas)
    if given.second:
        return second(given.jobs, given.seconds)
    known = [row.text for row in torch_versions.supported()]
    possible = [step for step in STEPS if not given.lean or step not in NEED_PYTHON]
    steps = given.steps.split(",") if given.steps else possible
    if given.version not in known:
        parser.error(f"VERSION must be one of cmake/torch_versions.txt: {', '.join(known)}")
    if unknown := [step for step in steps if step not in STEPS]:
        parser.error(f"unknown step {', '.join(unknown)}; expected {', '.join(STEPS)}")
    if impossible := [step for step in steps if step not in possible]:
        parser.error(f"{' and '.join(impossible)} must import torch, which --lean does not support")
    build = Build(given.version, given.build, given.env, given.jobs, given.lean)
    for step in steps:
        function, column = STEPS[step]
        result = function(build)
        if column:
            print(f"=== {column}: {result}")
            write_row(given.version, {column: result})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CompatibilityError as error:
        sys.exit(f"compatibility: {error}")
