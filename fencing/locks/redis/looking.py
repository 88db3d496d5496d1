# ruff: noqa: ANN401 - redis-py leaves clients of a cluster, and answers, untyped
"""Verifies the servers of a lock service: the sync and the async shell, side by side.

Over connections of its own, made like the client's and closed afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.redis.addresses import client_at
from fencing.locks.redis.bounded import call_end
from fencing.locks.redis.connections import (
    async_client_like,
    async_cluster_like,
    client_like,
    cluster_like,
    connection_of,
    pools_of,
)
from fencing.locks.redis.scripts import check_namespace
from fencing.locks.redis.server import Refusal, gather
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of
from fencing.locks.redis.verifying import judged
from fencing.verification import perform, perform_async

if TYPE_CHECKING:
    from fencing.locks.redis.clients import AnyAsyncClient, AnyClient
    from fencing.locks.redis.server import Facts
    from fencing.verification import ServiceVerification

__all__ = ["afacts_of", "averify", "facts_of", "is_node_of_cluster", "verify", "verify_url"]

WITHIN_SECONDS = 10.0
"""How long a verification may take, in seconds."""


def verify(client: AnyClient, namespace: str, *, replicas: int = 0) -> ServiceVerification:
    """Verify the servers of a lock service.

    Args:
        client: The service's.
        namespace: The service's.
        replicas: For how many replicas it waits.

    Raises:
        LockServiceError: A server could not be reached.
    """
    by_cluster = not isinstance(client, redis.Redis)
    facts = facts_of(client, namespace, replicas=replicas)
    return judged(facts, namespace=namespace, replicas=replicas, by_cluster=by_cluster)


def facts_of(client: AnyClient, namespace: str, *, replicas: int = 0) -> dict[str, Facts]:
    """What the servers of a client tell, by their addresses; arguments and errors as above."""
    by_cluster = not isinstance(client, redis.Redis)
    running = call_end.set(now() + WITHIN_SECONDS)
    looker: Any = None
    try:
        looker = cluster_like(client) if by_cluster else client_like(client)
        if not by_cluster:
            # What is refused on the way there is none of the answers below.
            looker.connection_pool.release(connection_of(looker.connection_pool))
        facts: dict[str, Facts] = {}
        for node, options in _nodes(looker, by_cluster=by_cluster):

            def fetch(command: tuple[Any, ...], options: Any = options) -> list[Any]:
                try:
                    return [looker.execute_command(*command, **options)]
                except redis.ResponseError as error:
                    return [_refusal(error)]

            facts[node] = perform(gather(namespace, replicas=replicas), fetch)
    except REDIS_ERRORS as error:
        raise _unreachable(error) from error
    finally:
        call_end.reset(running)
        if looker is not None:
            _close(looker, by_cluster=by_cluster)
    return facts


async def averify(
    client: AnyAsyncClient, namespace: str, *, replicas: int = 0
) -> ServiceVerification:
    """:func:`verify` for asyncio."""
    by_cluster = not isinstance(client, redis.asyncio.Redis)
    facts = await afacts_of(client, namespace, replicas=replicas)
    return judged(facts, namespace=namespace, replicas=replicas, by_cluster=by_cluster)


async def afacts_of(
    client: AnyAsyncClient, namespace: str, *, replicas: int = 0
) -> dict[str, Facts]:
    """:func:`facts_of` for asyncio."""
    by_cluster = not isinstance(client, redis.asyncio.Redis)
    looker: Any = async_cluster_like(client) if by_cluster else async_client_like(client)
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            if by_cluster:
                await looker.initialize()
            else:
                pool = looker.connection_pool
                await pool.release(await connection_of(pool))
            facts: dict[str, Facts] = {}
            for node, options in _nodes(looker, by_cluster=by_cluster):

                async def fetch(command: tuple[Any, ...], options: Any = options) -> list[Any]:
                    try:
                        return [await looker.execute_command(*command, **options)]
                    except redis.ResponseError as error:
                        return [_refusal(error)]

                facts[node] = await perform_async(gather(namespace, replicas=replicas), fetch)
    except REDIS_ERRORS as error:
        raise _unreachable(error) from error
    finally:
        if by_cluster:
            await looker.aclose()
        else:
            for pool in pools_of(looker):
                await pool.disconnect()
    return facts


def verify_url(url: str, namespace: str) -> ServiceVerification:
    """Verify the Redis at an address, and where it is a node of a cluster, the cluster.

    Args:
        url: As a lock service in Redis takes it.
        namespace: What the keys of the lock service begin with.

    Raises:
        ValueError: The URL cannot be read, or keys cannot begin so.
        LockServiceError: A server could not be reached.
    """
    check_namespace(namespace)
    with client_at(url) as client:
        found = verify(client, namespace)
    if not any(finding.code == "cluster-client" for finding in found.findings):
        return found
    try:
        with redis.RedisCluster.from_url(url) as cluster:
            return verify(cluster, namespace)
    except REDIS_ERRORS as error:
        raise _unreachable(error) from error


def is_node_of_cluster(url: str) -> bool:
    """Whether the one Redis at an address is a node of a cluster; false where it does not tell.

    Raises:
        ValueError: The URL cannot be read.
        LockServiceError: It could not be reached.
    """
    running = call_end.set(now() + WITHIN_SECONDS)
    looker: Any = None
    try:
        with client_at(url) as client:
            looker = client_like(client)
            return bool(looker.info("cluster").get("cluster_enabled"))
    except REDIS_ERRORS as error:
        if _is_refusal(error):
            return False
        raise _unreachable(error) from error
    finally:
        call_end.reset(running)
        if looker is not None:
            _close(looker, by_cluster=False)


def _is_refusal(error: BaseException) -> bool:
    """Whether a command alone is refused: to this user, or to everybody."""
    renamed = isinstance(error, redis.ResponseError) and "unknown command" in str(error).lower()
    return renamed or isinstance(error, redis.exceptions.NoPermissionError)


def _nodes(looker: Any, *, by_cluster: bool) -> list[tuple[str, dict[str, Any]]]:
    """The address of each server, and what sends a command to it."""
    if by_cluster:
        primaries = sorted(looker.get_primaries(), key=lambda node: node.name)
        return [(node.name, {"target_nodes": node}) for node in primaries]
    settings = looker.connection_pool.connection_kwargs
    manager = getattr(looker.connection_pool, "service_name", None)
    if manager is not None:
        return [(f"the primary of {manager!r}", {})]
    address = settings.get("path") or f"{settings.get('host')}:{settings.get('port', 6379)}"
    return [(address, {})]


def _close(looker: Any, *, by_cluster: bool) -> None:
    if by_cluster:
        looker.disconnect_connection_pools()
        looker.close()
    else:
        for pool in pools_of(looker):
            pool.disconnect()


def _refusal(error: redis.ResponseError) -> Refusal:
    # redis-py takes the code off.
    return Refusal(f"NOSCRIPT {error}" if isinstance(error, NoScriptError) else str(error))


def _unreachable(error: BaseException) -> LockServiceError:
    return LockServiceError(f"lock service: {trouble_of(error, at=now()).help}")
