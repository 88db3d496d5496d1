"""How often a lease is held by one thread or task, and in which ``with`` blocks.

A lease that is acquired again where it is held, with ``reentrant=True``, is the same object. So its
acquisitions are counted, and each block stands for one of them: the end of an inner block frees
nothing, and neither does a release inside it, however often it is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Blocks"]


class Blocks:
    """The acquisitions of one lease that were not given back, and its open blocks.

    Args:
        lock: The lease's; reentrant, because a signal handler may release what its thread is just
            about to release.

    Attributes:
        levels: Per open block the acquisition that it stands for, counted from 1.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._acquired = 1
        self._to_enter = 1
        self.levels: list[int] = []

    def acquired_again(self) -> None:
        """The lease was acquired once more where it is held."""
        with self._lock:
            self._acquired += 1
            self._to_enter += 1

    def enter(self) -> bool:
        """A block begins; ``False`` if every acquisition has had its own."""
        with self._lock:
            if not self._to_enter:
                return False
            self._to_enter -= 1
            if self.levels and self.levels[-1] == self._acquired:
                # Both were acquired before either was entered; the inner block is the later one.
                self.levels[-1] -= 1
            self.levels.append(self._acquired)
            return True

    def leave(self) -> bool:
        """The innermost block ends; whether the lease is to be released with it."""
        with self._lock:
            level = self.levels.pop()
            if self._acquired >= level > 1:
                self._acquired = level - 1
            return level <= 1

    def cut(self, depth: int) -> None:
        """So many blocks are left open; those inside them have not begun, or have ended."""
        with self._lock:
            del self.levels[depth:]

    @property
    def is_outermost(self) -> bool:
        """Whether there is one acquisition, or the outermost block has ended."""
        with self._lock:
            return self._acquired <= 1

    @property
    def ends_when_given_back(self) -> bool:
        """Whether the lease is to be released when the next acquisition is given back."""
        with self._lock:
            return self._acquired <= 1 and (not self.levels or self.levels[-1] <= 1)

    def give_back(self) -> bool:
        """One acquisition is given back; whether the lease is to be released with it."""
        with self._lock:
            if self.levels and self._acquired < self.levels[-1]:
                return False  # this block's is given back already
            if self._acquired > 1:
                self._acquired -= 1
                return False
            return True
