"""Captured ranks replayed in real processes over gloo: gradients, losses and updated parameters are bitwise equal."""

import pathlib

import pytest
import torch
from pipeline_programs import MASKS_ARE_SENT
from rank_processes import run_ranks

import shadowgraph as sg

RANKS = pathlib.Path(__file__).with_name("replayed_ranks.py")
PROGRAMS = {
    2: ["ddp", "fsdp", "fsdp without reshard", "fsdp in bf16", "fsdp with checkpoints", "tp",
        "tp with sequence parallel", "expert parallel", "zero 1",
        "context parallel by all_gather", "context parallel by all_to_all"],
    4: ["hsdp", "fsdp x tp", "gpipe", "1f1b", "interleaved", "zbv", "zbv x tp", "1f1b x fsdp",
        *(["two tensors"] if MASKS_ARE_SENT else [])],
}  # fmt: skip


@pytest.fixture(scope="session")
def replayed(tmp_path_factory):
    store = tmp_path_factory.mktemp("replayed") / "store"
    return {size: run_ranks(RANKS, size, store, *names) for size, names in PROGRAMS.items()}


@pytest.mark.parametrize("size, name", [(size, name) for size, names in PROGRAMS.items() for name in names])
def test_a_replayed_rank_computes_what_the_real_one_does(size, name, replayed):
    for rank, of in enumerate(replayed[size]):
        assert of[name]["gradients"] == of[name]["parameters"] == of[name]["losses"] == 0, (rank, of[name])
        assert of[name].get("by module", 0) == 0
        assert of[name]["largest gradient"] > 1e-5 and of[name]["moved"] > 1e-5 and of[name]["communications"] > 1


def test_ranks_that_both_receive_first(replayed):
    for of in replayed[2]:
        least, most, expected = of["exchange"]
        assert least == most == expected


def test_a_group_that_is_not_there_is_named(tmp_path):
    def program(x):
        torch.distributed.all_reduce(x)
        return x

    with sg.fake_process_group(2, 0):
        graph = sg.capture(program, "f32[4]", device="cpu")
    with pytest.raises(sg.ReplayError, match="no process group named '0'; create it first|does not exist"):
        graph.compile()(torch.ones(4))
    with pytest.raises(sg.UnsupportedError, match="run the graph itself, which communicates"):
        graph.emit_python(tmp_path)
