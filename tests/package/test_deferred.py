"""Deferred initialization of Python modules against eager construction, bit for bit."""

import copy
import os
import subprocess
import sys
import types

import pytest
import torch
from test_capture import Net
from torch import nn
from torch.nn.utils import parametrizations

import shadowgraph as sg

sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))


def gpt2():
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=128))


def made_twice(make):
    torch.manual_seed(7)
    eager = make()
    after = torch.rand(3)
    torch.manual_seed(7)
    deferred = sg.deferred_init(make)
    assert torch.equal(torch.rand(3), after)  # the generator state is the same as in eager
    return eager, deferred


def assert_same(a, b):
    a, b = a.state_dict(keep_vars=True), b.state_dict(keep_vars=True)
    assert list(a) == list(b)
    for name in a:
        assert type(a[name]) is type(b[name]) and a[name].requires_grad == b[name].requires_grad
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("make", [Net, gpt2, lambda: torch.nn.LSTM(8, 16, 2), lambda: torch.nn.Conv2d(3, 8, 3),
                                  lambda: torch.nn.BatchNorm2d(4),
                                  lambda: torch.nn.TransformerEncoderLayer(32, 4)])  # fmt: skip
def test_whole_modules(make):
    eager, deferred = made_twice(make)
    assert sg.is_deferred(deferred) and all(sg.is_fake(p) for p in deferred.parameters())
    held = list(deferred.parameters())
    assert sg.materialize_module(deferred) is deferred and not sg.is_deferred(deferred)
    assert all(a is b for a, b in zip(held, deferred.parameters(), strict=True))
    assert_same(eager, deferred)


def test_parts_in_any_order():
    eager, deferred = made_twice(gpt2)
    sg.materialize_module(deferred.transformer.h[1])
    assert sg.is_deferred(deferred.transformer.h[0])
    weight = deferred.transformer.h[0].attn.c_attn.weight
    part = sg.materialize_shard(weight, 0, 8, 4)
    assert torch.equal(part, eager.transformer.h[0].attn.c_attn.weight[8:12]) and sg.is_deferred(weight)
    sg.materialize_module(deferred, check_fn=lambda module: isinstance(module, torch.nn.LayerNorm))
    assert sg.is_deferred(deferred.transformer.wte)
    sg.materialize_module(deferred)
    assert_same(eager, deferred)
    assert deferred.lm_head.weight is deferred.transformer.wte.weight
    ids = torch.arange(8).reshape(1, 8)
    assert torch.equal(eager.eval()(ids).logits, deferred.eval()(ids).logits)


def test_training_goes_on_from_there():
    eager, deferred = made_twice(Net)
    optimizer = torch.optim.AdamW(deferred.parameters())
    sg.materialize_module(deferred)
    reference = torch.optim.AdamW(eager.parameters())
    for model, steps in ((deferred, optimizer), (eager, reference)):
        model(torch.ones(2, 16)).sum().backward()
        steps.step()
    assert_same(eager, deferred)


def test_other_devices_dtypes_and_files(tmp_path):
    eager, deferred = made_twice(Net)
    assert sg.save_weights(deferred, tmp_path / "w.pt")[0] == len(eager.state_dict())
    loaded = torch.load(tmp_path / "w.pt", weights_only=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in eager.state_dict().items())
    sg.materialize_module(deferred, dtype=torch.bfloat16)
    assert torch.equal(deferred.head.weight, eager.head.weight.to(torch.bfloat16))


def test_errors_are_typed():
    with sg.fake():
        x = torch.empty(3)
    with pytest.raises(sg.DeferredError):
        sg.materialize_tensor(x)
    real = torch.ones(2)
    assert sg.materialize_tensor(real) is real and not sg.is_deferred(real)

    def failing():
        torch.empty(3)
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        sg.deferred_init(failing)
    assert not sg.is_fake(torch.ones(2))


def real_module_of(tensor):
    with sg.unfake():
        return torch.nn.ParameterDict({"w": torch.nn.Parameter(tensor)})


WRITES = {
    "in place": lambda t: t.add_(1),
    "an item": lambda t: t.__setitem__(0, 5),
    "a view": lambda t: t[1:].zero_(),
    "a view of a view": lambda t: t.view(2, 2).t().fill_(1),
    "detached": lambda t: t.detach().zero_(),
    ".data": lambda t: t.data.zero_(),
    ".data =": lambda t: setattr(t, "data", torch.rand(4)),
    "out=": lambda t: torch.add(torch.rand(4), 1, out=t),
    "a copy": lambda t: t.copy_(torch.rand(4)),
    "a draw": lambda t: torch.nn.init.normal_(t),
    "a list": lambda t: torch._foreach_add_([torch.rand(4), t], 1),
    "an index": lambda t: t.index_fill_(0, torch.tensor([0]), 3.0),
    "a mask": lambda t: t.masked_fill_(torch.rand(4) > 2, 0),
    "a composite": lambda t: t.clamp_(0, 1),
    "statistics": lambda t: torch.nn.functional.batch_norm(torch.rand(3, 4), t, t, training=True),
    "geometry": lambda t: t.unsqueeze_(0),
    "size": lambda t: t.resize_(9),
    "memory": lambda t: t.set_(torch.rand(2)),
    "a module": lambda t: real_module_of(t).half(),
    "under no_grad": lambda t: torch.no_grad()(lambda: t.mul_(2))(),
    "in inference mode": lambda t: torch.inference_mode()(lambda: t.mul_(2))(),
}


@pytest.mark.parametrize("how", WRITES)
def test_every_write_to_a_tensor_from_outside_is_one_error(how):
    outside = torch.tensor([2.0, 3.0, 4.0, 5.0])
    memory = outside.data_ptr()
    with pytest.raises(sg.DeferredError, match="created outside of deferred_init .*nothing was written"):
        sg.deferred_init(WRITES[how], outside)
    assert type(outside) is torch.Tensor and not sg.is_fake(outside)
    assert outside.tolist() == [2, 3, 4, 5] and outside.shape == (4,) and outside.data_ptr() == memory
    described = sg.deferred_init(torch.rand, 4)
    with pytest.raises(sg.DeferredError, match="created outside of deferred_init .*nothing was written"):
        outside.copy_(described)


def assign(linear):
    linear.load_state_dict({"weight": torch.zeros(600, 600), "bias": torch.zeros(600)}, assign=True)


# Other memory for a tensor that a deferred program has read. The recording holds the old memory.
REPLACED = {
    "half": lambda linear: linear.half(),
    "double": lambda linear: linear.double(),
    "to meta": lambda linear: linear.to("meta"),
    ".data =": lambda linear: setattr(linear.weight, "data", torch.zeros(600, 600)),
    ".data = of another size": lambda linear: setattr(linear.weight, "data", torch.zeros(1)),
    ".data = a part": lambda linear: setattr(linear.weight, "data", linear.weight.data[:1]),
    ".data = a transposed one": lambda linear: setattr(linear.weight, "data", linear.weight.data.t()),
    "load_state_dict": assign,
    "swapped": lambda linear: torch.utils.swap_tensors(linear.weight, nn.Parameter(torch.zeros(600, 600))),
    "deleted": lambda linear: delattr(linear, "weight"),
    "set_": lambda linear: linear.weight.data.set_(torch.zeros(2)),
}


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("use", [lambda w: w * 2, lambda w: w[1:].t().clone(), lambda w: w.detach().to(torch.float64)])
def test_a_tensor_from_outside_gets_other_memory(how, use):
    outside = nn.Linear(600, 600)
    described = sg.deferred_init(lambda: use(outside.weight.detach()))
    wanted = use(outside.weight.detach()).clone()
    REPLACED[how](outside)
    torch.full((600, 600), 7.0)  # freed memory would be used again
    assert torch.equal(sg.materialize_tensor(described), wanted)


# Writes to the memory itself, by which the values are lost.
OVERWRITTEN = {
    "in place": lambda linear: torch.no_grad()(lambda: linear.weight.mul_(2))(),
    "reset_parameters": lambda linear: linear.reset_parameters(),
    "an optimizer": lambda linear: (linear(torch.ones(600)).sum().backward(),
                                    torch.optim.SGD(linear.parameters(), 0.1).step()),
    "through .data": lambda linear: linear.weight.data.mul_(2),
    "through numpy": lambda linear: linear.weight.detach().numpy().fill(3),
    "through the storage": lambda linear: linear.weight.untyped_storage().fill_(1),
    "through DLPack": lambda linear: torch.from_dlpack(linear.weight.detach()).data.zero_(),
    "freed": lambda linear: linear.weight.untyped_storage().resize_(0),
    "after other memory": lambda linear: (linear.half(), linear.reset_parameters()),
}  # fmt: skip


@pytest.mark.parametrize("how", OVERWRITTEN)
@pytest.mark.parametrize("size", [4, 600])
def test_a_tensor_from_outside_is_overwritten(how, size):
    outside = nn.Linear(600, 600)
    described = sg.deferred_init(lambda: outside.weight.detach()[:size] * 2)
    OVERWRITTEN[how](outside)
    with pytest.raises(sg.DeferredError, match="created outside of deferred_init .*was modified since it was recorded"):
        sg.materialize_tensor(described)
    assert sg.is_deferred(described)


def test_a_materialized_tensor_is_deferred_again_while_another_recording_uses_it():
    first = sg.materialize_tensor(sg.deferred_init(torch.rand, 5))
    second = sg.deferred_init(lambda: first * 2)
    wanted = first * 2
    sg.dematerialize(first)
    assert torch.equal(sg.materialize_tensor(second), wanted)


ESCAPES = {
    ".data =": lambda real, tensor: setattr(real.weight, "data", tensor),
    ".data = on meta": lambda real, tensor: setattr(real.to("meta").weight, "data", tensor),
    ".data = without gradients": lambda real, tensor: setattr(real.weight.detach(), "data", tensor),
    ".data = in inference mode": lambda real, tensor: torch.inference_mode()(setattr)(real.weight, "data", tensor),
    "vector_to_parameters": lambda real, tensor: torch.nn.utils.vector_to_parameters(tensor.view(-1), [real.weight]),
    "_apply": lambda real, tensor: real._apply(lambda each: tensor if each.dim() == 2 else each),
}


@pytest.mark.parametrize("how", ESCAPES)
def test_a_deferred_tensor_does_not_become_the_data_of_a_real_one(how):
    real, described = nn.Linear(3, 3), sg.deferred_init(nn.Linear, 3, 3)
    with sg.fake():
        fake = torch.ones(3, 3)
    for tensor in (described.weight.detach(), fake):
        with pytest.raises(sg.UnsupportedError, match="replace the data of a real tensor"):
            ESCAPES[how](real, tensor)
        assert type(real.weight) is nn.Parameter and not sg.is_fake(real.weight)
    other = torch.ones(2)
    other.data = torch.zeros(3)  # real tensors are as ever
    assert other.tolist() == [0, 0, 0]
    sg.materialize_module(described)
    described.weight.data = sg.deferred_init(torch.zeros, 3, 3)  # materialized tensors can be deferred again
    assert sg.is_deferred(described) and not sg.materialize_module(described).weight.any()


def test_the_last_tensor_of_a_recording_drops_its_storage():
    described = sg.deferred_init(torch.rand, 4, 4)
    described.set_()
    assert described.shape == (0,)
    kept = sg.deferred_init(torch.rand, 3)
    with pytest.raises(sg.DeferredError, match="another deferred_init"):
        kept * 2 + described.sum()
    assert sg.materialize_tensor(kept * 2).shape == (3,)
    assert sg.materialize_tensor(described.sum()).item() == 0 and sg.materialize_tensor(described).shape == (0,)


class Tables(nn.Module):
    """Holds tensors wherever modules hold them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 6))
        self.register_buffer("low", torch.rand(6, dtype=torch.bfloat16)[2:], persistent=False)
        self.register_buffer("whole", torch.rand(3, 4))
        self.register_buffer("row", self.whole[1])
        self.register_buffer("alias", self.weight.detach())
        self.register_buffer("count", torch.tensor(3))
        angles = torch.outer(torch.arange(5.0), torch.rand(2))
        self.cos, self.polar = angles.cos(), torch.polar(torch.ones(5, 2), angles).conj()
        self.rows, self.by_name = [self.weight.data[1:], self.whole.t()], {"sin": angles.sin(), "view": self.cos[1:]}
        self.plain = types.SimpleNamespace(first=self.weight.detach().view(-1)[:3])
        self.norm = nn.BatchNorm1d(4)

    def others(self):
        return [self.cos, self.polar, *self.rows, *self.by_name.values(), self.plain.first]


def assert_same_tables(wanted, got):
    assert_same(wanted, got)
    assert torch.equal(got.low, wanted.low)
    mine = [*wanted.others(), *wanted.parameters(), *wanted.buffers()]
    theirs = [*got.others(), *got.parameters(), *got.buffers()]
    for a, b in zip(mine, theirs, strict=True):
        assert not sg.is_fake(b) and torch.equal(a, b) and a.stride() == b.stride() and a.is_conj() == b.is_conj()
        for c, d in zip(mine, theirs, strict=True):
            assert (a.untyped_storage()._cdata == c.untyped_storage()._cdata) == (
                b.untyped_storage()._cdata == d.untyped_storage()._cdata
            )


def test_other_attributes_are_materialized_with_the_module():
    eager, deferred = made_twice(Tables)
    sg.materialize_module(deferred, buffers_only=True)
    assert sg.is_deferred(deferred.weight) and sg.is_deferred(deferred.cos)
    assert_same_tables(eager, sg.materialize_module(deferred))
    deferred.weight.data.fill_(2)
    assert deferred.rows[0].eq(2).all()
    sg.dematerialize(deferred)
    assert all(sg.is_deferred(each) for each in deferred.others())
    assert_same_tables(eager, sg.materialize_module(deferred))
    _, half = made_twice(Tables)
    sg.materialize_module(half, dtype=torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16 and half.cos.dtype == torch.float32  # as Module.to()
    assert torch.equal(half.rows[0], eager.weight.data[1:].to(torch.bfloat16))


def test_views_held_elsewhere_follow_their_materialized_storage():
    _, deferred = made_twice(Tables)
    view, rows = deferred.weight.detach()[1:], deferred.whole[0]
    printed = deferred.weight.detach()[0]
    sg.materialize_module(deferred)
    assert torch.equal(view + 1, deferred.weight[1:] + 1) and not sg.is_fake(view)  # by the first operator
    assert printed.tolist() == deferred.weight[0].tolist()
    rows.zero_()
    assert not deferred.whole[0].any()
    parameter = sg.deferred_init(lambda: nn.Parameter(torch.rand(3)))
    part = parameter[1:] * 2
    sg.materialize_tensor(parameter)
    assert torch.equal(sg.materialize_tensor(part), parameter[1:] * 2)


COPIED = {
    "tables": Tables,
    "norm": lambda: nn.BatchNorm2d(3),
    "lstm": lambda: nn.LSTM(3, 4),
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(4, 5)),
    "hooked spectral": lambda: nn.utils.spectral_norm(nn.Linear(4, 5)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 5)),
}


@pytest.mark.parametrize("what", COPIED)
@pytest.mark.parametrize("how", [copy.deepcopy, lambda net: torch.optim.swa_utils.AveragedModel(net).module])
def test_deferred_modules_are_copied(what, how):
    eager, deferred = made_twice(COPIED[what])
    twin = how(deferred)
    again = copy.deepcopy(twin)
    assert_same(eager, sg.materialize_module(twin))
    assert sg.is_deferred(deferred) and sg.is_deferred(again)
    assert_same(eager, sg.materialize_module(deferred))
    assert_same(eager, sg.materialize_module(again))
    if what == "tables":
        assert_same_tables(how(eager), twin)
    x = torch.rand(2, 4)
    if "spectral" in what or "weight" in what:
        assert torch.equal(eager(x), twin(x)) and torch.equal(eager(x), twin(x))  # updates u and v


def test_torchdistx_passes_buffers_only_and_check_fn_by_position():
    _, deferred = made_twice(Tables)
    sg.materialize_module(deferred, True)
    assert sg.is_deferred(deferred.weight) and not sg.is_fake(deferred.whole)
    sg.materialize_module(deferred, False, lambda module: isinstance(module, nn.BatchNorm1d))
    assert sg.is_deferred(deferred.weight) and not sg.is_fake(deferred.norm.weight)
    sg.materialize_module(deferred, False)
    assert not sg.is_deferred(deferred)


def test_recordings_are_freed_without_keep_recipe():
    _, deferred = made_twice(Net)
    sg.materialize_module(deferred, keep_recipe=False)
    tensor = sg.materialize_tensor(sg.deferred_init(torch.rand, 3), keep_recipe=False)
    for each in (tensor, deferred.head.weight):
        with pytest.raises(sg.DeferredError, match="without"):
            sg.dematerialize(each)
    assert_same(made_twice(Net)[0], deferred)


def test_fully_sharded_modules_are_materialized():
    # In a process of its own: the process group is global.
    result = subprocess.run([sys.executable, "-c", FULLY_SHARDED], capture_output=True, text=True, timeout=300,
                            env=os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})  # fmt: skip
    assert result.returncode == 0 and "the same" in result.stdout, result.stdout + result.stderr


FULLY_SHARDED = """
import torch, torch.distributed as dist, shadowgraph as sg
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = init_device_mesh("cpu", (1,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.scale = torch.rand(6)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)) * self.scale))

torch.manual_seed(0)
eager = Net()
torch.manual_seed(0)
net = sg.deferred_init(Net)
for part in (net.first, net.last, net):
    fully_shard(part, mesh=mesh)
assert sg.is_deferred(net) and sg.is_deferred(net.first.weight)
try:
    sg.materialize_module(net, {name: torch.ones(value.shape) for name, value in net.state_dict().items()})
    raise SystemExit("weights were ignored")
except sg.DeferredError as error:
    assert "DTensor" in str(error)
sg.materialize_module(net.first)
sg.materialize_module(net)
assert not sg.is_deferred(net)
for model in (net, eager):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1)
    for _ in range(3):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
for name, value in eager.state_dict().items():
    mine = net.state_dict()[name]
    assert torch.equal(mine.full_tensor() if hasattr(mine, "full_tensor") else mine, value), name
print("the same")
dist.destroy_process_group()
"""
