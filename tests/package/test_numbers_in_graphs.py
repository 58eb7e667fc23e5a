"""Python scalars and sizes become constants of the graph and take no memory; storages resized to zero are freed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

import shadowgraph as sg


class DividesBySize(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # not read; archives also have compressed debug records
        self.register_buffer("other", torch.ones(4096))

    def forward(self, x, ids):
        return x.index_select(0, ids // x.size(1)) + torch.tensor([1.0, 2.0, 3.0])


def test_a_traced_size_is_a_constant(tmp_path):
    """TorchScript makes a tensor of the size, which is freed before the graph can record it."""
    inputs = torch.randn(8, 3), torch.arange(8)
    torch.jit.trace(DividesBySize(), inputs).save(tmp_path / "net.pt")
    saved = str(tmp_path / "net.sg")
    given = ["--input", "f32[8,3]", "--input", "i64[8]", "--device", "cpu"]
    tool = [sys.executable, "-m", "_shadowgraph_tool", "capture", str(tmp_path / "net.pt"), *given, "-o", saved]
    done = subprocess.run(tool, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    graph = sg.Graph.load(saved)
    graph.verify()
    assert [node.argument("name") for node in graph if node.target == "sg::input"] == ["x", "ids"]
    net = DividesBySize()
    eager = net(*inputs)
    assert torch.equal(graph.compile(net)(*inputs)[0], eager)
    graph.emit_python(str(tmp_path), name="net")
    spec = importlib.util.spec_from_file_location("net", tmp_path / "net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert torch.equal(module.forward({"x": inputs[0], "ids": inputs[1], "other": net.other})["output0"], eager)


def test_what_the_host_writes_is_in_no_memory_of_its_own():
    """DistributedDataParallel writes the indices of its parameters into a tensor, which must not count as an
    allocation."""
    with sg.fake_process_group(2), sg.fake("cpu"):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        with sg.Capture("cpu") as capture:
            graph = capture.finish([model(torch.ones(2, 4)).sum()])
    graph.verify()
    written = [node for node in graph if node.notes.get("literal") == "host"]
    assert written and all(node.target == "sg::constant" for node in written)
    assert sg.Profile(graph).dict()["peak"]["by_kind"]["constant"] == 0


# ---- Storages resized to zero


def gathered(shard):
    """The view is created while its storage is empty, and read after the storage has grown."""
    with torch.no_grad():
        whole = torch.cat([shard, shard])
        storage = whole.untyped_storage()
        bytes_ = storage.nbytes()
        storage.resize_(0)
        view = whole.view(-1).detach()
        shape = view.shape
        storage.resize_(bytes_)
        whole.copy_(torch.cat([shard, shard * 3]))
        return view * shape[0]


def test_a_view_of_an_emptied_storage_shows_what_comes_there():
    shard = torch.randn(2, 4)
    with sg.fake("cpu"):
        fake = torch.empty(2, 4)
    with sg.Capture("cpu") as capture:
        capture.name_input(fake, "shard")
        graph = capture.finish([gathered(fake)])
    graph.verify()
    assert torch.equal(graph.compile()(shard)[0], gathered(shard))
    # The shard, the regrown storage, and either cat's operand or the result; the freed storage is not counted.
    assert sg.Profile(graph).peak_bytes == 32 + 2 * 64 + 32


USES = {
    "aten::mul": lambda x: x * 2,
    "aten::relu_": lambda x: x.relu_(),
    "aten::mm": lambda x: torch.ones(3, 4) @ x.t(),
    "aten::copy_": lambda x: x.copy_(torch.ones(2, 4)),
}


@pytest.mark.parametrize("name", USES)
def test_memory_that_was_given_back_is_not_used(name):
    with sg.Capture("cpu"):
        x = torch.ones(2, 4)
        x.untyped_storage().resize_(0)
        words = f"{name}.* uses a tensor of .*needs 32 bytes, but its storage has 0.*resize_"
        with pytest.raises(sg.Error, match=words):
            USES[name](x)


def test_an_output_without_memory_is_refused():
    with sg.Capture("cpu") as capture:
        x = torch.ones(2, 4)
        x.untyped_storage().resize_(16)
        with pytest.raises(sg.Error, match="the program uses a tensor of .*storage has 16"):
            capture.finish([x])


def test_an_emptied_tensor_of_before_is_refused():
    with sg.fake("cpu"):
        x = torch.ones(2, 4)
        x.untyped_storage().resize_(0)
        with sg.Capture("cpu"), pytest.raises(sg.Error, match="storage has 0"):
            x.sum()
