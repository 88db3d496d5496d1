"""Asks what has become of a transaction of an engine's, on the connections of its admissions."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fencing.core.outcome import Ask, Pause, inquire

if TYPE_CHECKING:
    from fencing.hooks.admission import Admissions

__all__ = ["EngineInquiry"]


class EngineInquiry:
    """An inquiry that can be made as often as one likes.

    Args:
        admissions: Where to ask.
        stamp: What the transaction's entry has returned.
        receipt: The id it entered with, if any.
    """

    def __init__(self, admissions: Admissions, stamp: str, receipt: str | None) -> None:
        self._admissions = admissions
        self._stamp = stamp
        self._receipt = receipt

    def ask(self, timeout: float) -> str:
        """What has become of it."""
        inquiry = inquire(self._stamp, self._receipt, timeout)
        answer: Any = None
        try:
            while True:
                match inquiry.send(answer):
                    case Ask(statement, values):
                        answer = self._admissions.ask(statement, values)
                    case Pause(seconds):
                        time.sleep(seconds)
        except StopIteration as end:
            outcome: str = end.value
            return outcome

    async def aask(self, timeout: float) -> str:
        """:meth:`ask` for an async engine."""
        inquiry = inquire(self._stamp, self._receipt, timeout)
        answer: Any = None
        try:
            while True:
                match inquiry.send(answer):
                    case Ask(statement, values):
                        answer = await self._admissions.aask(statement, values)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except StopIteration as end:
            outcome: str = end.value
            return outcome
