"""Disables fake modes temporarily."""

from . import _shadowgraph as _C


class unfake(_C.Unfake):
    """Inside ``with sg.unfake():`` factory functions create real tensors, even in a mode or capture."""

    def __repr__(self) -> str:
        return "sg.unfake()"
