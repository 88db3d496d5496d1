"""What a caller asks of a lock service, checked before anything is sent."""

from __future__ import annotations

import math
import os
import socket
import threading
from dataclasses import dataclass, field

__all__ = [
    "MAX_RESOURCE_BYTES",
    "MAX_TOKEN",
    "MAX_TTL",
    "MIN_TTL",
    "AcquireRequest",
    "check_evict_after",
    "check_floor",
    "check_resource",
    "check_token",
    "check_ttl",
]

MAX_RESOURCE_BYTES = 512
"""Longest name of a resource, in bytes of UTF-8."""

MAX_TOKEN = 2**53 - 1
"""Largest fencing token: above it a Lua number, which is a double, cannot count by one."""

MIN_TTL = 0.01
"""Shortest lease, in seconds: below it nothing is left of the trust once the margin is taken."""

MAX_TTL = 24 * 60 * 60.0
"""Longest lease, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """One acquisition, as it was asked for; creating it checks every argument.

    Attributes:
        resource: The name of what is protected: 1 to 512 bytes of UTF-8 without NUL.
        ttl: Length of the lease, in seconds.
        blocking: Whether to wait for a lock that is held by another.
        blocking_timeout: Longest wait, in seconds; ``None`` waits for as long as it takes.
        owner: A label for people; never compared. Default: host, process and thread.
        floor: The token will be greater than this.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range.
    """

    resource: str
    ttl: float = 30.0
    blocking: bool = True
    blocking_timeout: float | None = None
    owner: str | None = None
    floor: int = 0
    owner_label: str = field(init=False)

    def __post_init__(self) -> None:
        check_resource(self.resource)
        check_ttl(self.ttl)
        if not isinstance(self.blocking, bool):
            raise TypeError(f"blocking must be a bool, not {_kind(self.blocking)}")
        if self.blocking_timeout is not None:
            _check_seconds("blocking_timeout", self.blocking_timeout)
            if not self.blocking:
                raise ValueError(
                    "blocking=False does not wait, so it cannot be combined with "
                    f"blocking_timeout={self.blocking_timeout!r}; pass one of them"
                )
            if self.blocking_timeout < 0:
                raise ValueError(
                    f"blocking_timeout must be at least 0 seconds, not {self.blocking_timeout!r}"
                )
        # A member of an int enum is sent as the number it is.
        object.__setattr__(self, "floor", int(check_floor(self.floor)))
        object.__setattr__(self, "owner_label", _owner_label(self.owner))

    @property
    def patience(self) -> float:
        """How long to wait, in seconds; 0 without blocking, infinity without a time-out."""
        if not self.blocking:
            return 0.0
        return math.inf if self.blocking_timeout is None else self.blocking_timeout


def check_evict_after(seconds: float | None) -> float | None:
    """Return ``seconds`` if an admission can wait that long before it evicts.

    Raises:
        TypeError: It is neither a number nor ``None``.
        ValueError: It is NaN, infinite, or not positive.
    """
    if seconds is not None:
        _check_seconds("evict_after", seconds)
        if seconds <= 0:
            raise ValueError(f"evict_after must be a positive number of seconds, not {seconds!r}")
    return seconds


def check_floor(floor: int) -> int:
    """Return ``floor`` if a token can be greater than it.

    Raises:
        TypeError: It is not an ``int``.
        ValueError: It is not from 0 to 2**53 - 2.
    """
    if not isinstance(floor, int) or isinstance(floor, bool):
        raise TypeError(f"floor must be an int, not {_kind(floor)}")
    if not 0 <= floor < MAX_TOKEN:
        raise ValueError(f"floor must be from 0 to 2**53 - 2, not {floor!r}")
    return floor


def check_resource(resource: str) -> str:
    """Return ``resource`` if it can name one.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It is empty, over 512 bytes of UTF-8, or holds NUL or a lone surrogate.
    """
    if not isinstance(resource, str):
        raise TypeError(f"a resource must be a str, not {_kind(resource)}")
    if not resource:
        raise ValueError("a resource must not be empty")
    if "\0" in resource:
        raise ValueError(f"a resource must not contain NUL: {resource!r}")
    try:
        size = len(resource.encode())
    except UnicodeEncodeError:
        raise ValueError(f"a resource must be encodable as UTF-8: {resource!r}") from None
    if size > MAX_RESOURCE_BYTES:
        raise ValueError(
            f"a resource must be at most {MAX_RESOURCE_BYTES} bytes of UTF-8, not {size}: "
            f"{resource[:40]!r}…"
        )
    return resource


def check_token(token: int) -> int:
    """Return ``token`` if it can be a fencing token.

    Raises:
        TypeError: It is not an ``int``.
        ValueError: It is not from 1 to 2**53 - 1.
    """
    if not isinstance(token, int) or isinstance(token, bool):
        raise TypeError(f"a fencing token must be an int, not {_kind(token)}")
    if not 1 <= token <= MAX_TOKEN:
        raise ValueError(f"a fencing token must be from 1 to 2**53 - 1, not {token!r}")
    return token


def check_ttl(ttl: float) -> float:
    """Return ``ttl`` if it can be the length of a lease, in seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN, infinite, or not from 0.01 seconds to 24 hours.
    """
    _check_seconds("ttl", ttl)
    if not MIN_TTL <= ttl <= MAX_TTL:
        raise ValueError(f"ttl must be from {MIN_TTL} seconds to 24 hours, not {ttl!r} seconds")
    return ttl


def _check_seconds(name: str, seconds: float) -> None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{name} must be a number of seconds, not {_kind(seconds)}")
    try:
        finite = math.isfinite(seconds)
    except OverflowError:  # an int that no float can hold
        finite = False
    if not finite:
        raise ValueError(f"{name} must be a finite number of seconds, not {str(seconds)[:40]}")


def _owner_label(owner: str | None) -> str:
    if owner is None:
        return f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}"
    if not isinstance(owner, str):
        raise TypeError(f"owner must be a str, not {_kind(owner)}")
    if "\0" in owner:
        raise ValueError(f"owner must not contain NUL: {owner!r}")
    try:
        owner.encode()
    except UnicodeEncodeError:
        raise ValueError(f"owner must be encodable as UTF-8: {owner!r}") from None
    return owner


def _kind(value: object) -> str:
    return type(value).__name__
