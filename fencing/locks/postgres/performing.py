"""Performs the steps of a call on PostgreSQL: the sync and the async shell, side by side.

They differ in nothing but ``await``, except that an async clean-up is seen through even while its
task is being cancelled.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import psycopg

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import FencingError, GuardNotInstalledError
from fencing.locks.asking import ATTEMPT_SECONDS, Pause
from fencing.locks.performing import go_through, go_through_async
from fencing.locks.postgres.asking import ADMIT, Ask, Reply
from fencing.locks.postgres.connections import AsyncConnections, Connections
from fencing.locks.postgres.listening import AsyncRoom, Room
from fencing.locks.postgres.trouble import POSTGRES_ERRORS, trouble_of
from fencing.locks.postgres.waiters import AsyncWaiter, Waiter
from fencing.locks.postgres.wire import exchange, exchange_async
from fencing.schema.names import ADMISSION_ISOLATION
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.locks.asking import Trouble
    from fencing.locks.postgres.asking import Step, Steps
    from fencing.locks.postgres.connections import Link
    from fencing.locks.postgres.wire import Rows

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")

_PLAIN = (Ask, Pause)  # looked for in a tuple, because a union is slower

# A single statement has the isolation level and the mode that the role or database has by default.
_OTHER_DEFAULTS = {ADMISSION_ISOLATION, "25006"}
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_COMMIT = b"COMMIT"


class Performer:
    """Performs calls over connections of its own.

    Args:
        source: An address, or a function that connects.
        capacity: How many connections there may be, besides the one to listen on.
    """

    def __init__(self, source: Any, capacity: int, name: str) -> None:  # noqa: ANN401 - checked by the service
        self._name = name  # of the database, for messages
        self._connections = Connections(source, capacity)
        self._room = Room(self._connections)

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        self._room.close()
        self._connections.close_idle()

    def perform(self, call: Steps[T], resource: str) -> T:
        """Perform the steps of a call on a resource; return or raise what it does."""
        return self._go_through(call, resource, None)

    def perform_waiting(
        self, call: Callable[[bool], Steps[T]], resource: str, holder: str, *, in_line: bool
    ) -> T:
        """Perform the steps of an acquisition that may have to wait.

        Args:
            call: Made with whether others of this process are before it.
            resource: What it acquires.
            holder: The nonce of the acquisition.
            in_line: Whether it stands in line behind others of this process.
        """
        waiter = Waiter(self._room, resource, holder)
        try:
            try:
                return self._go_through(call(waiter.enter(in_line=in_line)), resource, waiter)
            except BaseException as error:
                waiter.give_up(error)
                raise
            finally:
                waiter.leave()
        finally:
            waiter.leave()  # an interrupt may have come before the first line of the other one

    def ask(self, ask: Ask) -> Reply | Trouble:
        """Ask once; return what came of it."""
        try:
            return self._ask(ask, "")
        except (*POSTGRES_ERRORS, FencingError) as error:
            return trouble_of(error, at=now())

    def _go_through(self, call: Steps[T], resource: str, waiter: Waiter | None) -> T:
        def perform(step: Step) -> object:
            if not isinstance(step, _PLAIN):
                return None if waiter is None else waiter.perform(step)
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                return now()
            try:
                return self._ask(step, resource)
            except FencingError:
                raise  # one of which is a TimeoutError, too
            except POSTGRES_ERRORS as error:
                raise trouble_of(error, at=now()) from error

        return go_through(call, perform)

    def _ask(self, step: Ask, resource: str) -> Reply:
        end = now() + step.within
        try:
            with self._connections.link(end, waits=step.statement is ADMIT) as link:
                asked_at = now()
                rows = self._exchange(link, step, _answer_by(step, asked_at, end))
                return Reply(rows, asked_at, now(), link.database)
        except psycopg.Error as error:
            _raise_typed(error, step, resource, self._name)

    def _exchange(self, link: Link, step: Ask, end: float) -> Rows:
        pgconn, values = link.pgconn, step.statement.values(step.values)
        if not link.begins:
            try:
                return exchange(pgconn, step.statement, values, end, link.prepared)
            except psycopg.Error as error:
                if error.sqlstate not in _OTHER_DEFAULTS:
                    raise
        exchange(pgconn, _BEGIN, [], end)
        link.begins = True
        try:
            rows = exchange(pgconn, step.statement, values, end)
            exchange(pgconn, _COMMIT, [], end)
        except psycopg.Error:
            if not link.usable:
                link.close()
            raise
        return rows


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(self, source: Any, capacity: int, name: str) -> None:  # noqa: ANN401 - as above
        self._name = name
        self._connections = AsyncConnections(source, capacity)
        self._room = AsyncRoom(self._connections)

    async def aclose(self) -> None:
        """See :meth:`Performer.close`."""
        await self._room.aclose()
        self._connections.close_idle()

    async def perform(self, call: Steps[T], resource: str) -> T:
        """See :meth:`Performer.perform`."""
        return await self._go_through(call, resource, None)

    async def perform_waiting(
        self, call: Callable[[bool], Steps[T]], resource: str, holder: str, *, in_line: bool
    ) -> T:
        """See :meth:`Performer.perform_waiting`."""
        waiter = AsyncWaiter(self._room, resource, holder)
        try:
            try:
                return await self._go_through(call(waiter.enter(in_line=in_line)), resource, waiter)
            except BaseException as error:
                waiter.give_up(error)
                raise
            finally:
                waiter.leave()
        finally:
            waiter.leave()  # an interrupt may have come before the first line of the other one

    async def ask(self, ask: Ask) -> Reply | Trouble:
        """See :meth:`Performer.ask`."""
        try:
            return await heeding(self._ask(ask, ""))
        except (*POSTGRES_ERRORS, FencingError) as error:
            return trouble_of(error, at=now())

    async def _go_through(self, call: Steps[T], resource: str, waiter: AsyncWaiter | None) -> T:
        async def perform(step: Step) -> object:
            if not isinstance(step, _PLAIN):
                return None if waiter is None else await waiter.perform(step)
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                return now()
            try:
                return await heeding(self._ask(step, resource))
            except FencingError:
                raise  # one of which is a TimeoutError, too
            except POSTGRES_ERRORS as error:
                raise trouble_of(error, at=now()) from error

        return await go_through_async(call, perform)

    async def _ask(self, step: Ask, resource: str) -> Reply:
        end = now() + step.within
        try:
            async with self._connections.link(end, waits=step.statement is ADMIT) as link:
                asked_at = now()
                rows = await self._exchange(link, step, _answer_by(step, asked_at, end))
                return Reply(rows, asked_at, now(), link.database)
        except psycopg.Error as error:
            _raise_typed(error, step, resource, self._name)

    async def _exchange(self, link: Link, step: Ask, end: float) -> Rows:
        pgconn, values = link.pgconn, step.statement.values(step.values)
        if not link.begins:
            try:
                return await exchange_async(pgconn, step.statement, values, end, link.prepared)
            except psycopg.Error as error:
                if error.sqlstate not in _OTHER_DEFAULTS:
                    raise
        await exchange_async(pgconn, _BEGIN, [], end)
        link.begins = True
        try:
            rows = await exchange_async(pgconn, step.statement, values, end)
            await exchange_async(pgconn, _COMMIT, [], end)
        except psycopg.Error:
            if not link.usable:
                link.close()
            raise
        return rows


def _answer_by(step: Ask, asked_at: float, end: float) -> float:
    """When an answer is overdue: an admission's patience is for connections, not for silence."""
    if step.statement is not ADMIT:
        return end
    waits: int = step.values["wait_ms"]  # type: ignore[assignment] # our own
    return min(end, asked_at + waits / 1000 + ATTEMPT_SECONDS)


def _raise_typed(error: psycopg.Error, step: Ask, resource: str, name: str) -> NoReturn:
    refusal = Refusal.read(error)
    if step.statement is ADMIT:
        typed = refusal.as_admission_error(resource)
    else:
        typed = refusal.as_error(resource)
    if isinstance(typed, GuardNotInstalledError):
        typed = GuardNotInstalledError(f"{name}: {typed}")
    if typed is not None:
        raise typed from error
    raise error
