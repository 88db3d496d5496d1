"""The databases of a guard of bare psycopg: admissions on connections apart, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from fencing.clock import now
from fencing.core.slots import NoSlotError
from fencing.postgres.admission import (
    evict,
    evict_async,
    read_identity,
    read_identity_async,
    read_mark,
    read_mark_async,
    send_admission,
    send_admission_async,
)
from fencing.postgres.base import BaseDatabase
from fencing.postgres.connections import AsyncConnections, Connections, check_source
from fencing.postgres.verifying import verify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencing.lease import BaseLease
    from fencing.postgres.connections import AsyncSource, Source
    from fencing.verification import Verification

__all__ = ["AsyncDatabase", "Database"]

T = TypeVar("T")

_GRACE = 1.0
"""How long one that does not wait waits for a connection, in seconds: others use it briefly."""

_VERIFY_SECONDS = 10.0
"""How long a verification waits for a connection, in seconds."""


class Database(BaseDatabase):
    """Admissions on connections apart; a caller's own may be in a transaction."""

    def __init__(self, source: Source, capacity: int) -> None:
        super().__init__(source, check_source(source, "PsycopgGuard"))
        self.connections = Connections(source, capacity)

    def admit(self, lease: BaseLease, until: float) -> None:
        """See :meth:`fencing.core.performing.PlannedAdmissions.admit`."""
        self._do(
            lambda connection: send_admission(connection, lease, until),
            lease.resource,
            max(until, now() + _GRACE),
        )

    def evict(self, lease: BaseLease, since: float, until: float) -> list[int]:
        """See :meth:`fencing.core.performing.PlannedAdmissions.evict`."""
        return self._do(
            lambda connection: evict(connection, lease, since),
            lease.resource,
            max(until, now() + _GRACE),
        )

    def mark(self, resource: str) -> int | None:
        """See :meth:`fencing.core.performing.PlannedAdmissions.mark`."""
        return self._do(
            lambda connection: read_mark(connection, resource), resource, now() + _GRACE
        )

    def identity(self, expected: str) -> str:
        """See :meth:`fencing.core.performing.PlannedAdmissions.identity`."""
        if not self.known.answers(expected):
            self.known.note(self._do(read_identity, "", now() + _GRACE), expected)
        return self.known.told

    def verify(self, metadata: object) -> Verification:
        """Verify its guards, on one connection more than admissions may have."""
        try:
            with self.connections.connection(now() + _VERIFY_SECONDS, fresh=True) as connection:
                return verify(connection, metadata)
        except NoSlotError as error:
            raise (error.__cause__ or error) from None  # as the pool or the driver says it

    def _do(self, act: Callable[[psycopg.Connection[Any]], T], resource: str, patience: float) -> T:
        try:
            with self.connections.slots.slot(patience):
                with self.connections.connection(patience) as connection:
                    try:
                        return act(connection)
                    except psycopg.OperationalError:
                        if not connection.closed:
                            raise
                # It had died while it was idle; to admit a lease again changes nothing.
                with self.connections.connection(patience, fresh=True) as connection:
                    return act(connection)
        except NoSlotError as error:
            raise error.as_error(resource) from error


class AsyncDatabase(BaseDatabase):
    """:class:`Database` for asyncio."""

    def __init__(self, source: AsyncSource, capacity: int) -> None:
        super().__init__(source, check_source(source, "AsyncPsycopgGuard"))
        self.connections = AsyncConnections(source, capacity)

    async def aadmit(self, lease: BaseLease, until: float) -> None:
        """See :meth:`Database.admit`."""
        await self._do(
            lambda connection: send_admission_async(connection, lease, until),
            lease.resource,
            max(until, now() + _GRACE),
        )

    async def aevict(self, lease: BaseLease, since: float, until: float) -> list[int]:
        """See :meth:`Database.evict`."""
        return await self._do(
            lambda connection: evict_async(connection, lease, since),
            lease.resource,
            max(until, now() + _GRACE),
        )

    async def amark(self, resource: str) -> int | None:
        """See :meth:`Database.mark`."""
        return await self._do(
            lambda connection: read_mark_async(connection, resource), resource, now() + _GRACE
        )

    async def aidentity(self, expected: str) -> str:
        """See :meth:`fencing.core.performing.PlannedAdmissions.identity`."""
        if not self.known.answers(expected):
            self.known.note(await self._do(read_identity_async, "", now() + _GRACE), expected)
        return self.known.told

    async def averify(self, metadata: object) -> Verification:
        """See :meth:`Database.verify`."""
        connections = self.connections
        try:
            async with connections.connection(now() + _VERIFY_SECONDS, fresh=True) as connection:
                return await verify(connection, metadata)
        except NoSlotError as error:
            raise (error.__cause__ or error) from None

    async def _do(
        self,
        act: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]],
        resource: str,
        patience: float,
    ) -> T:
        try:
            async with self.connections.slots.aslot(patience):
                async with self.connections.connection(patience) as connection:
                    try:
                        return await act(connection)
                    except psycopg.OperationalError:
                        if not connection.closed:
                            raise
                async with self.connections.connection(patience, fresh=True) as connection:
                    return await act(connection)
        except NoSlotError as error:
            raise error.as_error(resource) from error
