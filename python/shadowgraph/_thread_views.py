"""Fake tensors and training flags in a real module, seen by the capturing thread only.

Other threads may run, train or capture the module meanwhile, so its real contents are never replaced.
"""

import threading

import torch

from . import _shadowgraph as _C
from ._shared import Shared

_lock = threading.RLock()


class _Entries(dict):
    """Module._parameters or Module._buffers: `real`, except on threads that have a view."""

    def __init__(self, real):
        super().__init__(real)  # for C code, which does not call the methods below
        self.real, self.views = real, {}

    def here(self):
        return self.views.get(threading.get_ident(), self.real)

    def __reduce_ex__(self, protocol):  # also of copies
        return type(self.real), (dict(self.here()),)


def _forwarding(name):
    def call(self, *args, **kwargs):
        return getattr(self.views.get(threading.get_ident(), self.real), name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in ("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__",
              "__or__", "__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get", "items", "keys",
              "pop", "popitem", "setdefault", "update", "values"):  # fmt: skip
    setattr(_Entries, _name, _forwarding(_name))


def show(module, table, contents, context):
    """Replaces module._parameters or _buffers (`table`) on this thread until the context ends."""
    entries = vars(module)[table]
    before = entries.views.get(threading.get_ident()) if isinstance(entries, _Entries) else None
    context.on_exit(_show, module, table, before)
    _show(module, table, contents)


def _show(module, table, contents):
    with _lock:
        entries = vars(module)[table]
        if not isinstance(entries, _Entries):
            entries = _Entries(entries)
        entries.views.pop(threading.get_ident(), None)
        if contents is not None:
            entries.views[threading.get_ident()] = contents
        vars(module)[table] = entries if entries.views else entries.real


class _ThreadFlags(threading.local):
    def __init__(self):
        self.training = {}  # {id of a module: flag}


_thread = _ThreadFlags()


class _TrainingAttribute:
    """Module.training, which is the module's attribute except on threads that have set another value."""

    def __get__(self, module, owner=None):
        if module is None:
            return self
        flag = _thread.training.get(id(module))
        if flag is not None:
            return flag
        try:
            return vars(module)["training"]
        except KeyError:
            raise AttributeError("training") from None

    def __set__(self, module, value):
        if id(module) in _thread.training:
            _thread.training[id(module)] = value
        else:
            vars(module)["training"] = value

    def __delete__(self, module):
        del vars(module)["training"]


class _OwnTrainingFlags(Shared):
    def _apply(self):
        self.on_exit(self._remove)
        torch.nn.Module.training = _TrainingAttribute()

    @staticmethod
    def _remove():
        if "training" in vars(torch.nn.Module):
            del torch.nn.Module.training


_own_training_flags = _OwnTrainingFlags()


def set_training(module, train, context):
    """Calls module.train(train) on this thread only, until the context ends."""
    parts = list(module.modules())
    _own_training_flags.hold(context)
    context.on_exit(setattr, _thread, "training", _thread.training)
    _thread.training = {**_thread.training, **{id(part): part.training for part in parts}}
    for part in parts:
        if isinstance(part, torch.jit.ScriptModule):  # whose flag is in C++
            context.on_exit(setattr, part, "training", part.training)
    context.on_exit(parts.clear)  # keeps the modules, and with them their ids
    module.train(train)


_changed: dict[int, int] = {}  # {id of a module: thread}


def change_for_all(module, context):
    """Notes that a module is changed for all threads. Raises UnsupportedError if another thread has changed it."""
    thread = threading.get_ident()
    with _lock:
        owner = _changed.get(id(module), thread)
        if owner != thread:
            raise _C.UnsupportedError(
                f"{type(module).__name__} is being captured on another thread, and its tensors can only be replaced "
                "for all threads; capture it on one thread at a time, or a copy.deepcopy() on each"
            )
        if id(module) not in _changed:
            context.on_exit(_changed.pop, id(module), None)
            _changed[id(module)] = thread
