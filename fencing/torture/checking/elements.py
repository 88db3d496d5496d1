"""What is in a set after each of its writes."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fencing.torture.history import Write

__all__ = ["Elements", "largest_after", "least_from_here"]


class Elements:
    """The numbers in one set, as its writes are applied one by one.

    Attributes:
        counts: How often each number is in it.
        highest: The largest number that was ever in it; 0 of none.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.highest = 0
        self._largest_first: list[int] = []  # a heap; numbers that have left it are skipped

    @property
    def largest(self) -> int:
        """The largest number in it; 0 if it is empty."""
        heap = self._largest_first
        while heap and self.counts[-heap[0]] <= 0:
            heappop(heap)
        return -heap[0] if heap else 0

    def apply(self, write: Write) -> None:
        """Insert or delete what a write has inserted or deleted."""
        if write.gone is not None:
            self.counts[write.gone] -= 1
        if write.new is not None:
            self.counts[write.new] += 1
            self.highest = max(self.highest, write.new)
            heappush(self._largest_first, -write.new)


def largest_after(writes: Iterable[Write]) -> list[int]:
    """A set's largest number before all writes, and after each of them."""
    elements = Elements()
    after = [0]
    for write in writes:
        elements.apply(write)
        after.append(elements.largest)
    return after


def least_from_here(largest: Sequence[int]) -> list[int]:
    """The least that may be read as the largest number, from each place on.

    Deletions may take the largest number away; so what is read after a write need only be as large
    as the largest number was at some time since.
    """
    return list(accumulate(reversed(largest), min))[::-1]
