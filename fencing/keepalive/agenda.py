"""What is due when: a heap of moments, without a clock."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import weakref

    from fencing.lease import BaseLease

__all__ = ["Agenda", "Entry"]

_FEW = 64
"""So many outdated items are left in a heap before it is worth building anew."""


class Entry:
    """A lease on an agenda; not held by it.

    Attributes:
        lease: The lease, as long as somebody holds it.
        due: When to look at it (:func:`fencing.clock.now`, in seconds); infinity: not on the
            agenda.
        early: How much earlier it may be looked at, if something else is due, in seconds.
    """

    __slots__ = ("_ticket", "due", "early", "lease")

    def __init__(self, lease: weakref.ref[BaseLease], early: float = 0.0) -> None:
        self.lease = lease
        self.due = math.inf
        self.early = early
        self._ticket = 0


E = TypeVar("E", bound=Entry)


class Agenda(Generic[E]):
    """Entries by when they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, E]] = []
        self._tickets = itertools.count(1)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def leases(self) -> int:
        """How many leases it has that somebody still holds, and has not given back."""
        leases = [
            entry.lease()
            for _, ticket, entry in self._heap
            if entry._ticket == ticket  # noqa: SLF001 - the agenda's own mark on it
        ]
        return sum(lease is not None and not lease.is_over for lease in leases)

    @property
    def next(self) -> float:
        """When the first is due; infinity when there is none."""
        while self._heap and self._heap[0][2]._ticket != self._heap[0][1]:  # noqa: SLF001 - ours
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def put(self, entry: E, due: float) -> None:
        """Have an entry due at this moment instead of any other."""
        self._size += entry.due == math.inf
        entry.due = due
        entry._ticket = next(self._tickets)  # noqa: SLF001 - the agenda's own mark on it
        heapq.heappush(self._heap, (due, entry._ticket, entry))  # noqa: SLF001 - likewise
        if len(self._heap) > 2 * self._size + _FEW:
            self._heap = [item for item in self._heap if item[2]._ticket == item[1]]  # noqa: SLF001 - likewise
            heapq.heapify(self._heap)

    def drop(self, entry: E) -> None:
        """Take an entry off; its item in the heap is skipped when it comes up."""
        self._size -= entry.due != math.inf
        entry.due = math.inf
        entry._ticket = 0  # noqa: SLF001 - the agenda's own mark on it

    def clear(self) -> None:
        """Take everything off; each entry may be put on again."""
        for _, ticket, entry in self._heap:
            if entry._ticket == ticket:  # noqa: SLF001 - ours
                self.drop(entry)
        self._heap = []

    def take(self, at: float) -> list[E]:
        """Take off what is due, with what may as well be looked at now."""
        due = []
        while self.next - (self._heap[0][2].early if self._heap else 0.0) <= at:
            _, _, entry = heapq.heappop(self._heap)
            self.drop(entry)
            due.append(entry)
        return due
