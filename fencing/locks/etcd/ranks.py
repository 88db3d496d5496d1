"""The fair waiters of one process, in the order of their places: the first of them watches.

Without I/O.
"""

from __future__ import annotations

from typing import Generic

from fencing.locks.lines import TURN, BoxT

__all__ = ["Ranks"]


class Ranks(Generic[BoxT]):
    """Who waits for which resource, and at which revision his place was created."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[int, BoxT]] = {}

    def __contains__(self, resource: str) -> bool:
        return resource in self._ranks

    def take(self, resource: str, revision: int, box: BoxT) -> bool:
        """Have a rank, and no other one; whether it is the first."""
        ranks = self._ranks.setdefault(resource, {})
        if ranks.get(revision) is not box:
            ranks[revision] = box
            for other in [rank for rank, whose in ranks.items() if whose is box]:
                if other != revision:
                    self._end(resource, other)
        return revision == min(ranks)

    def leave(self, resource: str, box: BoxT) -> None:
        """Have none any more; who is the first then is told."""
        for rank, whose in list(self._ranks.get(resource, {}).items()):
            if whose is box:
                self._end(resource, rank)

    def _end(self, resource: str, rank: int) -> None:
        ranks = self._ranks[resource]
        later = [other for other in ranks if other != rank]
        if not later:
            del self._ranks[resource]
            return
        if rank < min(later):
            ranks[min(later)].put(TURN)
        del ranks[rank]
