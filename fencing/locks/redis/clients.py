# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""The connections a lock service talks over: made like the caller's, with manners of its own.

A lock service must keep its caller's deadline, and a client of redis-py does not: by its default
it repeats a command ten times and sleeps in between, for seconds. Nor may the caller's client be
changed, for others use it. So each service gets a *sibling* of the client it was given: connections
of the same class with the same settings (address, credentials, TLS, time-outs, protocol), in a
pool of their own that opens one when it is needed and never more than ``max_connections``, except

* that nothing is retried by redis-py: :mod:`fencing.locks.redis.steps` decides that;
* that each call ends by a moment of its own, connecting and handshake included. In asyncio a
  time-out around connecting does it, and for answers a timer of the connection. Without, each
  operation on the socket is given the time that is left; only the look-up of a host name cannot be
  cut short, and a host with several addresses is given that time for each;
* that answers come as bytes, whatever the client decodes;
* that a caller who finds all connections in use waits for one until the call's end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from fencing.clock import now
from fencing.locks.redis.clustered import AsyncClustered, Clustered
from fencing.locks.redis.connections import async_client_like, client_like
from fencing.locks.redis.direct import AsyncDirect, Direct
from fencing.service import FOR_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from fencing.locks.redis.durability import Durability
    from fencing.locks.redis.scripts import Script
    from fencing.locks.redis.wire import Request, Wait

__all__ = ["AnyAsyncClient", "AnyClient", "AsyncSibling", "Sibling", "check_socket_timeout"]

AnyClient = redis.Redis | redis.RedisCluster
AnyAsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster

_CLUSTER_PIPELINES = redis.cluster.ClusterPipeline | redis.asyncio.cluster.ClusterPipeline


class Sibling:
    """Runs scripts over connections made like those of a client.

    Args:
        client: A ``redis.Redis``, also one made by Sentinel, or a ``redis.RedisCluster``.

    Attributes:
        spans: Whether one script may work on the keys of several resources.
        run: Runs a script (which, its keys, its arguments, and when to give up, in seconds of
            :func:`fencing.clock.now`); returns its answer, texts as bytes, and raises as redis-py
            does. The way's own: a call in between would be made twice for each lock.

    Raises:
        TypeError: It is something else.
    """

    run: Callable[[Script, tuple[bytes, ...], list[bytes], float], Any]

    def __init__(self, client: AnyClient) -> None:
        _check_client(client, AnyClient, redis.client.Pipeline, "RedisLockService", "redis")
        self.spans = isinstance(client, redis.Redis)
        self._way: Direct | Clustered
        if isinstance(client, redis.Redis):
            self._way = Direct(client_like(client))
        else:
            self._way = Clustered(client)
        self.run = self._way.run

    def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """Run a script that works on no key of its own, on one of the primaries.

        Args:
            number: Which, from 0 on; a single Redis has only that one.
            script: Which script.
            args: Its arguments.
            end: When to give up (:func:`fencing.clock.now`, seconds).

        Returns:
            Its answer; ``None`` if there are not so many primaries.
        """
        if isinstance(self._way, Clustered):
            return self._way.run_on(number, script, args, end)
        return self._way.run(script, (), args, end) if number == 0 else None

    def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """Run a script and wait for replicas, on one connection and in one round trip.

        Args:
            request: A script, its keys and its arguments.
            wait: How many replicas, and how long at most, in seconds.
            end: When to give up (:func:`fencing.clock.now`, seconds).

        Returns:
            The script's answer, and how many replicas have what it wrote.

        Raises:
            Exception: As redis-py raises it.
        """
        return self._way.run_acknowledged(request, wait, end)

    def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """Run scripts together, in one pipeline; on a cluster one after the other.

        Args:
            requests: Each a script, its keys and its arguments.
            end: When to give up (:func:`fencing.clock.now`, seconds).
            wait: How many replicas to wait for behind them, and how long at most, in seconds. Each
                answer is then a pair, with how many replicas have what it wrote.

        Returns:
            Per request, in their order, its answer or the exception that it met: what Redis
            refused to it, or what kept it from being answered, as for all behind it.
        """
        return self._way.run_many(requests, end, wait)

    def node_of(self, key: bytes) -> str:
        """The node of a cluster that a key is on; otherwise empty."""
        return self._way.node_of(key)

    def connection_to(self, node: str, end: float) -> Any:
        """A connection to a node of one's own, connected by ``end``; ``disconnect`` ends it."""
        return self._way.connection_to(node, end)

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        self._way.close()


class AsyncSibling:
    """`Sibling` for asyncio; for a ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    run: Callable[[Script, tuple[bytes, ...], list[bytes], float], Coroutine[Any, Any, Any]]

    def __init__(self, client: AnyAsyncClient) -> None:
        _check_client(
            client,
            AnyAsyncClient,
            redis.asyncio.client.Pipeline,
            "AsyncRedisLockService",
            "redis.asyncio",
        )
        self.spans = isinstance(client, redis.asyncio.Redis)
        self._way: AsyncDirect | AsyncClustered
        if isinstance(client, redis.asyncio.Redis):
            self._way = AsyncDirect(async_client_like(client))
        else:
            self._way = AsyncClustered(client)
        self.run = self._way.run

    async def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """See `Sibling.run_on`."""
        if isinstance(self._way, AsyncClustered):
            return await self._way.run_on(number, script, args, end)
        return await self._way.run(script, (), args, end) if number == 0 else None

    async def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `Sibling.run_acknowledged`."""
        return await self._way.run_acknowledged(request, wait, end)

    async def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `Sibling.run_many`; on a cluster all at once, each on its own."""
        return await self._way.run_many(requests, end, wait)

    def node_of(self, key: bytes) -> str:
        """See `Sibling.node_of`."""
        return self._way.node_of(key)

    async def connection_to(self, node: str, end: float) -> Any:
        """See `Sibling.connection_to`."""
        async with asyncio.timeout(max(0.0, end - now())):
            return await self._way.connection_to(node)

    async def aclose(self) -> None:
        """Close the connections; another call opens them again."""
        await self._way.aclose()


def check_socket_timeout(client: AnyClient | AnyAsyncClient, durability: Durability) -> None:
    """Raise ``ValueError`` where a client stops waiting for Redis before Redis for replicas."""
    any_client: Any = client
    if isinstance(client, redis.Redis | redis.asyncio.Redis):
        settings = any_client.connection_pool.connection_kwargs
    elif isinstance(client, redis.RedisCluster):
        settings = any_client.get_connection_kwargs()
    else:
        settings = any_client.connection_kwargs
    limit = settings.get("socket_timeout")
    if durability.replicas and limit is not None and limit <= durability.replica_timeout:
        raise ValueError(
            f"replica_timeout ({durability.replica_timeout} s) must be shorter than the client's "
            f"socket_timeout ({limit} s)"
        )


def _check_client(client: object, wanted: Any, pipeline: type, service: str, module: str) -> None:
    if isinstance(client, wanted) and not isinstance(client, pipeline | _CLUSTER_PIPELINES):
        return
    given = f"{type(client).__module__}.{type(client).__qualname__}"
    if isinstance(client, redis.sentinel.Sentinel | redis.asyncio.sentinel.Sentinel):
        advice = "; give it what master_for(...) returns"
    elif isinstance(client, AnyClient | AnyAsyncClient):
        other = {"RedisLockService": "Async", "AsyncRedisLockService": ""}[service]
        advice = f"; a client of that kind goes with {other}RedisLockService"
    elif isinstance(client, str):
        advice = f"; {FOR_ADDRESS}"
    else:
        advice = ""
    raise TypeError(f"{service} needs a Redis or RedisCluster of {module}, not {given}{advice}")
