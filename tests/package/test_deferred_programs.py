"""Random constructors of modules, deferred and materialized in random orders, against eager construction, bit for bit.

SHADOWGRAPH_RANDOM_PROGRAMS and SHADOWGRAPH_RANDOM_SEED: the number of programs (default 60) and the first seed.
"""

import contextlib
import copy
import os
import random

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import shadowgraph as sg

COUNT = int(os.environ.get("SHADOWGRAPH_RANDOM_PROGRAMS", "60"))
FIRST = int(os.environ.get("SHADOWGRAPH_RANDOM_SEED", "0"))


class Constructor:
    """Builds the same module at every call. `random.Random` chooses the steps; torch's generators only draw."""

    def __init__(self, seed):
        self.seed = seed
        maker = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.outside = nn.Linear(4, 4)
            for parameter in self.outside.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=maker))
        self.own = torch.Generator()

    def __call__(self):
        self.choose = random.Random(self.seed)
        self.own.manual_seed(self.seed % 3)
        self.states, self.own_states, self.log = [], [], []
        self.net = nn.Module()
        self.net.table = torch.rand(6)
        self.net.w = nn.Parameter(torch.rand(4, 4))
        steps = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        for number in range(self.choose.randint(4, 14)):
            step = self.choose.choice(steps)
            self.log.append(step.__name__[3:])
            self.name = f"x{number}"
            with contextlib.nullcontext() if self.choose.random() < 0.2 else torch.no_grad():
                step()
        return self.net

    # ---- Choices

    def parameter(self):
        return self.choose.choice([each for each in self.net.parameters() if each.is_floating_point()])

    def child(self):
        """Returns a child module that takes float tensors of 4 columns."""
        children = [each for each in self.net.children() if not isinstance(each, nn.Embedding)]
        if not children:
            self.net.first = nn.Linear(4, 4)
        return self.choose.choice(children or [self.net.first])

    def keep(self, tensor):
        """Stores a tensor as a buffer, an attribute, or in a list or dict."""
        how = self.choose.randrange(4)
        if how == 0:
            self.net.register_buffer(self.name, tensor.detach())
        else:
            setattr(self.net, self.name, (tensor, [tensor, 1], {"t": tensor})[how - 1])

    # ---- Modules

    def do_layer(self):
        layer = self.choose.choice([
            lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4, bias=False), lambda: nn.LayerNorm(4),
            lambda: nn.BatchNorm1d(4), lambda: nn.Embedding(5, 4, padding_idx=1), lambda: nn.Linear(4, 4).double(),
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)),
            lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3)), lambda: nn.LSTM(4, 4),
            lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
            lambda: parametrizations.weight_norm(nn.Linear(4, 4)), lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
            lambda: nn.PReLU(4),
        ])()  # fmt: skip
        self.net.add_module(self.name, layer)
        return layer

    def do_initialize(self):
        init = self.choose.choice([
            lambda p: nn.init.normal_(p, 0, 0.1), nn.init.zeros_, nn.init.ones_, lambda p: nn.init.uniform_(p, -1, 1),
            lambda p: nn.init.trunc_normal_(p, std=0.5), lambda p: nn.init.xavier_uniform_(p.view(-1, 1)),
            lambda p: p.data.bernoulli_(0.5), lambda p: nn.init.constant_(p, 2),
        ])  # fmt: skip
        init(self.parameter().data)

    def do_apply(self):
        self.child().apply(lambda m: nn.init.normal_(m.weight.data) if isinstance(m, nn.Linear) else None)

    def do_deepcopy(self):
        self.net.add_module(self.name, copy.deepcopy(self.child()))

    def do_convert(self):
        child = self.child()
        self.choose.choice([lambda: child.half().float(), lambda: child.bfloat16().float(), child.double,
                            lambda: child.requires_grad_(False), child.eval])()  # fmt: skip

    def do_tie(self):
        self.net.register_parameter(self.name, self.parameter())

    def do_average(self):
        self.net.add_module(self.name, torch.optim.swa_utils.AveragedModel(self.child()).module)

    def do_state_dict(self):
        child = self.child()
        other = copy.deepcopy(child)
        for value in other.state_dict().values():
            if value.is_floating_point():
                value.add_(1)
        child.load_state_dict(other.state_dict(), assign=self.choose.random() < 0.3)

    # ---- Tensors and views

    def do_parameter(self):
        self.net.register_parameter(self.name, nn.Parameter(torch.randn(4, self.choose.randint(1, 5))))

    def do_view(self):
        base = self.choose.choice([self.parameter().data, self.parameter().detach(), self.net.table])
        flat = base.reshape(-1) if base.is_contiguous() else base.t().reshape(-1)
        self.keep(self.choose.choice([lambda: flat[1:], lambda: flat[::2], lambda: flat[None], lambda: base.t()
                                      if base.dim() == 2 else base, lambda: flat[:4].view(2, -1).t()
                                      if flat.numel() >= 4 else flat])())  # fmt: skip

    def do_table(self):
        angles = torch.outer(torch.arange(5.0), 1 / 10000 ** (torch.arange(0, 4, 2) / 4))
        self.keep(self.choose.choice([angles.cos(), angles.sin()[1:], torch.polar(torch.ones(5, 2), angles).conj()]))

    def do_write_view(self):
        self.parameter().data.view(-1)[1:].mul_(self.choose.choice([0.5, 2]))

    def do_write_table(self):
        self.net.table[self.choose.randrange(6)] = self.choose.random()

    def do_data(self):
        parameter = self.parameter()
        parameter.data = self.choose.choice([parameter.data.clone() + 1, torch.rand_like(parameter), parameter.data])

    def do_read(self):
        parameter = self.parameter()
        if parameter.sum().item() > 1:
            parameter.data.sub_(1)
        self.net.register_buffer(self.name, torch.tensor(parameter.tolist()))

    def do_outside(self):
        weight = self.choose.choice([self.outside.weight, self.outside.weight.t(), self.outside.weight[1:]]).detach()
        self.keep(self.choose.choice([lambda: weight * 2, weight.clone, lambda: self.net.w.data.add_(weight.sum())])())

    # ---- Random state

    def do_seed(self):
        torch.manual_seed(self.choose.randrange(3))

    def do_save(self):
        self.states.append(torch.get_rng_state())

    def do_restore(self):
        if self.states:
            torch.set_rng_state(self.choose.choice(self.states))

    def do_fork(self):
        with torch.random.fork_rng(devices=[]):
            if self.choose.random() < 0.7:
                torch.manual_seed(self.choose.randrange(3))
            self.keep(torch.randn(self.choose.randint(1, 20)))

    def do_own_draw(self):
        self.keep(torch.rand(self.choose.randint(1, 20), generator=self.own))

    def do_own_state(self):
        self.own_states.append(self.own.get_state())
        self.choose.choice([lambda: self.own.manual_seed(1), lambda: self.own.set_state(self.own_states[0]),
                            lambda: self.own.set_state(torch.get_rng_state()),
                            lambda: torch.set_rng_state(self.own.get_state())])()  # fmt: skip
        self.do_own_draw()

    def do_draw(self):
        self.choose.choice([lambda: torch.rand(7), lambda: torch.randperm(9), lambda: torch.normal(torch.ones(3), 1.0),
                            lambda: nn.functional.dropout(self.net.w, 0.3), lambda: torch.poisson(torch.ones(4)),
                            lambda: torch.multinomial(torch.ones(5), 2)])()  # fmt: skip

    def do_initial_seed(self):
        self.net.register_buffer(self.name, torch.tensor(torch.initial_seed() % 1000))

    # ---- Hooks and training

    def do_forward(self):
        child = self.child()
        handle = child.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        after = child.register_forward_hook(self.halve_table)
        dtype = next(child.parameters()).dtype
        result = child(torch.rand(3, 4, dtype=dtype))
        handle.remove()
        after.remove()
        self.keep((result[0] if isinstance(result, tuple) else result).detach())

    def halve_table(self, module, args, result):
        self.net.table.mul_(0.5)

    def do_train(self):
        child = self.child()
        weight = self.choose.choice(list(child.parameters()))
        if not weight.requires_grad:
            return
        with torch.enable_grad():
            handle = weight.register_hook(lambda grad: grad * 2)
            result = child(torch.rand(3, 4, dtype=weight.dtype))
            (result[0] if isinstance(result, tuple) else result).sum().backward()
            handle.remove()
        torch.optim.SGD([weight], lr=0.1, momentum=0.9).step()

    def do_registration_hook(self):
        handle = nn.modules.module.register_module_parameter_registration_hook(
            lambda module, name, parameter: nn.Parameter(parameter.data * 2) if parameter is not None else None
        )
        try:
            self.do_layer()
        finally:
            handle.remove()


def tensors_of(net):
    found = []
    for name, module in net.named_modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for key, value in holder.items():
                if isinstance(value, dict):
                    value = list(value.values()) if key.startswith("x") else []
                items = value if isinstance(value, list) else [value]
                found += [(f"{name}.{key}", each) for each in items if isinstance(each, torch.Tensor)]
                found += [(f"{name}.{key}.grad", each.grad) for each in items
                          if isinstance(each, torch.Tensor) and each.is_leaf and each.grad is not None]  # fmt: skip
    return found


def bits(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).view(-1).view(torch.uint8)


def difference(eager, net):
    """Returns the first difference of two modules, None if there is none."""
    wanted, got = tensors_of(eager), tensors_of(net)
    if [name for name, _ in wanted] != [name for name, _ in got]:
        return "other names"
    for (name, want), (_, have) in zip(wanted, got, strict=True):
        if sg.is_fake(have):
            return f"{name} is deferred"
        facts = [(each.dtype, each.shape, each.stride(), each.requires_grad) for each in (want, have)]
        if facts[0] != facts[1]:
            return f"{name}: {facts}"
        if not torch.equal(bits(want), bits(have)):
            return f"{name}: {want} and {have}"
    place = {}
    for (name, want), (_, have) in zip(wanted, got, strict=True):
        pair = (want.untyped_storage()._cdata, have.untyped_storage()._cdata)
        if want.numel() and place.setdefault(pair[0], pair) != pair:
            return f"{name} does not share its storage"
    return None


def materialized(net, choose):
    """Materializes the module in random steps; some tensors are dematerialized in between."""
    for _ in range(choose.randrange(4)):
        parts = list(net.modules())
        tensors = [each for _, each in tensors_of(net) if sg.is_deferred(each)]
        step = choose.randrange(6)
        if step == 0:
            sg.materialize_module(choose.choice(parts))
        elif step == 1 and tensors:
            sg.materialize_tensor(choose.choice(tensors))
        elif step == 2:
            sg.materialize_module(net, True)
        elif step == 3:
            sg.materialize_module(net, None, lambda module: choose.random() < 0.5)
        elif step == 4:
            sg.dematerialize(choose.choice(parts))
        elif tensors:
            tensor = choose.choice(tensors)
            if tensor.dim():
                with contextlib.suppress(sg.DeferredError):  # shares a materialized storage
                    sg.materialize_shard(tensor, 0, 0, min(1, tensor.shape[0]))
    for name, tensor in tensors_of(net):
        if name.endswith(".grad"):
            sg.materialize_tensor(tensor)
    return sg.materialize_module(net)


def change_outside(linear, choose):
    """Changes the tensors that the program used, without writing to their memory."""
    choose.choice([
        linear.half, linear.double, lambda: setattr(linear.weight, "data", torch.zeros(1)),
        lambda: linear.load_state_dict({"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}, assign=True),
        lambda: setattr(linear.weight, "data", linear.weight.data[:1]), lambda: linear.to("meta"), lambda: None,
    ])()  # fmt: skip


def check(seed):
    """Returns what differs between eager and deferred construction, None if nothing."""
    make = Constructor(seed)
    outcomes = []
    for deferred in (False, True):
        torch.manual_seed(seed + 1)
        try:
            net = sg.deferred_init(make) if deferred else make()
            outcomes.append((net, "", torch.get_rng_state(), make.own.get_state()))
        except Exception as error:
            outcomes.append((None, type(error).__name__, None, None))
    (eager, refused, *states), (net, also_refused, *other_states) = outcomes
    if refused or also_refused:
        return None if refused == also_refused else f"eager: {refused or 'ran'}; deferred: {also_refused or 'ran'}"
    for wanted, got, name in zip(states, other_states, ("default", "program's"), strict=True):
        if not torch.equal(wanted, got):
            return f"the {name} generator is left in another state"
    choose = random.Random(seed)
    change_outside(make.outside, choose)
    before = torch.get_rng_state()
    twin = copy.deepcopy(net) if all(each.is_leaf for _, each in tensors_of(net)) and choose.random() < 0.3 else None
    found = difference(eager, materialized(net, choose))
    if found is None and twin is not None:
        found = difference(copy.deepcopy(eager), sg.materialize_module(twin))
    if found is None and not torch.equal(before, torch.get_rng_state()):
        found = "materializing drew from the generator"
    return found


@pytest.mark.parametrize("part", range(4))
def test_random_constructors(part):
    failures = []
    for seed in range(FIRST + part, FIRST + COUNT, 4):
        try:
            found = check(seed)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            make = Constructor(seed)
            with contextlib.suppress(Exception):
                make()
            failures.append(f"seed {seed}: {found}\n  {make.log}")
    assert not failures, f"{len(failures)} of {COUNT // 4} programs differ\n" + "\n".join(failures[:10])
