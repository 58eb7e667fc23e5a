"""Fake tensors: programs run for their shapes, dtypes, strides, aliasing and devices, with no data and no memory."""

import weakref
from typing import Any

import torch

from . import _process
from . import _shadowgraph as _C
from ._shadowgraph import is_fake
from ._unfake import unfake

__all__ = ["fake", "is_fake", "unfake"]


class Scope:
    """What `fake` and `Capture` share: a C++ mode or session, entered and left, and torch told of it meanwhile."""

    _inside: Any = None

    def _make(self):
        raise NotImplementedError("the C++ object that is entered")

    def __enter__(self):
        _process.install()
        if self._inside is not None:
            raise _C.Error("this is active already; make another one to nest them")
        inside = self._make()
        _process.acquire()
        try:
            inside.enter()
        except BaseException:
            _process.release()
            raise
        self._inside = inside
        return self

    def __exit__(self, *exception):
        inside, self._inside = self._active(), None
        try:
            inside.leave()
        finally:
            _process.release()

    def _active(self):
        if self._inside is None:
            raise _C.Error("this is not active: use it inside `with`")
        return self._inside

    def from_real(self, tensor, device=None):
        """The fake of a real tensor, on `device` or where the real one is. The same tensor gives the same fake."""
        return self._active().from_real(tensor, None if device is None else str(device))


class fake(Scope):
    """Inside ``with sg.fake("cuda"):`` tensors are fake, and CUDA devices are there, on a machine without any.

    Factories make fake tensors where they are told to, as on a real machine: ``torch.empty(3)`` on the CPU,
    ``torch.empty(3, device="cuda")`` or ``model.cuda()`` on the pretended device. Modes nest; the innermost one counts,
    on its thread. Fakes may outlive their mode.

    device: what C++ factories that name none use, and which accelerator is pretended: "cpu", "cuda", "cuda:1".
    profile: what the pretended device can do: "h100" (the default) or "a100".
    real_tensors: what becomes of a real tensor that meets fakes: "constant" (its fake takes its place, small CPU
        tensors keep their values), "convert" (only single elements do) or "refuse" (RealTensorError).
    data_sizes: sizes of results that depend on data, by name, {"nonzero0": 17}; of all of a kind, {"nonzero": 17}, or
        as many as there can be; a function of (name, operator, tensor, most) that gives a size or None; a list of such.
    host_reads: answers to what the program reads and data decides (item(), an `if` on a tensor); without one it raises
        DataDependentError, which tells the name. One of these, or a list of them, asked in this order:
        a dict by name, {"item0": 2.5}; a function of (name, tensor, source) that gives a value or None; a dict by kind,
        {"bool": False, "int": 3, "float": 0.5}; "finite": no infinities and no NaNs, and a float that is read is 1.0.
        "mask full": inputs of dtype bool, and those of integers with "mask" in their names, are full of ones.
    contents_budget: (bytes, seconds) that computing what the program reads from constants and sizes may take; by
        default 1 GiB and 10 s.

    Raises EnvironmentError if torch in this process cannot be used so, Error for a device that cannot be pretended.
    """

    def __init__(self, device="cpu", *, profile="", real_tensors="constant", data_sizes=None, host_reads=None,
                 contents_budget=None):  # fmt: skip
        self._made_with = (str(device), profile, real_tensors, data_sizes, host_reads, contents_budget)
        self._real = {}  # weak references to tensors that were converted, by address

    def from_real(self, tensor, device=None):
        fake = super().from_real(tensor, device)
        # A mode keeps the fake as long as the real tensor lives, whose end C++ is told of by nobody.
        if isinstance(tensor, torch.Tensor) and not is_fake(tensor):
            inside, real, address = self._active(), self._real, tensor._cdata

            def gone(reference):
                if real.get(address) is reference:
                    del real[address]
                    inside.forget(address)

            if address not in real or real[address]() is not tensor:
                real[address] = weakref.ref(tensor, gone)
        return fake

    def __exit__(self, *exception):
        self._real.clear()
        super().__exit__(*exception)

    def _make(self):
        return _C.Mode(*self._made_with)
