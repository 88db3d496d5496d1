"""Looking at the locks of a Redis, and taking them away: the sync and the async half of a service.

Nothing of it needs a lease.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.lease import new_holder
from fencing.locks.redis import inspecting
from fencing.locks.redis.inspecting import FIRST_PAGE
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of
from fencing.request import check_resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.locks.redis.performing import AsyncPerformer, Performer
    from fencing.locks.redis.service import RedisLockService
    from fencing.state import LockState

__all__ = ["Administration", "AsyncAdministration", "service_at"]


class Administration:
    """What a service can tell of locks that others hold, and do about them."""

    namespace: str
    _redis: Performer

    def inspect(self, resource: str) -> LockState:
        """Say who holds a resource, under which token and for how long, and who waits for it.

        Args:
            resource: What is protected: 1 to 512 bytes of UTF-8 without NUL.

        Raises:
            LockServiceError: Redis could not be asked.
            TypeError: The resource is not a ``str``; nothing was sent.
            ValueError: It cannot name one; nothing was sent.
        """
        return self._states([check_resource(resource)])[0]

    def locked(self, resource: str) -> bool:
        """Whether anybody holds a resource; see :meth:`inspect`."""
        return self.inspect(resource).held

    def force_release(self, resource: str) -> bool:
        """Take a lock from whoever holds it: an administrator's means, not a program's.

        Its holder is not told. He finds out when he renews the lease or releases it, and a guarded
        table refuses him as soon as the next holder is admitted, whose token is greater. Until
        then he may still write; to shut him out at once, raise the fence (``fencing raise``).

        Args:
            resource: What is protected: 1 to 512 bytes of UTF-8 without NUL.

        Returns:
            Whether it was taken from somebody.

        Raises:
            LockServiceError: Redis could not be asked, or the key is no lock of ours.
            TypeError: The resource is not a ``str``; nothing was sent.
            ValueError: It cannot name one; nothing was sent.
        """
        check_resource(resource)
        steps = inspecting.end_anyones(resource, nonce=new_holder(), started_at=now())
        return self._redis.perform(steps, resource)

    def scan(self, prefix: str = "") -> Iterator[LockState]:
        """Iterate over the locks that are held in this service's namespace, in no order.

        Redis is asked page by page (SCAN), each primary of a cluster in turn, so that it can serve
        others in between. A lock that was held all the time is told once; one that was acquired or
        released meanwhile may be told or not.

        Args:
            prefix: Only resources whose names begin so; default: all.

        Raises:
            LockServiceError: Redis could not be asked; also in the course of the iteration.
            TypeError: The prefix is not a ``str``.
            ValueError: It cannot be encoded as UTF-8.
        """
        return self._scan(inspecting.check_prefix(prefix))

    def _scan(self, prefix: str) -> Iterator[LockState]:
        page: inspecting.Page | None = FIRST_PAGE
        told: set[str] = set()
        while page is not None:
            steps = inspecting.next_page(
                self.namespace, prefix, page, nonce=new_holder(), started_at=now()
            )
            page, found = self._redis.perform(steps, "")
            names = sorted(set(found) - told)
            told.update(names)
            for some in self._redis.together(names):
                yield from [state for state in self._states(some) if state.held]

    def _states(self, resources: list[str]) -> list[LockState]:
        steps = inspecting.ask_states(resources, nonce=new_holder(), started_at=now())
        return self._redis.perform(steps, resources[0])


class AsyncAdministration:
    """:class:`Administration` for asyncio."""

    namespace: str
    _redis: AsyncPerformer

    async def inspect(self, resource: str) -> LockState:
        """See :meth:`RedisLockService.inspect`."""
        return (await self._states([check_resource(resource)]))[0]

    async def locked(self, resource: str) -> bool:
        """See :meth:`RedisLockService.locked`."""
        return (await self.inspect(resource)).held

    async def force_release(self, resource: str) -> bool:
        """See :meth:`RedisLockService.force_release`."""
        check_resource(resource)
        steps = inspecting.end_anyones(resource, nonce=new_holder(), started_at=now())
        return await self._redis.perform(steps, resource)

    def scan(self, prefix: str = "") -> AsyncIterator[LockState]:
        """See :meth:`RedisLockService.scan`; for ``async for``."""
        return self._scan(inspecting.check_prefix(prefix))

    async def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        page: inspecting.Page | None = FIRST_PAGE
        told: set[str] = set()
        while page is not None:
            steps = inspecting.next_page(
                self.namespace, prefix, page, nonce=new_holder(), started_at=now()
            )
            page, found = await self._redis.perform(steps, "")
            names = sorted(set(found) - told)
            told.update(names)
            for some in self._redis.together(names):
                for state in [state for state in await self._states(some) if state.held]:
                    yield state

    async def _states(self, resources: list[str]) -> list[LockState]:
        steps = inspecting.ask_states(resources, nonce=new_holder(), started_at=now())
        return await self._redis.perform(steps, resources[0])


@contextmanager
def service_at(url: str, *, namespace: str, cluster: bool) -> Iterator[RedisLockService]:
    """A service for an address, for a block.

    Args:
        url: As ``redis.Redis.from_url`` reads it.
        namespace: What the keys in Redis begin with.
        cluster: Whether it is that of a node of a Redis Cluster.

    Raises:
        LockServiceError: There is no cluster there.
        ValueError: The address or the namespace makes no sense.
    """
    from fencing.locks.redis.service import RedisLockService  # noqa: PLC0415 - which is made of this module

    if not cluster:
        with RedisLockService.from_url(url, namespace=namespace) as service:
            yield service
        return
    try:
        client: Any = redis.RedisCluster.from_url(url)
    except REDIS_ERRORS as error:
        trouble = trouble_of(error, at=now())
        raise LockServiceError(f"lock service: {trouble.help}") from error
    with client, RedisLockService(client, namespace=namespace) as service:
        yield service
