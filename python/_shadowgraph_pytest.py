"""pytest: what programs hold on a pretended GPU, held in tests. No GPU is needed, and nothing is allocated.

    @pytest.mark.gpu_memory("24GB")
    def test_a_step_fits(sg_profile):
        sg_profile(make_model, "f32[32,3,224,224]", loss=torch.mean, optimizer="adamw")

    def test_nothing_grew(sg_profile):
        sg_profile(make_model, "f32[32,3,224,224]", loss=torch.mean).check("step.baseline.json", max_peak="+1%")

sg_profile is shadowgraph.profile, and each report is held to the mark. A baseline that is not there is written by
`pytest --sg-update`, which also renews those that are.

Not in the package, whose import takes torch and two seconds: a session that profiles nothing pays nothing.
"""

import os
import re
import subprocess
import tempfile

import pytest

GREW = 4  # the tool's exit code


def pytest_addoption(parser):
    group = parser.getgroup("shadowgraph")
    group.addoption("--sg-update", action="store_true", help="write the baselines of sg_profile(...).check() anew")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gpu_memory(limit, of='device'): what sg_profile's reports may hold: a size such as '24GB', or a device such "
        "as 'l4', whose memory is meant; of: 'live', bytes of tensors, 'reserved', of the caching allocator, or "
        "'device', these with the CUDA context",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu_memory") and "sg_profile" not in item.fixturenames:
        pytest.fail("gpu_memory is of what sg_profile profiles, and this test does not take it", pytrace=False)


@pytest.fixture
def sg_profile(request):
    """shadowgraph.profile; each report is held to the test's mark gpu_memory, and has check(baseline)."""
    marker = request.node.get_closest_marker("gpu_memory")
    profile = _Profile(None if marker is None else _limit(*marker.args, **marker.kwargs),
                       request.config.getoption("--sg-update"))  # fmt: skip
    yield profile
    if marker is not None and not profile.reports:
        pytest.fail("gpu_memory holds nothing: the test called sg_profile not once", pytrace=False)


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
            problem = _too_much(report.dict(), *self._limit)
            if problem:
                pytest.fail(problem, pytrace=False)
        return _Held(report, self._update)


class _Held:
    """A report, and check()."""

    def __init__(self, report, update):
        self._report = report
        self._update = update

    def __getattr__(self, name):
        return getattr(self._report, name)

    def __str__(self):
        return str(self._report)

    def check(self, baseline, *, max_peak="+1%", max_time="+5%", spec=""):
        """Fails the test if the program grew beyond a baseline: `shadowgraph check`, whose table it shows."""
        __tracebackhide__ = True
        with tempfile.TemporaryDirectory() as folder:
            graph = os.path.join(folder, "step.sg")
            self._report.graph.save(graph)
            words = ["check", os.fspath(baseline), graph, *(["--spec", spec] if spec else [])]
            words += ["--update"] if self._update else ["--max-peak", max_peak, "--max-time", max_time]
            done = _run_tool(words)
        if done.returncode == GREW:
            pytest.fail(f"{os.fspath(baseline)}: {done.stdout}", pytrace=False)
        if done.returncode != 0:
            hint = "" if os.path.exists(baseline) else " (pytest --sg-update)"
            pytest.fail(done.stderr.strip() + hint, pytrace=False)


def _run_tool(words):
    import _shadowgraph_tool

    tool = _shadowgraph_tool.path()
    if tool is None:
        pytest.fail("this build of shadowgraph has no tool, by which baselines are checked", pytrace=False)
    environment = _shadowgraph_tool.environment(_shadowgraph_tool.folder_of("torch"))
    return subprocess.run([tool, *words], env=environment, capture_output=True, text=True)


def _limit(limit, of="device"):
    """(bytes, of which figure, what the test wrote)."""
    if of not in ("live", "reserved", "device"):
        raise pytest.UsageError(f"gpu_memory(of={of!r}): there are 'live', 'reserved' and 'device'")
    if isinstance(limit, int) and not isinstance(limit, bool):
        if limit < 1 << 20:
            raise pytest.UsageError(f"gpu_memory({limit}): bytes are meant, and so few hold no program: '24GB'?")
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
            f"gpu_memory({limit!r}): a size such as '24GB' or a device is meant; there are {', '.join(_devices())}"
        )
    return memory, of, f"the memory of {limit}"


def _devices():
    """Bytes by name of device, as `shadowgraph list devices` has them."""
    import json

    done = _run_tool(["list", "devices", "--json"])
    return {each["name"]: each["memory_bytes"] for each in json.loads(done.stdout) if each.get("memory_bytes")}


def _too_much(figures, limit, of, text):
    """What to say of a report that holds more; None if it does not."""
    import shadowgraph as sg

    memory = figures.get("device_memory")
    if memory is None or of == "live":
        held, what = figures["peak"]["bytes"], "of tensors at the peak"
    elif of == "reserved":
        held, what = memory["reserved_peak_bytes"], "reserved by the caching allocator"
    else:
        held, what = memory["footprint_bytes"], "on the device, with its context"
    if held <= limit:
        return None
    human = sg._shadowgraph.human_bytes
    lines = [f"{human(held)} {what}: {human(held - limit)} more than {text}", "the largest at the peak:"]
    for live in figures["top_at_peak"][:5]:
        module = f" in {live['module']}" if live.get("module") else ""
        lines.append(f"  {human(live['bytes']):>12}  {live['kind']} {live['op']}{module}")
    return "\n".join(lines)
