"""Workarounds for third-party libraries in fake modes: imports, tensor caches (bitsandbytes), patches at import."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

from . import _shadowgraph as _C
from ._unfake import unfake

_PROBES_GPU = frozenset({"bitsandbytes"})  # loads its CUDA library, which fails with a simulated GPU
_CACHES = (("bitsandbytes.functional", "name2qmap"),)  # (module, attribute): dicts of tensors by name


class _Finder:
    """Imports libraries that probe for a GPU outside the active mode."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _PROBES_GPU or not _C.is_active():
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            with unfake():
                execute(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec


def install_import_hook():
    sys.meta_path.insert(0, _Finder)


class Caches:
    """Empties tensor caches of libraries while modes are active, since they would then contain fake tensors."""

    def __init__(self):
        self._aside = []

    def set_aside(self):
        for module, name in _CACHES:
            cache = getattr(sys.modules.get(module), name, None)
            self._aside.append(dict(cache or {}))
            if cache:
                cache.clear()

    def bring_back(self):
        for (module, name), kept in zip(_CACHES, self._aside):
            cache = getattr(sys.modules.get(module), name, None)
            if cache is not None:
                cache.clear()
                cache.update(kept)
        self._aside.clear()


def when_imported(name, change):
    """Calls change(module) immediately if the module is loaded, else when it is imported."""
    if name in sys.modules:
        change(sys.modules[name])
    elif not any(isinstance(finder, _WhenImported) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(name, change))


class _WhenImported(importlib.abc.MetaPathFinder):
    def __init__(self, name, change):
        self.name, self._change = name, change

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None  # called during its import
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
