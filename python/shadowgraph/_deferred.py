"""Modules described first and made later, whole or in parts, bit for bit as eager would have made them."""

import torch

from . import _process
from . import _shadowgraph as _C
from ._shadowgraph import dematerialize, materialize_shard

__all__ = ["deferred_init", "dematerialize", "is_deferred", "materialize_module", "materialize_shard",
           "materialize_tensor", "save_weights"]  # fmt: skip


def deferred_init(fn, *args, device="cpu", **kwargs):
    """Calls fn(*args, **kwargs) and gives what it gives, with no tensor made: each is described, and made on demand.

        net = sg.deferred_init(lambda: LlamaForCausalLM(config))     # nothing allocated
        sg.materialize_module(net.model.layers[3])                   # bitwise as eager under the same seed

    Random generators are where eager would have left them, and materialising does not move them. Values that the program
    reads are computed at once, on just what they need. device: for factories that name none (in Python: the CPU).

    Raises GeneratorMovedError, UnrecordableCallError.
    """
    _process.install()
    scope = _C.Deferred(str(device))
    _process.acquire()
    try:
        scope.enter()
        try:
            result = fn(*args, **kwargs)
        except BaseException:
            scope.abandon()
            raise
        scope.finish()
        return result
    finally:
        _process.release()


def is_deferred(described):
    """Whether a tensor, or any parameter or buffer of a module, is described and not made yet."""
    if isinstance(described, torch.nn.Module):
        return any(_C.is_deferred(tensor) for tensor in _tensors(described, False, None))
    return _C.is_deferred(described)


def materialize_tensor(tensor, *, device=None, dtype=None, independent_streams=None):
    """Makes a described tensor real, the very object, and gives it back; a real one stays as it is.

    device, dtype: in place of those it was described with (dtype: of floating-point tensors).
    independent_streams: a seed; random numbers then come from a stream of each draw's own, the same for parts.

    Raises NotDeferredError, ExternalTensorChangedError, MaterializeError.
    """
    _C.materialize_tensors([tensor], None if device is None else str(device), dtype, independent_streams)
    return tensor


def materialize_module(module, *, buffers_only=False, check_fn=None, device=None, dtype=None, independent_streams=None):
    """Makes the parameters and buffers of a module real, those of its submodules too, one storage after the other.

    buffers_only: leave parameters described. check_fn: asked for each submodule whether its own tensors are made.
    The rest as for materialize_tensor.
    """
    tensors = [tensor for tensor in _tensors(module, buffers_only, check_fn) if _C.is_fake(tensor)]
    _C.materialize_tensors(tensors, None if device is None else str(device), dtype, independent_streams)
    return module


def save_weights(module, path):
    """Writes the module's state dict for torch.load, tensor by tensor: described ones are made and dropped again.

    Gives (tensors, bytes). The file is whole or not there. Raises FileError.
    """
    return _C.write_weights(str(path), list(module.state_dict(keep_vars=True).items()))


def _tensors(module, buffers_only, check_fn):
    for part in module.modules():
        if check_fn is not None and not check_fn(part):
            continue
        entries = [part._buffers] if buffers_only else [part._parameters, part._buffers]
        for tensors in entries:
            yield from (tensor for tensor in tensors.values() if tensor is not None)
