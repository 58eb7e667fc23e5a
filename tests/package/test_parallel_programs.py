"""What every rank of a program of many devices holds, against real ranks over gloo, to the byte.

A rank's peak is the most bytes alive at the end of an operator in the second step, as the program's own thread asked
for them. What gloo's threads allocate for themselves is not counted.
"""

import json
import pathlib
import subprocess
import sys

import parallel_programs
import pytest
import torch
from parallel_programs import BATCH, LENGTH, PROGRAMS, optimizer_of

import shadowgraph as sg

HERE = pathlib.Path(__file__).parent
TORCH = pathlib.Path(torch.__file__).parent


@pytest.fixture(scope="session")
def counting_allocator(tmp_path_factory):
    library = tmp_path_factory.mktemp("allocator") / "libcounting.so"
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", HERE / "counting_allocator.cpp", "-o", library,
                    "-isystem", TORCH / "include", "-L", TORCH / "lib", "-lc10"], check=True)  # fmt: skip
    return library


def real_ranks(name, size, folder, library):
    command = [sys.executable, parallel_programs.__file__, name]
    ranks = [subprocess.Popen([*command, str(rank), str(size), str(folder / "store"), str(library)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(size)]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (output, errors) in zip(ranks, outputs):
        assert rank.returncode == 0, output + errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def predicted(name, size, rank):
    with sg.fake_process_group(size, rank):
        report = sg.profile(lambda: PROGRAMS[name](size, "cpu"), f"i64[{BATCH},{LENGTH}]",
                            loss=parallel_programs.loss_of, optimizer=optimizer_of(name), device="cpu", steady_state=True)  # fmt: skip
    report.graph.verify()
    return report


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_holds_what_a_real_one_does(name, tmp_path, counting_allocator):
    size = 4 if name in ("hsdp", "fsdp x tp") else 2
    for rank, real in enumerate(real_ranks(name, size, tmp_path, counting_allocator)):
        report = predicted(name, size, rank)
        # Constants are numbers that the host writes into tensors, which are counted as such.
        held = report.peak_bytes - report.dict()["peak"]["by_kind"]["constant"]
        # A mesh has a table of its ranks, 4 bytes each, which no operator sees; a number in a tensor has 4.
        assert abs(held - real["peak"]) <= 16, (held, real["peak"], real["at"])
        assert collectives_of(report.graph) == [each for each in real["collectives"] if each != WAIT]


WAIT = "_c10d_functional::wait_tensor"  # what has come is not waited for twice


def collectives_of(graph):
    names = (node.target.split(".")[0] for node in graph)
    return [name for name in names if name.startswith(("c10d::", "_c10d_functional::")) and name != WAIT]
