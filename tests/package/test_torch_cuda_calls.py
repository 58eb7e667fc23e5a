"""Calls of torch.cuda and torch.accelerator that programs make, on a simulated device; pinned memory; other devices."""

import subprocess
import sys

import pytest
import torch
from torch.cuda import memory_allocated as imported_early
from torch.nn.parallel import DataParallel, comm

import shadowgraph as sg

MEMORY = {
    "imported early": lambda: imported_early(),
    "of the module": lambda: torch.cuda.memory.max_memory_allocated(),
    "stats": lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"],
    "summary": lambda: torch.cuda.memory_summary(),
    "host": lambda: torch.cuda.host_memory_stats(),
    "free": lambda: torch.cuda.memory.mem_get_info(),
    "snapshot": lambda: torch.cuda.memory._snapshot(),
    "accelerator": lambda: torch.accelerator.memory_allocated(),
    "accelerator's peak": lambda: torch.accelerator.max_memory_reserved(),
    "utilization": lambda: torch.cuda.utilization(),
}


@pytest.mark.parametrize("name", MEMORY)
def test_measurements_are_refused_rather_than_zero(name):
    with sg.fake("cuda"), pytest.raises(sg.DataDependentError, match="not available on a simulated device.*profile"):
        MEMORY[name]()


REFUSED = {
    "graph": (lambda: torch.cuda.CUDAGraph(), "CUDA graphs are not simulated"),
    "callables": (
        lambda: torch.cuda.make_graphed_callables(torch.nn.Linear(2, 2).cuda(), (torch.ones(2, 2, device="cuda"),)),
        "CUDA graphs are not simulated",
    ),
    "graph of any accelerator": (
        lambda: getattr(torch.accelerator, "Graph", torch.cuda.CUDAGraph)(),
        "CUDA graphs are not simulated",
    ),
    "pool": (lambda: torch.cuda.MemPool(), "memory pools are not simulated"),
    "handle": (lambda: torch.cuda.current_blas_handle(), "_cuda_getCurrentBlasHandle is not available"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_simulated_is_named(name):
    call, message = REFUSED[name]
    with sg.fake("cuda"), pytest.raises(sg.UnsupportedError, match=message):
        call()


def test_calls_without_an_effect_on_tensors():
    with sg.fake("cuda", device_count=2):
        for function in (
            torch.cuda.empty_cache, torch.cuda.reset_peak_memory_stats, torch.cuda.reset_accumulated_memory_stats,
            torch.cuda.ipc_collect, torch.cuda.profiler.start, torch.cuda.profiler.stop,
            torch.accelerator.empty_cache, torch.accelerator.reset_peak_memory_stats,
            torch.accelerator.reset_accumulated_memory_stats, torch.accelerator.synchronize,
            torch.cuda.memory._record_memory_history,
        ):  # fmt: skip
            assert function() is None
        if hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()
        with torch.cuda.nvtx.range("step"):
            torch.cuda.nvtx.mark("here")
        torch.cuda.set_per_process_memory_fraction(0.5)
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.get_arch_list() == ["sm_90"]
        assert torch.cuda.can_device_access_peer(0, 1) and not torch.cuda.can_device_access_peer(0, 0)
    assert not hasattr(torch._C, "_cuda_getCurrentBlasHandle") or torch.version.cuda
    with pytest.raises((RuntimeError, AssertionError, AttributeError)):
        torch.cuda.current_blas_handle()


def test_seeds_of_devices():
    with sg.fake("cuda", device_count=2):
        torch.manual_seed(5)
        assert torch.cuda.initial_seed() == 5 and len(torch.cuda.default_generators) == 2
        torch.cuda.manual_seed(6)
        with torch.cuda.device(1):
            assert torch.cuda.initial_seed() == 5
        assert torch.cuda.initial_seed() == torch.cuda.default_generators[0].initial_seed() == 6
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
        with torch.random.fork_rng():
            torch.cuda.seed()


def test_pinned_tensors():
    def pinned(make):
        with sg.fake("cuda"):
            made = make()
            assert made.is_pinned() and made[:1].is_pinned() and made.pin_memory() is made
            assert made.device.type == "cpu" and not made.clone().is_pinned()

    pinned(lambda: torch.ones(2).pin_memory())
    pinned(lambda: torch.empty(2, pin_memory=True))
    pinned(lambda: torch.zeros(2, dtype=torch.int32, pin_memory=True))
    pinned(lambda: torch.full((2,), 3.0, pin_memory=True))
    pinned(lambda: torch.arange(2, pin_memory=True))
    pinned(lambda: torch.randn(2, pin_memory=True))
    pinned(lambda: torch.empty_like(torch.ones(2, device="cuda"), device="cpu", pin_memory=True))
    pinned(lambda: torch.ones(2).new_empty(2, pin_memory=True))
    pinned(lambda: torch.tensor([1.0, 2.0], pin_memory=True))
    pinned(lambda: torch.ones(2, device="cuda").to("cpu", non_blocking=True))
    with sg.fake("cuda"):
        for other in (torch.ones(2), torch.ones(2, device="cuda"), torch.ones(2, device="cuda").cpu()):
            assert not other.is_pinned()
        assert not torch.empty_like(torch.ones(2).pin_memory()).is_pinned()
        for make in (lambda: torch.ones(2, device="cuda").pin_memory(),
                     lambda: torch.ones(2, device="cuda", pin_memory=True)):  # fmt: skip
            with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
                make()
        assert torch.tensor([1.0, 2.0], pin_memory=True).tolist() == [1.0, 2.0]
    with sg.fake("cpu", device_count=0), pytest.raises(RuntimeError, match="accelerator"):
        torch.ones(2, pin_memory=True)
    assert not torch.ones(2).is_pinned()


def test_scatter_gather_and_broadcast():
    with sg.fake("cuda", device_count=4):
        parts = comm.scatter(torch.ones(8, 3, device="cuda"), [0, 1, 2])
        assert [(part.shape[0], part.device.index) for part in parts] == [(3, 0), (3, 1), (2, 2)]
        parts = comm.scatter(torch.ones(8, 3), [1, 3], chunk_sizes=[6, 2])
        assert [(part.shape[0], part.device.index) for part in parts] == [(6, 1), (2, 3)]
        whole = comm.gather(parts, destination=2)
        assert whole.shape == (8, 3) and whole.device.index == 2 and comm.gather(parts, destination="cpu").is_cpu
        weights = [torch.ones(4, device="cuda"), torch.ones(2, 2, device="cuda"), torch.ones(3, device="cuda").half()]
        copies = comm.broadcast_coalesced(weights, [0, 1])
        assert all(copy is weight for copy, weight in zip(copies[0], weights))
        assert [(copy.shape, copy.dtype, copy.device.index) for copy in copies[1]] == [
            (weight.shape, weight.dtype, 1) for weight in weights]  # fmt: skip
        total = comm.reduce_add([torch.ones(4, device=f"cuda:{index}") for index in range(3)], destination=1)
        assert total.device.index == 1


def test_data_parallel_runs_each_replica_in_the_capture():
    make = lambda: DataParallel(torch.nn.Linear(8, 16).cuda(), device_ids=[0, 1, 2])  # noqa: E731
    graph = sg.profile(make, "f32[12,8]", loss=torch.sum, device="cuda", device_count=3).graph
    graph.verify()
    assert [str(node).count("f32[4,16]") for node in graph.find("aten::addmm")] == [1, 1, 1]
    assert not any("threading.py" in str(node) for node in graph.nodes)
    # Each replica's gradients as one buffer of 8 x 16 + 16; two are sent to the first device.
    buffers = [node for node in graph.find("aten::cat") if "f32[144]" in str(node) and "backward" in str(node)]
    sent = [node for node in graph.find("aten::copy_") if "f32[144]" in str(node)]
    assert len(buffers) == 3 and len(sent) == 2


def test_xpu_and_a_custom_device():
    net = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))  # noqa: E731
    peaks = {}
    for device in ("cuda", "xpu"):
        report = sg.profile(net, "f32[3,4]", loss=torch.sum, optimizer="sgd", device=device)
        peaks[device] = report.dict()["peak"]["bytes"]
    assert peaks["xpu"] == peaks["cuda"]
    with sg.fake("xpu"):
        assert torch.xpu.is_available() and torch.xpu.device_count() == 1 and torch.xpu.current_device() == 0
        torch.xpu.set_device(1)
        assert torch.ones(2, device="xpu").device.index == torch.accelerator.current_device_index() == 1
        torch.xpu.synchronize()
        with pytest.raises(sg.DataDependentError, match="torch.xpu.memory_stats"):
            torch.xpu.memory_allocated()
    assert not torch.xpu.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(2, device="xpu")


def test_an_unnamed_custom_device():
    program = """
import torch, shadowgraph as sg
with sg.fake("privateuseone"):
    net = torch.nn.Linear(4, 2).to("privateuseone")
    y = net(torch.ones(3, 4, device="privateuseone")).sum()
    try:
        y.backward()
    except sg.Error as error:
        print(error)
try:
    torch.ones(2, device="privateuseone")
except (RuntimeError, ModuleNotFoundError) as error:
    print(error)
torch.utils.backend_registration._setup_privateuseone_for_python_backend("acme")
with sg.fake("acme"):
    net = torch.nn.Linear(4, 2).to("acme")
    net(torch.ones(3, 4, device="acme")).sum().backward()
    print(net.weight.grad.device)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second, third = run.stdout.splitlines()
    assert "_setup_privateuseone_for_python_backend" in first and "privateuseone" in second and third == "acme:0"
