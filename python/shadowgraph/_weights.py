"""Lazily reads tensors, or slices of them, from weight files and state dicts."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from . import _shadowgraph as _C
from ._shared import nearest

_SAFETENSORS_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
# In a folder, the files that match the first of these patterns with a match are read.
_IN_FOLDERS = ("*.safetensors.index.json", "*.bin.index.json", "*.safetensors", "pytorch_model*.bin", "*.pt", "*.pth")


class Weights:
    """Weights by name, read lazily.

        weights = sg.Weights("model.safetensors")          # or a folder, an index, a .pt file, a state dict, a list
        sg.materialize_module(model.layers[3], weights, prefix="layers.3.")

    source: a state dict; a .safetensors file; a file written by torch.save (memory-mapped, weights_only=True); a
        Hugging Face index (*.index.json); a folder with one of these; or a list of files.

    Raises FileError for a missing or unreadable file, DeferredError if it contains no tensors.
    """

    def __init__(self, source: Any):
        self._of: dict[str, Any] = {}  # name -> _Tensors
        if isinstance(source, Weights):
            self._of = source._of
            return
        for part in source if isinstance(source, (list, tuple)) else [source]:
            self._add(part)

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def keys(self) -> list[str]:
        """Returns the names of all tensors, in file order."""
        return list(self._of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape without reading the tensor. Raises DeferredError for an unknown name."""
        return self._holder(name).shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Returns the dtype without reading the tensor. Raises DeferredError for an unknown name."""
        return self._holder(name).dtype(name)

    def read(self, name: str, *, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a copy of the tensor. Raises DeferredError for an unknown name."""
        return _copy(self._holder(name).view(name, None), device, dtype)

    def read_part(self, name: str, dim: int, start: int, length: int, *, device: Any = None,
                  dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
        """Returns a contiguous copy of narrow(dim, start, length) of the tensor; the rest is not read.

        Raises DeferredError for an unknown name or a range out of bounds.
        """
        sizes = self.shape(name)
        if not -len(sizes) <= dim < len(sizes) or not 0 <= start <= start + length <= sizes[dim]:
            raise _C.DeferredError(
                f"'{name}' has shape {list(sizes)}: range {start}..{start + length} of dimension {dim} is out of bounds"
            )
        return _copy(self._holder(name).view(name, (dim % len(sizes), start, length)), device, dtype)

    def _holder(self, name):
        if name not in self._of:
            raise _C.DeferredError(f"the weights contain no tensor '{name}'{nearest(name, self._of)}")
        return self._of[name]

    def _add(self, part):
        if isinstance(part, Mapping):
            self._take(_InMemory(part, "the state dict"))
            return
        path = pathlib.Path(part)
        try:
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:  # a name too long, a folder without rights
            raise _C.FileError(f"cannot read {path}: {error}") from None
        if is_folder:
            found = next(filter(None, (sorted(path.glob(pattern)) for pattern in _IN_FOLDERS)), None)
            if found is None:
                raise _C.FileError(
                    f"no weights in folder {path}; expected a file that matches {', '.join(_IN_FOLDERS)}"
                )
            for file in found:
                self._add(file)
        elif not is_file:
            raise _C.FileError(f"file '{path}' does not exist")
        elif path.name.endswith(".json"):
            self._add_index(path)
        elif path.suffix == ".safetensors":
            self._take(_Safetensors(path))
        else:
            self._take(_InMemory(_load_mapped(path), str(path)))

    def _add_index(self, path):
        try:
            index = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise _C.FileError(f"{path} is not a weight index ({type(error).__name__}: {error})") from None
        files = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(files, dict):
            raise _C.FileError(f'{path} is not a weight index: it has no object "weight_map"')
        for name, file in files.items():
            parts = pathlib.PurePath(file).parts if isinstance(file, str) else ()
            if not parts or file[0] == "/" or ".." in parts or file.endswith(".json"):
                raise _C.FileError(
                    f"{path}: weight_map['{name}'] is {str(file)[:80]!r}, not a file in the folder of the index"
                )
        for file in sorted(set(files.values())):
            self._add(path.parent / file)
        for name, file in files.items():
            if name not in self._of:
                raise _C.FileError(f"{path}: weight_map['{name}'] is '{file}', which has no such tensor")

    def _take(self, tensors):
        for name in tensors.names():
            if name in self._of:
                raise _C.DeferredError(f"'{name}' is in several of the weight files")
            self._of[name] = tensors


class _InMemory:
    """A state dict, in memory or memory-mapped."""

    def __init__(self, tensors, where):
        if not any(isinstance(value, torch.Tensor) for value in tensors.values()):
            inner = [tensors[key] for key in ("state_dict", "model", "module") if isinstance(tensors.get(key), Mapping)]
            if not inner:
                keys = ", ".join(map(str, list(tensors)[:8]))
                raise _C.DeferredError(f"{where} is not a state dict: it has the keys {keys}; pass the dict of tensors")
            tensors = inner[0]
        self._tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}

    def names(self):
        return list(self._tensors)

    def shape(self, name):
        return tuple(self._tensors[name].shape)

    def dtype(self, name):
        return self._tensors[name].dtype

    def view(self, name, part):
        tensor = self._tensors[name].detach()
        return tensor if part is None else tensor.narrow(*part)


class _Safetensors:
    def __init__(self, path):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise _C.Error(f"reading {path} requires the package safetensors; run pip install safetensors") from None
        self._path = path
        try:
            self._file = safe_open(os.fspath(path), framework="pt")
        except (SafetensorError, OSError) as error:
            raise _C.FileError(f"cannot read {path}: {error}") from None

    def names(self):
        return list(self._file.keys())

    def _read(self, name, read):
        try:
            return read()
        except Exception as error:  # of safetensors, or of torch, which lacks some dtypes
            raise _C.FileError(f"cannot read '{name}' in {self._path}: {error}") from None

    def shape(self, name):
        return tuple(self._read(name, lambda: self._file.get_slice(name).get_shape()))

    def dtype(self, name):
        kind = self._read(name, lambda: self._file.get_slice(name).get_dtype())
        if kind not in _SAFETENSORS_DTYPES:
            raise _C.DeferredError(f"'{name}' in {self._path} has the unsupported dtype {kind}")
        return _SAFETENSORS_DTYPES[kind]

    def view(self, name, part):
        if part is None:
            return self._read(name, lambda: self._file.get_tensor(name))
        dim, start, length = part
        where = (slice(None),) * dim + (slice(start, start + length),)
        return self._read(name, lambda: self._file.get_slice(name)[where])


def _load_mapped(path):
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # of pickle, zip or torch
        raise _C.FileError(f"cannot read {path} by torch.load(mmap=True, weights_only=True): {error}") from None
    if not isinstance(loaded, Mapping):
        raise _C.DeferredError(f"{path} must contain a dict of tensors, not {type(loaded).__name__}")
    return loaded


def _copy(view, device, dtype):
    """Copies a tensor, so that the result shares no memory with the file or dict."""
    device = view.device if device is None else device
    return torch.empty(view.shape, dtype=dtype or view.dtype, device=device).copy_(view)
