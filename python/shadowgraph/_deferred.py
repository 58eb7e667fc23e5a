"""Modules described first and made later, whole or in parts, bit for bit as eager would have made them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from . import _process
from . import _shadowgraph as _C
from ._files import Copies
from ._shadowgraph import deferred_graph
from ._weights import Checkpoint, _nearest

__all__ = ["DeferredInit", "deferred_graph", "deferred_init", "dematerialize", "is_deferred", "materialize_module",
           "materialize_shard",
           "materialize_tensor", "save_weights"]  # fmt: skip


_T = TypeVar("_T")
_Module = TypeVar("_Module", bound=torch.nn.Module)


class _Literals(TorchFunctionMode):
    """torch.tensor(0) is made from data outside of the record, which must not be written: a copy of it is inside."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func is not torch.tensor:
            return made
        with torch.no_grad():
            return made.clone().requires_grad_(made.requires_grad)


class DeferredInit:
    """Inside ``with sg.DeferredInit():`` tensors are described, not made, and every operator on them is recorded.

        with sg.DeferredInit("cuda"):
            net = LlamaForCausalLM(config)               # nothing allocated
        sg.materialize_module(net.model.layers[3])       # bitwise as eager under the same seed

    Random generators are left where eager would have left them, and materialising does not move them. Values that the
    program reads are computed at once, on just what they need. Inside another one it joins that.

    device: for factories that name none, and which accelerator is pretended: "cpu", "cuda", "cuda:1".
    profile: what the pretended device can do: "h100" (the default) or "a100".
    device_count: how many there are, 8 unless given; others raise Error. With 0 no tensor is on CUDA.

    Raises DeferredError for a call that cannot be recorded.
    """

    def __init__(self, device: str | torch.device = "cpu", *, profile: str = "",
                 device_count: int | None = None) -> None:  # fmt: skip
        self._made_with = (str(device), profile, device_count)
        self._inside: contextlib.ExitStack | None = None

    def __enter__(self) -> "DeferredInit":
        _process.install()
        if self._inside is not None:
            raise _C.Error("this is active already; make another one to nest them")
        with contextlib.ExitStack() as stack:
            if not _C.is_describing():
                stack.enter_context(_Scope(_C.Deferred(*self._made_with)))
                stack.enter_context(_Literals())
                stack.enter_context(Copies())
            self._inside = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        inside, self._inside = self._inside, None
        if inside is None:
            raise _C.Error("this is not active: use it inside `with`")
        inside.__exit__(*exception)


class _Scope:
    """The C++ scope, and torch told of it meanwhile."""

    def __init__(self, scope):
        self._scope = scope

    def __enter__(self):
        _process.acquire()
        try:
            self._scope.enter()
        except BaseException:
            _process.release()
            raise

    def __exit__(self, kind, *exception):
        try:
            if kind is None:
                self._scope.finish()
            else:
                self._scope.abandon()
        finally:
            _process.release()


def deferred_init(fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Calls fn(*args, **kwargs) and gives what it gives, with no tensor made: each is described, and made on demand.

        net = sg.deferred_init(lambda: LlamaForCausalLM(config))     # nothing allocated
        sg.materialize_module(net.model.layers[3])                   # bitwise as eager under the same seed
        sg.deferred_init(torch.nn.Linear, 5, 1, device="cuda")       # keywords are the function's, every one

    Its own options are those of `DeferredInit`, the scope behind it, which it joins.

    Raises DeferredError.
    """
    with DeferredInit():
        return fn(*args, **kwargs)


def is_deferred(described: torch.Tensor | torch.nn.Module) -> bool:
    """Whether a tensor, or any parameter or buffer of a module, is described and not made yet."""
    if isinstance(described, torch.nn.Module):
        return any(_C.is_deferred(tensor) for tensor in _tensors(described, False, None))
    return _C.is_deferred(described)


def materialize_tensor(tensor: torch.Tensor, source: Any = None, *, name: str | None = None,
                       device: str | torch.device | None = None, dtype: torch.dtype | None = None,
                       independent_streams: int | None = None) -> torch.Tensor:  # fmt: skip
    """Makes a described tensor real, the very object, and gives it back; a real one stays as it is.

    source, name: weights (see `Checkpoint`) and the tensor's name in them; without them, its initial values.
    device, dtype: in place of those it was described with (dtype: of floating-point tensors).
    independent_streams: a seed; random numbers then come from a stream of each draw's own, the same for parts.

    Raises DeferredError.
    """
    if source is None:
        _C.materialize_tensors([tensor], None if device is None else str(device), dtype, independent_streams)
        return tensor
    weights = Checkpoint(source)
    if name is None:
        raise _C.Error("materialize_tensor from weights takes name=, the tensor's name in them")
    if _C.is_fake(tensor):
        if not _C.is_deferred(tensor):
            raise _C.DeferredError(f"no deferred_init describes {_C.describe(tensor)}")
        _check(weights, name, tensor, dtype)
        _fill([(name, tensor)], weights, device, dtype)
    return tensor


def materialize_module(module: _Module, source: Any = None, *, prefix: str = "", strict: bool = True,
                       buffers_only: bool = False, check_fn: Callable[[torch.nn.Module], bool] | None = None,
                       device: str | torch.device | None = None, dtype: torch.dtype | None = None,
                       independent_streams: int | None = None) -> _Module:  # fmt: skip
    """Makes the parameters and buffers of a module real, those of its submodules too, one storage after the other.

        sg.materialize_module(net)                                     # the initial values that eager would have drawn
        sg.materialize_module(net.layers[3], "model.safetensors", prefix="layers.3.")    # these, and nothing else, read

    source: weights (see `Checkpoint`): a state dict, or files. Each tensor is copied into memory of its own, so that no
        more than one tensor above what is kept is needed. Buffers that no state dict has get their initial values.
    prefix: what the names in the weights have before the module's own; other names are left aside.
    strict: every parameter and persistent buffer must be in the weights, and the weights have nothing else under
        the prefix. Otherwise what is missing gets its initial values. Tied tensors need one of their names.
    buffers_only: leave parameters described. check_fn: asked for each submodule whether its own tensors are made.
    dtype: of floating-point tensors, which are then converted; without it, the weights must have the described dtype.
    The rest as for `materialize_tensor`. All names, shapes and dtypes are looked at before anything is made.

    Raises DeferredError, FileError, and what `materialize_tensor` raises.
    """
    if source is not None:
        _from_weights(module, Checkpoint(source), prefix, strict, buffers_only, check_fn, device, dtype)
    tensors = [tensor for tensor in _tensors(module, buffers_only, check_fn) if _C.is_fake(tensor)]
    _C.materialize_tensors(tensors, None if device is None else str(device), dtype, independent_streams)
    return module


def materialize_shard(tensor: torch.Tensor, dim: int, start: int, length: int, never_whole: bool = False, *,
                      source: Any = None, name: str | None = None, device: str | torch.device | None = None,
                      dtype: torch.dtype | None = None,
                      independent_streams: int | None = None) -> torch.Tensor:  # fmt: skip
    """tensor.narrow(dim, start, length) as a new real tensor; `tensor` stays described.

    source, name: weights (see `Checkpoint`) and the tensor's name in them: only that part is read. Without them it
    comes from the initial values. No more than that part is allocated where the recipe allows it. Otherwise the whole
    is for a while; with never_whole=True that raises DeferredError.
    device, dtype, independent_streams: as for `materialize_tensor`.
    """
    if source is None:
        return _C.materialize_shard(tensor, dim, start, length, never_whole, None if device is None else str(device),
                                    dtype, independent_streams)  # fmt: skip
    weights = Checkpoint(source)
    if name is None:
        raise _C.Error("materialize_shard from weights takes name=, the tensor's name in them")
    if independent_streams is not None:
        raise _C.Error("independent_streams is of initial values, and this part comes from weights")
    _check(weights, name, tensor, dtype)
    wanted = dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype
    return weights.read_part(name, dim, start, length, device=device or tensor.device, dtype=wanted)


def dematerialize(described: torch.Tensor | torch.nn.Module) -> None:
    """Drops the data of a tensor and keeps its recipe: it is described again, and what was written since is lost.

    For a module: of those parameters and buffers that have a recipe; others, such as those read from weights, stay.

    Raises DeferredError for a tensor that has no recipe.
    """
    if not isinstance(described, torch.nn.Module):
        return _C.dematerialize(described)
    for tensor in _tensors(described, False, None):
        with contextlib.suppress(_C.DeferredError):
            _C.dematerialize(tensor)


def _from_weights(module, weights, prefix, strict, buffers_only, check_fn, device, dtype):
    chosen = {id(tensor) for tensor in _tensors(module, buffers_only, check_fn)}
    places = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items()
              if isinstance(tensor, torch.Tensor)}  # fmt: skip
    wanted: list[tuple[str, torch.Tensor]] = []
    absent: dict[int, str] = {}
    found = set()
    for name, tensor in places.items():
        if id(tensor) not in chosen or not _C.is_fake(tensor):
            continue
        if prefix + name in weights:
            _check(weights, prefix + name, tensor, dtype)
            wanted.append((prefix + name, tensor))
            found.add(id(tensor))
        else:
            absent.setdefault(id(tensor), prefix + name)
    if strict:
        missing = [name for key, name in absent.items() if key not in found]
        if missing:
            raise _C.DeferredError(
                f"the weights lack {_listed(missing)}{_nearest(missing[0], weights.keys())}; strict=False gives such "
                "tensors their initial values"
            )
        given = [key for key in tuple(weights.keys()) if key.startswith(prefix)]
        unexpected = [key for key in given if key[len(prefix) :] not in places]
        if unexpected:
            raise _C.DeferredError(
                f"{type(module).__name__} has no place for {_listed(unexpected)} of the weights; give prefix= for a "
                "part of a model, or strict=False to leave them aside"
            )
    _fill(wanted, weights, device, dtype)


def _check(weights, name, tensor, dtype):
    if weights.shape(name) != tuple(tensor.shape):
        raise _C.DeferredError(
            f"'{name}' is {list(weights.shape(name))} in the weights and {list(tensor.shape)} in the model"
        )
    if weights.dtype(name) != tensor.dtype and (dtype is None or not tensor.dtype.is_floating_point):
        raise _C.DeferredError(f"'{name}' is {weights.dtype(name)} in the weights and {tensor.dtype} in the model; "
                                  "dtype= converts floating-point tensors")  # fmt: skip


def _fill(wanted, weights, device, dtype=None):
    for name, tensor in wanted:
        if not _C.is_fake(tensor):
            continue  # tied: made under another name
        wanted_dtype = dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype
        tensor.data = weights.read(name, device=device or tensor.device, dtype=wanted_dtype)


def save_weights(module: torch.nn.Module, path: Any) -> tuple[int, int]:
    """Writes the module's state dict for torch.load, tensor by tensor: described ones are made and dropped again.

    Gives (tensors, bytes). The file is whole or not there. Raises FileError.
    """
    return _C.write_weights(str(path), list(module.state_dict(keep_vars=True).items()))


def _listed(names):
    shown = ", ".join(f"'{name}'" for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _tensors(module, buffers_only, check_fn) -> Iterator[torch.Tensor]:
    for part in module.modules():
        if check_fn is not None and not check_fn(part):
            continue
        entries = [part._buffers] if buffers_only else [part._parameters, part._buffers]
        for tensors in entries:
            yield from (tensor for tensor in tensors.values() if tensor is not None)
