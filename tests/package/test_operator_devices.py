"""Devices of custom operators: the devices their fake kernels see, and the devices of their results."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import shadowgraph as sg


def pretended():
    return sg.fake("cuda")


@pytest.fixture
def define():
    with torch.library._scoped_library("sg_devices", "DEF") as library:

        def make(schema, kernel):
            library.define(schema)
            name = schema.partition("(")[0]
            torch.library.register_fake(f"sg_devices::{name}", kernel, lib=library)
            return getattr(torch.ops.sg_devices, name).default

        yield make


def test_a_fake_kernel_sees_the_pretended_device(define):
    seen = []

    def kernel(x):
        seen.append(x.device.type)
        return torch.empty(7) if x.is_cuda else torch.empty(3)

    by_device = define("by_device(Tensor x) -> Tensor", kernel)
    for mode in (FakeTensorMode, pretended):
        with mode():
            assert by_device(torch.empty(2, device="cuda")).shape == (7,)
            assert by_device(torch.empty(2, device="cpu")).shape == (3,)
    assert seen == ["cuda", "cpu"] * 2


def test_results_are_where_the_fake_kernel_makes_them(define):
    def kernel(x):
        return torch.empty(3, device="cpu"), x.new_empty(4), torch.empty_like(x)

    apart = define("apart(Tensor x) -> (Tensor, Tensor, Tensor)", kernel)
    devices = []
    for mode in (FakeTensorMode, pretended):
        with mode():
            devices.append([result.device.type for result in apart(torch.empty(2, device="cuda"))])
    assert devices == [["cpu", "cuda", "cuda"]] * 2


def test_a_fake_kernel_takes_operands_of_two_devices(define):
    lookup = define("lookup(Tensor keys, Tensor table) -> Tensor",
                    lambda keys, table: table.new_empty(keys.shape[0], table.shape[1]))  # fmt: skip
    for mode in (FakeTensorMode, pretended):
        with mode():
            result = lookup(torch.empty(5, device="cpu"), torch.empty(9, 4, device="cuda"))
            assert result.shape == (5, 4) and result.device.type == "cuda"


def test_registered_devices_are_held(define):
    lookup = define("held(Tensor keys, Tensor table) -> Tensor",
                    lambda keys, table: table.new_empty(keys.shape[0], table.shape[1]))  # fmt: skip
    sg.register_devices("sg_devices::held", operands="together", results=["table"])
    with pretended():
        keys, table = torch.empty(5, device="cpu"), torch.empty(9, 4, device="cuda")
        assert lookup(keys.cuda(), table).device.type == "cuda"
        with pytest.raises(sg.Error, match="register_devices"):
            lookup(keys, table)
    wrong = define("wrong(Tensor x) -> Tensor", lambda x: torch.empty(3, device="cpu"))
    sg.register_devices("sg_devices::wrong", results=["x"])
    with pretended(), pytest.raises(sg.Error, match="result 0 is on cpu"):
        wrong(torch.empty(2, device="cuda"))


def test_devices_that_fit_no_schema_are_refused(define):
    define("plain(Tensor x, int k) -> Tensor", lambda x, k: x.new_empty(k))
    for options, words in (
        ({"results": ["y"]}, "argument 'y', which does not exist"),
        ({"results": ["k"]}, "neither a tensor nor a device"),
        ({"results": ["x", "x"]}, "expected 1 .*, got 2"),
        ({"results": [3]}, "names of arguments and torch.devices, not 3"),
        ({"operands": "nowhere"}, "not one of together, 'first or cpu', anywhere"),
    ):
        with pytest.raises(sg.Error, match=words):
            sg.register_devices("sg_devices::plain", **options)
    with pytest.raises(sg.Error, match="devices are built in"):
        sg.register_devices("aten::mm", results=["self"])


def test_a_captured_program_has_the_operator_and_its_devices(define):
    offload = define("offload(Tensor x) -> Tensor", lambda x: torch.empty(x.shape, device="cpu"))
    graph = sg.capture(lambda x: offload(x + 1), "f32[8,16]", device="cuda:0")
    assert "sg_devices::offload" in str(graph) and "empty" not in str(graph)


def test_results_are_on_devices_of_the_machine(define):
    far = define("far(Tensor x) -> Tensor", lambda x: torch.empty(3, device="cuda:9"))
    with pretended(), pytest.raises(sg.Error, match="cuda:9: invalid device ordinal"):
        far(torch.empty(2, device="cuda"))
    with sg.fake("cuda", device_count=10):
        assert far(torch.empty(2, device="cuda")).device.index == 9
