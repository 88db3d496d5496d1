"""Locks in PostgreSQL itself: the sync and the async service, side by side.

::

    locks = PostgresLockService("postgresql://localhost/bank")
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

What is asked, what an answer means and what happens when none comes is decided in
:mod:`fencing.locks.postgres.acquiring` and :mod:`fencing.locks.postgres.steps`;
:mod:`fencing.locks.postgres.performing` performs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from fencing.clock import now
from fencing.errors import FencingError, LockNotAcquiredError
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks.base import AsyncBaseLockService, BaseLockService, lease_of
from fencing.locks.postgres import acquiring, steps
from fencing.locks.postgres.addresses import address_of_engine, check_source
from fencing.locks.postgres.asking import RENEW, Ask, milliseconds
from fencing.locks.postgres.performing import AsyncPerformer, Performer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fencing.locks.outcome import Outcome
    from fencing.locks.postgres.addresses import AsyncSource, Source
    from fencing.locks.postgres.asking import Steps
    from fencing.request import AcquireRequest
    from fencing.state import LockState

__all__ = ["AsyncPostgresLockService", "PostgresLockService"]

CONNECTIONS = 8
"""How many connections a service has at the most, besides one to listen on."""


class PostgresLockService(BaseLockService):
    """A lock service in a PostgreSQL database that has schema ``fencing``; nothing else is needed.

    A lease's token is committed as the resource's high-water mark in the transaction that grants
    it, so a guard of tables in the same database has nothing left to admit. The name of a resource
    is that of its fence: whoever uses the database shares its locks.

    The service opens connections of its own, each for one request, so that it can keep its callers'
    deadlines; waiters share one more, to be called on (LISTEN). Behind a pooler they ask once a
    second instead.

    Threads may share a service; a forked child may use its copy.

    Args:
        database: An address, as libpq or SQLAlchemy reads it, or a function without arguments that
            makes a ``psycopg.Connection``.
        max_connections: How many connections there may be at a time, besides the one to listen on;
            at least 1, default: 8.

    Raises:
        TypeError: The database is given by something else.
        ValueError: The address cannot be read, or there may be no connection.
    """

    def __init__(self, database: Source, *, max_connections: int = CONNECTIONS) -> None:
        super().__init__()
        source, self._name = check_source(database, type(self).__name__)
        self._guarded = False
        self._postgres = Performer(source, _checked(max_connections), self._name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @classmethod
    def from_url(cls, url: str, *, max_connections: int = CONNECTIONS) -> Self:
        """A service for the database at an address.

        Args:
            url: As in ``postgresql://localhost/bank`` or ``postgresql+psycopg://…``.
            max_connections: As for the service.
        """
        return cls(url, max_connections=max_connections)

    @classmethod
    def from_engine(cls, engine: Any, *, max_connections: int = CONNECTIONS) -> Self:  # noqa: ANN401 - SQLAlchemy is not known here
        """A service for an SQLAlchemy engine's database, on connections of its own.

        Args:
            engine: An ``Engine`` or ``AsyncEngine``. Only its URL is used: what its
                ``connect_args`` and listeners do is not.
            max_connections: As for the service.

        Raises:
            TypeError: It is no engine of a PostgreSQL database.
        """
        return cls(address_of_engine(engine, cls.__name__), max_connections=max_connections)

    def note_guarded(self) -> None:
        """Know that a guard uses this service; guards call it.

        Where open transactions of a predecessor keep a lease from being admitted at once, it is
        then returned all the same, for the guard to admit.
        """
        self._guarded = True

    def _renew(self, lease: Lease, ttl: float) -> None:
        self._postgres.perform(steps.renew(lease, ttl, started_at=now()), lease.resource)

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases together, in one statement, once; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long all of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """
        tokens = [lease.token for lease, _ in leases]
        came = self._postgres.ask(_renewing(leases, within))
        return steps.judge_renewals(leases, came, tokens)

    def release(self, lease: Lease) -> None:
        """See :meth:`BaseLockService.release`."""
        self._postgres.perform(steps.release(lease, started_at=now()), lease.resource)

    def _raise_token(self, lease: Lease, floor: int) -> None:
        self._postgres.perform(steps.raise_token(lease, floor, started_at=now()), lease.resource)

    def _inspect(self, resource: str) -> LockState:
        return self._postgres.perform(steps.inspect(resource, started_at=now()), resource)

    def _force_release(self, resource: str) -> bool:
        return self._postgres.perform(steps.force_release(resource, started_at=now()), resource)

    def _scan(self, prefix: str) -> Iterator[LockState]:
        after = ""
        while True:
            page = self._postgres.perform(steps.scan(prefix, after, started_at=now()), "")
            for resource in page:
                state = self._inspect(resource)
                if state.held:
                    yield state
            if len(page) < steps.PAGE:
                return
            after = page[-1]

    def _close(self) -> None:
        self._postgres.close()

    def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[Lease] | LockNotAcquiredError | None:
        """Grant several locks in one transaction, all or none, without waiting.

        For ``acquire_all``.

        Returns:
            The leases; or the error that says which one is held.
        """
        holders = [new_holder() for _ in requests]
        leases: list[Lease] = []
        first = requests[0].resource
        try:
            outcome = self._postgres.perform(
                acquiring.acquire_all(requests, holders=holders, started_at=now()), first
            )
            if isinstance(outcome, LockNotAcquiredError):
                return outcome
            for request, holder, grant in zip(requests, holders, outcome, strict=True):
                leases.append(lease_of(Lease, self, request, holder, grant))
                self._begin(leases[-1], request)
            return leases  # noqa: TRY300 - as for a single one
        except FencingError:
            raise
        except BaseException:
            for lease in leases:
                lease.note_released()
            self._postgres.perform(_giving_up(requests, holders), first)
            raise

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        self._postgres.perform(_giving_up([request], [holder]), request.resource)

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - of our own
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                guarded=self._guarded,
                in_line=in_line,
            )

        if request.patience > 0:
            return self._postgres.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return self._postgres.perform(call(), request.resource)


class AsyncPostgresLockService(AsyncBaseLockService):
    """:class:`PostgresLockService` for asyncio.

    A function that connects is asynchronous, and makes a ``psycopg.AsyncConnection``. Close the
    service with :meth:`aclose`, or use it in ``async with``.
    """

    def __init__(self, database: AsyncSource, *, max_connections: int = CONNECTIONS) -> None:
        super().__init__()
        source, self._name = check_source(database, type(self).__name__)
        self._guarded = False
        self._postgres = AsyncPerformer(source, _checked(max_connections), self._name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @classmethod
    def from_url(cls, url: str, *, max_connections: int = CONNECTIONS) -> Self:
        """See :meth:`PostgresLockService.from_url`."""
        return cls(url, max_connections=max_connections)

    @classmethod
    def from_engine(cls, engine: Any, *, max_connections: int = CONNECTIONS) -> Self:  # noqa: ANN401 - SQLAlchemy is not known here
        """See :meth:`PostgresLockService.from_engine`."""
        return cls(address_of_engine(engine, cls.__name__), max_connections=max_connections)

    def note_guarded(self) -> None:
        """See :meth:`PostgresLockService.note_guarded`."""
        self._guarded = True

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        await self._postgres.perform(steps.renew(lease, ttl, started_at=now()), lease.resource)

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`PostgresLockService.renew_many`."""
        tokens = [lease.token for lease, _ in leases]
        came = await self._postgres.ask(_renewing(leases, within))
        return steps.judge_renewals(leases, came, tokens)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`PostgresLockService.release`."""
        await self._postgres.perform(steps.release(lease, started_at=now()), lease.resource)

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        await self._postgres.perform(
            steps.raise_token(lease, floor, started_at=now()), lease.resource
        )

    async def _inspect(self, resource: str) -> LockState:
        return await self._postgres.perform(steps.inspect(resource, started_at=now()), resource)

    async def _force_release(self, resource: str) -> bool:
        return await self._postgres.perform(
            steps.force_release(resource, started_at=now()), resource
        )

    async def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        after = ""
        while True:
            page = await self._postgres.perform(steps.scan(prefix, after, started_at=now()), "")
            for resource in page:
                state = await self._inspect(resource)
                if state.held:
                    yield state
            if len(page) < steps.PAGE:
                return
            after = page[-1]

    async def _close(self) -> None:
        await self._postgres.aclose()

    async def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[AsyncLease] | LockNotAcquiredError | None:
        """See :meth:`PostgresLockService.grant_all`."""
        holders = [new_holder() for _ in requests]
        leases: list[AsyncLease] = []
        first = requests[0].resource
        try:
            outcome = await self._postgres.perform(
                acquiring.acquire_all(requests, holders=holders, started_at=now()), first
            )
            if isinstance(outcome, LockNotAcquiredError):
                return outcome
            for request, holder, grant in zip(requests, holders, outcome, strict=True):
                leases.append(lease_of(AsyncLease, self, request, holder, grant))
                self._begin(leases[-1], request)
            return leases  # noqa: TRY300 - as for a single one
        except FencingError:
            raise
        except Exception:
            for lease in leases:
                lease.note_released()
            await self._postgres.perform(_giving_up(requests, holders), first)
            raise

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        await self._postgres.perform(_giving_up([request], [holder]), request.resource)

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - of our own
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                guarded=self._guarded,
                in_line=in_line,
            )

        if request.patience > 0:
            return await self._postgres.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return await self._postgres.perform(call(), request.resource)


def _renewing(
    leases: Sequence[tuple[Lease, float]] | Sequence[tuple[AsyncLease, float]], within: float
) -> Ask:
    wait = max(0.001, within)
    return Ask(RENEW, {"wanted": steps.renewals(leases), "wait_ms": milliseconds(wait)}, wait)


def _giving_up(requests: Sequence[AcquireRequest], holders: Sequence[str]) -> Steps[None]:
    names = [request.resource for request in requests]
    return acquiring.give_up(list(zip(names, holders, strict=True)), started_at=now())


def _checked(max_connections: int) -> int:
    if isinstance(max_connections, bool) or not isinstance(max_connections, int):
        raise TypeError(f"max_connections is a number, not {max_connections!r}")
    if max_connections < 1:
        raise ValueError(f"max_connections must be at least 1, not {max_connections}")
    return max_connections
