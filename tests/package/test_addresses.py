"""data_ptr() is distinct for distinct storages and consistent between views, as programs rely on."""

import itertools
import subprocess
import sys

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import shadowgraph as sg


class SimEnv(saved_tensors_hooks):
    """The hooks with which ColossalAI's analyzer counts saved tensors."""

    def __init__(self, module):
        super().__init__(self.pack, lambda tensor: tensor)
        self.saved = {}
        self.parameters = {parameter.data_ptr(): parameter for parameter in module.parameters()}

    def pack(self, tensor):
        if tensor.data_ptr() not in self.parameters:
            self.saved[tensor.data_ptr()] = tensor
        return tensor


def saved_by(net, x):
    env = SimEnv(net)
    with env:
        net(x).sum().backward()
    return sorted(tensor.untyped_storage().nbytes() for tensor in env.saved.values())


def test_saved_tensors_are_told_apart_by_address():
    def net():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 2))

    eager = saved_by(net(), torch.rand(3, 4))
    for device in ("cpu", "cuda"):
        with sg.fake(device):
            assert saved_by(net().to(device), torch.rand(3, 4, device=device)) == eager
    assert len(eager) == 3
    with sg.Capture("cpu"):
        assert saved_by(net(), torch.rand(3, 4)) == eager


def test_addresses_are_those_of_storages():
    with sg.fake("cuda"):
        a, b = torch.empty(6, 4, device="cuda"), torch.empty(3)
        assert a.data_ptr() == a.data_ptr() != b.data_ptr()
        assert a[1].data_ptr() == a.data_ptr() + 16 == a.t()[:, 1].data_ptr()
        assert a.detach().data_ptr() == a.data_ptr() == a.untyped_storage().data_ptr() == a._typed_storage()._data_ptr()
        assert torch.empty(0).data_ptr() == 0
        kept = torch.tensor([1.0, 2.0])  # contents are known, then unknown
        before = kept.data_ptr()
        kept.uniform_()
        assert kept.data_ptr() == before
        many = [torch.empty(1 << 20, 1 << 20) for _ in range(50)]
        begins = sorted(each.data_ptr() for each in many)
        assert all(b - a >= 1 << 40 for a, b in itertools.pairwise(begins))
        assert torch.tensor(begins).dtype == torch.int64
    assert a.data_ptr() == a.untyped_storage().data_ptr() != 0  # also after the mode has ended
    assert torch.empty(3, device="meta").data_ptr() == 0
    real = torch.ones(2)
    assert real.data_ptr() == real.untyped_storage().data_ptr() != 0
    described = sg.deferred_init(nn.Linear, 2, 2)
    pretended = described.weight.data_ptr()
    assert pretended != described.bias.data_ptr()
    assert sg.materialize_module(described).weight.data_ptr() not in (0, pretended)


def test_nothing_is_there():
    program = (
        "import ctypes, torch, shadowgraph as sg\n"
        "with sg.fake('cpu'):\n"
        "    address = torch.empty(3).data_ptr()\n"
        "print('asks', flush=True)\n"
        "ctypes.c_float.from_address(address).value\n"
        "print('read')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout == "asks\n" and ended.returncode < 0
