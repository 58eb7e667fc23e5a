"""Disables fake modes temporarily."""

from typing import Any

from . import _shadowgraph as _C


class unfake:
    """Inside ``with sg.unfake():`` factory functions create real tensors, even in a mode or capture."""

    def __enter__(self) -> "unfake":
        self._guard = _C.Unfake()
        self._guard.enter()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._guard.leave()
