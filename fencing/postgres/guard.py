"""``PsycopgGuard`` and ``AsyncPsycopgGuard``, side by side."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from fencing.clock import now
from fencing.core.acquiring_all import AcquiresAll, AsyncAcquiresAll
from fencing.core.held import Held, enter_again, enter_again_async
from fencing.core.identity import KnownIdentity
from fencing.core.performing import hand_out_nothing, perform, perform_async
from fencing.core.plan import acquire_admitted, admit_lease, not_granted
from fencing.core.several import acquire_several
from fencing.core.slots import NoSlotError
from fencing.errors import LockNotAcquiredError
from fencing.keepalive import watch
from fencing.lease import AsyncLease, BaseLease, Lease
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
from fencing.postgres.connections import AsyncConnections, Connections, check_source
from fencing.postgres.entry import open_blocks
from fencing.postgres.verifying import verify
from fencing.request import AcquireRequest, AsyncAcquireRequest, check_evict_after
from fencing.service import Acquisition, check_service, note_guarded
from fencing.verification import together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from fencing.core.plan import Plan, PlanOfAll
    from fencing.postgres.connections import AsyncSource, Source
    from fencing.postgres.entry import Entry
    from fencing.service import AsyncLockService, LockService
    from fencing.verification import Verification

__all__ = ["AsyncPsycopgGuard", "PsycopgGuard"]

_log = logging.getLogger("fencing")

T = TypeVar("T")
LeaseT = TypeVar("LeaseT", bound=BaseLease)

_GRACE = 1.0
"""How long one that does not wait waits for a connection, in seconds: others use it briefly."""

_VERIFY_SECONDS = 10.0
"""How long a verification waits for a connection, in seconds."""


class Scope:
    """The ``with`` block of a guarded lease; nothing is ambient in it."""

    raises_loss = False

    def __init__(self, lease: BaseLease, databases: Sequence[BaseDatabase]) -> None:
        self._resource, self._holder = lease.resource, lease.holder
        self.databases = databases

    def open(self) -> None:
        """Nothing begins."""

    def cut(self, depth: int) -> None:
        """Nothing has begun."""

    def close(self, *, outermost: bool) -> None:
        """Warn of transactions that are still open."""
        if not outermost:
            return
        for database in self.databases:
            for entry, lease in database.open_on(self._resource):
                if lease.holder == self._holder:
                    _log.warning(
                        "a transaction begun under the lease on %r (token %d) is still open at "
                        "the end of its block, as PostgreSQL backend %d of %s: it will not be "
                        "committed, and the next holder waits for it; end its block first",
                        lease.resource, lease.token, entry.backend_pid, database.name,
                    )  # fmt: skip


class BaseDatabase:
    """A database of a guard, as plans know it."""

    def __init__(self, source: object, name: str) -> None:
        self.source = source
        self.name = name
        self.known = KnownIdentity()

    @property
    def presentations(self) -> Self:
        """What this process has open in it."""
        return self

    @property
    def admissions(self) -> Self:
        """Who admits leases in it."""
        return self

    def open_on(self, resource: str) -> Iterator[tuple[Entry, BaseLease]]:
        """The open blocks under leases on a resource that were acquired for this database."""
        for entry, lease in open_blocks(resource):
            scope = lease.scope
            if isinstance(scope, Scope) and any(d.source == self.source for d in scope.databases):
                yield entry, lease


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


class PsycopgGuard(AcquiresAll):
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
    ) -> None:
        if inspect.iscoroutinefunction(getattr(locks, "try_acquire", None)):
            raise TypeError(
                f"PsycopgGuard takes a synchronous lock service, not {type(locks).__name__}; use "
                "AsyncPsycopgGuard with it"
            )
        check_service(locks)
        _check_databases(databases, max_connections, "PsycopgGuard")
        self.locks = locks
        note_guarded(locks)
        self.evict_after = check_evict_after(evict_after)
        self.databases = tuple(Database(source, max_connections) for source in databases)
        self._held: Held[Lease] = Held()

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
            admit_lease(lease, self.databases, evict_after=self.evict_after),
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

    def __repr__(self) -> str:
        return _repr(self, self.databases)

    def _plan(self, request: AcquireRequest) -> Plan:
        return acquire_admitted(request, self.databases, evict_after=self.evict_after)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        return _plan_all(self._held, requests, self.databases, self.evict_after)

    def _grants(self) -> LockService:
        return self.locks

    def _handing_out(self, request: AcquireRequest) -> Callable[[Lease | None], Lease]:
        return _handing_out(request, self.databases, self._held)


class AsyncPsycopgGuard(AsyncAcquiresAll):
    """:class:`PsycopgGuard` for asyncio: over an async lock service, and psycopg's async pools.

    Args:
        locks: Who grants leases.
        databases: As there; a function may also return ``AsyncConnection.connect(...)``.
        max_connections: As there.
        evict_after: As there.
    """

    def __init__(
        self,
        locks: AsyncLockService,
        *databases: AsyncSource,
        max_connections: int = 10,
        evict_after: float | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(getattr(locks, "try_acquire", None)):
            raise TypeError(
                f"AsyncPsycopgGuard takes an asynchronous lock service, not "
                f"{type(locks).__name__}; use PsycopgGuard with it"
            )
        check_service(locks)
        _check_databases(databases, max_connections, "AsyncPsycopgGuard")
        self.locks = locks
        note_guarded(locks)
        self.evict_after = check_evict_after(evict_after)
        self.databases = tuple(AsyncDatabase(source, max_connections) for source in databases)
        self._held: Held[AsyncLease] = Held()

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
            admit_lease(lease, self.databases, evict_after=self.evict_after),
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

    def __repr__(self) -> str:
        return _repr(self, self.databases)

    def _plan(self, request: AcquireRequest) -> Plan:
        return acquire_admitted(request, self.databases, evict_after=self.evict_after)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        return _plan_all(self._held, requests, self.databases, self.evict_after)

    def _grants(self) -> AsyncLockService:
        return self.locks

    def _handing_out(self, request: AcquireRequest) -> Callable[[AsyncLease | None], AsyncLease]:
        return _handing_out(request, self.databases, self._held)


def _check_databases(databases: Sequence[object], max_connections: int, guard: str) -> None:
    if not databases:
        raise TypeError(f"{guard} takes at least one database: {guard}(locks, conninfo)")
    if max_connections < 1:
        raise ValueError(f"max_connections must be 1 or more, not {max_connections!r}")


def _repr(guard: object, databases: Sequence[BaseDatabase]) -> str:
    names = ", ".join(database.name for database in databases)
    return f"<{type(guard).__name__} of {names}>"


def _handing_out(
    request: AcquireRequest, databases: Sequence[BaseDatabase], held: Held[LeaseT]
) -> Callable[[LeaseT | None], LeaseT]:
    def hand_out(lease: LeaseT | None) -> LeaseT:
        if lease is None:
            raise not_granted(request.resource)
        lease.scope = Scope(lease, databases)
        held.note(lease)
        if request.is_kept_or_watched:
            watch(lease, request)
        return lease

    return hand_out


def _plan_all(
    held: Held[Any],
    requests: Sequence[AcquireRequest],
    databases: Sequence[BaseDatabase],
    evict_after: float | None,
) -> PlanOfAll:
    for request in requests:
        held.raise_if_held(request.resource)
    return acquire_several(requests, databases, evict_after=evict_after)
