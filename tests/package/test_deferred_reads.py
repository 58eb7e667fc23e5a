"""Reads of deferred tensors that call no operator, inside deferred_init and afterwards, against eager."""

import numpy as np
import pytest
import torch
from torch import nn

import shadowgraph as sg

READS = {
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy().copy(),
    "asarray": lambda t: np.asarray(t).copy(),
    "asarray of another dtype": lambda t: np.asarray(t, dtype=np.float64),
    "array": lambda t: t.__array__().copy(),
    "iteration": lambda t: [float(each) for each in t.flatten()],
    "float": lambda t: float(t.sum()),
    "int": lambda t: int(t.sum() * 1000),
    "bool": lambda t: bool(t.sum() > 0),
    "len": lambda t: len(t),
    "repr": lambda t: repr(t),
    "format": lambda t: f"{t.flatten()[0]:.3f} {t}",
    "contains": lambda t: t.flatten()[0].item() in t,
}

PROGRAMS = {
    "drawn": lambda: torch.rand(2, 3),
    "changed": lambda: torch.randn(4, 2).mul_(2).add_(torch.rand(2)),
    "a view": lambda: torch.rand(4, 4).t()[1:, ::2],
    "integers": lambda: torch.randint(9, (5,)),
    "truths": lambda: torch.rand(7) > 0.5,
    "not known how much": lambda: torch.poisson(torch.full((6,), 2.0)) + torch.rand(6),
    "empty": lambda: torch.rand(0, 3),
    "a thousand": lambda: torch.rand(40, 50),
    "halves": lambda: torch.rand(3).half(),
}


def read(program, how):
    if how == "contains" and program == "empty":
        pytest.skip("nothing is in it")
    if how in ("float", "int", "contains") and program == "truths":
        pytest.skip("truths are no numbers")
    if how in ("format",) and program == "empty":
        pytest.skip("there is no first")
    return READS[how]


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_reads_are_as_in_eager(program, how):
    make, see = PROGRAMS[program], read(program, how)
    torch.manual_seed(5)
    tensor = make()
    eager, left = see(tensor), torch.rand(2)
    torch.manual_seed(5)
    while_describing = sg.deferred_init(lambda: see(make()))
    assert torch.equal(torch.rand(2), left)  # reading does not advance the generator
    torch.manual_seed(5)
    described = sg.deferred_init(make)
    afterwards = see(described)
    for seen in (while_describing, afterwards):
        assert type(seen) is type(eager)
        np.testing.assert_array_equal(seen, eager) if isinstance(eager, np.ndarray) else None
        assert isinstance(eager, np.ndarray) or seen == eager
    assert sg.is_deferred(described)
    assert torch.equal(sg.materialize_tensor(described), tensor) and not sg.is_fake(described)


def test_what_a_program_reads_decides_its_way():
    def drop_rates():
        rates = torch.linspace(0, 1, 4).mul_(torch.rand(())).tolist()
        return nn.ModuleList(nn.Linear(2, 2 if rate < 0.3 else 3) for rate in rates)

    torch.manual_seed(2)
    eager = drop_rates()
    torch.manual_seed(2)
    described = sg.materialize_module(sg.deferred_init(drop_rates))
    for a, b in zip(eager.parameters(), described.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_print_as_eager_ones():
    torch.manual_seed(1)
    eager = nn.Linear(3, 2)
    torch.manual_seed(1)
    described = sg.deferred_init(nn.Linear, 3, 2)
    assert repr(described.weight) == repr(eager.weight)
    assert str(described.weight * 2) == str(eager.weight * 2)  # with its grad_fn
    assert "device='cuda:0'" in repr(sg.deferred_init(nn.Linear, 3, 2, device="cuda").weight)


def test_arrays_are_as_safe_as_they_can_be():
    described = sg.deferred_init(nn.Linear, 3, 2)
    with pytest.raises(RuntimeError, match="Can't call numpy\\(\\) on Tensor that requires grad"):
        described.weight.numpy()
    with torch.no_grad():
        assert described.weight.numpy().shape == (2, 3)
    array = described.weight.detach().numpy()
    with pytest.raises(ValueError, match="read-only"):  # eager's tensor would see a write
        array[0] = 1
    on_cuda = sg.deferred_init(torch.rand, 3, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        on_cuda.numpy()
    assert on_cuda.tolist() == on_cuda.cpu().tolist() == on_cuda.numpy(force=True).tolist()


def test_tensors_from_outside_are_read_as_they_are():
    outside = torch.arange(4.0)

    def program():
        part = outside[1:]
        return part.tolist(), (part * 2).tolist(), repr(part), outside.tolist()

    assert sg.deferred_init(program) == ([1, 2, 3], [2, 4, 6], "tensor([1., 2., 3.])", [0, 1, 2, 3])


def test_reads_that_cannot_be_are_typed_errors():
    described = sg.deferred_init(lambda: torch.rand(3))
    with sg.fake("cpu"), pytest.raises(sg.DataDependentError):  # data is unknown in fake mode
        described.tolist()
    assert described.tolist() == sg.materialize_tensor(described).tolist()
    for refused in (torch.Tensor.share_memory_, torch.utils.dlpack.to_dlpack, lambda t: t.__reduce_ex__(2)):
        with pytest.raises(sg.DataDependentError, match="sg.materialize_tensor to materialize it"):
            refused(sg.deferred_init(lambda: torch.rand(3)))
    base, view = sg.deferred_init(lambda: (lambda t: (t, t[1:]))(torch.rand(3)))
    real = sg.materialize_tensor(base)
    real[2] = 7  # memory that the view shares
    assert view.tolist() == real[1:].tolist() and repr(view) == repr(real[1:])
    assert sg.materialize_tensor(view).data_ptr() == real[1:].data_ptr()
    outside = torch.ones(2)
    stale = sg.deferred_init(lambda: outside * 2)
    outside.add_(1)
    with pytest.raises(sg.DeferredError):
        stale.tolist()
    assert "whose values cannot be computed: a tensor created outside of deferred_init" in repr(stale)


def test_large_ones_are_not_computed_to_be_printed():
    huge = sg.deferred_init(torch.empty, 1 << 20, 1 << 20)
    assert repr(huge) == "<fake Float[1048576, 1048576] on cpu>"
