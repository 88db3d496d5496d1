"""Locks from a majority of independent Redis nodes: the sync and the async service, side by side.

::

    locks = RedlockService([redis.Redis(host=host) for host in ("a", "b", "c")])
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

How that can be said though no node is trusted alone is told in
:mod:`fencing.locks.redlock.acquiring`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.lease import new_holder
from fencing.locks.base import AsyncBaseLockService, BaseLockService
from fencing.locks.redis.addresses import async_one_client_at, one_client_at
from fencing.locks.redis.scripts import check_namespace
from fencing.locks.redlock import acquiring, steps, verifying
from fencing.locks.redlock.nodes import NODE_SECONDS, checked_clients, quorum_of, urls_in
from fencing.locks.redlock.performing import AsyncPerformer, Performer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fencing.core.plan import PlanOfAll
    from fencing.errors import FencingError
    from fencing.lease import AsyncLease, Lease
    from fencing.locks.outcome import Outcome
    from fencing.locks.redlock.asking import Steps
    from fencing.locks.redlock.nodes import AsyncClients, Clients
    from fencing.request import AcquireRequest
    from fencing.state import LockState
    from fencing.verification import ServiceVerification

__all__ = ["AsyncRedlockService", "RedlockService"]


class RedlockService(BaseLockService):
    """A lock service over several Redis servers that know nothing of each other.

    A lease is one that a majority has granted, so it takes no notice of the failure of a minority.
    The clients are not used themselves, and not changed: the service opens connections of its own
    that are made like theirs, and asks all nodes at once, each in a thread.

    It cannot keep an order among the waiters of several processes: ``fair=True`` is refused. Who
    waits asks again at random times, up to 0.3 s apart.

    Threads may share a service; a forked child may use its copy.

    Args:
        clients: A ``redis.Redis`` for each node: an odd number of them, 3 or more.
        namespace: What the keys on the nodes begin with; default: ``"fencing"``. Services with
            different namespaces know nothing of each other.
        node_timeout: How long a node's answer may take, in seconds, 0.001 to 2, connecting
            included; default: 0.25; less where the ttl is short (a quarter of it). Where the nodes
            are far away, allow for several round trips.

    Raises:
        TypeError: A client is of another kind, an asyncio one for instance.
        ValueError: There are too few nodes, or an even number, or one is there twice; the
            namespace is empty, or holds a brace or NUL; a number is out of its range.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        namespace: str = "fencing",
        node_timeout: float = NODE_SECONDS,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        found = checked_clients(clients, twin=False)
        self._quorum = quorum_of(found, node_timeout)
        self._nodes = Performer(found, self.namespace, self._quorum)
        self._clients = found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} nodes={self._quorum.size} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        node_timeout: float = NODE_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """A service for the nodes at an address.

        Args:
            url: As in ``redlock://user:password@h1:6379,h2:6379,h3:6379/0``; ``redlocks://`` is
                the same with TLS. User, password, database and query are for all nodes.
            namespace: As for the service.
            node_timeout: As for the service.
            **kwargs: For ``redis.Redis.from_url``.
        """
        clients = [one_client_at(each, **kwargs) for each in urls_in(url)]
        return cls(clients, namespace=namespace, node_timeout=node_timeout)

    def release(self, lease: Lease) -> None:
        """See :meth:`BaseLockService.release`."""
        try:
            self._nodes.perform(
                steps.release(lease, quorum=self._quorum, started_at=now()), lease.resource
            )
        finally:
            self._nodes.room.tell_free(lease.resource)

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases together, in one pipeline for each node, once; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long all of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """
        asks = [(lease.resource, steps.renewal_of(lease, ttl)) for lease, ttl in leases]
        came, asked_at = self._nodes.renew_together(asks, within)
        return [
            steps.judge_renewal(lease, ttl, each, self._quorum, asked_at=asked_at, at=now())
            for (lease, ttl), each in zip(leases, came, strict=True)
        ]

    def verify(self) -> ServiceVerification:
        """Look what weakens this service: settings, permissions and state of its nodes.

        Reads only, over connections of its own, for at most 10 s a node.

        Raises:
            LockServiceError: None of them could be reached.
        """
        return verifying.verify(self._clients, self.namespace, self._quorum)

    def _acquire(self, request: AcquireRequest) -> Lease:
        _refuse_fair([request])
        return super()._acquire(request)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        _refuse_fair(requests)
        return super()._plan_all(requests)

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - performed so
            return acquiring.acquire(
                request,
                holder=holder,
                quorum=self._quorum,
                started_at=started_at,
                in_line=in_line,
            )

        if request.patience > 0:
            return self._nodes.perform_waiting(call, request.resource)
        return self._nodes.perform(call(), request.resource)

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        self._nodes.perform(
            acquiring.give_up(request, holder, quorum=self._quorum, started_at=now()),
            request.resource,
        )

    def _renew(self, lease: Lease, ttl: float) -> None:
        self._nodes.perform(
            steps.renew(lease, ttl, quorum=self._quorum, started_at=now()), lease.resource
        )

    def _raise_token(self, lease: Lease, floor: int) -> None:
        self._nodes.perform(
            steps.raise_token(lease, floor, quorum=self._quorum, started_at=now()), lease.resource
        )

    def _inspect(self, resource: str) -> LockState:
        return self._nodes.perform(
            steps.ask_state(resource, nonce=new_holder(), quorum=self._quorum, started_at=now()),
            resource,
        )

    def _force_release(self, resource: str) -> bool:
        try:
            return self._nodes.perform(
                steps.end_anyones(
                    resource, nonce=new_holder(), quorum=self._quorum, started_at=now()
                ),
                resource,
            )
        finally:
            self._nodes.room.tell_free(resource)

    def _scan(self, prefix: str) -> Iterator[LockState]:
        told: set[str] = set()
        failed: list[LockServiceError] = []
        for node in range(self._quorum.size):
            page: steps.Page | None = (node, "0")
            while page is not None:
                call = steps.next_page(
                    self.namespace, prefix, page,
                    nonce=new_holder(), quorum=self._quorum, started_at=now(),
                )  # fmt: skip
                try:
                    page, names = self._nodes.perform(call, "")
                except LockServiceError as error:
                    failed.append(error)
                    steps.check_scanned(failed, self._quorum)
                    break
                for name in sorted(set(names) - told):
                    told.add(name)
                    if (state := self._inspect(name)).held:
                        yield state

    def _close(self) -> None:
        self._nodes.close()


class AsyncRedlockService(AsyncBaseLockService):
    """:class:`RedlockService` for asyncio, over clients of ``redis.asyncio``.

    Its connections belong to one event loop; close them with :meth:`aclose`, or use the service
    in ``async with``. After that loop has been closed, it begins anew in the next one.
    """

    def __init__(
        self,
        clients: AsyncClients,
        *,
        namespace: str = "fencing",
        node_timeout: float = NODE_SECONDS,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        found = checked_clients(clients, twin=True)
        self._quorum = quorum_of(found, node_timeout)
        self._nodes = AsyncPerformer(found, self.namespace, self._quorum)
        self._clients = found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} nodes={self._quorum.size} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        node_timeout: float = NODE_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """See :meth:`RedlockService.from_url`."""
        clients = [async_one_client_at(each, **kwargs) for each in urls_in(url)]
        return cls(clients, namespace=namespace, node_timeout=node_timeout)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`RedlockService.release`."""
        try:
            await self._nodes.perform(
                steps.release(lease, quorum=self._quorum, started_at=now()), lease.resource
            )
        finally:
            self._nodes.room.tell_free(lease.resource)

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`RedlockService.renew_many`."""
        asks = [(lease.resource, steps.renewal_of(lease, ttl)) for lease, ttl in leases]
        came, asked_at = await self._nodes.renew_together(asks, within)
        return [
            steps.judge_renewal(lease, ttl, each, self._quorum, asked_at=asked_at, at=now())
            for (lease, ttl), each in zip(leases, came, strict=True)
        ]

    async def verify(self) -> ServiceVerification:
        """See :meth:`RedlockService.verify`; all nodes at once."""
        return await verifying.averify(self._clients, self.namespace, self._quorum)

    async def _acquire(self, request: AcquireRequest) -> AsyncLease:
        _refuse_fair([request])
        return await super()._acquire(request)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        _refuse_fair(requests)
        return super()._plan_all(requests)

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - performed so
            return acquiring.acquire(
                request,
                holder=holder,
                quorum=self._quorum,
                started_at=started_at,
                in_line=in_line,
            )

        if request.patience > 0:
            return await self._nodes.perform_waiting(call, request.resource)
        return await self._nodes.perform(call(), request.resource)

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        await self._nodes.perform(
            acquiring.give_up(request, holder, quorum=self._quorum, started_at=now()),
            request.resource,
        )

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        await self._nodes.perform(
            steps.renew(lease, ttl, quorum=self._quorum, started_at=now()), lease.resource
        )

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        await self._nodes.perform(
            steps.raise_token(lease, floor, quorum=self._quorum, started_at=now()), lease.resource
        )

    async def _inspect(self, resource: str) -> LockState:
        return await self._nodes.perform(
            steps.ask_state(resource, nonce=new_holder(), quorum=self._quorum, started_at=now()),
            resource,
        )

    async def _force_release(self, resource: str) -> bool:
        try:
            return await self._nodes.perform(
                steps.end_anyones(
                    resource, nonce=new_holder(), quorum=self._quorum, started_at=now()
                ),
                resource,
            )
        finally:
            self._nodes.room.tell_free(resource)

    async def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        told: set[str] = set()
        failed: list[LockServiceError] = []
        for node in range(self._quorum.size):
            page: steps.Page | None = (node, "0")
            while page is not None:
                call = steps.next_page(
                    self.namespace, prefix, page,
                    nonce=new_holder(), quorum=self._quorum, started_at=now(),
                )  # fmt: skip
                try:
                    page, names = await self._nodes.perform(call, "")
                except LockServiceError as error:
                    failed.append(error)
                    steps.check_scanned(failed, self._quorum)
                    break
                for name in sorted(set(names) - told):
                    told.add(name)
                    if (state := await self._inspect(name)).held:
                        yield state

    async def _close(self) -> None:
        await self._nodes.aclose()


def _refuse_fair(requests: Sequence[AcquireRequest]) -> None:
    if any(request.fair for request in requests):
        raise ValueError(
            "a Redlock cannot keep the order of waiters across processes, as no node is trusted "
            "alone: wait without fair=True, in which the waiters of one process are served in "
            "turn, or take a lock service that can"
        )
