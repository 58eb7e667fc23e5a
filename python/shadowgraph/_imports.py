"""Changes modules of libraries when their users import them, which may take seconds or never happen."""

import importlib.abc
import importlib.util
import sys


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
