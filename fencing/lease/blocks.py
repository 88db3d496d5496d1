"""How often a lease is held by one thread or task, and in which ``with`` blocks.

A lease that is acquired again where it is held, with ``reentrant=True``, is the same object. So its
acquisitions are counted, and each block stands for one of them: the end of an inner block frees
nothing, and neither does a release inside it, however often it is said.

The last of them is given back once, by whoever comes first: another thread or task may release the
lease as well, and a signal handler what its own thread is just leaving. From then on the lease
cannot be acquired again, though the lock service may not have heard of it yet.
"""

from __future__ import annotations

from threading import get_ident
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
        to_release: Whether the end of the outermost block was the first to give it back.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._acquired = 1
        self._to_enter = 1
        self.levels: list[int] = []
        self.to_release = False
        # Who gives back the last one, by thread: the first of them does. An append is one step,
        # between whose parts no signal handler comes.
        self._claims: list[tuple[int, object]] = []

    def acquired_again(self) -> bool:
        """The lease was acquired once more; ``False`` if it is being given back."""
        with self._lock:
            self._acquired += 1
            if self._claims:  # looked at behind it: a handler may give it back at any step
                self._acquired -= 1
                return False
            self._to_enter += 1
            return True

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
        """The innermost block ends; whether it is the outermost one."""
        with self._lock:
            level = self.levels.pop()
            if self._acquired >= level > 1:
                self._acquired = level - 1
            if level > 1:
                return False
            claim = get_ident(), object()  # equal to no other
            self._claims.append(claim)
            self.to_release = self._claims[0] is claim
            return True

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
            return (
                not self._claims
                and self._acquired <= 1
                and (not self.levels or self.levels[-1] <= 1)
            )

    @property
    def given_back_by(self) -> int | None:
        """The thread that gives back the last acquisition, or has; ``None``: none does."""
        claims = self._claims
        return claims[0][0] if claims else None

    def give_back(self) -> bool:
        """One acquisition is given back; whether the lease is to be released with it."""
        with self._lock:
            if self.levels and self._acquired < self.levels[-1]:
                return False  # this block's is given back already
            claim = get_ident(), object()  # equal to no other
            self._claims.append(claim)  # before it is counted: see acquired_again
            if self._acquired > 1:
                self._acquired -= 1
                self._claims.remove(claim)
                return False
            return self._claims[0] is claim
