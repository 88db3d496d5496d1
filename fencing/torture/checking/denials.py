"""Leases that were not granted, and who can have been in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.excuses import Faults, Rivals
from fencing.torture.history import Harm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.torture.history import Acquisition, History

__all__ = ["wrongly_denied"]

_SERVERS = (Harm.LOCK_SERVICE, Harm.DATABASE, Harm.SESSIONS)


def wrongly_denied(history: History) -> Iterator[tuple[Acquisition, str]]:
    """Acquisitions that were not granted without a reason, and what is wrong with each."""
    faults = Faults(history)
    rivals = Rivals(history.acquisitions, lingering=True, longer=history.lingers)
    for acquisition in history.acquisitions:
        if acquisition.leases or acquisition.answered_at is None or acquisition.blocked_by:
            continue
        since, until = acquisition.asked_at, acquisition.answered_at
        if any(faults.during(since, until, *_SERVERS, after=acquisition.ttl)) or any(
            faults.of_worker(acquisition.worker, since, until)
        ):
            continue
        if acquisition.error == "LockServiceError":
            wrong = "the lock service failed, and no fault of it is known"
        elif any(rivals.during(acquisition, since, until)):
            continue
        else:
            wrong = "it was not granted, and nobody was in the way"
        yield acquisition, wrong
