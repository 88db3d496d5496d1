"""``PsycopgGuard`` and ``AsyncPsycopgGuard``, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fencing.core.acquiring_all import AcquiresAll, AsyncAcquiresAll
from fencing.core.held import enter_again, enter_again_async
from fencing.core.performing import hand_out_nothing, perform, perform_async
from fencing.errors import LockNotAcquiredError
from fencing.lease import AsyncLease, Lease
from fencing.postgres.base import BasePsycopgGuard, check_databases
from fencing.postgres.databases import AsyncDatabase, Database
from fencing.request import AcquireRequest, AsyncAcquireRequest
from fencing.service import Acquisition, check_service, note_guarded
from fencing.verification import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.postgres.connections import AsyncSource, Source
    from fencing.service import AsyncLockService, LockService
    from fencing.verification import Verification

__all__ = ["AsyncPsycopgGuard", "PsycopgGuard"]


class PsycopgGuard(BasePsycopgGuard[Lease, Database], AcquiresAll):
    """Locks, and databases that refuse whoever has been overtaken; without SQLAlchemy.

    An acquisition locks, and then commits the lease's token in every database (admission), on
    connections of the guard's own. Nothing presents the lease by itself: each transaction names
    it, in :func:`fencing.postgres.transaction` or :func:`fencing.postgres.enter`.

    Args:
        locks: Who grants leases.
        databases: Where to admit them, at least one: each an address of libpq's (``conninfo`` or
            ``postgresql://...``), a ``psycopg_pool.ConnectionPool``, or a function without
            parameters that returns a connection, or a context manager of one. A pool should be
            one apart: in the one that callers work with, all its connections could be held by
            callers that wait for one more.
        max_connections: How many admissions may run at a time on connections that were made from
            an address.
        evict_after: How long an admission waits for open transactions of earlier holders before
            it ends their backends, in seconds; default: it never does. Only such as hold the
            resource under an older token are ended; their holders find out at their next
            statement. The role must be theirs, or may be granted ``pg_signal_backend``.
        receipts: Whether every transaction under a lease that was acquired here leaves a row, by
            which the outcome of a COMMIT without an answer can be told for certain, as ``receipt``
            does for one block.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An address cannot be read, or ``max_connections`` is less than 1.
    """

    def __init__(
        self,
        locks: LockService,
        *databases: Source,
        max_connections: int = 10,
        evict_after: float | None = None,
        receipts: bool = False,
    ) -> None:
        check_service(locks, "PsycopgGuard")
        check_databases(databases, max_connections, "PsycopgGuard")
        self.locks = locks
        note_guarded(locks)
        super().__init__(
            [Database(source, max_connections) for source in databases],
            evict_after,
            receipts=receipts,
        )

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        fair: bool = False,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        reentrant: bool = False,
    ) -> Lease:
        """Return an admitted lease; it has been acquired when this returns.

        Args:
            resource: What to protect: 1 to 512 bytes of UTF-8 without NUL.
            ttl: Length of the lease, in seconds, from 0.01 to 24 hours.
            blocking: Whether to wait while another holds it.
            blocking_timeout: Longest wait, in seconds, for the lock and for open transactions of
                earlier holders; ``None`` waits for the lock for as long as it takes. Open
                transactions are waited for no longer than the lease lasts.
            owner: A label for people; default: host, process, thread.
            fair: As in :meth:`RedisLockService.acquire`, like the following.
            keepalive: Whether the lease is renewed in the background.
            max_lifetime: How long it lives at the longest then, in seconds.
            on_lost: Called once with the lease when it is lost.
            reentrant: Whether a lease that this thread or task has from this guard is returned
                again; it is not admitted again.

        Returns:
            A context manager, whose end releases it.

        Raises:
            LockNotAcquiredError: Not granted or not admitted in time; ``blocked_by`` names the
                backends whose open transactions were in the way.
            LockServiceError: The lock service could not be asked.
            GuardNotInstalledError: A database has no schema ``fencing``.
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of its range.
        """
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=blocking, blocking_timeout=blocking_timeout,
            owner=owner, fair=fair, keepalive=keepalive, max_lifetime=max_lifetime,
            on_lost=on_lost, reentrant=reentrant,
        )  # fmt: skip
        if (again := self._again(request)) is not None:
            return again
        return perform(self._plan(request), self.locks, self._handing_out(request))

    def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        reentrant: bool = False,
    ) -> Lease | None:
        """:meth:`acquire` that never waits.

        Returns:
            An admitted lease; ``None`` when another holds it, or an open transaction of an
            earlier holder is in the way.
        """
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost, reentrant=reentrant,
        )  # fmt: skip
        if request.reentrant and (again := self._again(request)) is not None:
            return again
        if self._held.lease_here(resource) is not None:
            return None
        try:
            return perform(self._plan(request), self.locks, self._handing_out(request))
        except LockNotAcquiredError:
            return None

    def _again(self, request: AcquireRequest) -> Lease | None:
        """The lease that this thread or task has; an error if it is not to be entered again."""
        if not request.reentrant:
            self._held.raise_if_held(request.resource)
            return None
        return enter_again(self._held, request)

    def admit(self, lease: Lease) -> None:
        """Admit a lease that was acquired elsewhere, in every database.

        When a database is ahead, its lock service is asked to raise the token of one that was
        never admitted, as in :meth:`acquire`.

        Args:
            lease: A lease of any lock service.

        Raises:
            StaleFenceError: A newer holder has been admitted; or the lease had been, and the mark
                is ahead.
            LockNotAcquiredError: Open transactions of earlier holders did not end in time.
            LeaseLostError: The lease is over.
            LockServiceError: The database is ahead of its lock service, which could not be asked
                for a greater token.
        """
        if not isinstance(lease, Lease):
            raise TypeError(f"admit() takes a Lease, not {type(lease).__name__}")
        perform(
            self._plan_admission(lease),
            self.locks,
            hand_out_nothing,
        )

    def verify(self, metadata: object = None) -> list[Verification]:
        """Verify the guards of every database, as ``fencing verify`` does.

        Reads catalogs only, on a connection apart; what an application's role may see is enough.

        Args:
            metadata: A ``MetaData`` of SQLAlchemy's, or a class that has one: what ``fenced_by``
                declares in it is compared with what is there. A declared table has to be in one
                of several databases.

        Returns:
            For each database its guarded tables and what was found.

        Raises:
            TypeError: The metadata are neither.
            psycopg.Error: A database could not be asked.
        """
        return together([database.verify(metadata) for database in self.databases])

    def close(self) -> None:
        """Close the idle connections of admissions and lock service; the guard stays usable."""
        for database in self.databases:
            database.connections.close()
        self.locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _grants(self) -> LockService:
        return self.locks


class AsyncPsycopgGuard(BasePsycopgGuard[AsyncLease, AsyncDatabase], AsyncAcquiresAll):
    """:class:`PsycopgGuard` for asyncio: over an async lock service, and psycopg's async pools.

    Args:
        locks: Who grants leases.
        databases: As there; a function may also return ``AsyncConnection.connect(...)``.
        max_connections: As there.
        evict_after: As there.
        receipts: As there.
    """

    def __init__(
        self,
        locks: AsyncLockService,
        *databases: AsyncSource,
        max_connections: int = 10,
        evict_after: float | None = None,
        receipts: bool = False,
    ) -> None:
        check_service(locks, "AsyncPsycopgGuard")
        check_databases(databases, max_connections, "AsyncPsycopgGuard")
        self.locks = locks
        note_guarded(locks)
        super().__init__(
            [AsyncDatabase(source, max_connections) for source in databases],
            evict_after,
            receipts=receipts,
        )

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        fair: bool = False,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
    ) -> Acquisition:
        """See :meth:`PsycopgGuard.acquire`; ``await`` it, or use it in ``async with``."""
        request = AsyncAcquireRequest(
            resource=resource, ttl=ttl, blocking=blocking, blocking_timeout=blocking_timeout,
            owner=owner, fair=fair, keepalive=keepalive, max_lifetime=max_lifetime,
            on_lost=on_lost, cancel_on_loss=cancel_on_loss,
            reentrant=reentrant,
        )  # fmt: skip

        async def begin() -> AsyncLease:
            if (again := await self._again(request)) is not None:
                return again
            return await perform_async(self._plan(request), self.locks, self._handing_out(request))

        return Acquisition(begin)

    async def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
    ) -> AsyncLease | None:
        """See :meth:`PsycopgGuard.try_acquire`."""
        request = AsyncAcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost, cancel_on_loss=cancel_on_loss,
            reentrant=reentrant,
        )  # fmt: skip
        if request.reentrant and (again := await self._again(request)) is not None:
            return again
        if self._held.lease_here(resource) is not None:
            return None
        try:
            return await perform_async(self._plan(request), self.locks, self._handing_out(request))
        except LockNotAcquiredError:
            return None

    async def _again(self, request: AcquireRequest) -> AsyncLease | None:
        """The lease that this thread or task has; an error if it is not to be entered again."""
        if not request.reentrant:
            self._held.raise_if_held(request.resource)
            return None
        return await enter_again_async(self._held, request)

    async def admit(self, lease: AsyncLease) -> None:
        """See :meth:`PsycopgGuard.admit`."""
        if not isinstance(lease, AsyncLease):
            raise TypeError(f"admit() takes an AsyncLease, not {type(lease).__name__}")
        await perform_async(
            self._plan_admission(lease),
            self.locks,
            hand_out_nothing,
        )

    async def verify(self, metadata: object = None) -> list[Verification]:
        """See :meth:`PsycopgGuard.verify`."""
        return together([await database.averify(metadata) for database in self.databases])

    async def aclose(self) -> None:
        """See :meth:`PsycopgGuard.close`."""
        for database in self.databases:
            await database.connections.aclose()
        await self.locks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _grants(self) -> AsyncLockService:
        return self.locks
