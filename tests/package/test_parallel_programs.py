"""Memory of every rank of distributed programs, compared with real ranks over gloo, to the byte.

A rank's peak is the maximum of live bytes at the end of an operator in the second step. Only allocations by the
program's main thread count; those of gloo's threads do not.
"""

import itertools
import math

import parallel_programs
import pytest
import torch
from parallel_programs import (
    BATCH,
    HEADS,
    LENGTH,
    PROGRAMS,
    WIDTH,
    WORDS,
    Decoder,
    collectives_of,
    context_of,
    fsdp,
    optimizer_of,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional as F

import shadowgraph as sg


@pytest.fixture(scope="session")
def real_ranks(tmp_path_factory):
    names = {size: [name for name in PROGRAMS if size_of(name) == size] for size in (2, 4)}
    return parallel_programs.RealRanks(tmp_path_factory.mktemp("ranks"), parallel_programs.__file__, names)


def size_of(name):
    return 4 if name in ("hsdp", "fsdp x tp") else 2


def predicted(name, size, rank):
    with sg.fake_process_group(size, rank):
        report = sg.profile(lambda: PROGRAMS[name](size, "cpu"), f"i64[{BATCH},{LENGTH}]",
                            loss=parallel_programs.loss_of, optimizer=optimizer_of(name), device="cpu",
                            steady_state=True, context=context_of(name))  # fmt: skip
    report.graph.verify()
    return report


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_holds_what_a_real_one_does(name, real_ranks):
    reports = [predicted(name, size_of(name), rank) for rank in range(size_of(name))]

    def check(ranks):
        for report, real in zip(reports, ranks, strict=True):
            held = report.peak_bytes
            # A mesh keeps a table of its ranks, 4 bytes each, that no operator creates; a scalar tensor takes 4 bytes.
            assert abs(held - real["peak"]) <= 16, (held, real["peak"], real["at"])
            assert collectives_of(report.graph) == real["collectives"]

    real_ranks.agree(name, check)


def test_each_rank_has_a_part_of_the_optimizers_state():
    parameters = list(Decoder().parameters())
    whole = sum(parameter.numel() for parameter in parameters)
    states = [predicted("zero 1", 2, rank).dict()["peak"]["by_kind"]["optimizer_state"] for rank in (0, 1)]
    # Two moments, and a step count per parameter.
    assert sum(states) == 8 * whole + 4 * len(parameters) and max(states) < 4.1 * whole
    for rank in (0, 1):
        figures = predicted("zero 1 in buffers", 2, rank).dict()
        assert figures["parameters"] == whole and figures["parameter_bytes"] == 2 * whole
        kinds = figures["peak"]["by_kind"]
        # A float32 shard and its moments; buffers hold all bf16 parameters and float32 gradients.
        assert kinds["optimizer_state"] == 12 * whole // 2 + 4
        assert kinds["parameter"] == 2 * whole and kinds["gradient"] == 4 * whole



# ---- Programs for GPUs that gloo cannot run


def on_cuda(make, rank=0, size=4, **options):
    def loss(logits):
        return F.cross_entropy(logits.flatten(0, 1).float(), torch.zeros(logits.shape[:2].numel(), dtype=torch.int64,
                                                                        device="cuda"))  # fmt: skip

    options = {"loss": loss, "optimizer": lambda p: torch.optim.AdamW(p, foreach=False), **options}
    with sg.fake_process_group(size, rank):
        report = sg.profile(lambda: make(size, "cuda"), f"i64[{BATCH},{LENGTH}]", device="cuda", steady_state=True,
                            **options)  # fmt: skip
    report.graph.verify()
    return report


def test_a_block_given_back_is_not_there_at_the_peak():
    """8 blocks of 4 MiB over 4 ranks: two of them are unsharded at once, not eight."""

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)])
            self.checkpoints = False

        def forward(self, x):
            return self.blocks(x)

    def make(size, device):
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device, (size,))
        model = Wide()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    with sg.fake_process_group(4):
        report = sg.profile(lambda: make(4, "cuda"), "f32[1,1024]", device="cuda", loss=lambda y: y.sum())
    block = 1024 * 1024 * 4
    held = report.peak_bytes - report.dict()["parameter_bytes"]
    # The current unsharded block and the next one, an unsharded gradient, its copy for reduce-scatter, and gradient
    # shards.
    assert 4 * block <= held <= 6 * block
    assert report.dict()["whole_parameters"] == 4 * report.dict()["parameters"] == 8 * 1024 * 1024
    saved = {node.name for node in report.graph if node.saved}
    assert saved and report.dict()["saved_bytes"] < block


def test_parameters_say_what_they_are_a_part_of():
    graph = on_cuda(fsdp, rank=1).graph
    (weight,) = (node for node in graph if node.target == "sg::parameter" and node.argument("name") == "head.weight")
    assert weight.results[0].shape == (WORDS // 4, WIDTH)
    assert weight.notes == {"layout": "S(0)", "whole_sizes": f"{WORDS},{WIDTH}"}


def test_offloaded_parameters_are_on_the_cpu():
    from torch.distributed.fsdp import CPUOffloadPolicy

    report = on_cuda(lambda size, device: fsdp(size, device, offload_policy=CPUOffloadPolicy()))
    kinds = report.dict()["peak"]["by_kind"]
    assert kinds["parameter"] == 0 and kinds["optimizer_state"] == 0
    assert {str(node.results[0].device) for node in report.graph if node.target == "sg::parameter"} == {"cpu"}


def test_prefetched_blocks_are_gathered_earlier():
    def make(size, device):
        model = fsdp(size, device)
        blocks = list(model.blocks)
        for block, following in itertools.pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
        return model

    def first_products_between_gathers(report):
        names = [node.target for node in report.graph if node.phase == "forward"]
        gathers = [i for i, name in enumerate(names) if name.startswith("c10d::_allgather_base_")]
        return [sum("addmm" in name for name in names[a:b]) for a, b in itertools.pairwise(gathers)]

    assert first_products_between_gathers(on_cuda(make)) != first_products_between_gathers(on_cuda(fsdp))


def test_gradients_accumulate_without_their_sum():
    def make(size, device):
        model = fsdp(size, device)
        model.set_requires_gradient_sync(False)
        return model

    def scatters(report):
        return report.dict()["communication"]["kinds"].get("reduce_scatter", {"calls": 0})["calls"]

    assert scatters(on_cuda(make, optimizer=None)) == 0 < scatters(on_cuda(fsdp, optimizer=None))


def test_loss_parallel():
    def make(size, device):
        model = Decoder()
        head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        return parallelize_module(model, init_device_mesh(device, (size,)), {"head": head})

    report = on_cuda(make, context=lambda ids: loss_parallel(), loss=lambda logits: F.cross_entropy(
        logits.flatten(0, 1), torch.zeros(BATCH * LENGTH, dtype=torch.int64, device="cuda")))  # fmt: skip
    # No rank holds all logits, BATCH * LENGTH * WORDS.
    largest = max(math.prod(value.shape) for node in report.graph for value in node.results
                  if value is not None and value.shape and value.shape[-1] in (WORDS // 4, WORDS))  # fmt: skip
    assert largest == BATCH * LENGTH * WORDS // 4


@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
def test_context_parallel(rotation):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    meshes = []

    def make(size, device):
        meshes.append(init_device_mesh(device, (size,), mesh_dim_names=("cp",)))
        set_rotate_method(rotation)
        return Decoder().to(torch.bfloat16)

    report = on_cuda(make, context=lambda ids: context_parallel(meshes[0], buffers=[ids], buffer_seq_dims=[1]),
                     loss=lambda logits: logits.float().square().mean())  # fmt: skip
    kinds = report.dict()["communication"]["kinds"]
    assert "all_gather" in kinds if rotation == "allgather" else "all_to_all" in kinds
    queries = [node.results[0].shape for node in report.graph if "attention" in node.target and node.phase == "forward"]
    assert queries and all(shape[1] == HEADS and shape[2] <= LENGTH // 4 for shape in queries)


def test_a_model_sharded_with_real_parameters_is_refused():
    with sg.fake_process_group(2):
        model = fsdp(2, "cpu")
        with pytest.raises(sg.UnsupportedError, match="pass a function that creates and shards it"):
            sg.profile(model, f"i64[{BATCH},{LENGTH}]", loss=parallel_programs.loss_of, device="cpu")


class Closed(torch.Tensor):
    """Wraps a tensor without exposing it."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.size(), dtype=held.dtype, device=held.device,
                                                   requires_grad=held.requires_grad)  # fmt: skip
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        result = func(*(each.held if isinstance(each, cls) else each for each in args), **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def test_a_tensor_that_cannot_be_looked_into():
    with sg.Capture("cpu") as capture:
        weight = torch.ones(3, 3, requires_grad=True)
        F.linear(Closed(torch.ones(2, 3)), weight).sum().backward()
        graph = capture.finish()
    graph.verify()
    assert graph.find("aten::mm") or graph.find("aten::addmm")
