"""Real tensors in the middle of a mode."""

from typing import Any

from . import _shadowgraph as _C


class unfake:
    """Inside ``with sg.unfake():`` factories make real tensors again, in the middle of a mode or a capture."""

    def __enter__(self) -> "unfake":
        self._guard = _C.Unfake()
        self._guard.enter()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._guard.leave()
