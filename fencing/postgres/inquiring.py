"""Asks what has become of a transaction of a connection's, on new ones to the same database."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from fencing.core.outcome import Ask, Pause, inquire
from fencing.postgres.statements import async_cursor, cursor, named

__all__ = ["ConnectionInquiry"]

_READ_COMMITTED = psycopg.IsolationLevel.READ_COMMITTED


class ConnectionInquiry:
    """An inquiry that can be made as often as one likes.

    Args:
        parameters: How to connect, in autocommit mode.
        stamp: What the transaction's entry has returned.
        receipt: The id it entered with, if any.
    """

    def __init__(self, parameters: dict[str, Any], stamp: str, receipt: str | None) -> None:
        self._parameters = parameters
        self._stamp = stamp
        self._receipt = receipt

    def ask(self, timeout: float) -> str:
        """What has become of it."""
        inquiry = inquire(self._stamp, self._receipt, timeout)
        answer: tuple[Any, ...] | None = None
        try:
            while True:
                match inquiry.send(answer):
                    case Ask(statement, values):
                        answer = self._answer(statement, values)
                    case Pause(seconds):
                        time.sleep(seconds)
        except StopIteration as end:
            outcome: str = end.value
            return outcome

    async def aask(self, timeout: float) -> str:
        """:meth:`ask` of an asynchronous connection."""
        inquiry = inquire(self._stamp, self._receipt, timeout)
        answer: tuple[Any, ...] | None = None
        try:
            while True:
                match inquiry.send(answer):
                    case Ask(statement, values):
                        answer = await self._answer_async(statement, values)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except StopIteration as end:
            outcome: str = end.value
            return outcome

    def _answer(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        try:
            with psycopg.connect(**self._parameters) as connection:
                connection.isolation_level = _READ_COMMITTED
                with connection.transaction(), cursor(connection) as asked:
                    return asked.execute(named(statement), values).fetchone()
        except psycopg.Error:
            return None

    async def _answer_async(
        self, statement: str, values: dict[str, object]
    ) -> tuple[Any, ...] | None:
        try:
            async with await psycopg.AsyncConnection.connect(**self._parameters) as connection:
                await connection.set_isolation_level(_READ_COMMITTED)
                async with connection.transaction(), async_cursor(connection) as asked:
                    await asked.execute(named(statement), values)
                    return await asked.fetchone()
        except psycopg.Error:
            return None
