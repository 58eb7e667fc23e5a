"""Workarounds for third-party libraries in fake modes: imports, tensor caches (bitsandbytes), patches at import."""

import contextlib
import gc
import importlib.abc
import importlib.util
import sys
import threading

from . import _shadowgraph as _C
from ._unfake import unfake

_PROBES_GPU = frozenset({"bitsandbytes"})  # loads its CUDA library, which fails with a simulated GPU
_CACHES = (("bitsandbytes.functional", "name2qmap"),)  # (module, attribute): dicts of tensors by name


_thread = threading.local()  # importing: this thread runs an import that _Finder found


class _Collected(_C.Cleanup):
    """Frees the reference cycles that an import leaves, while garbage collection is disabled (captures).

    Their frames refer to those of the program, whose tensors would live to the end of the first capture only.
    """

    def _enter(self):
        self.on_exit(gc.unfreeze)
        self.on_exit(gc.collect)
        gc.freeze()  # cycles of the program stay


class _Finder:
    """Changes imports inside modes: of libraries that probe for a GPU, and all while garbage collection is disabled."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if not _C.is_active() or getattr(_thread, "importing", False):
            return None
        around = unfake if name in _PROBES_GPU else contextlib.nullcontext if gc.isenabled() else _Collected
        if around is contextlib.nullcontext:
            return None
        with cls._importing():
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
            spec = next(filter(None, found), None)
        if spec is None or spec.loader is None or isinstance(spec.loader, type):  # none, a namespace, built in
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            with cls._importing(), around():
                execute(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec

    class _importing(_C.Cleanup):
        def _enter(self):
            self.on_exit(setattr, _thread, "importing", False)
            _thread.importing = True


def install_import_hook():
    sys.meta_path.insert(0, _Finder)


def set_caches_aside(context):
    """Empties tensor caches of libraries until the context ends, since they would then contain fake tensors."""
    for module, name in _CACHES:
        cache = getattr(sys.modules.get(module), name, None)
        context.on_exit(_bring_back, module, name, dict(cache or {}))
        if cache:
            cache.clear()


def _bring_back(module, name, kept):
    cache = getattr(sys.modules.get(module), name, None)
    if cache is not None:
        cache.clear()
        cache.update(kept)


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
