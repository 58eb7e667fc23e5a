"""Fake tensors: tensors with shapes, dtypes, strides, aliasing and devices, but without data or memory."""

import copy
import weakref
from typing import Any, ClassVar

import torch
import torch.utils._pytree

from . import _attributes, _devices, _process, _wrappers
from . import _shadowgraph as _C
from ._shadowgraph import is_fake


class Scope(_C.Context):
    """Base class of `fake` and `Capture`: enters a C++ mode or session and patches torch while it is active."""

    _kind: Any  # the C++ class to enter
    _inside: Any = None
    # {id of a C++ mode: the Scope that entered it}
    _by_id: ClassVar[weakref.WeakValueDictionary] = weakref.WeakValueDictionary()

    def __init__(self, device, **options):
        super().__init__()
        self._device, self._options = str(device), options

    def __repr__(self):
        return f"sg.{type(self).__name__}({self._device!r})"

    def _enter(self):
        _process.install()
        outer = _C.detect_fake_mode(())
        count = self._options["device_count"]
        if count is None and not outer:
            visible = _devices.visible_devices()
            # Hiding all GPUs does not disable a CUDA device that is simulated explicitly.
            count = visible if visible or torch.device(self._device).type != "cuda" else None
        inside = self._create(count)
        _process.flags.hold(self)
        self.on_exit(inside.leave)
        inside.enter()
        self.on_exit(setattr, self, "_inside", None)
        self._inside = inside
        self._by_id[_C.active_mode_id()] = self
        # Without a count, the enclosing mode's applies.
        self.on_exit(_devices.explicit_count.pop, inside.address(), None)
        _devices.explicit_count[inside.address()] = count is not None or _devices.explicit_count.get(outer, False)

    def _create(self, device_count):
        return self._kind(self._device, {**self._options, "device_count": device_count})

    def _active(self):
        if self._inside is None:
            raise _C.Error("this mode is not active; enter it using `with`")
        return self._inside

    def from_real(self, tensor, device=None, with_gradient=True):
        """Returns the fake tensor of a real tensor, always the same one, on `device` (default: that of `tensor`).

        That of a torch.nn.Parameter is a Parameter.

        with_gradient: also convert its gradient. False while another thread trains it: torch frees a gradient before it
            clears `.grad`.
        """
        fake = self._active().from_real(tensor, None if device is None else str(device), with_gradient)
        if isinstance(tensor, torch.nn.Parameter) and type(fake) is torch.Tensor:
            fake.__class__ = torch.nn.Parameter  # as in UninitializedParameter; a copy would not be "the same one"
        return fake

    def fakeify(self, value, device=None):
        """Returns a copy of a module, or of a nested structure, with the fake tensors of its real ones.

            with sg.fake("cuda") as mode:
                net = mode.fakeify(real_net, "cuda")      # a module of fake parameters and buffers
                net(mode.fakeify(batch, "cuda")).sum().backward()

        The real module is unchanged. Tensors are converted by `from_real`: Parameters stay Parameters, tied tensors
        and views share memory, and a second call gives the same fake tensors. The rest is copied as by copy.deepcopy.

        device: device of the fake tensors (default: that of each tensor).

        Raises UnsupportedError for a ScriptModule, whose tensors are in C++; sg.capture and sg.profile accept one.
        """

        def convert(tensor):
            return _wrappers.rebuilt(tensor, lambda part: part if is_fake(part) else self.from_real(part, device))

        if not isinstance(value, torch.nn.Module):
            return torch.utils._pytree.tree_map_only(torch.Tensor, convert, value)
        memo = {}
        for module in value.modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise _C.UnsupportedError(f"{type(module).__name__} holds its tensors in C++ and cannot be converted; "
                                          "pass it to sg.capture or sg.profile")  # fmt: skip
            own = (*module._parameters.values(), *module._buffers.values())
            others = _attributes.tensors_of(module, but=("_parameters", "_buffers", "_modules"))
            for tensor in (*own, *(other for _, other in others)):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                    memo[id(tensor)] = convert(tensor)
        return copy.deepcopy(value, memo)


class fake(Scope):
    """Inside ``with sg.fake("cuda"):`` all tensors are fake, and CUDA devices are simulated.

    Factory functions create fake tensors on the requested device: ``torch.empty(3)`` on the CPU,
    ``torch.empty(3, device="cuda")`` or ``model.cuda()`` on the simulated device. Modes are per thread and can be
    nested; the innermost one applies. Fake tensors may outlive their mode. A mode that was left can be entered again:
    `from_real` and `fakeify` then return the same fake tensors as before.

    device: default device of C++ factory functions, and the accelerator to simulate: "cpu", "cuda", "cuda:1".
    profile: model of the simulated device: "h100" (the default) or "a100".
    device_count: number of simulated devices; higher indices raise Error. With 0 there is no CUDA. Defaults to the
        number in CUDA_VISIBLE_DEVICES, else 8. Unless given, torch.cuda.device_count() returns 1 outside a process
        group, because trainers use every device they see.
    real_tensors: handling of real tensors passed to operators on fake tensors: "constant" (converted to a fake tensor;
        small CPU tensors keep their values), "convert" (only single elements keep values) or "refuse" (raises
        UnsupportedError).
    data_sizes: data-dependent sizes: a dict by name, {"nonzero0": 17}, or by kind, {"nonzero": 17}; a function of
        (name, operator, tensor, upper bound) that returns a size or None; or a list of these. By default, the upper
        bound.
    host_reads: values for data-dependent reads such as item() or an `if` on a tensor. A read without a value raises
        DataDependentError with the name of the read. One of the following, or a list of them, tried in this order:
        a dict by name, {"item0": 2.5}; a function of (name, tensor, source) that returns a value or None; a dict by
        type, {"bool": False, "int": 3, "float": 0.5}; "finite": no infinities or NaNs, and floats are 1.0;
        "mask full": bool inputs, and integer inputs with "mask" in their names, are all ones.
    contents_budget: (bytes, seconds) limit for computing values that the program reads from constants and sizes;
        (1 GiB, 10 s) by default.
    allow_fallback_kernels: run operators without a shape rule on real zeros with their CPU kernels to infer the
        output metadata. Operators that index by their operands or change geometry in place are rejected.

    Raises Error for an unsupported torch build, or for a device that cannot be simulated.
    """

    _kind = _C.Mode

    def __init__(self, device="cpu", *, profile="", device_count=None, real_tensors="constant", data_sizes=None,
                 host_reads=None, contents_budget=None, allow_fallback_kernels=False):  # fmt: skip
        super().__init__(device, profile=profile, device_count=device_count, real_tensors=real_tensors,
                         data_sizes=data_sizes, host_reads=host_reads, contents_budget=contents_budget,
                         allow_fallback_kernels=allow_fallback_kernels)  # fmt: skip
        self._real = {}  # {address: weak reference} of converted tensors
        self._lasting = None

    def _create(self, device_count):
        if self._lasting is None:
            self._lasting = super()._create(device_count)
        return self._lasting

    def from_real(self, tensor, device=None, with_gradient=True):
        fake = super().from_real(tensor, device, with_gradient)
        # The mode keeps the fake tensor while the real one is alive; C++ is notified when that is freed.
        if isinstance(tensor, torch.Tensor) and not is_fake(tensor):
            inside, real, address = self._inside, self._real, tensor._cdata

            def gone(reference):
                if real.get(address) is reference:
                    del real[address]
                    inside.forget(address)

            if address not in real or real[address]() is not tensor:
                real[address] = weakref.ref(tensor, gone)
        return fake


def detect_fake_mode(*values):
    """Returns the `fake` or `Capture` that created the fake tensors in `values`, also after it has ended.

    values: tensors, and nested structures of them; other values are ignored. Without fake tensors whose mode still
        exists as an object, returns the innermost active mode, or None.

    Modes not created in Python, such as that of deferred_init, give None. Raises Error for tensors of two modes.
    """
    leaves = torch.utils._pytree.tree_leaves(values)
    ids = {_C.fake_mode_id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    modes = {id(mode): mode for mode in map(Scope._by_id.get, ids) if mode is not None}
    if len(modes) > 1:
        raise _C.Error("the tensors belong to two different fake modes; convert some of them with from_real")
    return next(iter(modes.values())) if modes else Scope._by_id.get(_C.active_mode_id())


class CrossRefMode(_C.Context):
    """Inside ``with sg.CrossRefMode() as check:`` each operator also runs on fake tensors, and results are compared.

        with sg.CrossRefMode():
            net(x).sum().backward()       # Error: aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake

    Compares number, sizes, dtypes, strides, offsets, devices and aliasing of results and mutated operands.

    throw_at_first: raise Error at the first mismatch; otherwise mismatches are collected in `differences`.
    compared: number of calls compared so far.
    refused: {operator: number of calls} that fake tensors do not support, which are not compared.

    Raises Error inside a fake mode, since the program must run on real tensors.
    """

    def __init__(self, throw_at_first=True):
        super().__init__()
        self._inside = _C.CrossRef(throw_at_first)

    def _enter(self):
        _process.install()
        self.on_exit(self._inside.leave)
        self._inside.enter()

    @property
    def compared(self):
        return self._inside.compared

    @property
    def refused(self):
        return self._inside.refused

    @property
    def differences(self):
        return self._inside.differences
