"""Deferred modules filled from state dicts and files: contents, one tensor at a time, and mismatches."""

import json
import re

import pytest
import torch
from test_capture import Net
from test_deferred import assert_same, gpt2

import shadowgraph as sg
from shadowgraph import _weights

safetensors = pytest.importorskip("safetensors.torch")


def described_and_real(make=Net):
    return sg.deferred_init(make), make()


@pytest.mark.parametrize("form", ["dict", "torch", "wrapped", "safetensors", "shards", "folder", "files", "open"])
def test_every_form_of_weights(form, tmp_path):
    net, real = described_and_real()
    state = real.state_dict()
    halves = [dict(list(state.items())[:4]), dict(list(state.items())[4:])]
    if form == "dict":
        source = state
    elif form in ("torch", "wrapped"):
        source = tmp_path / "w.pt"
        torch.save(state if form == "torch" else {"state_dict": state, "epoch": 3}, source)
    elif form in ("safetensors", "open"):
        source = tmp_path / "w.safetensors"
        safetensors.save_file(state, source)
        source = sg.Weights(source) if form == "open" else source
    else:
        files = [tmp_path / f"model-{i}.safetensors" for i in range(2)]
        for file, half in zip(files, halves):
            safetensors.save_file(half, file)
        index = {"weight_map": {name: file.name for file, half in zip(files, halves) for name in half}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        source = {"shards": str(tmp_path / "model.safetensors.index.json"), "folder": tmp_path, "files": files}[form]
    held = list(net.parameters())
    assert sg.materialize_module(net, source) is net and not sg.is_deferred(net)
    assert all(a is b for a, b in zip(held, net.parameters(), strict=True))
    assert_same(real, net)
    given = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    assert not given & {tensor.untyped_storage().data_ptr() for tensor in net.parameters()}


def test_tied_tensors_and_buffers_that_no_file_has(tmp_path):
    net, real = described_and_real(gpt2)
    state = {name: tensor for name, tensor in real.state_dict().items() if name != "lm_head.weight"}
    safetensors.save_file(state, tmp_path / "gpt2.safetensors")
    sg.materialize_module(net, tmp_path / "gpt2.safetensors")
    assert net.lm_head.weight is net.transformer.wte.weight
    assert_same(real, net)

    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))
            self.register_buffer("frequencies", torch.arange(4.0) / 4, persistent=False)

    rotary = sg.materialize_module(sg.deferred_init(Rotary), {"weight": torch.ones(3)})
    assert torch.equal(rotary.frequencies, torch.arange(4.0) / 4) and torch.equal(rotary.weight, torch.ones(3))


def test_one_module_tensor_or_shard(tmp_path):
    net, real = described_and_real()
    for source in (real.state_dict(), tmp_path / "w.pt", tmp_path / "w.safetensors"):
        if source == tmp_path / "w.pt":
            torch.save(real.state_dict(), source)
        elif source == tmp_path / "w.safetensors":
            safetensors.save_file(real.state_dict(), source)
        net = sg.deferred_init(Net)
        sg.materialize_module(net.layers[1], source, prefix="layers.1.")
        assert torch.equal(net.layers[1].weight, real.layers[1].weight) and sg.is_deferred(net.layers[0])
        assert sg.materialize_tensor(net.head.bias, source, name="head.bias") is net.head.bias
        assert torch.equal(net.head.bias, real.head.bias)
        part = sg.materialize_shard(net.head.weight, 1, 4, 8, source=source, name="head.weight")
        assert torch.equal(part, real.head.weight[:, 4:12]) and part.is_contiguous() and sg.is_deferred(net.head.weight)
        with pytest.raises(sg.DeferredError, match="range 4..20 of dimension 1 is out of bounds"):
            sg.materialize_shard(net.head.weight, 1, 4, 16, source=source, name="head.weight")
        with pytest.raises(sg.Error, match="name="):
            sg.materialize_tensor(net.head.weight, source)


def test_other_dtypes_and_the_optimizer_made_before():
    net, real = described_and_real()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sg.materialize_module(net, real.bfloat16().state_dict(), dtype=torch.float32)
    assert net.head.weight.dtype == torch.float32 and torch.equal(net.head.weight, real.head.weight.float())
    before = net.head.weight.clone()
    net(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert not torch.equal(net.head.weight, before)


def test_what_does_not_fit_names_the_key_and_changes_nothing():
    net, real = described_and_real()
    state = real.state_dict()
    lacking = {name: tensor for name, tensor in state.items() if name != "head.bias"}
    for source, error, said in (
        (lacking, sg.DeferredError, "'head.bias'"),
        ({**state, "tail.bias": torch.zeros(1)}, sg.DeferredError, "'tail.bias'"),
        ({**state, "head.bias": torch.zeros(5)}, sg.DeferredError, r"'head.bias' has shape \[5\].*\[4\]"),
        ({**state, "head.bias": torch.zeros(4).half()}, sg.DeferredError, "'head.bias' has dtype torch.float16"),
        ({"epoch": 3}, sg.DeferredError, "it has the keys epoch"),
        ("nowhere.safetensors", sg.FileError, "nowhere.safetensors"),
    ):
        with pytest.raises(error, match=said):
            sg.materialize_module(net, source)
        assert all(sg.is_fake(tensor) for tensor in net.parameters())
    with pytest.raises(sg.DeferredError, match="did you mean 'head.bias'"):
        sg.Weights(state).read("head.bia")
    torch.manual_seed(7)
    net = sg.deferred_init(Net)
    torch.manual_seed(7)
    eager = Net()
    sg.materialize_module(net, {**lacking, "tail.bias": torch.zeros(1)}, strict=False)
    assert torch.equal(net.head.bias, eager.head.bias) and torch.equal(net.head.weight, real.head.weight)


def test_files_that_are_none(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"12345678{")
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    (tmp_path / "bad.index.json").write_text('{"weight_map": 3}')
    (tmp_path / "empty").mkdir()
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    for name, error in (("bad.safetensors", sg.FileError), ("bad.pt", sg.FileError), ("bad.index.json", sg.FileError),
                        ("empty", sg.FileError), ("list.pt", sg.DeferredError)):  # fmt: skip
        with pytest.raises(error, match=name):
            sg.Weights(tmp_path / name)
    with pytest.raises(sg.DeferredError, match="several of the weight files"):
        sg.Weights([{"a": torch.ones(1)}, {"a": torch.ones(1)}])


@pytest.mark.parametrize("files, says", [
    ({"a": 3}, r"weight_map\['a'\] is '3'"),
    ({"a": ["a.pt"]}, r"weight_map\['a'\]"),
    ({"a": None}, r"weight_map\['a'\]"),
    ({"a": ""}, r"weight_map\['a'\]"),
    ({"a": "."}, r"weight_map\['a'\]"),
    ({"a": "../a.pt"}, r"weight_map\['a'\] is '\.\./a\.pt', not a file in the folder"),
    ({"a": "/etc/passwd"}, r"weight_map\['a'\]"),
    ({"a": "model.index.json"}, r"weight_map\['a'\]"),  # itself
    ({"a": "x" * 400}, "x" * 400),
    ({"a": "a\0b"}, "does not exist"),
    ({"a": "none.pt"}, "none.pt"),
    ({"a": "a.pt", "b": "a.pt"}, r"weight_map\['b'\] is 'a\.pt', which has no such tensor"),
])  # fmt: skip
def test_an_index_names_files_beside_it(files, says, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    index = tmp_path / "model.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    for _ in range(2):
        with pytest.raises(sg.FileError, match=says):
            sg.Weights(index)
    index.write_text(json.dumps({"weight_map": {"a": "a.pt"}}))
    assert sg.Weights(index).shape("a") == (2,)


def test_what_is_no_index_is_refused_by_name(tmp_path):
    for content in (b"", b"[" * 100000, b"\xff\xfe", b"3", b"[]", b"{}", b'{"weight_map": []}'):
        (tmp_path / "model.index.json").write_bytes(content)
        with pytest.raises(sg.FileError, match="model.index.json is not a weight index"):
            sg.Weights(tmp_path / "model.index.json")


def anonymous_bytes():
    return int(re.search(r"RssAnon:\s+(\d+)", open("/proc/self/status").read()).group(1)) * 1024


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_memory_is_what_is_kept_and_at_most_one_tensor(kind, tmp_path, monkeypatch):
    size, count = 16 << 20, 6  # 16 MiB each

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.zeros(size // 4) for _ in range(count)])

    path = tmp_path / "wide"
    state = {f"weights.{i}": torch.full((size // 4,), float(i)) for i in range(count)}
    if kind == "torch":
        torch.save(state, path)
    else:
        path = path.with_suffix(".safetensors")
        safetensors.save_file(state, path)
    del state
    net = sg.deferred_init(Wide)
    start, own, over = anonymous_bytes(), _weights._copy, []

    def measured(view, device, dtype):
        kept = len(over) * size
        before = anonymous_bytes()
        made = own(view, device, dtype)
        over.append(max(before, anonymous_bytes()) - start - kept)
        return made

    monkeypatch.setattr(_weights, "_copy", measured)
    sg.materialize_module(net, path)
    assert len(over) == count and max(over) < size + size // 2, over
    assert all(torch.equal(net.weights[i][:2], torch.full((2,), float(i))) for i in range(count))


@pytest.mark.parametrize("form", ["dict", "torch", "safetensors"])
def test_parts_of_dimensions_counted_from_behind(form, tmp_path):
    state = {"w": torch.arange(24.0).reshape(2, 3, 4)}
    source = state if form == "dict" else tmp_path / f"w.{form}"
    if form == "torch":
        torch.save(state, source)
    elif form == "safetensors":
        safetensors.save_file(state, source)
    weights = sg.Weights(source)
    for dim, size in zip((-1, -2, -3), (4, 3, 2)):
        part = weights.read_part("w", dim, 1, size - 1)
        assert part.is_contiguous() and torch.equal(part, state["w"].narrow(dim, 1, size - 1))
        assert torch.equal(part, weights.read_part("w", dim + 3, 1, size - 1))
    with pytest.raises(sg.DeferredError, match="range 1..3 of dimension -3 is out of bounds"):
        weights.read_part("w", -3, 1, 2)
