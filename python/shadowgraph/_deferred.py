"""Deferred initialization: modules of deferred tensors, materialized later, whole or in parts, bitwise as in eager."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from . import _attributes, _process, _wrappers
from . import _shadowgraph as _C
from ._files import keep_copies
from ._shared import nearest
from ._weights import Weights

_T = TypeVar("_T")
_Module = TypeVar("_Module", bound=torch.nn.Module)


class DeferredInit(_C.Context):
    """Inside ``with sg.DeferredInit():`` tensors are deferred: not allocated, with every operator on them recorded.

        with sg.DeferredInit("cuda"):
            net = LlamaForCausalLM(config)               # nothing allocated
        sg.materialize_module(net.model.layers[3])       # bitwise as eager under the same seed

    Random generators advance as in eager; materializing does not advance them. Values that the program reads are
    computed immediately, from only the operators they depend on. A nested DeferredInit joins the outer one.

    device: default device of factory functions, and the accelerator to simulate: "cpu", "cuda", "cuda:1".
    profile: model of the simulated device: "h100" (the default) or "a100".
    device_count: number of simulated devices, 8 by default; higher indices raise Error. With 0 there is no CUDA.

    Raises DeferredError for a call that cannot be recorded.
    """

    def __init__(self, device: str | torch.device = "cpu", *, profile: str = "",
                 device_count: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self._options = (str(device), profile, device_count)
        self._scope: _C.Deferred | None = None

    def __repr__(self) -> str:
        return f"sg.DeferredInit({self._options[0]!r})"

    def _enter(self) -> None:
        _process.install()
        self._scope = None if _C.is_deferring() else _C.Deferred(*self._options)
        if self._scope is None:
            return
        _process.flags.hold(self)
        self.on_exit(self._scope.abandon)
        self._scope.enter()
        keep_copies(self)

    def _finish(self) -> None:
        if self._scope is not None:
            self._scope.finish()


def deferred_init(fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Returns fn(*args, **kwargs) with deferred tensors, which are allocated only when they are materialized.

        net = sg.deferred_init(lambda: LlamaForCausalLM(config))     # nothing allocated
        sg.materialize_module(net.model.layers[3])                   # bitwise as eager under the same seed
        sg.deferred_init(torch.nn.Linear, 5, 1, device="cuda")       # all keywords go to the function

    For options, call fn inside `DeferredInit`, which this function joins.

    Raises DeferredError for a call that cannot be recorded.
    """
    with DeferredInit():
        return fn(*args, **kwargs)


def is_deferred(deferred: torch.Tensor | torch.nn.Module) -> bool:
    """Returns True if a tensor, or any parameter or buffer of a module, is deferred and not materialized yet."""
    tensors = _tensors(deferred, False, None) if isinstance(deferred, torch.nn.Module) else [deferred]
    return any(_C.is_deferred(part) for part in _parts(tensors))


def materialize_tensor(tensor: torch.Tensor, source: Any = None, *, name: str | None = None,
                       device: str | torch.device | None = None, dtype: torch.dtype | None = None,
                       independent_streams: int | None = None, keep_recipe: bool = True) -> torch.Tensor:  # fmt: skip
    """Materializes a deferred tensor in place and returns it. A real tensor is returned unchanged.

    source, name: weights (see `Weights`) and the tensor's name in them; by default, its initial values.
    device, dtype: override the recorded device, and the recorded dtype of floating-point tensors.
    independent_streams: seed for an independent random stream per draw, so that shards match the full tensor.
    keep_recipe: False frees the recorded operators with their last deferred tensor; `dematerialize` then raises
        DeferredError.

    Raises DeferredError if the tensor was not created by deferred initialization or does not match the weights.
    """
    if source is None:
        _C.materialize_tensors(list(_parts([tensor])), _text(device), dtype, independent_streams, keep_recipe)
        return tensor
    weights = _named_weights("materialize_tensor", source, name)
    if _C.is_fake(tensor):
        if not _C.is_deferred(tensor):
            raise _C.DeferredError(f"{_C.describe(tensor)} was not created by deferred_init and cannot be materialized")
        _check(weights, name, tensor, dtype)
        _fill([(name, tensor)], weights, device, dtype)
    return tensor


def materialize_module(module: _Module, source: Any = None, check_fn: Callable[[torch.nn.Module], bool] | None = None,
                       *, prefix: str = "", strict: bool = True, buffers_only: bool = False,
                       device: str | torch.device | None = None, dtype: torch.dtype | None = None,
                       independent_streams: int | None = None, keep_recipe: bool = True) -> _Module:  # fmt: skip
    """Materializes the parameters and buffers of a module and its submodules, one storage at a time.

        sg.materialize_module(net)                                     # the same initial values as in eager
        sg.materialize_module(net.layers[3], "model.safetensors", prefix="layers.3.")    # reads only these

    Then materializes the deferred tensors in other attributes (lists, dicts and plain objects included), as they were
    recorded: `dtype` applies to parameters and buffers only, as in Module.to().

    source: weights (see `Weights`): a state dict, or files. Tensors are copied one by one, so the peak exceeds the
        final memory by at most one tensor. Non-persistent buffers get their initial values. A bool is `buffers_only`,
        as in torchdistx.
    check_fn: predicate on submodules; tensors are materialized only in those for which it returns True.
    prefix: prefix of the module's names in the weights; other names in the weights are ignored.
    strict: require every parameter and persistent buffer in the weights, and no other names under the prefix.
        Otherwise missing tensors get their initial values. Tied tensors need only one of their names.
    buffers_only: leave parameters and other attributes deferred.
    dtype: converts floating-point tensors; without it, the weights must have the recorded dtype.
    Other arguments are those of `materialize_tensor`. Names, shapes and dtypes are validated before allocation.

    Raises DeferredError, FileError.
    """
    if isinstance(source, bool):
        source, buffers_only = None, source
    if source is not None:
        _from_weights(module, Weights(source), prefix, strict, buffers_only, check_fn, device, dtype)
    tensors = [part for part in _parts(_tensors(module, buffers_only, check_fn)) if _C.is_fake(part)]
    _C.materialize_tensors(tensors, _text(device), dtype, independent_streams, keep_recipe)
    if not buffers_only:
        others = [part for part in _parts(_other_tensors(module, check_fn)) if _C.is_deferred(part)]
        _C.materialize_tensors(others, _text(device), None, independent_streams, keep_recipe)
    return module


def materialize_shard(tensor: torch.Tensor, dim: int, start: int, length: int, never_whole: bool = False, *,
                      source: Any = None, name: str | None = None, device: str | torch.device | None = None,
                      dtype: torch.dtype | None = None,
                      independent_streams: int | None = None) -> torch.Tensor:  # fmt: skip
    """Returns tensor.narrow(dim, start, length) as a new real tensor; `tensor` stays deferred.

    source, name: weights (see `Weights`) and the tensor's name in them, of which only the shard is read; by default,
        its initial values. If the recorded operators do not allow computing only the shard, the full tensor is
        allocated temporarily.
    never_whole: raise DeferredError instead of allocating the full tensor.
    device, dtype, independent_streams: as for `materialize_tensor`.
    """
    if source is None:
        return _C.materialize_shard(tensor, dim, start, length, never_whole, _text(device), dtype, independent_streams)
    weights = _named_weights("materialize_shard", source, name)
    if independent_streams is not None:
        raise _C.Error("independent_streams= applies to initial values and cannot be combined with source=")
    _check(weights, name, tensor, dtype)
    return weights.read_part(name, dim, start, length, device=device or tensor.device, dtype=_dtype_of(tensor, dtype))


def dematerialize(materialized: torch.Tensor | torch.nn.Module) -> None:
    """Frees the data of a tensor, which becomes deferred again; changes since materialization are lost.

    For a module, applies to all tensors with recorded operators; others, such as those read from weights, are kept.

    Raises DeferredError for a tensor without recorded operators.
    """
    if not isinstance(materialized, torch.nn.Module):
        return _C.dematerialize(materialized)
    for tensor in _parts([*_tensors(materialized, False, None), *_other_tensors(materialized, None)]):
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
        if id(tensor) in chosen and _wrappers.is_wrapper(tensor) and is_deferred(tensor):
            raise _C.DeferredError(
                f"'{name}' is a deferred {type(tensor).__name__}, which cannot be read from weights; materialize the "
                "module without source=, then load the weights (torch.distributed.checkpoint)"
            )
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
                f"the weights lack {_listed(missing)}{nearest(missing[0], weights.keys())}; pass strict=False to give "
                "missing tensors their initial values"
            )
        given = [key for key in tuple(weights.keys()) if key.startswith(prefix)]
        unexpected = [key for key in given if key[len(prefix) :] not in places]
        if unexpected:
            raise _C.DeferredError(
                f"the weights contain {_listed(unexpected)}, which {type(module).__name__} does not have; pass prefix= "
                "for a part of a model, or strict=False to ignore them"
            )
    _fill(wanted, weights, device, dtype)


def _check(weights, name, tensor, dtype):
    if weights.shape(name) != tuple(tensor.shape):
        raise _C.DeferredError(
            f"'{name}' has shape {list(weights.shape(name))} in the weights but {list(tensor.shape)} in the model"
        )
    if weights.dtype(name) != tensor.dtype and (dtype is None or not tensor.dtype.is_floating_point):
        raise _C.DeferredError(f"'{name}' has dtype {weights.dtype(name)} in the weights but {tensor.dtype} in the "
                               "model; pass dtype= to convert floating-point tensors")  # fmt: skip


def _fill(wanted, weights, device, dtype):
    for name, tensor in wanted:
        if _C.is_fake(tensor):  # not tied to one that was materialized under another name
            tensor.data = weights.read(name, device=device or tensor.device, dtype=_dtype_of(tensor, dtype))


def _dtype_of(tensor, dtype):
    return dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype


def _text(device):
    return None if device is None else str(device)


def _named_weights(function, source, name):
    weights = Weights(source)
    if name is None:
        raise _C.Error(f"{function} with source= requires name=, the tensor's name in the weights")
    return weights


def save_weights(module: torch.nn.Module, path: Any) -> tuple[int, int]:
    """Writes the module's state dict in torch.load format, materializing one deferred tensor at a time.

    Writes atomically: on failure no partial file remains. Returns (number of tensors, bytes). Raises FileError.
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


def _other_tensors(module, check_fn) -> Iterator[torch.Tensor]:
    """Yields the tensors in other attributes of the modules and of their parameters."""
    for part in module.modules():
        if check_fn is not None and not check_fn(part):
            continue
        for _, tensor in _attributes.tensors_of(part, but=("_parameters", "_buffers", "_modules")):
            yield tensor
        for tensor in part._parameters.values():
            if tensor is not None:
                yield from (attribute for _, attribute in _attributes.tensors_of(tensor))


def _parts(tensors) -> Iterator[torch.Tensor]:
    """Yields the tensors, and the inner tensors of wrappers such as DTensor in their place."""
    for tensor in tensors:
        yield from (part for _, part in _wrappers.inner(tensor))
