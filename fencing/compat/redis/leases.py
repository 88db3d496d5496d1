"""What the lease of a lock does to the lock: renew it and release it, in any thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import LockError, LockNotOwnedError

from fencing.clock import now
from fencing.compat.redis import steps
from fencing.errors import LeaseLostError, LockServiceError
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.compat.redis.model import Grant, Memory
    from fencing.compat.redis.performing import AsyncPerformer, Performer
    from fencing.lease import AsyncLease, Lease
    from fencing.state import LockState

__all__ = ["AsyncLockGrantor", "LockGrantor"]


class LockGrantor:
    """Renews, releases and inspects a lock by its lease.

    Args:
        name: The lock's name.
        performer: Who asks Redis.
        memory: What the lock's object remembers.
        grant: What was acquired.
    """

    def __init__(self, name: object, performer: Performer, memory: Memory, grant: Grant) -> None:
        self._name = name
        self._performer = performer
        self._memory = memory
        self._grant = grant

    def renew(self, lease: Lease, ttl: float) -> None:
        """Extend the lock to ``ttl`` seconds from now, unless more is left."""
        held = self._grant.held(lease)
        with _as_lease_errors(self._name, lease.resource, lease.token):
            self._performer.perform(steps.extend(self._name, held, ttl, "renew", started_at=now()))
        lease.raise_if_over()

    def release(self, lease: Lease) -> None:
        """Release the lock; its object forgets it, too."""
        held = self._grant.held(lease)
        try:
            with _as_lease_errors(self._name, lease.resource, lease.token):
                self._performer.perform(steps.release(self._name, self._memory, held))
        finally:
            self._memory.forget(lease)

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give the lock, which no database has admitted yet, a token above ``floor``."""
        held = self._grant.held(lease)
        with _as_lease_errors(self._name, lease.resource, lease.token):
            self._performer.perform(steps.raise_token(self._name, held, floor))

    def inspect(self, resource: str) -> LockState:
        """Look who has the lock; another's holder and token cannot be told."""
        with _as_lease_errors(self._name, resource, self._grant.token):
            return self._performer.perform(steps.inspect(self._name, self._grant, resource))


class AsyncLockGrantor:
    """:class:`LockGrantor` for asyncio."""

    def __init__(
        self, name: object, performer: AsyncPerformer, memory: Memory, grant: Grant
    ) -> None:
        self._name = name
        self._performer = performer
        self._memory = memory
        self._grant = grant

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`LockGrantor.renew`."""
        held = self._grant.held(lease)
        with _as_lease_errors(self._name, lease.resource, lease.token):
            await self._performer.perform(
                steps.extend(self._name, held, ttl, "renew", started_at=now())
            )
        lease.raise_if_over()

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`LockGrantor.release`."""
        held = self._grant.held(lease)
        try:
            with _as_lease_errors(self._name, lease.resource, lease.token):
                await self._performer.perform(steps.release(self._name, self._memory, held))
        finally:
            self._memory.forget(lease)

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`LockGrantor.raise_token`."""
        held = self._grant.held(lease)
        with _as_lease_errors(self._name, lease.resource, lease.token):
            await self._performer.perform(steps.raise_token(self._name, held, floor))

    async def inspect(self, resource: str) -> LockState:
        """See :meth:`LockGrantor.inspect`."""
        with _as_lease_errors(self._name, resource, self._grant.token):
            return await self._performer.perform(steps.inspect(self._name, self._grant, resource))


@contextmanager
def _as_lease_errors(name: object, resource: str, token: int) -> Iterator[None]:
    """What leases raise, instead of what redis-py's locks do."""
    try:
        yield
    except LockNotOwnedError as error:
        raise LeaseLostError(
            f"the lease on {resource!r} (token {token}) is not ours any more: the "
            f"lock {name!r} is free, or another's; acquire it again and repeat the work "
            "from its first read",
            resource=resource,
            token=token,
        ) from error
    except LockError as error:
        raise LockServiceError(
            f"lock {name!r}, resource {resource!r}: {error}", resource=resource
        ) from error
    except REDIS_ERRORS as error:
        raise LockServiceError(
            f"lock {name!r}, resource {resource!r}: {trouble_of(error, at=now()).help}",
            resource=resource,
        ) from error
