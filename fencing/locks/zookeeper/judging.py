"""Whether a holder's time is over: by ZooKeeper's clock, or by our own if that cannot say.

Without I/O and without a clock.

A holder trusts its lease from when it *sent* what ZooKeeper has written; so it lets go at the
latest a ttl after the node was written. Whoever waits has to know when that will have been.

* ZooKeeper stamps every write with the wall clock of its leader (`Stat.mtime`). A waiter writes a
  node itself, and so knows one moment by both clocks: ZooKeeper's, and its own when the answer was
  there. As long as one leader has stamped both nodes the difference of the stamps is exact.
  Which leader it was is in the upper half of a transaction's number (the epoch).
* Another leader's clock may be ahead. Then only our own clock counts: a node that we have *seen*
  was written before, so its time is over a ttl after we first saw it as it is.
* The latter is the bound of the former, too: a clock that was set forward between two stamps can
  end a lease early, which the guard of a table then notices, and one set back delays nobody
  longer.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencing.locks.zookeeper.asking import Stat

__all__ = ["Reference", "Sightings"]

_EPOCH_BITS = 32

_STAMP_SECONDS = 0.002
"""What two stamps in whole milliseconds may differ from the times they stand for, in seconds."""

_REMEMBERED = 10_000


def epoch_of(zxid: int) -> int:
    """Which leader has numbered a transaction."""
    return zxid >> _EPOCH_BITS


@dataclass(frozen=True, slots=True)
class Reference:
    """One moment by ZooKeeper's clock and by ours.

    Attributes:
        stamp: By the leader's clock, in milliseconds.
        epoch: Which leader's.
        at: When we knew of it at the latest (:func:`fencing.clock.now`, seconds).
    """

    stamp: int
    epoch: int
    at: float

    @classmethod
    def made(cls, stat: Stat, at: float) -> Reference:
        """By a node that we have made, and the time of the answer."""
        return cls(stat.ctime, epoch_of(stat.czxid), at)

    @classmethod
    def written(cls, stat: Stat, at: float) -> Reference:
        """By a node that we have written, and the time of the answer."""
        return cls(stat.mtime, epoch_of(stat.mzxid), at)

    def age_at(self, at: float, stat: Stat) -> float:
        """How long ago a node was written at the least, by what the clocks say, in seconds.

        So that who looks at a lock does not call it free before `Sightings.ends` does.
        """
        return max(0.0, at - self.at + (self.stamp - stat.mtime) / 1000 - _STAMP_SECONDS)


class Sightings:
    """When nodes were first seen as they are, by all who look through one service."""

    # Whoever does not wait looks once and goes; without a memory he would see everything for the
    # first time, always.

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int], float] = OrderedDict()

    def ends(self, path: str, stat: Stat, ttl: int, by: Reference | None, *, at: float) -> float:
        """When a holder's time will be over for certain.

        Args:
            path: Its node.
            stat: The node as it was seen just now.
            ttl: What it holds, in milliseconds.
            by: What ZooKeeper's clock is known by, if by anything.
            at: When it was seen: when the answer was there.

        Returns:
            A moment of :func:`fencing.clock.now`, in seconds.
        """
        key = path, stat.mzxid
        seen = self._seen.setdefault(key, at)
        if len(self._seen) > _REMEMBERED:
            with contextlib.suppress(KeyError):  # another thread has made room
                self._seen.popitem(last=False)
        over = seen + ttl / 1000
        if by is not None and by.epoch == epoch_of(stat.mzxid):
            over = min(over, by.at + (stat.mtime + ttl - by.stamp) / 1000 + _STAMP_SECONDS)
        return over
