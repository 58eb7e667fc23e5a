"""torch.distributed with one process standing in for many: captured graphs, and bytes that are communicated."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import shadowgraph as sg


def communication(graph):
    graph.verify()
    return sg.Profile(graph, spec="h100").dict()["communication"]


def test_collectives_of_torch_distributed():
    with sg.fake_process_group(8, rank=3) as world, sg.Capture("cuda") as capture:
        assert dist.get_world_size() == 8 and dist.get_rank() == 3
        x = torch.ones(16, 4, device="cuda")
        dist.all_reduce(x)
        parts = [torch.empty_like(x) for _ in range(8)]
        dist.all_gather(parts, x)
        whole = torch.empty(128, 4, device="cuda")
        dist.all_gather_into_tensor(whole, x, group=world)
        dist.reduce_scatter_tensor(x, whole)
        dist.broadcast(x, src=0)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        y = funcol.all_reduce(x, "sum", world)
        graph = capture.finish([whole, y, parts[0]])
    assert not dist.is_initialized()
    sent = communication(graph)
    assert sent["calls"] == 7
    assert not sent["uncovered"]
    # 16 x 4 float32 take 256 bytes, the gathered tensor 2 KiB: 3 reductions, 2 all-gathers, a reduce-scatter, a
    # broadcast.
    assert sent["payload_bytes"] == 3 * 256 + 2 * 2048 + 2048 + 256
    assert sent["wire_bytes"] == 3 * 2 * 224 + 2 * 1792 + 1792 + 256
    (group,) = sent["groups"]
    assert group["size"] == 8 and group["rank"] == 3 and group["ranks"] == list(range(8))


@pytest.mark.skipif(not hasattr(dist, "gather_into_tensor"), reason="since torch 2.14")
@pytest.mark.parametrize("rank", [0, 3])
def test_a_gather_into_one_tensor(rank):
    with sg.fake_process_group(8, rank), sg.Capture("cuda") as capture:
        whole = torch.empty(128, 4, device="cuda")
        dist.gather_into_tensor(torch.ones(16, 4, device="cuda"), whole if rank == 3 else None, dst=3)
        graph = capture.finish([whole])
    sent = communication(graph)
    assert sent["calls"] == 1 and not sent["uncovered"]
    assert sent["payload_bytes"] == 8 * 256
    (gather,) = graph.find("c10d::gather_into_tensor_")
    assert (whole.shape in [result.shape for result in gather.outputs]) == (rank == 3) or not gather.outputs


@pytest.mark.skipif(not hasattr(funcol, "wait_tensors"), reason="since torch 2.15")
def test_several_tensors_are_waited_for_at_once():
    with sg.fake_process_group(8) as world, sg.Capture("cuda") as capture:
        sums = funcol.all_reduce_coalesced([torch.ones(16, device="cuda")] * 2, "sum", world)
        graph = capture.finish(funcol.wait_tensors(sums))
    sent = communication(graph)
    assert sent["calls"] == 1 and not sent["uncovered"] and len(graph.find("_c10d_functional::wait_tensors")) == 1


def test_meshes_name_their_axes():
    with sg.fake_process_group(32, rank=5):
        mesh = init_device_mesh("cpu", (8, 4), mesh_dim_names=("dp", "tp"))
        with sg.Capture("cpu") as capture:
            x = funcol.all_reduce(torch.ones(4), "sum", mesh["tp"].get_group())
            graph = capture.finish([funcol.all_reduce(x, "sum", mesh["dp"].get_group())])
    groups = {group["axis"]: group for group in communication(graph)["groups"]}
    assert groups["tp"]["ranks"] == [4, 5, 6, 7]
    assert groups["dp"]["ranks"] == [1, 5, 9, 13, 17, 21, 25, 29]
    assert groups["dp"]["rank"] == 1


def test_functional_collectives_have_gradients():
    with sg.fake_process_group(4) as world, sg.Capture("cpu") as capture:
        x = torch.ones(8, 6, requires_grad=True)
        funcol.all_gather_tensor_autograd(x, 0, world).square().sum().backward()
        assert x.grad.shape == (8, 6)
        graph = capture.finish([x.grad])
    kinds = communication(graph)["kinds"]
    assert kinds["all_gather"]["payload_bytes"] == kinds["reduce_scatter"]["payload_bytes"] == 4 * 8 * 6 * 4


def test_data_parallel_sums_every_gradient_once():
    graphs = []
    with sg.fake_process_group(8), sg.fake("cuda"):
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
        parallel = DistributedDataParallel(model, bucket_cap_mb=8)
        x = torch.ones(16, 1024, device="cuda")
        for _ in range(3):
            with sg.Capture("cuda") as capture:
                loss = parallel(x).square().mean()
                loss.backward()
                graphs.append(capture.finish([loss]))
    first, second, third = (communication(graph) for graph in graphs)
    # A layer takes 4 MiB + 4 KiB. The first step has a single bucket. Then DDP rebuilds buckets in gradient order, two
    # layers to a bucket; rank 0 broadcasts the assignment once, in the second step.
    layer = (1024 * 1024 + 1024) * 4
    assert [step["kinds"]["all_reduce"]["payload_bytes"] for step in (first, second, third)] == [8 * layer] * 3
    assert first["kinds"]["all_reduce"]["calls"] == 1
    assert second["kinds"]["all_reduce"]["calls"] == third["kinds"]["all_reduce"]["calls"] == 4
    assert "broadcast" in second["kinds"] and "broadcast" not in third["kinds"]
    # A single bucket is reduced after backward; with several, some overlap with it. Python issues calls late.
    assert first["overlap"]["seconds"] == pytest.approx(first["overlap"]["at_most_seconds"], rel=0.15)
    assert third["overlap"]["exposed_seconds"] < 0.6 * third["seconds"]


def test_tensor_parallel_plans():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with sg.fake_process_group(8):
        mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
        with sg.fake("cpu"):
            model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            x = torch.ones(16, 64)
            with sg.Capture("cpu") as capture:
                loss = model(x).square().mean()
                loss.backward()
                graph = capture.finish([loss.detach()])
    kinds = communication(graph)["kinds"]
    assert kinds["all_reduce"]["payload_bytes"] >= 16 * 64 * 4


def test_fully_sharded():
    from torch.distributed.fsdp import fully_shard

    with sg.fake_process_group(4):
        mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("fsdp",))
        with sg.fake("cuda"):
            model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, device="cuda") for _ in range(3)])
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            x = torch.ones(16, 64, device="cuda")
            with sg.Capture("cuda") as capture:
                loss = model(x).square().mean()
                loss.backward()
                graph = capture.finish([loss.detach()])
    kinds = communication(graph)["kinds"]
    layer = (64 * 64 + 64) * 4
    assert kinds["reduce_scatter"]["payload_bytes"] == 3 * layer
    assert kinds["all_gather"]["payload_bytes"] >= 3 * layer


def test_what_cannot_be_is_refused():
    with pytest.raises(sg.Error, match="rank 8 is out of range for world size 8"):
        sg.fake_process_group(8, rank=8)
    with sg.fake_process_group(2), pytest.raises(sg.Error, match="already initialized"), sg.fake_process_group(2):
        pass


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_was_sent_stays(device):
    """Buffers stay allocated until the work is waited for with NCCL, and until the work is destroyed with gloo."""
    with sg.fake_process_group(2), sg.Capture(device) as session:
        sent = torch.ones(4, device=device)
        work = dist.isend(sent, 1)
        del sent
        kept = [torch.ones(1, device=device)]
        work.wait()
        kept.append(torch.ones(1, device=device))
        del work
        kept.append(torch.ones(1, device=device))
        graph = session.finish(kept)
    (send,) = graph.find("c10d::send")
    ones = graph.find("aten::ones")
    assert len(ones) == 4
    assert send.argument("tensors")[0].storage.freed_after == ones[1 if device == "cuda" else 2]


class HalfUsed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_ddp_finds_parameters_that_no_rank_uses(device, options):
    with sg.fake_process_group(4), sg.Capture(device) as capture:
        model = DistributedDataParallel(HalfUsed().to(device), **options)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 8, device=device)).sum().backward()
            gradients = {name: parameter.grad is not None for name, parameter in model.module.named_parameters()}
            # As in eager: a gradient of None, so that the optimizer has no state for it.
            assert gradients == {"used.weight": True, "used.bias": True, "unused.weight": False, "unused.bias": False}
            optimizer.step()
            optimizer.zero_grad()
        assert len(optimizer.state) == 2
        graph = capture.finish()
    maps = [node for node in graph.find("c10d::allreduce_") if "i32[4]" in str(node)]
    assert len(maps) == (3 if "find_unused_parameters" in options else 1)
    graph.verify()


def test_received_contents_are_unknown_otherwise():
    with sg.fake_process_group(4), sg.fake("cuda"):
        x = torch.zeros(4, dtype=torch.int32, device="cuda")
        dist.all_reduce(x)
        with pytest.raises(sg.DataDependentError):
            x.sum().item()
