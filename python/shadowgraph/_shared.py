"""Changes of process-wide state: patches, and changes that several contexts share."""

import difflib
import functools
import os
import threading

from . import _shadowgraph as _C


class Shared(_C.Cleanup):
    """A change of process-wide state, made by `_apply` and in effect while any context holds it."""

    def __init__(self):
        super().__init__()
        self._lock, self._users, self._applied = threading.RLock(), set(), False

    @property
    def in_use(self):
        return bool(self._users)

    def hold(self, context):
        """Makes the change until `context` ends."""
        user = object()
        context.on_exit(self._drop, user)
        with self._lock:
            self._users.add(user)
            if not self._applied:
                self._apply()
                self._applied = True

    def _apply(self):
        raise NotImplementedError

    def _drop(self, user):
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._applied = False
                self.run()


def replaces(owner, name):
    """Decorates a function that replaces owner.name, and gets its name, docstring and signature."""

    def replace(function):
        setattr(owner, name, functools.wraps(getattr(owner, name))(function))
        return function

    return replace


def nearest(word, names, hint="; did you mean '{}'?"):
    """Returns the hint with the name that is most like a misspelled word, or "" if none is."""
    return "".join(hint.format(name) for name in difflib.get_close_matches(word, list(names), 1))


def set_variable(name, value):
    """Sets an environment variable; None removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
