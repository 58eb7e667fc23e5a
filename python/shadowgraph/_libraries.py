"""Libraries in a pretended process: what they keep of it (bitsandbytes), and what is changed when they are imported."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

from . import _shadowgraph as _C
from ._unfake import unfake

_LOOKING = frozenset({"bitsandbytes"})  # it loads its CUDA library, which a pretended GPU does not help
_CACHES = (("bitsandbytes.functional", "name2qmap"),)  # dicts of tensors by name


class _Finder:
    """Runs the import of a library that looks for a GPU outside the mode that the importing program is in."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _LOOKING or not _C.is_active():
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


def see_the_real_machine():
    sys.meta_path.insert(0, _Finder)


class Caches:
    """Tensors that libraries cache are set aside while there are modes, which make fakes of their own there."""

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
    """Calls change(module) at once if the module is there, else when it is imported."""
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
        assert spec is not None and spec.loader is not None  # its package is being imported
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
