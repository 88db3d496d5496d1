"""How long this process believes in a lease, by its own clock."""

from __future__ import annotations

import os

__all__ = ["MARGIN_SECONDS", "margin", "new_holder", "trust_ends"]

_MARGIN_RATIO = 0.01
MARGIN_SECONDS = 0.002


def new_holder() -> str:
    """A new holder: 128 random bits as 32 hexadecimal digits."""
    return os.urandom(16).hex()


def margin(ttl: float) -> float:
    """How much earlier than the lock service the holder lets go of a lease, in seconds."""
    return ttl - trust_ends(0.0, ttl)


def trust_ends(asked_at: float, ttl: float) -> float:
    """When to stop believing in a lease.

    Args:
        asked_at: When the request was *sent*, in seconds of :func:`fencing.clock.now`.
        ttl: Length of the lease, in seconds.

    Returns:
        A moment of :func:`fencing.clock.now`, in seconds.
    """
    return asked_at + ttl - (ttl * _MARGIN_RATIO + MARGIN_SECONDS)
