"""Shards of deferred tensors in other dtypes and on other devices, re-deferring modules, and the recorded graph."""

import pytest
import torch
from test_capture import Net
from test_deferred import assert_same, made_twice

import shadowgraph as sg


def test_a_part_in_another_dtype():
    eager, deferred = made_twice(Net)
    weight = deferred.head.weight
    part = sg.materialize_shard(weight, 1, 4, 8, dtype=torch.bfloat16, device="cpu")
    assert part.dtype == torch.bfloat16 and torch.equal(part, eager.head.weight[:, 4:12].to(torch.bfloat16))
    assert sg.is_deferred(weight)
    streams = [sg.materialize_shard(weight, 0, 0, 4, independent_streams=seed) for seed in (1, 1, 2)]
    assert torch.equal(streams[0], streams[1]) and not torch.equal(streams[0], streams[2])
    counts = sg.deferred_init(lambda: torch.arange(10))
    # dtype converts floating-point tensors only
    assert sg.materialize_shard(counts, 0, 2, 3, dtype=torch.bfloat16).tolist() == [2, 3, 4]


def test_a_part_on_another_device():
    described = sg.deferred_init(lambda: torch.full((6, 2), 3.0, device="cuda"))
    part = sg.materialize_shard(described, 0, 1, 4, device="cpu")
    assert part.device.type == "cpu" and part.tolist() == [[3.0, 3.0]] * 4
    weights = {"w": torch.arange(12.0).view(6, 2)}
    part = sg.materialize_shard(described, 0, 1, 2, source=weights, name="w", device="cpu", dtype=torch.float16)
    assert part.dtype == torch.float16 and part.tolist() == [[2, 3], [4, 5]]
    with pytest.raises(sg.DeferredError):
        sg.materialize_shard(described, 0, 1, 2, source={"w": torch.ones(6, 2).half()}, name="w", device="cpu")
    with pytest.raises(sg.Error, match="independent_streams= applies to initial values"):
        sg.materialize_shard(described, 0, 1, 2, source=weights, name="w", independent_streams=1)


def test_a_module_is_described_again():
    eager, deferred = made_twice(Net)
    held = list(deferred.parameters())
    sg.materialize_module(deferred)
    with torch.no_grad():
        deferred.head.weight.fill_(7)
    sg.dematerialize(deferred)
    assert all(sg.is_deferred(parameter) for parameter in held) and deferred.head.weight is held[-2]
    sg.dematerialize(deferred)  # a second call has no effect
    sg.materialize_module(deferred)
    assert_same(eager, deferred)
    # Real tensors in the module stay.
    deferred.head.bias = torch.nn.Parameter(torch.ones(4))
    sg.dematerialize(deferred)
    assert sg.is_deferred(deferred.head.weight) and torch.equal(deferred.head.bias, torch.ones(4))
    sg.materialize_tensor(deferred.head.weight)
    sg.dematerialize(deferred.head.weight)
    assert sg.is_deferred(deferred.head.weight)
    with pytest.raises(sg.DeferredError):
        sg.dematerialize(torch.ones(2))


def test_the_record_of_a_tensor():
    described = sg.deferred_init(lambda: torch.ones(3, 2) * 2)
    graph = sg.deferred_graph(described)
    (product,) = graph.find("aten::mul.Tensor")
    assert product.outputs[0].shape == (3, 2)
    for node in list(graph)[::-1]:
        node.erase()  # a copy: the recording is unchanged
    assert len(graph) == 0 and sg.materialize_tensor(described).tolist() == [[2, 2]] * 3
    with pytest.raises(sg.DeferredError):
        sg.deferred_graph(torch.ones(2))
