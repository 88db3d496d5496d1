"""What the two guards share: everything but waiting."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.errors import LockNotAcquiredError
from fencing.hooks.ambient import Fence, Suspension
from fencing.lease import BaseLease
from fencing.whereabouts import Whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.hooks.database import Database

__all__ = ["BaseGuard", "check_engines", "check_service", "not_granted"]

_log = logging.getLogger("fencing")

LeaseT = TypeVar("LeaseT", bound=BaseLease)


class GuardedScope:
    """The ``with`` block of a guarded lease: inside it the lease is ambient."""

    raises_loss = False

    def __init__(self, lease: BaseLease, databases: Sequence[Database]) -> None:
        self._lease = lease
        self.databases = databases
        self.acquired_in = Whereabouts()
        self._fence: Fence | None = None

    def open(self) -> None:
        self._fence = Fence((self._lease,), self.databases)
        self._fence.push()

    def close(self) -> None:
        if self._fence is not None:
            self._fence.close()
        for database in self.databases:
            for presentation, lease in database.presentations.open_on(self._lease.resource):
                if lease.holder == self._lease.holder:
                    _log.warning(
                        "a transaction begun under the lease on %r (token %d) is still open at "
                        "the end of its block, as PostgreSQL backend %d of %s: nothing more can "
                        "be done in it, and the next holder waits for it; commit or roll back "
                        "inside the block",
                        lease.resource, lease.token, presentation.backend_pid, database.name,
                    )  # fmt: skip


class BaseGuard(Generic[LeaseT]):
    """What the two guards share: everything but waiting."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self.databases = tuple(dict.fromkeys(databases))
        # By resource, thread and task: who would be waiting for himself.
        self._held: weakref.WeakValueDictionary[tuple[str, int, int], LeaseT] = (
            weakref.WeakValueDictionary()
        )

    def __repr__(self) -> str:
        names = ", ".join(database.name for database in self.databases)
        return f"<{type(self).__name__} of {names}>"

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which nothing is presented on this guard's engines.

        For what must be written to unguarded tables whatever has become of the lease: an error
        handler's log, say. Guarded tables refuse its writes; leases acquired inside it are
        presented. A plain ``with``, for sync and async alike.
        """
        suspension = Suspension(self.databases)
        suspension.push()
        try:
            yield
        finally:
            suspension.close()

    def _holds(self, resource: str) -> bool:
        lease = self._held.get(_self_key(resource))
        if lease is None or lease.remaining <= 0:
            return False
        # The key's idents are used again when a thread or task has ended.
        return isinstance(lease.scope, GuardedScope) and lease.scope.acquired_in.is_here()

    def _raise_if_held(self, resource: str) -> None:
        if self._holds(resource):
            raise LockNotAcquiredError(
                f"this thread or task already holds {resource!r} and would wait for itself; use "
                "the lease it has",
                resource=resource,
            )

    def _hand_out(self, lease: LeaseT) -> LeaseT:
        lease.scope = GuardedScope(lease, self.databases)
        self._held[_self_key(lease.resource)] = lease
        return lease


def _self_key(resource: str) -> tuple[str, int, int]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return resource, threading.get_ident(), 0 if task is None else id(task)


def not_granted(resource: str) -> LockNotAcquiredError:
    """The error for a request that does not wait."""
    return LockNotAcquiredError(
        f"{resource!r} is held by another, and blocking=False does not wait; try again later",
        resource=resource,
    )


def check_service(locks: object) -> None:
    """Raise ``TypeError`` unless ``locks`` looks like a lock service."""
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


def check_engines(engines: Sequence[object], kind: type, name: str, other: str) -> None:
    """Raise ``TypeError`` unless there are engines, all of one kind.

    Args:
        engines: What was given.
        kind: What each must be an instance of.
        name: The guard it was given to.
        other: The guard that takes the other kind of engine.
    """
    if not engines:
        raise TypeError(f"{name} takes at least one engine: {name}(locks, engine)")
    for engine in engines:
        if not isinstance(engine, kind):
            hint = f"; use {other} with it" if isinstance(engine, Engine | AsyncEngine) else ""
            raise TypeError(
                f"{name} takes engines of type {kind.__name__}, not {type(engine).__name__}{hint}"
            )
