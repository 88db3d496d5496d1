"""``Guard`` and ``AsyncGuard``: they perform the plans, side by side."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from fencing.errors import FencingError, LockNotAcquiredError
from fencing.guard.plan import (
    Admit,
    AskMark,
    GiveBack,
    Lock,
    RaiseToken,
    Renew,
    acquire_admitted,
    admit_lease,
)
from fencing.hooks.ambient import Fence, Suspension
from fencing.hooks.database import Database
from fencing.lease import Acquisition, AsyncLease, BaseLease, Lease
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.guard.plan import Plan, Step
    from fencing.lease import AsyncLockService, LockService

__all__ = ["AsyncGuard", "Guard"]

_log = logging.getLogger("fencing")

LeaseT = TypeVar("LeaseT", bound=BaseLease)


class _GuardedScope:
    """The ``with`` block of a guarded lease: inside it the lease is ambient."""

    raises_loss = False

    def __init__(self, lease: BaseLease, databases: Sequence[Database]) -> None:
        self._lease = lease
        self._databases = databases
        self._fence: Fence | None = None

    def open(self) -> None:
        self._fence = Fence((self._lease,), self._databases)
        self._fence.push()

    def close(self) -> None:
        if self._fence is not None:
            self._fence.close()
        for database in self._databases:
            for presentation, lease in database.presentations.open_on(self._lease.resource):
                if lease.holder == self._lease.holder:
                    _log.warning(
                        "a transaction begun under the lease on %r (token %d) is still open at "
                        "the end of its block, as PostgreSQL backend %d of %s: nothing more can "
                        "be done in it, and the next holder waits for it; commit or roll back "
                        "inside the block",
                        lease.resource, lease.token, presentation.backend_pid, database.name,
                    )  # fmt: skip


class _BaseGuard(Generic[LeaseT]):
    """What the two guards share: everything but waiting."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self._databases = tuple(dict.fromkeys(databases))
        # By resource, thread and task: who would be waiting for himself.
        self._held: weakref.WeakValueDictionary[tuple[str, int, int], LeaseT] = (
            weakref.WeakValueDictionary()
        )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which nothing is presented on this guard's engines.

        For what must be written to unguarded tables whatever has become of the lease: an error
        handler's log, say. Guarded tables refuse its writes; leases acquired inside it are
        presented. A plain ``with``, for sync and async alike.
        """
        suspension = Suspension(self._databases)
        suspension.push()
        try:
            yield
        finally:
            suspension.close()

    def _holds(self, resource: str) -> bool:
        lease = self._held.get(_self_key(resource))
        return lease is not None and lease.remaining > 0

    def _raise_if_held(self, resource: str) -> None:
        if self._holds(resource):
            raise LockNotAcquiredError(
                f"this thread or task already holds {resource!r} and would wait for itself; use "
                "the lease it has",
                resource=resource,
            )

    def _hand_out(self, lease: LeaseT) -> LeaseT:
        lease.scope = _GuardedScope(lease, self._databases)
        self._held[_self_key(lease.resource)] = lease
        return lease


def _self_key(resource: str) -> tuple[str, int, int]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return resource, threading.get_ident(), 0 if task is None else id(task)


class Guard(_BaseGuard[Lease]):
    """Locks, and databases that refuse whoever has been overtaken.

    An acquisition locks, and then commits the lease's token in every database (admission); from
    then on no transaction of an earlier holder can write there. Inside the lease's ``with`` block
    every transaction begun on the engines in this thread or task presents it. A transaction that
    was begun before the block is not covered: its guarded writes are refused.

    Admissions use connections of their own; :meth:`close` closes those that are idle.

    Args:
        locks: Who grants leases.
        engines: SQLAlchemy engines of PostgreSQL databases that have schema ``fencing``. Hooks
            are installed once per engine, however many guards there are.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An engine's dialect or driver is not supported.
    """

    def __init__(self, locks: LockService, *engines: Engine) -> None:
        if inspect.iscoroutinefunction(getattr(locks, "try_acquire", None)):
            raise TypeError(
                f"Guard takes a synchronous lock service, not {type(locks).__name__}; use "
                "AsyncGuard with it"
            )
        _check_service(locks)
        _check_engines(engines, Engine, "Guard", "AsyncGuard")
        self.locks = locks
        super().__init__([Database.of(engine) for engine in engines])

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
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
            resource=resource, ttl=ttl, blocking=blocking,
            blocking_timeout=blocking_timeout, owner=owner,
        )  # fmt: skip
        self._raise_if_held(resource)
        lease = self._perform(acquire_admitted(request, self._databases))
        if lease is None:
            raise _not_granted(resource)
        return self._hand_out(lease)

    def try_acquire(
        self, resource: str, *, ttl: float = 30.0, owner: str | None = None
    ) -> Lease | None:
        """:meth:`acquire` that never waits.

        Returns:
            An admitted lease; ``None`` when another holds it, or an open transaction of an
            earlier holder is in the way.
        """
        request = AcquireRequest(resource=resource, ttl=ttl, blocking=False, owner=owner)
        if self._holds(resource):
            return None
        try:
            lease = self._perform(acquire_admitted(request, self._databases))
        except LockNotAcquiredError:
            return None
        return None if lease is None else self._hand_out(lease)

    def admit(self, lease: Lease) -> None:
        """Admit a lease that was acquired elsewhere, in every engine's database.

        Args:
            lease: A lease of any lock service; use it with :func:`fencing.fence` afterwards.

        Raises:
            StaleFenceError: A newer holder has been admitted.
            LockNotAcquiredError: Open transactions of earlier holders did not end in time.
            LeaseLostError: The lease is over.
        """
        if not isinstance(lease, Lease):
            raise TypeError(f"admit() takes a Lease, not {type(lease).__name__}")
        self._perform(admit_lease(lease, self._databases))

    def close(self) -> None:
        """Close idle connections of the admissions' pools; the guard stays usable."""
        for database in self._databases:
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _perform(self, plan: Plan) -> Lease | None:
        send: Any = None
        failure: BaseException | None = None
        try:
            while True:
                step = plan.throw(failure) if failure is not None else plan.send(send)
                send, failure = None, None
                try:
                    send = self._step(step)
                except BaseException as error:  # noqa: BLE001 - the plan decides what it means
                    failure = error
        except StopIteration as end:
            lease: Lease | None = end.value
            return lease

    def _step(self, step: Step) -> object:
        match step:
            case Lock(request) if not request.blocking:
                return self.locks.try_acquire(
                    request.resource, ttl=request.ttl, owner=request.owner_label,
                    floor=request.floor,
                )  # fmt: skip
            case Lock(request):
                return self.locks.acquire(
                    request.resource, ttl=request.ttl, owner=request.owner_label,
                    floor=request.floor, blocking_timeout=request.blocking_timeout,
                )  # fmt: skip
            case AskMark(database, resource):
                return database.mark(resource)
            case Admit(database, lease, wait):
                database.admit(lease, wait)
            case RaiseToken(Lease() as lease, floor):
                self.locks.raise_token(lease, floor=floor)
            case Renew(Lease() as lease):
                self.locks.renew(lease, lease.ttl)
            case GiveBack(Lease() as lease):
                try:
                    lease.release()
                except FencingError as error:
                    _log.info("could not release a lease that was not handed out: %s", error)
            case _:
                raise TypeError(step)
        return None


class AsyncGuard(_BaseGuard[AsyncLease]):
    """:class:`Guard` for asyncio: over an async lock service and each ``AsyncEngine``."""

    def __init__(self, locks: AsyncLockService, *engines: AsyncEngine) -> None:
        if not inspect.iscoroutinefunction(getattr(locks, "try_acquire", None)):
            raise TypeError(
                f"AsyncGuard takes an asynchronous lock service, not {type(locks).__name__}; use "
                "Guard with it"
            )
        _check_service(locks)
        _check_engines(engines, AsyncEngine, "AsyncGuard", "Guard")
        self.locks = locks
        super().__init__([Database.of(engine.sync_engine) for engine in engines])

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
    ) -> Acquisition:
        """See :meth:`Guard.acquire`; ``await`` it, or use it in ``async with``."""
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=blocking,
            blocking_timeout=blocking_timeout, owner=owner,
        )  # fmt: skip

        async def begin() -> AsyncLease:
            self._raise_if_held(resource)
            lease = await self._perform(acquire_admitted(request, self._databases))
            if lease is None:
                raise _not_granted(resource)
            return self._hand_out(lease)

        return Acquisition(begin)

    async def try_acquire(
        self, resource: str, *, ttl: float = 30.0, owner: str | None = None
    ) -> AsyncLease | None:
        """See :meth:`Guard.try_acquire`."""
        request = AcquireRequest(resource=resource, ttl=ttl, blocking=False, owner=owner)
        if self._holds(resource):
            return None
        try:
            lease = await self._perform(acquire_admitted(request, self._databases))
        except LockNotAcquiredError:
            return None
        return None if lease is None else self._hand_out(lease)

    async def admit(self, lease: AsyncLease) -> None:
        """See :meth:`Guard.admit`."""
        if not isinstance(lease, AsyncLease):
            raise TypeError(f"admit() takes an AsyncLease, not {type(lease).__name__}")
        await self._perform(admit_lease(lease, self._databases))

    async def close(self) -> None:
        """See :meth:`Guard.close`."""
        for database in self._databases:
            await database.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _perform(self, plan: Plan) -> AsyncLease | None:
        send: Any = None
        failure: BaseException | None = None
        try:
            while True:
                step = plan.throw(failure) if failure is not None else plan.send(send)
                send, failure = None, None
                try:
                    send = await self._step(step)
                except BaseException as error:  # noqa: BLE001 - the plan decides what it means
                    failure = error
        except StopIteration as end:
            lease: AsyncLease | None = end.value
            return lease

    async def _step(self, step: Step) -> object:
        match step:
            case Lock(request) if not request.blocking:
                return await self.locks.try_acquire(
                    request.resource, ttl=request.ttl, owner=request.owner_label,
                    floor=request.floor,
                )  # fmt: skip
            case Lock(request):
                return await self.locks.acquire(
                    request.resource, ttl=request.ttl, owner=request.owner_label,
                    floor=request.floor, blocking_timeout=request.blocking_timeout,
                )  # fmt: skip
            case AskMark(database, resource):
                return await greenlet_spawn(database.mark, resource)
            case Admit(database, lease, wait):
                await greenlet_spawn(database.admit, lease, wait)
            case RaiseToken(AsyncLease() as lease, floor):
                await self.locks.raise_token(lease, floor=floor)
            case Renew(AsyncLease() as lease):
                await self.locks.renew(lease, lease.ttl)
            case GiveBack(AsyncLease() as lease):
                try:
                    await _through_cancellation(lease)
                except FencingError as error:
                    _log.info("could not release a lease that was not handed out: %s", error)
            case _:
                raise TypeError(step)
        return None


async def _through_cancellation(lease: AsyncLease) -> None:
    """Release, also while the task is being cancelled: the lock would stay for its whole ttl."""
    release = asyncio.ensure_future(lease.release())
    while not release.done():
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            if release.cancelled():
                raise
    release.result()


def _not_granted(resource: str) -> LockNotAcquiredError:
    return LockNotAcquiredError(
        f"{resource!r} is held by another, and blocking=False does not wait; try again later",
        resource=resource,
    )


def _check_service(locks: object) -> None:
    missing = [
        name
        for name in ("acquire", "try_acquire", "renew", "release", "raise_token")
        if not callable(getattr(locks, name, None))
    ]
    if missing:
        raise TypeError(
            f"a guard takes a lock service such as RedisLockService(client), not "
            f"{type(locks).__name__}, which has no {missing[0]}()"
        )


def _check_engines(engines: Sequence[object], kind: type, name: str, other: str) -> None:
    if not engines:
        raise TypeError(f"{name} takes at least one engine: {name}(locks, engine)")
    for engine in engines:
        if not isinstance(engine, kind):
            hint = f"; use {other} with it" if isinstance(engine, Engine | AsyncEngine) else ""
            raise TypeError(
                f"{name} takes engines of type {kind.__name__}, not {type(engine).__name__}{hint}"
            )
