"""The package within a process: import order, thread-local storage, memory over many captures."""

import pathlib
import re
import subprocess
import sys

import pytest
import torch
from _shadowgraph_build import TORCH_VERSION
from test_capture import Net
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.fake_tensor import is_fake as is_torchs_fake

import shadowgraph as sg

USE = """
import torch, shadowgraph as sg
graph = sg.capture_training_step(torch.nn.Linear(4, 2), "f32[3,4]", device="cuda", optimizer=torch.optim.AdamW)
graph.verify()
assert not torch.cuda.is_available()
"""


@pytest.mark.parametrize("before", ["", "import shadowgraph", "import torch", "import numpy",
                                    "import transformers, torch",
                                    "import torch._dynamo, torch.testing", "import torch; torch.cuda.is_available()",
                                    "import torch; torch.ones(2, requires_grad=True).sum().backward()"])  # fmt: skip
def test_orders_of_import(before):
    subprocess.run([sys.executable, "-c", before + USE], check=True)


def test_another_torch_is_refused_in_one_sentence():
    code = "import torch; torch.__version__ = '2.99.0'\ntry:\n import shadowgraph\nexcept ImportError as e:\n print(e)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert TORCH_VERSION in said and "2.99.0" in said and said.count("\n") == 1


def test_thread_local_storage_fits_into_what_is_left_for_libraries_loaded_late():
    (library,) = set(re.findall(r"\S+/libshadowgraph\.so\S*", pathlib.Path("/proc/self/maps").read_text()))
    headers = subprocess.run(["readelf", "-lW", library], check=True, capture_output=True, text=True).stdout
    (size,) = re.findall(r"^\s+TLS(?:\s+0x\w+){4}\s+(0x\w+)", headers, re.M)
    assert int(size, 16) < 512


def resident_pages():
    return int(open("/proc/self/statm").read().split()[1])


def test_many_captures_leave_nothing_behind():
    net = Net()

    def capture():
        sg.profile(net, "f32[8,16]", device="cuda", optimizer=torch.optim.AdamW)

    for _ in range(100):
        capture()
    before = resident_pages()
    for _ in range(1000):
        capture()
    assert resident_pages() - before < 1024  # 4 MiB; one graph takes some 100 KiB


def test_a_module_call_is_the_modules_own():
    # Forward hooks, keyword arguments, several results, and exceptions from a call.
    class Odd(torch.nn.Module):
        def forward(self, x, *more, scale=1, **others):
            if others:
                raise ValueError(f"not {sorted(others)}")
            return x * scale, len(more)

    odd, seen = Odd(), []
    odd.register_forward_hook(lambda module, args, output: seen.append(len(args)))

    def program(x):
        assert odd(x, 1, 2, scale=3)[1] == 2
        with pytest.raises(ValueError, match="not"):
            odd(x, other=1)
        with pytest.raises(TypeError):
            odd()
        return odd(x)[0]

    graph = sg.capture(program, "f32[2]")
    assert seen == [3, 1]
    assert len(graph.find("aten::mul")) == 2


def test_leaving_a_module_that_was_not_entered_is_an_error():
    # A capture that begins inside a module's call also ends there.
    class Inside(torch.nn.Module):
        def forward(self, x):
            self.graph = sg.capture(lambda y: y + 1, "f32[2]")
            return x

    inside = Inside()
    outer = sg.capture(inside, "f32[2]")
    assert len(inside.graph.find("aten::add")) == 1 and not outer.find("aten::add")


def test_a_torch_without_a_private_part_is_refused_in_words():
    program = (
        "import torch, torch.utils.checkpoint as c; del c._recomputation_hook\n"
        "import shadowgraph as sg\n"
        "try:\n    with sg.fake('cuda'): pass\n"
        "except sg.Error as error: print(error)\n"
        "assert torch.empty(2).sum().device.type == 'cpu' and not torch.cuda.is_available()"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "has no torch.utils.checkpoint._recomputation_hook" in run.stdout


def test_a_triton_kernel_on_fakes_is_refused_by_name():
    triton = pytest.importorskip("triton")  # included in PyTorch's CUDA wheels

    @triton.jit
    def doubled(pointer):
        pass

    with sg.fake("cuda"), pytest.raises(sg.NoRuleError, match="Triton kernel doubled .*custom_op and register_fake"):
        doubled[(1,)](torch.ones(4, device="cuda"))


def test_fakes_are_none_of_torchs_own():
    with sg.fake("cpu"):
        assert not is_torchs_fake(torch.ones(2)) and "size=" not in repr(torch.ones(2))
    with FakeTensorMode():
        assert is_torchs_fake(torch.ones(2))


def test_cuda_is_missing_in_torchs_words_afterwards():
    program = """
import torch
def said():
    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        return str(error), torch.cuda.is_initialized()
before = said()
import shadowgraph as sg
with sg.fake("cuda"):
    torch.empty(2, device="cuda")
assert said() == before, (said(), before)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_import_inside_a_capture_frees_its_cycles(tmp_path):
    (tmp_path / "imported_late.py").write_text("""
try:
    raise ValueError
except ValueError as error:
    holder = type("Holder", (), {})()
    holder.error, holder.itself = error, holder  # a cycle that keeps the frames of the import
    del holder
""")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch, shadowgraph as sg
class Net(torch.nn.Module):
    def first(self, x):
        y = x * 2
        import imported_late
        return y.sum()
    def forward(self, x):
        return self.first(x) + (x * 3).sum() + (x * 4).sum()
print(*[sg.profile(Net, "f32[1024]", device="cpu", mode="infer").dict()["peak"]["bytes"] for _ in range(2)])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second = map(int, run.stdout.split())
    assert first == second < 3 * 4096
