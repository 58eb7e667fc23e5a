"""Values of exported torch.fx nodes: meta["val"] and meta["tensor_meta"]."""

import copy

import pytest
import torch
from test_capture import Net
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

import shadowgraph as sg


def tensors_in(value):
    nested = isinstance(value, (tuple, list)) and not isinstance(value, TensorMetadata)
    return [one for each in value for one in tensors_in(each)] if nested else [value]


def geometry(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


def program(x):
    left, right = x.t().split([2, 3])
    values, indices = right.max(dim=1)
    left.add_(1)
    return values, indices, torch.stack([left[0], left[1]]), x.to(torch.float16), torch.tensor([1, 2])


@pytest.mark.parametrize("make", [
    lambda device: sg.capture(program, "f32[4,5]", device=device),
    lambda device: sg.capture_training_step(Net(), "f32[8,16]", optimizer="adamw", device=device),
])  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_value_has_its_geometry_and_device(make, device):
    graph = make(device)
    module = graph.to_fx()
    mode = None
    for node in module.graph.nodes:
        if node.op == "output" or "shadowgraph_node" not in node.meta:
            continue
        values = [value for value in node.meta["shadowgraph_node"].outputs if value.is_tensor]
        fakes = tensors_in(node.meta["val"]) if values else []
        metas = tensors_in(node.meta["tensor_meta"]) if values else []
        assert len(fakes) == len(values)
        for value, val in zip(values, fakes, strict=True):
            assert isinstance(val, FakeTensor) and not val.requires_grad
            assert geometry(val) == (value.shape, value.stride, value.offset, value.dtype, torch.device(value.device))
            mode = mode or val.fake_mode
            assert val.fake_mode is mode
        for value, one in zip(values, metas, strict=True):
            assert isinstance(one, TensorMetadata) and one.requires_grad == value.requires_grad
            assert (one.shape, one.dtype, one.stride) == (value.shape, value.dtype, value.stride)
    assert detect_fake_mode([node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]) is mode


def test_values_are_those_that_torch_finds_itself():
    graph = sg.capture(program, "f32[4,5]")
    module = graph.to_fx()
    ours = {node.name: node.meta.get("val") for node in module.graph.nodes}
    with torch.no_grad():
        FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(torch.randn(4, 5))
    compared = 0
    for node in module.graph.nodes:
        if node.op in ("call_function", "get_attr"):
            for mine, theirs in zip(tensors_in(ours[node.name]), tensors_in(node.meta["val"]), strict=True):
                assert geometry(mine) == geometry(theirs), node
                compared += 1
    assert compared > 10
    ours = {node.name: node.meta.get("tensor_meta") for node in module.graph.nodes}
    again = graph.to_fx()
    with torch.no_grad():
        ShapeProp(again).propagate(torch.randn(4, 5))
    for node in again.graph.nodes:
        if node.op == "call_function":
            assert tensors_in(node.meta["tensor_meta"]) == tensors_in(ours[node.name]), node


def test_views_share_the_storage_of_their_base():
    module = sg.capture(program, "f32[4,5]").to_fx()
    of = {str(node.target): node.meta["val"] for node in module.graph.nodes if node.op == "call_function"}
    (x,) = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    storage = x.untyped_storage()._cdata
    assert of["aten.t.default"].untyped_storage()._cdata == storage
    assert all(part.untyped_storage()._cdata == storage for part in of["aten.split_with_sizes.default"])
    assert of["aten.add_.Tensor"].untyped_storage()._cdata == storage
    assert of["aten.stack.default"].untyped_storage()._cdata != storage


def test_lists_numbers_constants_and_another_device():
    def reads(x):
        return x * float(x.sum()), x.new_tensor([3.0, 4.0])

    graph = sg.capture(reads, "f32[4]", device="cuda", options={"host_reads": {"float": 2.5}})
    module = graph.to_fx(device="cpu")
    by_target = {str(node.target): node for node in module.graph.nodes}
    (item,) = [node for name, node in by_target.items() if "_local_scalar_dense" in name]
    assert "val" not in item.meta and "tensor_meta" not in item.meta
    tensors = [t for node in module.graph.nodes for t in tensors_in(node.meta.get("val", []))]
    assert len(tensors) > 3 and all(t.device == torch.device("cpu") for t in tensors)
    (constant,) = [node for node in module.graph.nodes if node.op == "get_attr"]
    assert constant.meta["val"].shape == (2,) and constant.meta["kind"] == "constant"


def test_inside_a_mode_and_copied():
    with sg.fake("cuda"):
        module = sg.capture(program, "f32[4,5]").to_fx()
    assert all(isinstance(t, FakeTensor) and not sg.is_fake(t)
               for node in module.graph.nodes for t in tensors_in(node.meta.get("val", [])))  # fmt: skip
    copied = copy.deepcopy(module)
    x = torch.randn(4, 5)
    for mine, expected in zip(copied(x.clone()), program(x.clone()), strict=True):
        assert torch.equal(mine, expected)
    again = sg.from_fx(module)
    assert again.text("fingerprint") == sg.capture(program, "f32[4,5]").text("fingerprint")
