"""What is due when: a heap of moments, without a clock."""

from __future__ import annotations

import contextlib
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
        ticket: The mark of its one item in the heap that is not outdated; 0: there is none.
    """

    __slots__ = ("due", "early", "lease", "ticket")

    def __init__(self, lease: weakref.ref[BaseLease], early: float = 0.0) -> None:
        self.lease = lease
        self.due = math.inf
        self.early = early
        self.ticket = 0


E = TypeVar("E", bound=Entry)


class Agenda(Generic[E]):
    """Entries by when they are due.

    A signal handler may use it while its own thread is in here: nothing of what it does is lost.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, E]] = []
        self._tickets = itertools.count(1)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def leases(self) -> int:
        """How many leases it has that somebody still holds, and has not given back."""
        leases = [entry.lease() for _, _, entry in filter(_is_valid, self._heap.copy())]
        return sum(lease is not None and not lease.is_over for lease in leases)

    @property
    def next(self) -> float:
        """When the first is due; infinity when there is none."""
        first = self._first()
        return math.inf if first is None else first[0]

    def put(self, entry: E, due: float) -> None:
        """Have an entry due at this moment instead of any other."""
        self._size += entry.due == math.inf
        entry.due = due
        entry.ticket = ticket = next(self._tickets)
        heapq.heappush(self._heap, (due, ticket, entry))
        if len(self._heap) > 2 * self._size + _FEW:
            self._build_anew(ticket)

    def _build_anew(self, newest: int) -> None:
        """Leave out what is outdated; ``newest`` is the latest ticket that was issued."""
        before = self._heap
        kept = list(filter(_is_valid, before.copy()))
        heapq.heapify(kept)
        self._heap = kept
        for item in before:
            if item[1] > newest and _is_valid(item):  # a handler may have put it there meanwhile
                heapq.heappush(self._heap, item)  # once more does no harm

    def drop(self, entry: E) -> None:
        """Take an entry off; its item in the heap is skipped when it comes up."""
        self._size -= entry.due != math.inf
        entry.due = math.inf
        entry.ticket = 0

    def clear(self) -> None:
        """Take everything off; each entry may be put on again."""
        heap, self._heap = self._heap, []
        for _, _, entry in filter(_is_valid, heap):
            self.drop(entry)

    def take(self, at: float) -> list[E]:
        """Take off what is due, with what may as well be looked at now."""
        due = []
        while (first := self._first()) is not None and first[0] - first[2].early <= at:
            self.drop(first[2])
            due.append(first[2])
        return due

    def _first(self) -> tuple[float, int, E] | None:
        with contextlib.suppress(IndexError):  # a handler has taken the last one
            while self._heap:
                first = self._heap[0]
                if _is_valid(first):
                    return first
                first = heapq.heappop(self._heap)
                if _is_valid(first):  # a handler has just put it there
                    heapq.heappush(self._heap, first)
        return None


def _is_valid(item: tuple[float, int, Entry]) -> bool:
    """Whether an item of the heap is not outdated."""
    return item[2].ticket == item[1]
