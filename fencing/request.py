"""What a caller asks of a lock service, checked before anything is sent."""

from __future__ import annotations

import inspect
import math
import os
import socket
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAX_RESOURCE_BYTES",
    "MAX_TOKEN",
    "MAX_TTL",
    "MIN_TTL",
    "AcquireRequest",
    "AsyncAcquireRequest",
    "check_evict_after",
    "check_floor",
    "check_prefix",
    "check_resource",
    "check_seconds",
    "check_token",
    "check_ttl",
    "count_in",
]

MAX_RESOURCE_BYTES = 512
"""Longest name of a resource, in bytes of UTF-8."""

MAX_TOKEN = 2**53 - 1
"""Largest fencing token: above it a Lua number, which is a double, cannot count by one."""

_TOKEN_DIGITS = len(str(MAX_TOKEN))

MIN_TTL = 0.01
"""Shortest lease, in seconds: below it nothing is left of the trust once the margin is taken."""

MAX_TTL = 24 * 60 * 60.0
"""Longest lease, in seconds."""

_NUMBERS = (float, int)  # and no bool


@dataclass(slots=True, kw_only=True)  # not frozen, which makes it dear to create
class AcquireRequest:
    """One acquisition, as it was asked for; creating it checks every argument.

    Attributes:
        resource: The name of what is protected: 1 to 512 bytes of UTF-8 without NUL.
        ttl: Length of the lease, in seconds.
        blocking: Whether to wait for a lock that is held by another.
        blocking_timeout: Longest wait, in seconds; ``None`` waits for as long as it takes.
        owner: A label for people; never compared. Default: host, process and thread.
        fair: Whether to wait in line, in the order of all processes' asking.
        keepalive: Whether the lease is renewed in the background.
        max_lifetime: How long it lives at the longest when it is renewed so, in seconds.
        on_lost: Called with the lease when it is lost.
        reentrant: Whether a lease that this thread or task has is taken for the answer.
        floor: The token will be greater than this.
        owner_label: The label, or what it is by default.
        patience: How long to wait, in seconds; 0 without blocking, infinity without a time-out.
        is_kept_or_watched: Whether something has to be done in the background while the lease is
            held.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range.
    """

    resource: str
    ttl: float = 30.0
    blocking: bool = True
    blocking_timeout: float | None = None
    owner: str | None = None
    fair: bool = False
    keepalive: bool = False
    max_lifetime: float | None = None
    on_lost: Callable[[Any], object] | None = None
    reentrant: bool = False
    floor: int = 0
    owner_label: str = field(init=False)
    patience: float = field(init=False)
    is_kept_or_watched: bool = field(init=False)

    def __post_init__(self) -> None:
        check_resource(self.resource)
        check_ttl(self.ttl)
        kinds = {type(self.blocking), type(self.fair), type(self.keepalive), type(self.reentrant)}
        if kinds != {bool}:
            self._check_bools("blocking", "fair", "keepalive", "reentrant")
        if self.fair and not self.blocking:
            raise ValueError(
                "fair=True waits in line, so it cannot be combined with blocking=False"
            )
        if self.max_lifetime is not None:
            self._check_lifetime(self.max_lifetime)
        if self.on_lost is not None:
            self._check_on_lost()
        if self.blocking_timeout is not None:
            check_seconds("blocking_timeout", self.blocking_timeout)
            if not self.blocking:
                raise ValueError(
                    "blocking=False does not wait, so it cannot be combined with "
                    f"blocking_timeout={self.blocking_timeout!r}; pass one of them"
                )
            if self.blocking_timeout < 0:
                raise ValueError(
                    f"blocking_timeout must be at least 0 seconds, not {self.blocking_timeout!r}"
                )
        if type(self.floor) is not int or self.floor:  # as it seldom is
            # A member of an int enum is sent as the number it is.
            self.floor = int(check_floor(self.floor))
        self.owner_label = _here.label if self.owner is None else _checked_owner(self.owner)
        if not self.blocking:
            self.patience = 0.0
        else:
            self.patience = math.inf if self.blocking_timeout is None else self.blocking_timeout
        self.is_kept_or_watched = self.keepalive or self.on_lost is not None

    def _check_bools(self, *names: str) -> None:
        for name in names:
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, not {_kind(value)}")

    def _check_lifetime(self, max_lifetime: float) -> None:
        check_seconds("max_lifetime", max_lifetime)
        if not self.keepalive:
            raise ValueError(
                f"max_lifetime={max_lifetime!r} limits what keepalive=True extends; without "
                "it the ttl is the lifetime"
            )
        if max_lifetime < self.ttl:
            raise ValueError(
                f"max_lifetime must be at least the ttl of {self.ttl!r} seconds, not "
                f"{max_lifetime!r}"
            )

    def _check_on_lost(self) -> None:
        if not callable(self.on_lost):
            raise TypeError(f"on_lost must be a function of a lease, not {_kind(self.on_lost)}")
        if inspect.iscoroutinefunction(self.on_lost):
            raise TypeError(
                "on_lost is asynchronous, and nobody would await it; give a synchronous lock "
                "service or guard a plain function"
            )

    @property
    def forwarded(self) -> dict[str, Any]:
        """The arguments with which a guard asks its lock service for the same.

        What is as by default is left out, so that a lock service need not know of everything. What
        becomes of a loss and of re-entry is the guard's own business.
        """
        asked: dict[str, Any] = {"ttl": self.ttl, "owner": self.owner_label, "floor": self.floor}
        if self.blocking:
            asked["blocking_timeout"] = self.blocking_timeout
        if self.fair:
            asked["fair"] = True
        if self.keepalive:
            asked["keepalive"] = True
            asked["max_lifetime"] = self.max_lifetime
        return asked


@dataclass(slots=True, kw_only=True)  # not frozen, which makes it dear to create
class AsyncAcquireRequest(AcquireRequest):
    """:class:`AcquireRequest` for asyncio, where a coroutine function may be ``on_lost``.

    Attributes:
        cancel_on_loss: Whether the task in the lease's block is cancelled when it is lost.
    """

    cancel_on_loss: bool = False

    def __post_init__(self) -> None:
        # No super(): a dataclass with slots is another class than the one that was written down.
        AcquireRequest.__post_init__(self)
        if type(self.cancel_on_loss) is not bool:
            self._check_bools("cancel_on_loss")
        if self.cancel_on_loss:
            self.is_kept_or_watched = True

    def _check_on_lost(self) -> None:
        if not callable(self.on_lost):
            raise TypeError(f"on_lost must be a function of a lease, not {_kind(self.on_lost)}")


def check_evict_after(seconds: float | None) -> float | None:
    """Return ``seconds`` if an admission can wait that long before it evicts.

    Raises:
        TypeError: It is neither a number nor ``None``.
        ValueError: It is NaN, infinite, or not positive.
    """
    if seconds is not None:
        check_seconds("evict_after", seconds)
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


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if names can begin with it.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It holds a lone surrogate.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"a prefix must be a str, not {type(prefix).__name__}")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a prefix must be encodable as UTF-8: {prefix!r}") from None
    return prefix


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


def check_seconds(name: str, seconds: float) -> None:
    """Raise unless an argument is a length of time.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN or infinite.
    """
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{name} must be a number of seconds, not {_kind(seconds)}")
    try:
        finite = math.isfinite(seconds)
    except OverflowError:  # an int that no float can hold
        finite = False
    if not finite:
        raise ValueError(f"{name} must be a finite number of seconds, not {str(seconds)[:40]}")


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


def count_in(text: str) -> int | None:
    """The number in a text, if it is from 0 to 2**53 - 1, as tokens are; ``None``: it is no such.

    For what may have been written by others: ``int()`` raises where there are thousands of digits.
    """
    if not (len(text) <= _TOKEN_DIGITS and text.isascii() and text.isdecimal()):
        return None
    count = int(text)
    return count if count <= MAX_TOKEN else None


def check_ttl(ttl: float) -> float:
    """Return ``ttl`` if it can be the length of a lease, in seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN, infinite, or not from 0.01 seconds to 24 hours.
    """
    if type(ttl) in _NUMBERS and MIN_TTL <= ttl <= MAX_TTL:  # as it nearly always is
        return ttl
    check_seconds("ttl", ttl)
    if not MIN_TTL <= ttl <= MAX_TTL:
        raise ValueError(f"ttl must be from {MIN_TTL} seconds to 24 hours, not {ttl!r} seconds")
    return ttl


_host_name = cache(socket.gethostname)  # which asks the system


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


class _Here(threading.local):
    """What is to be known of each thread, and asked for once.

    Attributes:
        label: Host, process and thread, for people; as the thread was called then, but printable:
            its name may be any text, also one that no server takes.
    """

    def __init__(self) -> None:
        self.notice()

    def notice(self) -> None:
        label = f"{_host_name()}:{os.getpid()}:{threading.current_thread().name}"
        self.label = label if label.isprintable() else "".join(map(_printable, label))


_here = _Here()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_here.notice)  # no other thread is there


def _checked_owner(owner: str) -> str:
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
