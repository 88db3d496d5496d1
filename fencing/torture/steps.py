"""What a unit of work asks of whoever performs it, with asyncio or without."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a dataclass's annotation
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fencing.errors import CommitOutcomeUnknownError
    from fencing.torture.rows import Rows

__all__ = [
    "Acquire",
    "Leak",
    "Readmit",
    "Release",
    "Resolve",
    "Step",
    "Together",
    "Transact",
    "Trespass",
]


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire leases; the answer: those leases.

    Attributes:
        resources: One or several.
        ttl: Their length, in seconds.
        patience: Longest wait, in seconds.
        keepalive: Whether they are renewed in the background.
    """

    resources: tuple[str, ...]
    ttl: float
    patience: float
    keepalive: bool


@dataclass(frozen=True, slots=True)
class Transact:
    """Do work in one transaction, under the leases that were acquired last.

    Attributes:
        isolation: Its isolation level.
        body: The work.
    """

    isolation: str
    body: Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Together:
    """Do work in several transactions at a time, each in a session of its own, under the leases.

    The answer: for each its error, or ``None``.
    """

    transactions: tuple[Transact, ...]


@dataclass(frozen=True, slots=True)
class Trespass:
    """Do work in one transaction without presenting anything, as another program would."""

    isolation: str
    body: Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Leak:
    """Leave the claim of a transaction in its connection's session, and do work in the next one."""

    isolation: str
    body: Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out what became of a COMMIT without an answer; the answer: what is known."""

    error: CommitOutcomeUnknownError


@dataclass(frozen=True, slots=True)
class Readmit:
    """Admit the leases once more, as who keeps one for long does now and then."""


@dataclass(frozen=True, slots=True)
class Release:
    """Leave the block of the leases."""


Step: TypeAlias = Acquire | Transact | Together | Trespass | Leak | Resolve | Readmit | Release
