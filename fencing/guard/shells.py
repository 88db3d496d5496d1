"""``Guard`` and ``AsyncGuard``, side by side."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.core.acquiring_all import AcquiresAll, AsyncAcquiresAll
from fencing.core.held import enter_again, enter_again_async
from fencing.core.performing import hand_out_nothing, perform, perform_async
from fencing.errors import LockNotAcquiredError
from fencing.guard.base import BaseGuard, check_engines
from fencing.guard.holding import check_not_bare, resource_of_call
from fencing.hooks.database import Database
from fencing.hooks.verifying import averify_databases, verify_databases
from fencing.lease import AsyncLease, Lease
from fencing.request import AcquireRequest, AsyncAcquireRequest
from fencing.service import Acquisition, check_service, note_guarded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fencing.service import AsyncLockService, LockService
    from fencing.verification import Verification

__all__ = ["AsyncGuard", "Guard"]

P = ParamSpec("P")
R = TypeVar("R")


class Guard(BaseGuard[Lease], AcquiresAll):
    """Locks, and databases that refuse whoever has been overtaken.

    An acquisition locks, and then commits the lease's token in every database (admission); from
    then on no transaction of an earlier holder can write there. Inside the lease's ``with`` block
    every transaction begun on the engines in this thread or task presents it. A transaction that
    was begun before the block is not covered: its guarded writes are refused.

    Admissions use connections of their own; :meth:`close`, or the end of a ``with guard`` block,
    closes those that are idle.

    Args:
        locks: Who grants leases.
        engines: SQLAlchemy engines of PostgreSQL databases that have schema ``fencing``. Hooks
            are installed once per engine, however many guards there are.
        evict_after: How long an admission waits for open transactions of earlier holders before
            it ends their backends, in seconds; default: it never does. Only such as hold the
            resource under an older token are ended; their holders find out at their next
            statement. The role must be theirs, or may be granted ``pg_signal_backend``.
        receipts: Whether every transaction under a lease on these engines leaves a row, by which
            the outcome of a COMMIT without an answer is certain; default: it often stays unknown.
            Reading transactions write then, too; :func:`fencing.CommitOutcomeUnknownError`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An engine's dialect or driver is not supported.
    """

    def __init__(
        self,
        locks: LockService,
        *engines: Engine,
        evict_after: float | None = None,
        receipts: bool = False,
    ) -> None:
        check_service(locks, "Guard")
        check_engines(engines, Engine, "Guard", "AsyncGuard")
        self.locks = locks
        note_guarded(locks)
        super().__init__(
            [Database.of(engine) for engine in engines], evict_after, receipts=receipts
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
            A context manager: inside its block the lease is presented; its end releases it.

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

    def holding(
        self,
        template: str,
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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function to run under a lease on a resource that its arguments name.

        ::

            @guard.holding("account:{account_id}", ttl=10)
            def withdraw(session: Session, account_id: int, amount: int) -> None: ...

        Args:
            template: Names the resource by parameters of the function (``int``, ``str``, ``bool``
                or ``uuid.UUID``), as a table's template does by its columns.
            ttl: As in :meth:`acquire`, like the other arguments.
            blocking: Whether to wait while another holds it.
            blocking_timeout: Longest wait, in seconds.
            owner: A label for people.
            fair: Whether to wait in line.
            keepalive: Whether the lease is renewed in the background.
            max_lifetime: How long it lives at the longest then, in seconds.
            on_lost: Called once with the lease when it is lost.
            reentrant: Whether a lease that the caller has is used, and kept.

        Raises:
            TypeError: The function is asynchronous or a generator, or an argument is of the wrong
                type; from the call, if a value has no text of its own.
            ValueError: The template names no parameter of the function, or an argument is out of
                its range.
        """
        check_not_bare(template)
        options: dict[str, Any] = {
            "ttl": ttl, "blocking": blocking, "blocking_timeout": blocking_timeout,
            "owner": owner, "fair": fair, "keepalive": keepalive, "max_lifetime": max_lifetime,
            "on_lost": on_lost, "reentrant": reentrant,
        }  # fmt: skip

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__qualname__} is asynchronous; decorate it with the holding() of "
                    "an AsyncGuard"
                )
            resource = resource_of_call(function, template, AcquireRequest, options)

            @functools.wraps(function)
            def held(*args: P.args, **kwargs: P.kwargs) -> R:
                # Not with **options, when CPython would look for signals before the block begins.
                with self.acquire(
                    resource(*args, **kwargs), ttl=ttl, blocking=blocking,
                    blocking_timeout=blocking_timeout, owner=owner, fair=fair,
                    keepalive=keepalive, max_lifetime=max_lifetime, on_lost=on_lost,
                    reentrant=reentrant,
                ):  # fmt: skip
                    return function(*args, **kwargs)

            return held

        return decorate

    def admit(self, lease: Lease) -> None:
        """Admit a lease that was acquired elsewhere, in every engine's database.

        When a database is ahead, its lock service is asked to raise the token of one that was
        never admitted, as in :meth:`acquire`.

        Args:
            lease: A lease of any lock service; use it with :func:`fencing.fence` afterwards.

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
        perform(self._plan_admission(lease), self.locks, hand_out_nothing)

    def verify(self, metadata: object = None) -> list[Verification]:
        """Verify the guards of every engine's database, as ``fencing verify`` does.

        Reads catalogs only, on a connection of its own for each; what an application's role may
        see is enough.

        Args:
            metadata: A ``MetaData``, or a declarative base class: what ``fenced_by`` declares in
                it is compared with what is there. A declared table has to be in one of several
                databases.

        Returns:
            For each database its guarded tables and what was found.

        Raises:
            TypeError: The metadata are neither.
        """
        return verify_databases(self.databases, metadata)

    def _grants(self) -> LockService:
        return self.locks

    def close(self) -> None:
        """Close the idle connections of admissions and lock service; the guard stays usable."""
        for database in self.databases:
            database.admissions.close()
        self.locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncGuard(BaseGuard[AsyncLease], AsyncAcquiresAll):
    """:class:`Guard` for asyncio: over an async lock service and each ``AsyncEngine``."""

    def __init__(
        self,
        locks: AsyncLockService,
        *engines: AsyncEngine,
        evict_after: float | None = None,
        receipts: bool = False,
    ) -> None:
        check_service(locks, "AsyncGuard")
        check_engines(engines, AsyncEngine, "AsyncGuard", "Guard")
        self.locks = locks
        note_guarded(locks)
        super().__init__(
            [Database.of(engine.sync_engine) for engine in engines], evict_after, receipts=receipts
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
        """See :meth:`Guard.acquire`; ``await`` it, or use it in ``async with``."""
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
        """See :meth:`Guard.try_acquire`."""
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

    def holding(
        self,
        template: str,
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
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """See :meth:`Guard.holding`; for asynchronous functions."""
        check_not_bare(template)
        options: dict[str, Any] = {
            "ttl": ttl, "blocking": blocking, "blocking_timeout": blocking_timeout,
            "owner": owner, "fair": fair, "keepalive": keepalive, "max_lifetime": max_lifetime,
            "on_lost": on_lost, "cancel_on_loss": cancel_on_loss, "reentrant": reentrant,
        }  # fmt: skip

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            resource = resource_of_call(function, template, AsyncAcquireRequest, options)
            if not inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{function.__qualname__} is not asynchronous; decorate it with the holding() "
                    "of a Guard"
                )

            @functools.wraps(function)
            async def held(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.acquire(resource(*args, **kwargs), **options):
                    return await function(*args, **kwargs)

            return held

        return decorate

    async def admit(self, lease: AsyncLease) -> None:
        """See :meth:`Guard.admit`."""
        if not isinstance(lease, AsyncLease):
            raise TypeError(f"admit() takes an AsyncLease, not {type(lease).__name__}")
        await perform_async(self._plan_admission(lease), self.locks, hand_out_nothing)

    async def verify(self, metadata: object = None) -> list[Verification]:
        """See :meth:`Guard.verify`."""
        return await averify_databases(self.databases, metadata)

    def _grants(self) -> AsyncLockService:
        return self.locks

    async def aclose(self) -> None:
        """See :meth:`Guard.close`."""
        for database in self.databases:
            await database.admissions.aclose()
        await self.locks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
