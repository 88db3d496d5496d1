"""Looking at the locks of a Redis, and taking them away: the sync and the async half of a service.

Nothing of it needs a lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.lease import new_holder
from fencing.locks.redis import inspecting
from fencing.locks.redis.inspecting import FIRST_PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.locks.redis.performing import AsyncPerformer, Performer
    from fencing.state import LockState

__all__ = ["Administration", "AsyncAdministration"]


class Administration:
    """How a service looks at locks that others hold, and takes them away."""

    namespace: str
    _redis: Performer

    def _inspect(self, resource: str) -> LockState:
        return self._states([resource])[0]

    def _force_release(self, resource: str) -> bool:
        steps = inspecting.end_anyones(resource, nonce=new_holder(), started_at=now())
        return self._redis.perform(steps, resource)

    def _scan(self, prefix: str) -> Iterator[LockState]:
        # Page by page (SCAN), each primary of a cluster in turn.
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

    async def _inspect(self, resource: str) -> LockState:
        return (await self._states([resource]))[0]

    async def _force_release(self, resource: str) -> bool:
        steps = inspecting.end_anyones(resource, nonce=new_holder(), started_at=now())
        return await self._redis.perform(steps, resource)

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
