"""Requests that travel together, and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencing.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.locks.zookeeper.asking import Operation

__all__ = ["Batch"]


class Batch:
    """Requests that travel together.

    Args:
        operations: What to ask.
        done: Called once when there is an answer to each, in whatever thread.
        watch: Called when a node changes that one of them watches.

    Attributes:
        came: What came of each: a value, `Refused`, or the exception that it met; ``None``: nothing
            yet.
        asked_at: Before the first was sent (:func:`fencing.clock.now`, seconds).
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        done: Callable[[], object],
        watch: Callable[[Any], object] | None = None,
    ) -> None:
        self.operations = operations
        self.watch = watch
        self.came: list[Any] = [None] * len(operations)
        self.asked_at = now()
        self._done = done
        self._open = set(range(len(operations)))

    @property
    def is_done(self) -> bool:
        """Whether there is an answer to each."""
        return not self._open

    def note(self, number: int, came: object) -> None:
        """What came of one; what is said of it later does not count."""
        if number in self._open:
            self.came[number] = came
            self._open.discard(number)
            if not self._open:
                self._done()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come."""
        for number in list(self._open):
            self.note(number, error)
        if not self.operations:
            self._done()
