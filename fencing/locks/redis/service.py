"""Locks in Redis that issue fencing tokens: the sync and the async service, side by side.

::

    locks = RedisLockService(redis.Redis())
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

What is asked, what an answer means and what happens when none comes is decided in
:mod:`fencing.locks.redis.steps`, which also states the rules; :mod:`fencing.locks.redis.performing`
performs it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from fencing.clock import now
from fencing.errors import FencingError, LockNotAcquiredError
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks.base import AsyncBaseLockService, BaseLockService, lease_of
from fencing.locks.performing import see_through
from fencing.locks.redis import acquiring, looking, steps, together
from fencing.locks.redis.acquiring import Acquiring
from fencing.locks.redis.addresses import async_client_at, client_at
from fencing.locks.redis.administration import Administration, AsyncAdministration
from fencing.locks.redis.asking import Ask
from fencing.locks.redis.clients import check_socket_timeout
from fencing.locks.redis.durability import COUNTER_SECONDS, REPLICA_SECONDS, Durability
from fencing.locks.redis.performing import AsyncPerformer, Performer
from fencing.locks.redis.scripts import RENEW, check_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.locks.outcome import Outcome
    from fencing.locks.redis.clients import AnyAsyncClient, AnyClient
    from fencing.request import AcquireRequest
    from fencing.verification import ServiceVerification

__all__ = ["AsyncRedisLockService", "RedisLockService"]


class RedisLockService(Administration, BaseLockService):
    """A lock service over one Redis, a Redis Cluster, or a primary that Sentinel watches.

    The client is not used itself, and not changed: the service opens connections of its own that
    are made like the client's (at most ``max_connections``), so that it can keep its callers'
    deadlines. A client's own retries and its decoding do not matter; its time-outs hold where they
    are shorter. See :mod:`fencing.locks.redis.steps` for how often and how long Redis is tried.

    Threads may share a service; a forked child may use its copy.

    Args:
        client: A ``redis.Redis`` or ``redis.RedisCluster``.
        namespace: What the keys in Redis begin with; default: ``"fencing"``. Services with
            different namespaces know nothing of each other.
        counter_ttl: How long Redis keeps the counter of a resource that nobody acquires, in
            seconds, at least a day; default: 30 days. It applies to a service that a guard uses,
            for then the database has the mark, and to counters that only such services use;
            others are kept for ever, as all are with ``None``.
        replicas: How many replicas must have acknowledged a lock before ``acquire`` returns, and a
            renewal before the lease lasts longer (WAIT); default: none is waited for. A failover
            may still choose a replica that is not among them.
        replica_timeout: How long they are waited for, in seconds, 0.001 to 4, and shorter than
            the client's ``socket_timeout``; default: 0.5; less where a deadline leaves less. With
            too few, the lock is given back and LockServiceError raised.

    Raises:
        TypeError: The client is of another kind, an asyncio one for instance.
        ValueError: The namespace is empty, or holds a brace or NUL; a number is out of its range.
    """

    def __init__(
        self,
        client: AnyClient,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        self._durability = Durability(
            counter_ttl, replicas=replicas, replica_timeout=replica_timeout
        )
        self._redis = Performer(client, self.namespace)
        check_socket_timeout(client, self._durability)
        self._client = client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """A service for the Redis at an address.

        Args:
            url: As in ``redis://localhost:6379/0``, ``rediss://…``, ``unix://…``,
                ``redis+cluster://host1:6379,host2:6379`` or
                ``redis+sentinel://host1:26379,host2:26379/SERVICE``; see
                :mod:`fencing.locks.redis.addresses`. The nodes of a cluster are found at once.
            namespace: As for the service.
            counter_ttl: As for the service.
            replicas: As for the service.
            replica_timeout: As for the service.
            **kwargs: For the client that redis-py makes; what the address says goes before.

        Raises:
            LockServiceError: No node of the cluster could be reached.
            ValueError: The address makes no sense.
        """
        return cls(
            client_at(url, **kwargs),
            namespace=namespace,
            counter_ttl=counter_ttl,
            replicas=replicas,
            replica_timeout=replica_timeout,
        )

    def _renew(self, lease: Lease, ttl: float) -> None:
        self._redis.perform(
            steps.renew(lease, ttl, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases together, in one pipeline, once; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long all of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """
        tokens = [lease.token for lease, _ in leases]
        asks = [
            (lease.resource, Ask(RENEW, steps.renewal_of(lease, ttl, self._durability), within))
            for lease, ttl in leases
        ]
        came = self._redis.perform_together(asks, within, self._durability.wait_within(within))
        return [
            steps.judge_renewal(lease, ttl, each, self._durability, token=token)
            for (lease, ttl), each, token in zip(leases, came, tokens, strict=True)
        ]

    def release(self, lease: Lease) -> None:
        """See :meth:`BaseLockService.release`."""
        self._redis.release(lease)

    def release_many(self, leases: Sequence[Lease]) -> list[FencingError | None]:
        """Give leases back together, in one pipeline; nothing is raised.

        Args:
            leases: The leases; what cannot be given back in it is tried again by itself.

        Returns:
            For each the error that :meth:`release` would have raised; ``None``: it is released.
        """
        return self._redis.release_many(leases)

    def _raise_token(self, lease: Lease, floor: int) -> None:
        self._redis.perform(
            steps.raise_token(lease, floor, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def note_guarded(self) -> None:
        """Know that a guard uses this service, so that a database can reseed its counters.

        Guards call it. Do not acquire without the guard through the same service: the tokens of
        what no database has seen could start again (``counter_ttl``). Another service in the same
        namespace may, and then keeps the counters it uses for ever.
        """
        self._durability = replace(self._durability, guarded=True)

    def verify(self) -> ServiceVerification:
        """Look what weakens this service: settings, permissions and state of its servers.

        Reads only, over connections of its own, for at most 10 s.

        Raises:
            LockServiceError: A server could not be reached.
        """
        return looking.verify(self._client, self.namespace, replicas=self._durability.replicas)

    def _close(self) -> None:
        self._redis.close()

    def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[Lease] | LockNotAcquiredError | None:
        """Grant several locks in one script, all or none, without waiting; for ``acquire_all``.

        Returns:
            The leases; or the error that says which one is held; ``None`` on a Redis Cluster,
            where one script cannot.
        """
        if not self._redis.spans:
            return None
        holders = [new_holder() for _ in requests]
        leases: list[Lease] = []
        try:
            outcome = self._redis.perform(
                together.acquire_all(
                    requests, holders=holders, started_at=now(), durability=self._durability
                ),
                requests[0].resource,
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
            self._redis.perform(
                together.give_up(requests, holders, started_at=now()), requests[0].resource
            )
            raise

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        self._redis.perform(acquiring.give_up(request, holder, started_at=now()), request.resource)

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        call = partial(
            Acquiring, request, holder=holder, started_at=now(), durability=self._durability
        )
        if request.patience > 0:
            return self._redis.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return self._redis.perform_promptly(call(), request.resource)


class AsyncRedisLockService(AsyncAdministration, AsyncBaseLockService):
    """:class:`RedisLockService` for asyncio, over a client of ``redis.asyncio``.

    Its connections belong to one event loop; close them with :meth:`aclose`, or use the service
    in ``async with``. After that loop has been closed, it begins anew in the next one.
    """

    def __init__(
        self,
        client: AnyAsyncClient,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        self._durability = Durability(
            counter_ttl, replicas=replicas, replica_timeout=replica_timeout
        )
        self._redis = AsyncPerformer(client, self.namespace)
        check_socket_timeout(client, self._durability)
        self._client = client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """See :meth:`RedisLockService.from_url`."""
        return cls(
            async_client_at(url, **kwargs),
            namespace=namespace,
            counter_ttl=counter_ttl,
            replicas=replicas,
            replica_timeout=replica_timeout,
        )

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        await self._redis.perform(
            steps.renew(lease, ttl, started_at=now(), durability=self._durability),
            lease.resource,
        )

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`RedisLockService.renew_many`."""
        tokens = [lease.token for lease, _ in leases]
        asks = [
            (lease.resource, Ask(RENEW, steps.renewal_of(lease, ttl, self._durability), within))
            for lease, ttl in leases
        ]
        came = await self._redis.perform_together(
            asks, within, self._durability.wait_within(within)
        )
        return [
            steps.judge_renewal(lease, ttl, each, self._durability, token=token)
            for (lease, ttl), each, token in zip(leases, came, tokens, strict=True)
        ]

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`RedisLockService.release`."""
        await self._redis.release(lease)

    async def release_many(self, leases: Sequence[AsyncLease]) -> list[FencingError | None]:
        """See :meth:`RedisLockService.release_many`; a cancellation is passed on afterwards."""
        return await see_through(self._redis.release_many(leases))

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        await self._redis.perform(
            steps.raise_token(lease, floor, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def note_guarded(self) -> None:
        """See :meth:`RedisLockService.note_guarded`."""
        self._durability = replace(self._durability, guarded=True)

    async def verify(self) -> ServiceVerification:
        """See :meth:`RedisLockService.verify`."""
        return await looking.averify(
            self._client, self.namespace, replicas=self._durability.replicas
        )

    async def _close(self) -> None:
        await self._redis.aclose()

    async def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[AsyncLease] | LockNotAcquiredError | None:
        """See :meth:`RedisLockService.grant_all`."""
        if not self._redis.spans:
            return None
        holders = [new_holder() for _ in requests]
        leases: list[AsyncLease] = []
        try:
            outcome = await self._redis.perform(
                together.acquire_all(
                    requests, holders=holders, started_at=now(), durability=self._durability
                ),
                requests[0].resource,
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
            await self._redis.perform(
                together.give_up(requests, holders, started_at=now()), requests[0].resource
            )
            raise

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        await self._redis.perform(
            acquiring.give_up(request, holder, started_at=now()), request.resource
        )

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        call = partial(
            Acquiring, request, holder=holder, started_at=now(), durability=self._durability
        )
        if request.patience > 0:
            return await self._redis.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return await self._redis.perform_promptly(call(), request.resource)
