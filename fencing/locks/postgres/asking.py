"""Asking PostgreSQL: the steps a shell performs, and what every answer has in common.

Without I/O and without a clock, like :mod:`fencing.locks.asking`, which states the rules.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.asking import BaseCall, Pause
from fencing.locks.postgres.wire import Statement
from fencing.request import MAX_TOKEN
from fencing.schema import names

if TYPE_CHECKING:
    from fencing.errors import LockServiceError
    from fencing.locks.postgres.wire import Rows

__all__ = [
    "ACQUIRE", "ACQUIRE_ALL", "ADMIT", "FORCE_RELEASE", "LOOK", "RAISE_TOKEN", "RELEASE", "RENEW",
    "SCAN", "Ask", "Call", "Line", "Listen", "Reply", "Signal", "Step", "Steps", "Wait", "Waiting",
    "milliseconds",
]  # fmt: skip

T = TypeVar("T")

ACQUIRE = Statement(names.ACQUIRE)
ACQUIRE_ALL = Statement(names.ACQUIRE_ALL)
ADMIT = Statement(names.ADMIT)
FORCE_RELEASE = Statement(names.FORCE_RELEASE)
LOOK = Statement(names.LOOK)
RAISE_TOKEN = Statement(names.RAISE_TOKEN)
RELEASE = Statement(names.RELEASE)
RENEW = Statement(names.RENEW)
SCAN = Statement(names.SCAN)


# What the shell performs.


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Ask:
    """Execute a statement in a transaction of its own; send back a `Reply`, or throw `Trouble`.

    Attributes:
        statement: Which one.
        values: What for its parameters, by their names.
        within: How long the answer may take, in seconds, connecting included.
        see_through: Whether it must be done even while the caller is being cancelled.
    """

    statement: Statement
    values: dict[str, object]
    within: float
    see_through: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Stand in line behind others of this process; send back a `Signal` when it is one's turn.

    Attributes:
        seconds: Longest time in line, in seconds.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen for being called; send back a `Signal`, whether or not it worked.

    Attributes:
        seconds: Longest time it may take, in seconds.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait to be called, for so many seconds; send back a `Signal`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """What came of waiting.

    Attributes:
        at: The time (:func:`fencing.clock.now`, seconds).
    """

    at: float


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Reply:
    """What PostgreSQL answered.

    Attributes:
        rows: Its rows, in texts.
        asked_at: When the request was sent (:func:`fencing.clock.now`, seconds).
        at: When the answer was there (the same clock).
        database: Which database it was, as ``fencing.identity()`` tells it.
    """

    rows: Rows
    asked_at: float
    at: float
    database: str


Waiting = Line | Listen | Wait
Step = Ask | Pause | Waiting
Steps = Generator[Step, Any, T]
"""What a call does: yields steps, and is sent a `Reply` for an `Ask`, the time for a `Pause`, and a
`Signal` for the others."""


class Call(BaseCall):
    """One call of the lock service."""

    def ask(self, statement: Statement, *, longer: float = 0.0, **values: object) -> Steps[Reply]:
        """Ask until there is an answer; return it.

        Args:
            statement: What is asked. A parameter ``wait_ms`` is how long the server waits for what
                others have locked for moments.
            longer: How much longer than usual the answer may take, in seconds.
            **values: Its parameters.
        """

        def asking(within: float) -> Ask:
            if "wait_ms" in statement.names:
                return Ask(statement, {"wait_ms": milliseconds(within), **values}, within)
            return Ask(statement, values, within)

        reply: Reply = yield from self.until_answered(asking, longer=longer)
        return reply

    def clean_up(self, *acquired: tuple[str, str]) -> Steps[None]:
        """Release what we may have acquired without knowing it, or may yet be granted.

        Args:
            *acquired: Resources, each with its holder.
        """

        def asking(resource: str, holder: str, within: float) -> Ask:
            values: dict[str, object] = {
                "resource": resource,
                "holder": holder,
                "wait_ms": milliseconds(within),
                "give_up": True,
            }
            return Ask(RELEASE, values, within, see_through=True)

        yield from self.until_told(*[partial(asking, *each) for each in acquired])

    def token_in(self, text: str | None) -> int:
        """The token an answer carries."""
        if not (text and text.isdecimal() and 1 <= int(text) <= MAX_TOKEN):
            raise self.nonsense(text)
        return int(text)

    def exhausted(self) -> LockServiceError:
        """The error for a resource that has no token left."""
        return self.error(
            "the mark has reached 2**53 - 1, the largest token there is, so none can be drawn; "
            "use another name for the resource"
        )

    def nonsense(self, found: object) -> LockServiceError:
        """The error for an answer that our functions do not give."""
        return self.error(
            f"PostgreSQL answered {found!r}, which is no answer to what was asked: `fencing "
            "verify` says whether somebody has changed schema fencing"
        )


def milliseconds(seconds: float) -> int:
    """A time in whole milliseconds, at least one."""
    return max(1, int(seconds * 1000))
