"""Ctrl-C at every function entry and exit: afterwards no mode is active, no module is fake and no flag is set.

SHADOWGRAPH_INTERRUPTS=all tries every point instead of a sample.
"""

import copy
import gc
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import shadowgraph as sg
from shadowgraph import _pipelines, _process, _thread_views
from shadowgraph import _shadowgraph as _C

POINTS = None if os.environ.get("SHADOWGRAPH_INTERRUPTS") == "all" else 60


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


NET = Net().eval()


def profile():
    sg.profile(NET, "f32[4,6]", loss=torch.sum, optimizer="adamw", device="cuda", autocast="bf16")


def profile_of_a_function():
    sg.profile(Net, "f32[4,6]", loss=torch.sum, optimizer="adamw", dtype=torch.bfloat16, accumulate=2,
               clip_grad_norm=1.0, host_reads="finite")  # fmt: skip


def capture():
    with sg.Capture("cuda") as session:
        net = Net().cuda()
        with sg.phase("forward"), sg.region("all"):
            loss = net(torch.empty(4, 6, device="cuda")).sum()
        loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        session.finish(loss)


def modes():
    with sg.fake("cuda") as mode, torch.no_grad():
        x = mode.from_real(torch.ones(3))
        with sg.unfake():
            torch.ones(2)
        with torch.autocast("cpu"):
            x @ x


def deferred():
    with sg.DeferredInit("cuda"):
        Net()
    sg.materialize_module(sg.deferred_init(Net))


def process_group():
    with sg.fake_process_group(4, rank=1):
        sg.capture_training_step(lambda: torch.nn.parallel.DistributedDataParallel(Net()), "f32[4,6]")


def ranks():
    with sg.fake_process_group(2):
        for rank in range(2):
            with _pipelines.as_rank(rank):
                dist.all_reduce(torch.ones(2))


def compiled():
    with sg.compile_operators(["aten::add.Tensor"], measure=False) as operators:
        torch.ones(3) + 1
        operators.report()
    operators.close()


PROGRAMS = (profile, profile_of_a_function, capture, modes, deferred, process_group, ranks, compiled)


def state():
    tables = [vars(module)[name] for module in NET.modules() for name in ("_parameters", "_buffers")]
    return {
        "a mode is active": _C.is_active() or _C.is_deferring() or _C.is_capturing(),
        "ones() is fake": sg.is_fake(torch.ones(2)),
        "flags in use": _process.flags.in_use,
        "cuda": (torch.cuda.is_available(), torch.version.cuda),
        "module": (Net.__call__, "training" in vars(torch.nn.Module)),
        "tables": [(type(table), [(name, id(tensor)) for name, tensor in table.items()]) for table in tables],
        "training": [module.training for module in NET.modules()],
        "thread": (_thread_views._thread.training, dict(_thread_views._changed)),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"),
                     torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()),
        "dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "function modes": torch._C._len_torch_function_stack(),
        "lift": torch._C._only_lift_cpu_tensors(),
        "garbage collection": gc.isenabled(),
        "environment": {name: os.environ.get(name) for name in ("HF_DEACTIVATE_ASYNC_LOAD", "RANK", "WORLD_SIZE")},
        "process group": (dist.is_initialized(), len(dist.distributed_c10d._pg_map), sys.excepthook),
        "distributed": (dist._verify_params_across_processes, torch._C._distributed_c10d.Reducer.__init__),
        "shapes": _pipelines.PipelineShapes.here(),
        "add": "kernel" in torch._C._dispatch_dump("aten::add.Tensor").split("shadowgraph")[-1] and
               torch._C._dispatch_dump("aten::add.Tensor"),
    }  # fmt: skip


def interrupted(program, point):
    """Raises KeyboardInterrupt at the n-th event of the program. Returns the number of events before its end."""
    count = 0

    def event(frame, kind, argument):
        nonlocal count
        if frame.f_code is interrupted.__code__:
            return
        count += 1
        if count - 1 == point:
            raise KeyboardInterrupt(f"{kind} of {frame.f_code.co_qualname}, line {frame.f_lineno}")

    kept = None
    sys.setprofile(event)
    try:
        program()
    except BaseException as error:
        kept = error
    finally:
        sys.setprofile(None)
    return count, kept


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_an_interrupt_restores_everything(program):
    x = torch.randn(4, 6)
    want, weights = NET(x), copy.deepcopy(NET.state_dict())
    program()
    program()
    before = state()
    total, _ = interrupted(program, None)
    assert state() == before
    points = range(total) if POINTS is None else range(0, total, max(1, total // POINTS))
    bad = {}
    for point in points:
        _, kept = interrupted(program, point)
        after = state()
        if after != before:
            changes = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
            bad[f"{point}: {kept!r}"] = changes
            break
        # Other errors would hide the interrupt.
        assert kept is None or isinstance(kept, KeyboardInterrupt), (point, kept)
    assert not bad
    assert torch.equal(NET(x), want)
    assert all(torch.equal(weights[name], value) for name, value in NET.state_dict().items())
    program()
    assert state() == before


SIGNALS = """
import random, signal, sys
sys.path.insert(0, {folder!r})
import test_interrupts as t
random.seed({seed})
t.profile(); t.capture(); t.deferred()
before, hits, sent = t.state(), 0, 0

def interrupt(number, frame):
    global sent
    sent += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
for k in range({rounds}):
    program = (t.profile, t.capture, t.deferred, t.modes)[k % 4]
    try:
        # Repeated, since Python ignores exceptions in callbacks of weak references and destructors.
        signal.setitimer(signal.ITIMER_REAL, 0.001 + random.random() * 0.02, 1.0)
        while True:
            program()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        hits += 1
    after = t.state()
    assert after == before, (k, {{name: (before[name], after[name]) for name in before if before[name] != after[name]}})
assert hits == {rounds} and sent <= 1.2 * hits, (hits, sent)
print(hits, sent)
"""


def test_real_signals():
    rounds = 800 if POINTS is None else 60
    code = SIGNALS.format(folder=os.path.dirname(__file__), seed=random_seed(), rounds=rounds)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def random_seed():
    seed = int(os.environ.get("SHADOWGRAPH_RANDOM_SEED", "1"))
    print("SHADOWGRAPH_RANDOM_SEED", seed)
    return seed
