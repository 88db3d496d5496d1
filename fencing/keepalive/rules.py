"""What becomes of a lease that is kept alive or watched: decided here, without I/O or a clock.

* A renewal is due when a third of the ttl is over. What is due soon goes with it, so that leases
  acquired at any time come to travel together.
* An attempt is given a third of the trust that is left, so that a lost answer leaves time for two
  more; after trouble the next comes soon, and then less and less often.
* A lease whose ``max_lifetime`` is used up is left to run out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fencing.errors import LeaseLostError
from fencing.keepalive.agenda import Entry

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterable

    from fencing.errors import FencingError
    from fencing.lease import BaseLease

__all__ = [
    "Renewal",
    "early",
    "first_renewal",
    "leeway",
    "next_look",
    "next_renewal",
    "patience",
    "postponed",
]

_PART = 1 / 3
"""A renewal is due when this part of the ttl is over."""

_EARLY = 1 / 30
"""A renewal may come earlier by this part of the ttl, to travel with others."""

_LEEWAY = 0.02
"""How long after it was handed over a lease is renewed, in seconds, if it is trusted for that long:
its holder goes on first, or with one processor he would wait for the thread that renews."""

_FIRST_RETRY = 0.05
"""Pause after the first failure of a renewal, in seconds; doubled for each further one."""

_LONGEST_RETRY = 1.0
"""Longest pause between two attempts, in seconds."""

_LONGEST_ATTEMPT = 2.0
"""Longest wait for the answer to a renewal, in seconds."""

_SHORTEST_ATTEMPT = 0.01
"""What an attempt is given even if trust ends sooner, in seconds."""


class Renewal(Entry):
    """A lease that is renewed.

    Attributes:
        kept: Whether it goes on after an answer; otherwise one is enough.
        urgent: Whether it is renewed now, however long ago it was.
        failures: How often in a row it could not be renewed.
        name: The lease in messages, also when it is gone; empty where it is not kept.
    """

    __slots__ = ("failures", "kept", "name", "urgent")

    def __init__(self, lease: weakref.ref[BaseLease]) -> None:
        super().__init__(lease)
        self.kept = False
        self.urgent = False
        self.failures = 0
        self.name = ""


def early(ttl: float) -> float:
    """How much earlier than it must a lease may be renewed, in seconds."""
    return ttl * _EARLY


def leeway(lease: BaseLease, at: float) -> float:
    """How long the renewal may wait that makes a lease last which was handed over, in seconds."""
    return min(_LEEWAY, max(0.0, lease.trusted_until - at) * _PART)


def postponed(entry: Renewal, lease: BaseLease, at: float) -> bool:
    """Whether a renewal is not due any more, because its user has renewed it meanwhile."""
    if entry.urgent or entry.failures:
        return False
    return first_renewal(lease) - entry.early > at


def first_renewal(lease: BaseLease) -> float:
    """When a lease is due to be renewed; infinity: never again."""
    if lease.is_over or lease.lost or lease.at_its_limit:
        return math.inf
    return lease.trusted_until - lease.ttl * (1 - _PART)


def next_renewal(
    entry: Renewal, lease: BaseLease, outcome: FencingError | None, at: float
) -> float:
    """When to renew a lease next, after an attempt; infinity: never again.

    Args:
        entry: The lease's entry.
        lease: The lease.
        outcome: How the attempt failed; ``None``: it did not.
        at: Now.
    """
    if outcome is None:
        entry.failures, entry.urgent = 0, False
        return first_renewal(lease) if entry.kept else math.inf
    if isinstance(outcome, LeaseLostError) or lease.is_over or lease.lost:
        return math.inf
    lease.trouble = f"it could not be renewed: {outcome}"
    pause = min(_FIRST_RETRY * 2**entry.failures, _LONGEST_RETRY, lease.ttl * _PART)
    entry.failures = min(entry.failures + 1, 10)
    return at + pause if at + pause < lease.trusted_until else math.inf


def next_look(lease: BaseLease) -> float:
    """When a lease that is watched has to be looked at; infinity: it is over, and no loss."""
    return math.inf if lease.is_over else lease.trusted_until


def patience(leases: Iterable[BaseLease], at: float) -> float:
    """How long to wait for the answer to a renewal of these leases, in seconds."""
    left = min([lease.trusted_until for lease in leases]) - at
    return max(_SHORTEST_ATTEMPT, min(left * _PART, _LONGEST_ATTEMPT))
