"""pytest plugin that limits the GPU memory of a program on a simulated device. Needs no GPU and allocates nothing.

    @pytest.mark.gpu_memory("24GB")
    def test_a_step_fits(sg_profile):
        sg_profile(make_model, "f32[32,3,224,224]", loss=torch.mean, optimizer="adamw")

    def test_no_regression(sg_profile):
        sg_profile(make_model, "f32[32,3,224,224]", loss=torch.mean).check("step.baseline.json", max_peak="+1%")

The fixture sg_profile calls shadowgraph.profile and checks each report against the gpu_memory marker.
`pytest --sg-update` writes missing baselines and updates existing ones.

The plugin is a module outside the package, because importing the package imports torch (about two seconds).
"""

import os
import re
import subprocess
import tempfile

import pytest

REGRESSION = 4  # exit code of `shadowgraph check`


def pytest_addoption(parser):
    group = parser.getgroup("shadowgraph")
    group.addoption("--sg-update", action="store_true", help="write or update the baselines of sg_profile(...).check()")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gpu_memory(limit, of='device'): memory limit for programs profiled by sg_profile. limit: a size such as "
        "'24GB', or a device such as 'l4' for its memory; of: 'live' (tensor bytes), 'reserved' (by the caching "
        "allocator) or 'device' (reserved plus the CUDA context)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu_memory") and "sg_profile" not in item.fixturenames:
        pytest.fail("the gpu_memory marker requires the sg_profile fixture; add it as an argument", pytrace=False)


@pytest.fixture
def sg_profile(request):
    """Returns shadowgraph.profile with reports that are checked against gpu_memory and have check(baseline)."""
    marker = request.node.get_closest_marker("gpu_memory")
    profile = _Profile(None if marker is None else _limit(*marker.args, **marker.kwargs),
                       request.config.getoption("--sg-update"))  # fmt: skip
    yield profile
    if marker is not None and not profile.reports:
        pytest.fail("gpu_memory has no effect: the test never called sg_profile", pytrace=False)


class _Profile:
    def __init__(self, limit, update):
        self._limit = limit
        self._update = update
        self.reports = []

    def __call__(self, *args, **options):
        __tracebackhide__ = True
        import shadowgraph as sg

        report = sg.profile(*args, **options)
        self.reports.append(report)
        if self._limit is not None:
            problem = _limit_exceeded(report.dict(), *self._limit)
            if problem:
                pytest.fail(problem, pytrace=False)
        return _CheckedReport(report, self._update)


class _CheckedReport:
    """A report with check()."""

    def __init__(self, report, update):
        self._report = report
        self._update = update

    def __getattr__(self, name):
        return getattr(self._report, name)

    def __str__(self):
        return str(self._report)

    def check(self, baseline, *, max_peak="+1%", max_time="+5%", spec=""):
        """Fails the test if the program regressed against a baseline, with the table of `shadowgraph check`."""
        __tracebackhide__ = True
        with tempfile.TemporaryDirectory() as folder:
            graph = os.path.join(folder, "step.sg")
            self._report.graph.save(graph)
            words = ["check", os.fspath(baseline), graph, *(["--spec", spec] if spec else [])]
            words += ["--update"] if self._update else ["--max-peak", max_peak, "--max-time", max_time]
            done = _run_tool(words)
        if done.returncode == REGRESSION:
            pytest.fail(f"{os.fspath(baseline)}: {done.stdout}", pytrace=False)
        if done.returncode != 0:
            hint = "" if os.path.exists(baseline) else " (run pytest --sg-update to create it)"
            pytest.fail(done.stderr.strip() + hint, pytrace=False)


def _run_tool(words):
    import _shadowgraph_tool

    tool = _shadowgraph_tool.path()
    if tool is None:
        pytest.fail("this build of shadowgraph lacks the command line tool, which check() needs", pytrace=False)
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    return subprocess.run([tool, *words], env=environment, capture_output=True, text=True)


def _limit(limit, of="device"):
    """Returns (bytes, kind of memory, limit as text)."""
    if of not in ("live", "reserved", "device"):
        raise pytest.UsageError(f"gpu_memory(of={of!r}): expected 'live', 'reserved' or 'device'")
    if isinstance(limit, int) and not isinstance(limit, bool):
        if limit < 1 << 20:
            raise pytest.UsageError(f"gpu_memory({limit}): a number is in bytes and must be at least 1 MiB; use '24GB'")
        return limit, of, f"{limit:,} bytes"
    found = re.fullmatch(r"([\d.]+) *([KMGT])(i?)B", limit)
    if found:
        try:
            return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2])), of, limit
        except ValueError:
            pass
    memory = _devices().get(limit.lower())
    if memory is None:
        raise pytest.UsageError(
            f"gpu_memory({limit!r}): expected a size such as '24GB' or one of the devices {', '.join(_devices())}"
        )
    return memory, of, f"the memory of {limit}"


def _devices():
    """Returns {device name: memory in bytes} from `shadowgraph list devices`."""
    import json

    done = _run_tool(["list", "devices", "--json"])
    return {each["name"]: each["memory_bytes"] for each in json.loads(done.stdout) if each.get("memory_bytes")}


def _limit_exceeded(costs, limit, of, text):
    """Returns the failure message if the report exceeds the limit, else None."""
    import shadowgraph as sg

    memory = costs.get("device_memory")
    if memory is None or of == "live":
        used, what = costs["peak"]["bytes"], "of tensors at the peak"
    elif of == "reserved":
        used, what = memory["reserved_peak_bytes"], "reserved by the caching allocator"
    else:
        used, what = memory["footprint_bytes"], "on the device, including the CUDA context"
    if used <= limit:
        return None
    human = sg._shadowgraph.human_bytes
    lines = [f"{human(used)} {what}: {human(used - limit)} more than {text}", "largest tensors at the peak:"]
    for live in costs["top_at_peak"][:5]:
        module = f" in {live['module']}" if live.get("module") else ""
        lines.append(f"  {human(live['bytes']):>12}  {live['kind']} {live['op']}{module}")
    return "\n".join(lines)
