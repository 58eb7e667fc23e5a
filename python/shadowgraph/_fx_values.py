"""What nodes of torch.fx say of their values: FakeTensors of one mode, as torch.export leaves them."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from . import _shadowgraph as _C

__all__ = ["FakeValues"]


class FakeValues:
    """torch's FakeTensors for values of a graph: their geometry and device; those of one storage share a storage.

    None of them requires grad, since the operators are those below autograd; meta["tensor_meta"] says which did.
    Without CUDA, libtorch ends the process when a FakeTensor on "cuda:0" gets a history.
    """

    def __init__(self, device):
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._device = None if device is None else torch.device(device)
        self._storages, self._values = {}, {}

    def describe(self, made, results):
        """Writes meta["val"] and meta["tensor_meta"] of a node: one, or nested as its results are.

        results: values, lists of them, None. Numbers and layouts that are not strided have neither.
        """
        if not results:
            return
        structure = results[0] if len(results) == 1 else tuple(results)
        fakes = self._mapped(self._fake, structure)
        if fakes is not None:
            made.meta.update(val=fakes, tensor_meta=self._mapped(self._metadata, structure))

    def describe_constant(self, made, tensor):
        with _outside():
            fake = self._mode.from_tensor(tensor.detach(), static_shapes=True)
        made.meta.update(val=fake, tensor_meta=_extract_tensor_metadata(fake))

    def _mapped(self, leaf, structure):
        if isinstance(structure, (list, tuple)):
            return type(structure)(self._mapped(leaf, element) for element in structure)
        return leaf(structure) if isinstance(structure, _C.Value) else None

    def _fake(self, value):
        if not value.is_tensor or value.layout != "Strided":
            return None
        if value not in self._values:
            with _outside():
                if value.storage not in self._storages:
                    self._storages[value.storage] = torch.UntypedStorage(value.storage.nbytes, device="meta")
                meta = torch.empty(0, dtype=value.dtype, device="meta")
                meta.set_(self._storages[value.storage], value.offset, value.shape, value.stride)
                device = torch.device(value.device) if self._device is None else self._device
                self._values[value] = FakeTensor(self._mode, meta, device)
        return self._values[value]

    def _metadata(self, value):
        fake = self._fake(value)
        return None if fake is None else _extract_tensor_metadata(fake)._replace(requires_grad=value.requires_grad)


class _outside:
    """Real tensors, and no history, whatever is active around a conversion."""

    def __enter__(self):
        self._guard, self._no_grad = _C.Unfake(), torch.no_grad()
        self._guard.enter()
        self._no_grad.__enter__()

    def __exit__(self, *exception):
        self._no_grad.__exit__(*exception)
        self._guard.leave()
