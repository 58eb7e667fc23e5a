"""Files that a program reads under deferred_init: materialized tensors have the file's contents, bit for bit."""

import io
import pickle
import sys
import types

import pytest
import torch
from torch import nn

import shadowgraph as sg

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("halves", torch.rand(5).to(torch.bfloat16))


@pytest.fixture
def state():
    torch.manual_seed(11)
    state = Tied().state_dict()
    state["halves"][0] = float("nan")
    return state


def readers(state, tmp_path):
    torch.save(state, tmp_path / "w.pt")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    blob = pickle.dumps(state)
    stream = (tmp_path / "w.pt").read_bytes()
    found = {
        "torch.load": lambda: torch.load(tmp_path / "w.pt"),
        "torch.load, whole": lambda: torch.load(tmp_path / "w.pt", mmap=False, weights_only=True),
        "torch.load of a stream": lambda: torch.load(io.BytesIO(stream)),
        "torch.load, legacy": lambda: torch.load(tmp_path / "legacy.pt"),
        "pickle": lambda: pickle.loads(blob),
    }
    try:
        import safetensors.torch
    except ImportError:
        return found
    own = {name: tensor.clone() for name, tensor in state.items()}
    safetensors.torch.save_file(own, tmp_path / "w.safetensors")

    def opened():
        with safetensors.safe_open(tmp_path / "w.safetensors", "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict

    return found | {
        "safetensors": lambda: safetensors.torch.load_file(tmp_path / "w.safetensors"),
        "safetensors of bytes": lambda: safetensors.torch.load((tmp_path / "w.safetensors").read_bytes()),
        "safe_open": opened,
    }


READERS = ["torch.load", "torch.load, whole", "torch.load of a stream", "torch.load, legacy", "pickle", "safetensors",
           "safetensors of bytes", "safe_open"]  # fmt: skip


def same_bits(a, b):
    assert not sg.is_fake(a) and not sg.is_fake(b)  # comparing fakes would call operators
    return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(
        a.detach().contiguous().view(-1).view(torch.uint8), b.detach().contiguous().view(-1).view(torch.uint8)
    )  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_state_dicts_are_loaded_while_describing(state, tmp_path, reader):
    load = readers(state, tmp_path).get(reader) or pytest.skip("no safetensors")

    def program():
        net = Tied()
        net.load_state_dict(load())
        return net

    torch.manual_seed(1)
    eager = program()
    after = torch.rand(2)
    torch.manual_seed(1)
    described = sg.deferred_init(program)
    assert torch.equal(torch.rand(2), after)
    assert all(sg.is_deferred(tensor) for tensor in described.state_dict().values())
    sg.materialize_module(described)
    for (name, a), b in zip(eager.state_dict().items(), described.state_dict().values(), strict=True):
        assert same_bits(a, b), name
    assert described.head.weight is described.embedding.weight


@pytest.mark.parametrize("reader", READERS)
def test_what_was_loaded_is_the_programs_own(state, tmp_path, reader):
    """A loaded tensor may be written and assigned to a module, and keeps the aliases it has in the file."""
    load = readers(state, tmp_path).get(reader) or pytest.skip("no safetensors")

    def program():
        loaded = load()
        loaded["embedding.weight"].mul_(2)
        loaded["steps"].add_(1)
        net = Tied()
        net.load_state_dict(loaded, assign=True)
        return net

    eager = program()
    described = sg.materialize_module(sg.deferred_init(program))
    for (name, a), b in zip(eager.state_dict().items(), described.state_dict().values(), strict=True):
        assert same_bits(a, b), name
    shares = eager.head.weight.data_ptr() == eager.embedding.weight.data_ptr()
    assert shares == (described.head.weight.data_ptr() == described.embedding.weight.data_ptr())
    assert same_bits(load()["steps"], state["steps"])  # the contents of the file are unchanged


def test_modules_views_and_devices(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    kept = {"part": base[1:3, ::2], "turned": base.t(), "whole": base, "conj": torch.rand(3, dtype=torch.cfloat).conj()}
    kept["parameter"] = nn.Parameter(torch.rand(2), requires_grad=False)
    kept["grad"] = torch.rand(3, requires_grad=True)
    torch.save(kept, tmp_path / "views.pt")
    torch.save(nn.Linear(3, 2), tmp_path / "module.pt")
    blob = pickle.dumps(kept)  # gives each tensor a separate storage
    for loaded, shares in ((lambda: torch.load(tmp_path / "views.pt"), True), (lambda: pickle.loads(blob), False)):
        made = sg.deferred_init(loaded)
        assert all(sg.is_deferred(tensor) for tensor in made.values())
        for name, tensor in made.items():
            sg.materialize_tensor(tensor)
            assert torch.equal(tensor, kept[name]) and tensor.stride() == kept[name].stride(), name
            assert type(tensor) is type(kept[name]) and tensor.requires_grad == kept[name].requires_grad, name
        part, whole = (made[name].untyped_storage().data_ptr() for name in ("part", "whole"))
        assert (part == whole) == shares
    on_cuda = sg.deferred_init(torch.load, tmp_path / "views.pt", map_location="cuda")
    assert {tensor.device.type for tensor in on_cuda.values()} == {"cuda"}
    assert torch.equal(sg.materialize_tensor(on_cuda["turned"], device="cpu"), kept["turned"])
    module = sg.deferred_init(torch.load, tmp_path / "module.pt", weights_only=False)
    assert sg.is_deferred(module) and isinstance(module.weight, nn.Parameter)
    want = torch.load(tmp_path / "module.pt", weights_only=False)
    assert torch.equal(sg.materialize_module(module).weight, want.weight)


def test_pretrained_models(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=128, bos_token_id=1, eos_token_id=1)
    saved = transformers.GPT2LMHeadModel(config)
    saved.save_pretrained(tmp_path)
    described = sg.deferred_init(transformers.GPT2LMHeadModel.from_pretrained, tmp_path)
    assert all(sg.is_deferred(parameter) for parameter in described.parameters())
    sg.materialize_module(described.transformer.h[1])
    sg.materialize_module(described)
    for (name, a), b in zip(saved.state_dict().items(), described.state_dict().values(), strict=True):
        assert same_bits(a, b), name
    assert described.lm_head.weight is described.transformer.wte.weight


def test_loaders_of_data():
    data = torch.utils.data.TensorDataset(torch.arange(6.0))

    def program():
        return [batch[0].mul_(2) for batch in torch.utils.data.DataLoader(data, batch_size=3)]

    made = sg.deferred_init(program)
    assert [sg.materialize_tensor(batch).tolist() for batch in made] == [[0, 2, 4], [6, 8, 10]]


def test_nothing_is_read_that_nobody_asks_for(tmp_path):
    torch.save({"a": torch.rand(1 << 20), "b": torch.rand(2)}, tmp_path / "large.pt")
    made = sg.deferred_init(torch.load, tmp_path / "large.pt")
    assert sg.materialize_shard(made["a"], 0, 5, 3).shape == (3,)
    assert sg.is_deferred(made["a"])


def test_what_cannot_be_loaded_is_a_typed_error(tmp_path):
    net = sg.deferred_init(nn.Linear, 2, 2)
    foreign = net.state_dict()
    with pytest.raises(sg.DeferredError, match="load_state_dict of 'weight' uses a fake tensor .* another"):
        sg.deferred_init(lambda: nn.Linear(2, 2).load_state_dict(foreign))
    with pytest.raises(sg.DeferredError, match="aten::detach uses a fake tensor"):
        sg.deferred_init(net.state_dict)
    with torch.inference_mode():
        inference = nn.Linear(2, 2).state_dict()
    with pytest.raises(sg.DeferredError, match="load_state_dict of 'weight' uses an inference tensor"):
        sg.deferred_init(lambda: nn.Linear(2, 2).load_state_dict(inference))
    torch.save({"weight": torch.eye(2).to_sparse(), "bias": torch.ones(2)}, tmp_path / "sparse.pt")
    with pytest.raises(sg.UnsupportedError, match="dense strided"):
        sg.deferred_init(torch.load, tmp_path / "sparse.pt")
    with pytest.raises(FileNotFoundError):
        sg.deferred_init(torch.load, tmp_path / "nowhere.pt")
    with pytest.raises(RuntimeError, match="size mismatch"):  # raised by torch
        sg.deferred_init(lambda: nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict()))
    outside = nn.Linear(2, 2)
    described = sg.deferred_init(lambda: (lambda n: (n.load_state_dict(outside.state_dict()), n)[1])(nn.Linear(2, 2)))
    assert torch.equal(sg.materialize_module(described).weight, outside.weight)
