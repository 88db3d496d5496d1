"""What may have been in the way: faults, and other holders."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from fencing.torture.history import Harm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fencing.torture.history import Acquisition, Fault, History

__all__ = ["Faults", "Rivals"]

_A_WORKER = re.compile(r"w\d+(\.\d+)?")
"""A fault's target that is one worker, or whoever works in its place."""


class Faults:
    """A run's faults, asked whether one of them excuses something."""

    def __init__(self, history: History) -> None:
        self._faults = history.faults

    def during(
        self, since: float, until: float, *harms: Harm, after: float, worker: str = ""
    ) -> Iterator[Fault]:
        """Faults that did one of these harms in this time, or until so many seconds before it.

        Args:
            since: Begin of the time.
            until: End of it.
            harms: Which.
            after: How long they may have been over, in seconds.
            worker: Whom they must have harmed; those that struck another worker alone have not.
        """
        for fault in self._faults:
            if (
                fault.since <= until
                and fault.until + after >= since
                and not fault.harms.isdisjoint(harms)
                and (not worker or _strikes(fault, worker))
            ):
                yield fault

    def of_worker(self, worker: str, since: float, until: float) -> Iterator[Fault]:
        """What stopped or ended a worker in this time; without a target, it may have been any."""
        for fault in self._faults:
            if (
                fault.since <= until
                and fault.until >= since
                and Harm.WORKER in fault.harms
                and _strikes(fault, worker)
            ):
                yield fault


def _strikes(fault: Fault, worker: str) -> bool:
    """Whether a fault strikes a worker: all if it names none, or the place it works in."""
    if not _A_WORKER.fullmatch(fault.target):
        return True
    return fault.target == worker or worker.startswith(f"{fault.target}.")


class Rivals:
    """Who else had, or may have had, the lock on a resource, and when."""

    def __init__(
        self, acquisitions: Iterable[Acquisition], *, lingering: bool, longer: float = 0.0
    ) -> None:
        """Collect them.

        Args:
            acquisitions: Whose.
            lingering: Whether a lease counts until the lock service has surely forgotten it, rather
                than as long as its worker believed in it.
            longer: How much longer than a lease that may take, in seconds.
        """
        found: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for acquisition in acquisitions:
            for resource, since, until in _busy(acquisition, lingering=lingering, longer=longer):
                found[resource].append((since, until, acquisition.name))
        self._intervals = {resource: sorted(of_one) for resource, of_one in found.items()}
        self._longest = {
            resource: max(until - since for since, until, _name in of_one)
            for resource, of_one in found.items()
        }

    def during(
        self, acquisition: Acquisition, since: float, until: float
    ) -> Iterator[tuple[float, float, str]]:
        """Others' times, on any of an acquisition's resources: since, until, and whose."""
        for resource in acquisition.resources:
            intervals = self._intervals.get(resource, [])
            # None that began before can have lasted until then; so they need not be looked at.
            oldest = since - self._longest.get(resource, 0.0)
            for place in range(bisect_left(intervals, oldest, key=itemgetter(0)), len(intervals)):
                interval = intervals[place]
                if interval[0] > until:
                    break
                if interval[1] >= since and interval[2] != acquisition.name:
                    yield interval


def _busy(
    acquisition: Acquisition, *, lingering: bool, longer: float
) -> Iterator[tuple[str, float, float]]:
    """When an acquisition had the lock on each resource, or may have had it."""
    tail = acquisition.ttl + longer if lingering else 0.0
    if acquisition.leases:
        for resource, lease in acquisition.leases.items():
            began = acquisition.admission_began_at or acquisition.asked_at
            yield resource, min(began, lease.since), lease.until + tail
        return
    # Not granted, it still had the lock if it was admitted in vain, or waited for another resource.
    had_it = (
        acquisition.answered_at is None
        or acquisition.blocked_by
        or acquisition.error != "LockNotAcquiredError"
        or len(acquisition.resources) > 1
    )
    if had_it:
        until = acquisition.answered_at
        if until is None:
            until = acquisition.asked_at + acquisition.patience
        for resource in acquisition.resources:
            yield resource, acquisition.asked_at, until + acquisition.ttl
