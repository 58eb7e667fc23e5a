#!/usr/bin/env python3
"""Measures programs.py and single_operators.py on an NVIDIA GPU: peak memory, times, and memory of libraries.

    python measure.py -o FOLDER [--only NAME ...] [--seconds 400]

Requires torch, and for some programs transformers, timm, peft, torchvision. Each program runs in a separate process,
forked after importing torch. FOLDER/programs.json and operators.json are updated after each row.
"""

import argparse
import gc
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time
import traceback

import held_out  # noqa: F401 - adds operators
import programs
import ranks  # noqa: F401 - adds programs
import single_operators as operators
import torch
import workspaces

STEPS, MORE = 3, 6
FORKS = True


def apart(function, *arguments, limit=120):
    """Returns the result of `function` in a forked process, or {"failed": error}."""
    if not FORKS:
        return in_a_process(limit, function, *arguments)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            result = function(*arguments)
        except BaseException:
            result = {"failed": traceback.format_exc()[-3000:]}
        with os.fdopen(write, "w") as out:
            out.write(json.dumps(result))
        os._exit(0)
    os.close(write)
    began = time.perf_counter()
    with os.fdopen(read) as given:
        text = ""
        while True:
            ready, _, _ = select.select([given], [], [], 1.0)
            if ready:
                piece = os.read(given.fileno(), 1 << 20).decode()
                if not piece:
                    break
                text += piece
            elif time.perf_counter() - began > limit:
                os.kill(child, 9)
                break
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": "timeout"}


def in_a_process(limit, function, *arguments):
    """Like apart(), for machines where CUDA does not work after a fork."""
    command = [sys.executable, __file__, "--one", json.dumps([function.__name__, *arguments])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": "timeout"}
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {"failed": run.stderr[-3000:]}


def peaks():
    stats = torch.cuda.memory_stats()
    return {kind: stats[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "active", "reserved")}


def timed(step):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    began = time.perf_counter()
    step()
    issued = time.perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, issued


def measured(name):
    """Returns peaks of the first STEPS steps, and times of MORE further steps."""
    torch.cuda.init()
    function = programs.PROGRAMS[name]
    if function.world > 1:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=function.rank, world_size=function.world, store=FakeStore())
    elif function.world == 1 and function.alone:
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
        dist.init_process_group("nccl", rank=0, world_size=1)
    if function.world > 1 or function.alone:
        torch.cuda.set_device(0)
    torch.manual_seed(0)
    began = time.perf_counter()
    step = function()
    torch.cuda.synchronize()
    row = {"building_seconds": time.perf_counter() - began, "built": peaks()}
    stats = torch.cuda.memory_stats
    row["after_steps"], row["reserved_after_steps"], row["step_peaks"] = [], [], []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        row["after_steps"].append(stats()["allocated_bytes.all.current"])
        row["reserved_after_steps"].append(stats()["reserved_bytes.all.current"])
        row["step_peaks"].append(peaks())
    row["peaks"] = {kind: max(each[kind] for each in [row["built"], *row["step_peaks"]]) for kind in row["built"]}
    row["retries"] = stats()["num_alloc_retries"]
    times = [timed(step) for _ in range(MORE)]
    row["seconds"] = statistics.median(each for each, _ in times)
    row["host_seconds"] = statistics.median(each for _, each in times)
    row["all_seconds"] = [each for each, _ in times]
    free, total = torch.cuda.mem_get_info()
    row["used_outside"] = total - free - stats()["reserved_bytes.all.current"]
    gc.collect()
    return row


def constants():
    """Returns device memory outside the caching allocator in bytes, after loading each library."""

    def used():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    rows = {"context": used()}
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    rows["first kernel"] = used()
    before = torch.cuda.memory_allocated()
    a @ a
    rows["cublas"], rows["cublas workspace"] = used(), torch.cuda.memory_allocated() - before
    before = torch.cuda.memory_allocated()
    torch.nn.functional.linear(a, a, a[0])
    rows["cublasLt"], rows["cublasLt workspace"] = used(), torch.cuda.memory_allocated() - before
    x = torch.randn(8, 64, 56, 56, device="cuda")
    torch.nn.functional.conv2d(x, torch.randn(64, 64, 3, 3, device="cuda"))
    rows["cudnn"] = used()
    q = torch.randn(1, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    rows["attention"] = used()
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    dist.all_reduce(a)
    rows["nccl, alone"] = used()
    return rows


def versions():
    properties = torch.cuda.get_device_properties(0)
    versions = {}
    for name in ("transformers", "timm", "peft", "torchvision", "triton"):
        try:
            versions[name] = __import__(name).__version__
        except Exception as error:
            versions[name] = str(error)
    return {"torch": torch.__version__, "device": properties.name, "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count, "cudnn": torch.backends.cudnn.version(),
            "cuda": torch.version.cuda, **versions}  # fmt: skip


def write(path, rows):
    path.with_suffix(".new").write_text(json.dumps(rows, indent=1) + "\n")
    path.with_suffix(".new").replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="index of the first operator")
    parser.add_argument("--workspaces", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="time limit for starting measurements")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, *arguments = json.loads(given.one)
        functions = (versions, constants, measured, operators.measured_operators, workspaces.measured_workspaces)
        print(json.dumps({each.__name__: each for each in functions}[name](*arguments)))
        return
    began = time.monotonic()
    for module in ("transformers", "timm", "peft", "torchvision", "torch.distributed.fsdp",
                   "torch.distributed.tensor.parallel", "torch.distributed.pipelining"):  # fmt: skip
        try:
            __import__(module)
        except Exception as error:
            print(module, error)
    global FORKS
    FORKS = "failed" not in apart(versions)
    rows = {"machine": apart(versions), "constants": apart(constants), "programs": {}}
    print(json.dumps(rows), f"{time.monotonic() - began:.0f} s", flush=True)
    path = given.output / "programs.json"
    write(path, rows)
    for name in given.only if given.only is not None else programs.PROGRAMS:
        if time.monotonic() - began > given.seconds:
            print("skipped (time limit):", name)
            continue
        row = rows["programs"][name] = apart(measured, name)
        text = row.get("failed") or (f"{row['peaks']['allocated'] / 2**30:.3f} {row['peaks']['reserved'] / 2**30:.3f} "
                                     f"GiB {1e3 * row['seconds']:.2f} {1e3 * row['host_seconds']:.2f} ms")  # fmt: skip
        print(f"{name:32} {text[-700:]}  {time.monotonic() - began:.0f} s", flush=True)
        write(path, rows)
    if given.operators:
        answer = apart(operators.measured_operators, str(given.output / "operators.json"), given.first, limit=150)
        print("operators", str(answer)[:2000], f"{time.monotonic() - began:.0f} s", flush=True)
    if given.workspaces:
        print("workspaces", apart(workspaces.measured_workspaces, str(given.output / "workspaces.json"), limit=120),
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    print(f"all {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
