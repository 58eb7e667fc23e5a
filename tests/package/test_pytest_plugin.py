"""The pytest plugin: sg_profile, gpu_memory, baselines; each in a separate pytest session."""

import os
import pathlib
import subprocess
import sys

import pytest

MODEL = """
import pytest, torch
WIDTH = 512
def net(): return torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 64))
def step(sg_profile, **how):
    return sg_profile(net, "f32[256,64]", loss=torch.mean, optimizer="adamw", device="cuda", **how)
"""


@pytest.fixture
def session(tmp_path):
    def run(text, *words):
        (tmp_path / "test_it.py").write_text(MODEL + text)
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run([sys.executable, "-m", "pytest", "-p", "_shadowgraph_pytest", "-q", "-p",
                               "no:cacheprovider", "--strict-markers", *words], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)  # fmt: skip

    return run


def test_what_fits_passes_and_what_does_not_says_by_how_much(session):
    done = session("""
@pytest.mark.gpu_memory("1GB")
def test_fits(sg_profile):
    assert step(sg_profile).peak_bytes > 0

@pytest.mark.gpu_memory("1MB", of="live")
def test_does_not(sg_profile):
    step(sg_profile)

@pytest.mark.gpu_memory("l4")
def test_on_a_device(sg_profile):
    step(sg_profile)

@pytest.mark.gpu_memory("500MB")
def test_the_context_counts(sg_profile):
    step(sg_profile)

@pytest.mark.gpu_memory(2100000, of="live")
def test_bytes(sg_profile):
    step(sg_profile)
""")
    assert done.returncode == 1 and "2 failed, 3 passed" in done.stdout
    assert "of tensors at the peak:" in done.stdout and "more than 1MB" in done.stdout
    assert "aten::" in done.stdout and "on the device, including the CUDA context:" in done.stdout


def test_a_mark_that_holds_nothing_fails(session):
    done = session("""
@pytest.mark.gpu_memory("1GB")
def test_no_fixture():
    pass

@pytest.mark.gpu_memory("1GB")
def test_no_call(sg_profile):
    pass
""")
    assert done.returncode == 1 and "requires the sg_profile" in done.stdout
    assert "never called sg_profile" in done.stdout


@pytest.mark.parametrize(("limit", "said"), [
    ('"24"', "a size such as '24GB'"), ('"lots"', "one of the devices "), ("24", "must be at least 1 MiB"),
    ('"1GB", of="all"', "expected 'live'")])  # fmt: skip
def test_a_limit_that_is_none(limit, said, session):
    done = session(f"""
@pytest.mark.gpu_memory({limit})
def test_it(sg_profile):
    step(sg_profile)
""")
    assert done.returncode != 0 and said in done.stdout, done.stdout


def test_baselines(session, tmp_path):
    text = """
def test_it(sg_profile):
    step(sg_profile).check("step.json")
"""
    done = session(text)
    assert done.returncode == 1 and "--sg-update" in done.stdout and not (tmp_path / "step.json").exists()
    assert session(text, "--sg-update").returncode == 0
    written = (tmp_path / "step.json").read_bytes()
    assert session(text).returncode == 0
    done = session(text.replace("def test_it", "WIDTH = 640\ndef test_it"))
    assert done.returncode == 1 and "peak memory grew" in done.stdout and "aten::" in done.stdout
    assert (tmp_path / "step.json").read_bytes() == written


def test_a_session_without_it_imports_no_torch(session, tmp_path):
    (tmp_path / "test_other.py").write_text("import sys\ndef test_it(): assert 'torch' not in sys.modules\n")
    done = session("", "test_other.py")
    assert done.returncode == 0, done.stdout


def test_the_package_registers_it():
    text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nshadowgraph = "_shadowgraph_pytest"' in text
