"""The synchronous and the asynchronous side of :mod:`fencing.postgres`, as one asynchronous one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from fencing import postgres
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing import CommitOutcomeUnknownError


class SyncSide:
    """``psycopg.Connection``."""

    Locks = ScriptedLocks

    def __init__(self) -> None:
        self._closing: list[Any] = []

    def guard(self, locks: Any, *sources: Any, **options: Any) -> Any:
        guard = postgres.PsycopgGuard(locks, *sources, **options)
        self._closing.append(guard)
        return guard

    async def connect(self, conninfo: str, **options: Any) -> Any:
        connection = psycopg.connect(conninfo, **options)
        self._closing.append(connection)
        return connection

    async def close(self) -> None:
        for each in self._closing:
            each.close()

    async def execute(self, connection: Any, statement: str, values: Any = None) -> Any:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else None

    async def set_autocommit(self, connection: Any, *, value: bool) -> None:
        connection.autocommit = value

    async def do(self, result: Any) -> Any:
        """The result of a call that is awaited on the other side."""
        return result

    @asynccontextmanager
    async def block(self, manager: Any) -> AsyncIterator[Any]:
        """``with``, or ``async with``."""
        with manager as value:
            yield value

    async def outcome(self, error: CommitOutcomeUnknownError, timeout: float = 5.0) -> str:
        return error.outcome(timeout)

    async def try_acquire(self, guard: Any, *arguments: Any, **options: Any) -> Any:
        return guard.try_acquire(*arguments, **options)


class AsyncSide:
    """``psycopg.AsyncConnection``."""

    Locks = AsyncScriptedLocks

    def __init__(self) -> None:
        self._closing: list[Any] = []

    def guard(self, locks: Any, *sources: Any, **options: Any) -> Any:
        guard = postgres.AsyncPsycopgGuard(locks, *sources, **options)
        self._closing.append(guard)
        return guard

    async def connect(self, conninfo: str, **options: Any) -> Any:
        connection = await psycopg.AsyncConnection.connect(conninfo, **options)
        self._closing.append(connection)
        return connection

    async def close(self) -> None:
        for each in self._closing:
            await (each.aclose() if hasattr(each, "aclose") else each.close())

    async def execute(self, connection: Any, statement: str, values: Any = None) -> Any:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else None

    async def set_autocommit(self, connection: Any, *, value: bool) -> None:
        await connection.set_autocommit(value)

    async def outcome(self, error: CommitOutcomeUnknownError, timeout: float = 5.0) -> str:
        return await error.aoutcome(timeout)

    async def do(self, result: Any) -> Any:
        return await result

    @asynccontextmanager
    async def block(self, manager: Any) -> AsyncIterator[Any]:
        async with manager as value:
            yield value

    async def try_acquire(self, guard: Any, *arguments: Any, **options: Any) -> Any:
        return await guard.try_acquire(*arguments, **options)
