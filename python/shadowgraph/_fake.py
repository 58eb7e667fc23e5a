"""Fake tensors: programs run for their shapes, dtypes, strides, aliasing and devices, with no data and no memory."""

import weakref
from typing import Any, ClassVar

import torch

from . import _devices, _process
from . import _shadowgraph as _C
from ._shadowgraph import is_fake, known_contents
from ._unfake import unfake

__all__ = ["CrossRefMode", "detect_fake_mode", "fake", "is_fake", "known_contents", "unfake"]


class Scope:
    """What `fake` and `Capture` share: a C++ mode or session, entered and left, and torch told of it meanwhile."""

    _kind: Any  # the C++ class of what is entered
    _inside: Any = None
    # By the address of the C++ mode.
    _active_ones: ClassVar[weakref.WeakValueDictionary] = weakref.WeakValueDictionary()

    def __init__(self, device, **made_with):
        self._device, self._made_with = str(device), made_with

    def __enter__(self):
        _process.install()
        if self._inside is not None:
            raise _C.Error("this is active already; make another one to nest them")
        outer = _C.detect_fake_mode(())
        count = self._made_with["device_count"]
        if count is None and not outer:
            visible = _devices.visible_devices()
            # Who hides a GPU and pretends one means the pretended one.
            count = visible if visible or torch.device(self._device).type != "cuda" else None
        inside = self._kind(self._device, {**self._made_with, "device_count": count})
        _process.acquire()
        try:
            inside.enter()
        except BaseException:
            _process.release()
            raise
        self._inside = inside
        self._active_ones[inside.address()] = self
        # What is left open is as in the mode around.
        asked = count is not None or (outer and _devices.count_is_asked(outer))
        _devices.tell_count(inside.address(), bool(asked))
        return self

    def __exit__(self, *exception):
        inside, self._inside = self._active(), None
        self._active_ones.pop(inside.address(), None)
        _devices.forget_count(inside.address())
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
    device_count: how many there are; others raise Error. With 0 no tensor is on CUDA. Without it, there are
        as many as CUDA_VISIBLE_DEVICES says, or 8, of which torch.cuda.device_count() tells one: trainers take all that
        they see. In a process group it tells all.
    real_tensors: what becomes of a real tensor that meets fakes: "constant" (its fake takes its place, small CPU
        tensors keep their values), "convert" (only single elements do) or "refuse" (UnsupportedError).
    data_sizes: sizes of results that depend on data, by name, {"nonzero0": 17}; of all of a kind, {"nonzero": 17}, or
        as many as there can be; a function of (name, operator, tensor, most) that gives a size or None; a list of such.
    host_reads: answers to what the program reads and data decides (item(), an `if` on a tensor); without one it raises
        DataDependentError, which tells the name. One of these, or a list of them, asked in this order:
        a dict by name, {"item0": 2.5}; a function of (name, tensor, source) that gives a value or None; a dict by kind,
        {"bool": False, "int": 3, "float": 0.5}; "finite": no infinities and no NaNs, and a float that is read is 1.0.
        "mask full": inputs of dtype bool, and those of integers with "mask" in their names, are full of ones.
    contents_budget: (bytes, seconds) that computing what the program reads from constants and sizes may take; by
        default 1 GiB and 10 s.
    unknown_operators_on_zeros: an operator that nobody has a shape for runs its CPU kernel on real zeros of full size,
        to see what comes out; those that index by their operands or change their geometry are refused.

    Raises Error if torch in this process cannot be used so, or for a device that cannot be pretended.
    """

    _kind = _C.Mode

    def __init__(self, device="cpu", *, profile="", device_count=None, real_tensors="constant", data_sizes=None,
                 host_reads=None, contents_budget=None, unknown_operators_on_zeros=False):  # fmt: skip
        super().__init__(device, profile=profile, device_count=device_count, real_tensors=real_tensors,
                         data_sizes=data_sizes, host_reads=host_reads, contents_budget=contents_budget,
                         unknown_operators_on_zeros=unknown_operators_on_zeros)  # fmt: skip
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


def detect_fake_mode(*tensors):
    """The `fake` or `Capture` that the fakes among `tensors` were made in, or this thread's innermost one; else None.

    A mode that Python did not make, such as deferred_init's, is None. Raises Error for fakes of two modes.
    """
    return Scope._active_ones.get(_C.detect_fake_mode(tensors))


class CrossRefMode:
    """Inside ``with sg.CrossRefMode() as check:`` a real program runs, and each operator call on fakes beside it.

        with sg.CrossRefMode():
            net(x).sum().backward()       # Error: aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake

    Compared are results and written operands: how many, sizes, dtypes, strides, offsets, devices, what shares memory.

    throw_at_first: raise Error from the first call that differs; otherwise all are in `differences`.
    compared: calls so far. refused: {operator: calls that fakes refuse}, which are not compared.

    Raises Error inside a fake mode: the program must be real.
    """

    def __init__(self, throw_at_first=True):
        self._inside = _C.CrossRef(throw_at_first)

    def __enter__(self):
        _process.install()
        self._inside.enter()
        return self

    def __exit__(self, *exception):
        self._inside.leave()

    @property
    def compared(self):
        return self._inside.compared

    @property
    def refused(self):
        return self._inside.refused

    @property
    def differences(self):
        return self._inside.differences
