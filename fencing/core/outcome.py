"""What has become of a transaction whose COMMIT was sent, and whose answer was lost.

:func:`inquire` decides, without I/O: it yields questions, and gets their answers sent back,
``None`` where there was none. :class:`Inquiry` has them asked, on connections apart. It never
guesses:

- With a *receipt*, a row that the transaction's entry has written, the answer is certain: the row
  is there, or it can never come any more.
- Without one, only a transaction that is still open when it is first asked about can be followed
  to its end, by its id, and only within one incarnation of the server: after a crash, an id that
  was never flushed is given to another transaction.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fencing.clock import now
from fencing.errors import COMMITTED, ROLLED_BACK, UNKNOWN
from fencing.schema.names import IN_FLIGHT, OUTCOME, OUTCOME_OF

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Asked", "Inquiry", "inquire"]

_PAUSE = 0.02
"""How long to wait before asking again after a transaction that is still open, in seconds."""

_MAX_MILLISECONDS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Ask:
    """A question: a statement, with parameters as ``text()`` reads them. The outcome is a row."""

    statement: str
    values: dict[str, object]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little; the outcome is nothing."""

    seconds: float


class Asked(Protocol):
    """Who is asked: one row each, in a transaction of its own at READ COMMITTED."""

    def ask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """The row; ``None`` where it was not to be had."""

    async def aask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """:meth:`ask` of an async engine or connection."""


class Inquiry:
    """An inquiry after one transaction, which can be made as often as one likes.

    Args:
        asked: Who is asked.
        stamp: What the transaction's entry has returned.
        receipt: The id it entered with, if any.
    """

    def __init__(self, asked: Asked, stamp: str, receipt: str | None) -> None:
        self._asked = asked
        self._stamp = stamp
        self._receipt = receipt

    def ask(self, timeout: float) -> str:
        """What has become of it."""
        questions = inquire(self._stamp, self._receipt, timeout)
        answer: tuple[Any, ...] | None = None
        try:
            while True:
                match questions.send(answer):
                    case Ask(statement, values):
                        answer = self._asked.ask(statement, values)
                    case Pause(seconds):
                        time.sleep(seconds)
        except StopIteration as end:
            return str(end.value)

    async def aask(self, timeout: float) -> str:
        """:meth:`ask` of an async engine or connection."""
        questions = inquire(self._stamp, self._receipt, timeout)
        answer: tuple[Any, ...] | None = None
        try:
            while True:
                match questions.send(answer):
                    case Ask(statement, values):
                        answer = await self._asked.aask(statement, values)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except StopIteration as end:
            return str(end.value)


def inquire(
    stamp: str, receipt: str | None, timeout: float, clock: Callable[[], float] = now
) -> Generator[Ask | Pause, Any, str]:
    """Inquire after a transaction.

    Args:
        stamp: What its entry has returned.
        receipt: The id it entered with, if any.
        timeout: How long to wait for it while it is still open, in seconds.
        clock: Tells the time, in seconds of :func:`fencing.clock.now`.

    Returns:
        ``"committed"``, ``"rolled back"`` or ``"unknown"``.
    """
    until = clock() + timeout
    if receipt is not None:
        answer = yield Ask(
            OUTCOME,
            {"receipt": receipt, "stamp": stamp, "wait_ms": _milliseconds(timeout)},
        )
        return _known(answer and answer[0])
    flight = yield Ask(IN_FLIGHT, {"stamp": stamp})
    if flight is None or flight[0] is None:
        return UNKNOWN
    while True:
        answer = yield Ask(OUTCOME_OF, {"xid": flight[0], "incarnation": flight[1]})
        left = until - clock()
        if answer is None or answer[0] != "in progress" or left <= 0:
            return _known(answer and answer[0])
        yield Pause(min(_PAUSE, left))


def _milliseconds(seconds: float) -> int:
    return round(min(max(0.0, seconds * 1000), _MAX_MILLISECONDS))


def _known(answer: str | None) -> str:
    return answer if answer in (COMMITTED, ROLLED_BACK) else UNKNOWN
