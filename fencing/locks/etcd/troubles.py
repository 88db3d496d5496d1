"""What comes out of a request by httpx, and what it means; without I/O."""

from __future__ import annotations

import httpx

from fencing.locks.asking import Trouble
from fencing.locks.etcd.answers import message_in

__all__ = ["HTTP_ERRORS", "is_event", "is_news", "trouble_of"]

HTTP_ERRORS = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
"""What can come out of a request because of etcd or the way to it."""


def is_news(line: str) -> bool:
    """Whether a watch tells more than that it has begun."""
    return is_event(line) or '"canceled":true' in line or bool(message_in(line.encode()))


def is_event(line: str) -> bool:
    """Whether it tells of what is watched for."""
    return '"events"' in line


def trouble_of(error: Exception, *, at: float, busy: bool = False) -> Trouble:
    """Say what an error of httpx means.

    Args:
        error: One of `HTTP_ERRORS`.
        at: When it happened (:func:`fencing.clock.now`, seconds).
        busy: Whether others were answered meanwhile.
    """
    if isinstance(error, httpx.PoolTimeout):
        return Trouble(
            "etcd was not asked, for all connections of the lock service were in use: let fewer "
            "callers ask at once",
            passing=True,
            at=at,
            busy=busy,
        )
    told = f"{_place_of(error)}{type(error).__name__}: {error}".rstrip(": ")
    passing = True
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        help_ = "etcd did not answer in time: see if it or the network is overloaded"
    elif "CERTIFICATE" in told.upper() or "[SSL" in told:
        passing = False
        help_ = (
            "there is no trusted connection to etcd by TLS: see that its certificate is for the "
            "host's name and its authority known (ca), and that we show one if it wants one "
            "(certificate, key)"
        )
    else:
        help_ = "etcd cannot be reached: see that it runs and its address is right"
    return Trouble(f"{help_} ({told})", passing=passing, at=at)


def _place_of(error: Exception) -> str:
    """Which member was asked; several may be, and other threads ask others at the same time."""
    # Not the public property, which raises where there is none.
    request = getattr(error, "_request", None)
    return f"{request.url.netloc.decode()}: " if isinstance(request, httpx.Request) else ""
