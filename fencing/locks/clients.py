# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""The connections a lock service talks over: made like the caller's, with manners of its own.

A lock service must keep its caller's deadline, and a client of redis-py does not: by its default
it repeats a command ten times and sleeps in between, for seconds. Nor may the caller's client be
changed, for others use it. So each service gets a *sibling* of the client it was given: connections
of the same class with the same settings (address, credentials, TLS, time-outs, protocol), in a
pool of their own that opens one when it is needed and never more than ``max_connections``, except

* that nothing is retried by redis-py: :mod:`fencing.locks.steps` decides that;
* that each call ends by a moment of its own, connecting and handshake included. In asyncio a
  time-out around the call does it. Without, each operation on the socket is given the time that
  is left; only the look-up of a host name cannot be cut short, and a host with several addresses
  is given that time for each;
* that answers come as bytes, whatever the client decodes;
* that a caller who finds all connections in use waits for one until the call's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.exceptions import MaxConnectionsError, NoScriptError, ResponseError

from fencing.clock import now
from fencing.locks.connections import (
    async_client_like,
    async_cluster_like,
    call_end,
    client_like,
    cluster_like,
    connection_of,
    pools_of,
)
from fencing.locks.trouble import REDIS_ERRORS
from fencing.locks.wire import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.locks.scripts import Script
    from fencing.locks.wire import Request

__all__ = ["AnyAsyncClient", "AnyClient", "AsyncSibling", "Sibling"]

AnyClient = redis.Redis | redis.RedisCluster
AnyAsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster

_CLUSTER_PIPELINES = redis.cluster.ClusterPipeline | redis.asyncio.cluster.ClusterPipeline


class Sibling:
    """Runs scripts over connections made like those of a client.

    Args:
        client: A ``redis.Redis``, also one made by Sentinel, or a ``redis.RedisCluster``.

    Raises:
        TypeError: It is something else.
    """

    def __init__(self, client: AnyClient) -> None:
        _check_client(client, AnyClient, redis.client.Pipeline, "RedisLockService", "redis")
        self._given: Any = client
        self._made: Any = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        if isinstance(client, redis.Redis):
            self._made = client_like(client)
            self._size = client.connection_pool.max_connections
        else:
            self._size = self._given.get_connection_kwargs().get("max_connections") or 2**31
        self._free = threading.BoundedSemaphore(self._size)

    def run(self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float) -> Any:
        """Run a script; return its answer as redis-py gives it.

        Args:
            script: Which.
            keys: Its keys.
            args: Its arguments.
            end: When to give up (:func:`fencing.clock.now`, seconds).

        Raises:
            Exception: As redis-py raises it.
        """
        with self._turn(end):
            client = self._client()
            try:
                return client.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return client.eval(script.text, len(keys), *keys, *args)

    def run_many(self, requests: Sequence[Request], end: float) -> list[Any]:
        """Run scripts together, in one pipeline; on a cluster one after the other.

        Args:
            requests: Each a script, its keys and its arguments.
            end: When to give up (:func:`fencing.clock.now`, seconds).

        Returns:
            Per request, in their order, its answer or the exception that it met: what Redis
            refused to it, or what kept it from being answered, as for all behind it.
        """
        if not isinstance(self._given, redis.Redis):
            return [self._outcome(request, end) for request in requests]
        pipeline = Pipeline(requests)
        try:
            with self._turn(end):
                self._converse(pipeline)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return pipeline.answers

    def _outcome(self, request: Request, end: float) -> Any:
        try:
            return self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    def _converse(self, pipeline: Pipeline) -> None:
        pool = self._made.connection_pool
        connection = connection_of(pool)
        done = False
        try:
            for data, places in pipeline.chunks():
                connection.send_packed_command([data])
                for place in places:
                    try:
                        pipeline.answers[place] = connection.read_response()
                    except ResponseError as error:
                        pipeline.answers[place] = error
            done = True
        finally:
            if not done:  # there may be answers on the way
                connection.disconnect()
            pool.release(connection)

    @contextlib.contextmanager
    def _turn(self, end: float) -> Iterator[None]:
        self._notice_fork()
        if not self._free.acquire(timeout=min(max(0.0, end - now()), threading.TIMEOUT_MAX)):
            raise MaxConnectionsError(f"{self._size} connections are in use")
        running = call_end.set(end)
        try:
            yield
        finally:
            call_end.reset(running)
            self._free.release()

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        if isinstance(self._made, redis.Redis):
            for pool in pools_of(self._made):
                pool.disconnect()
        elif self._made is not None:
            # close() alone leaves the pools of a cluster that was given as a URL as they are.
            self._made.disconnect_connection_pools()
            self._made.close()

    def _client(self) -> Any:
        if self._made is None:
            # A cluster client asks for the slots when it is made; so not before the first call,
            # whose end then holds for it.
            with self._lock:
                if self._made is None:
                    self._made = cluster_like(self._given)
        return self._made

    def _notice_fork(self) -> None:
        # The pools of redis-py start afresh in a forked child; what other threads of the parent
        # held at the fork must not be missing in the child for ever.
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._free = threading.BoundedSemaphore(self._size)
            self._pid = os.getpid()


class AsyncSibling:
    """`Sibling` for asyncio; for a ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    def __init__(self, client: AnyAsyncClient) -> None:
        _check_client(
            client,
            AnyAsyncClient,
            redis.asyncio.client.Pipeline,
            "AsyncRedisLockService",
            "redis.asyncio",
        )
        self._made: Any
        if isinstance(client, redis.asyncio.Redis):
            self._made = async_client_like(client)
            self._size = client.connection_pool.max_connections
        else:
            self._made = async_cluster_like(client)
            self._size = client.connection_kwargs["max_connections"]
        self._free = asyncio.Semaphore(self._size)

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float
    ) -> Any:
        """See `Sibling.run`."""
        async with asyncio.timeout(max(0.0, end - now())), self._free:
            if isinstance(self._made, redis.asyncio.RedisCluster):
                # Does nothing the second time. Without it, calls that come before the slots are
                # known go to a node at random, and a handful of redirections then makes redis-py
                # close every connection, those in use included.
                await self._made.initialize()
            try:
                return await self._made.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self._made.eval(script.text, len(keys), *keys, *args)

    async def run_many(self, requests: Sequence[Request], end: float) -> list[Any]:
        """See `Sibling.run_many`; on a cluster all at once, each on its own."""
        if isinstance(self._made, redis.asyncio.RedisCluster):
            return await asyncio.gather(*[self._outcome(request, end) for request in requests])
        pipeline = Pipeline(requests)
        try:
            async with asyncio.timeout(max(0.0, end - now())), self._free:
                await self._converse(pipeline)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return pipeline.answers

    async def _outcome(self, request: Request, end: float) -> Any:
        try:
            return await self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    async def _converse(self, pipeline: Pipeline) -> None:
        pool = self._made.connection_pool
        connection = await connection_of(pool)
        done = False
        try:
            for data, places in pipeline.chunks():
                await connection.send_packed_command([data])
                for place in places:
                    try:
                        pipeline.answers[place] = await connection.read_response()
                    except ResponseError as error:
                        pipeline.answers[place] = error
            done = True
        finally:
            if not done:  # there may be answers on the way
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def aclose(self) -> None:
        """Close the connections; another call opens them again."""
        if isinstance(self._made, redis.asyncio.Redis):
            for pool in pools_of(self._made):
                await pool.disconnect()
        else:
            await self._made.aclose()


def _check_client(client: object, wanted: Any, pipeline: type, service: str, module: str) -> None:
    if isinstance(client, wanted) and not isinstance(client, pipeline | _CLUSTER_PIPELINES):
        return
    given = f"{type(client).__module__}.{type(client).__qualname__}"
    if isinstance(client, redis.sentinel.Sentinel | redis.asyncio.sentinel.Sentinel):
        advice = "; give it what master_for(...) returns"
    elif isinstance(client, AnyClient | AnyAsyncClient):
        other = {"RedisLockService": "Async", "AsyncRedisLockService": ""}[service]
        advice = f"; a client of that kind goes with {other}RedisLockService"
    else:
        advice = ""
    raise TypeError(f"{service} needs a Redis or RedisCluster of {module}, not {given}{advice}")
