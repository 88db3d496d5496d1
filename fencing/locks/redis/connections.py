# ruff: noqa: ANN401 - redis-py leaves the pools, and what they are made of, untyped
"""Connections made like a client's, except that they retry nothing and end in time.

See :mod:`fencing.locks.redis.clients` for why.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencing.locks.redis.bounded import async_bounded, bounded, call_end

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "async_client_like",
    "async_cluster_like",
    "async_node_maker",
    "client_like",
    "close_idle",
    "cluster_like",
    "connected",
    "connection_of",
    "known_nodes",
    "made_by",
    "node_maker",
    "pools_of",
    "sentinel_pools_of",
]

SENTINEL_SECONDS = 0.5
"""How long one Sentinel may take to say where the primary is, in seconds: a request that comes to
one that hangs, often together with the primary, still has time for the next."""

_MAJOR = int(redis.__version__.split(".")[0])

# What redis-py keeps among a pool's settings, but belongs to that very pool.
_POOLS_OWN = {
    "connection_pool",
    "event_dispatcher",
    "himport_registry",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "oss_cluster_maint_notifications_handler",
    "response_callbacks",
}


def _settings(given: dict[str, Any], no_retry: Any) -> dict[str, Any]:
    settings = {name: value for name, value in given.items() if name not in _POOLS_OWN}
    settings.update(
        retry=no_retry,
        retry_on_error=[],
        retry_on_timeout=False,
        encoding="utf-8",
        decode_responses=False,
    )
    settings.update(_no_maintenance())
    return settings


def _limits(settings: dict[str, Any], longest: float | None) -> dict[str, Any]:
    """Time-outs of a socket that are no longer than so many seconds."""
    if longest is None:
        return {}
    names = ("socket_timeout", "socket_connect_timeout")
    return {name: min(settings.get(name) or longest, longest) for name in names}


def _no_maintenance() -> dict[str, Any]:
    """Settings that leave out redis-py's listening to maintenance news (new in version 7).

    It would lengthen time-outs of its own accord, and with it a pool does not look whether an
    unread answer is left on a connection.
    """
    try:
        from redis.maint_notifications import MaintNotificationsConfig  # noqa: PLC0415 - older versions have none
    except ImportError:
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


def client_like(client: Any) -> Any:
    """A ``redis.Redis`` with a pool of its own, made like the client's."""
    return redis.Redis(connection_pool=_pool(client.connection_pool))


def async_client_like(client: Any) -> Any:
    """A ``redis.asyncio.Redis`` with a pool of its own, made like the client's."""
    return redis.asyncio.Redis(connection_pool=_async_pool(client.connection_pool))


def pools_of(client: Any) -> list[Any]:
    """The pools of a client that was made here: its own, and those to its sentinels."""
    return [client.connection_pool, *sentinel_pools_of(client)]


def sentinel_pools_of(client: Any) -> list[Any]:
    """The pools to the sentinels of a client that was made here."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [] if manager is None else [sentinel.connection_pool for sentinel in manager.sentinels]


async def close_idle(pool: Any) -> None:
    """Close an asyncio pool's connections that nobody uses.

    redis-py's own way would let a task have one of them while it is being closed.
    """
    idle: list[Any] = pool._available_connections  # noqa: SLF001 - no public way to take them all
    taken = idle.copy()
    idle.clear()
    try:
        for connection in taken:
            await connection.disconnect()
    finally:
        idle.extend(taken)


def connection_of(pool: Any) -> Any:
    """A connection of a pool, to be given back with ``release``; in asyncio to be awaited."""
    command = inspect.signature(pool.get_connection).parameters.get("command_name")
    if command is not None and command.default is command.empty:  # before version 5.3
        return pool.get_connection("EVALSHA")
    return pool.get_connection()


def made_by(place: Any) -> Any:
    """A connection like those of a pool, or of a cluster's node; of one's own, not connected."""
    return place.connection_class(**place.connection_kwargs)


def connected(connection: Any, end: float) -> Any:
    """Connect a connection by the moment ``end``."""
    connecting = call_end.set(end)
    try:
        connection.connect()
    finally:
        call_end.reset(connecting)
    return connection


def _pool(pool: Any, longest: float | None = None) -> Any:
    settings = _settings(pool.connection_kwargs, Retry(NoBackoff(), 0))
    settings.update(_limits(settings, longest))
    settings["connection_class"] = bounded(pool.connection_class)
    settings["max_connections"] = pool.max_connections
    if not isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return redis.ConnectionPool(**settings)
    # The sentinels are asked in the course of a call, so their clients need manners as well.
    manager = copy.copy(pool.sentinel_manager)
    manager.sentinels = [
        redis.Redis(connection_pool=_pool(sentinel.connection_pool, SENTINEL_SECONDS))
        for sentinel in pool.sentinel_manager.sentinels
    ]
    make: Any = redis.sentinel.SentinelConnectionPool
    return make(
        pool.service_name,
        manager,
        is_master=pool.is_master,
        check_connection=pool.check_connection,
        **settings,
    )


def _async_pool(pool: Any, longest: float | None = None) -> Any:
    settings = _settings(pool.connection_kwargs, AsyncRetry(NoBackoff(), 0))
    settings.update(_limits(settings, longest))
    settings["connection_class"] = async_bounded(pool.connection_class)
    settings["max_connections"] = pool.max_connections
    if not isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool):
        return redis.asyncio.ConnectionPool(**settings)
    manager = copy.copy(pool.sentinel_manager)
    manager.sentinels = [
        redis.asyncio.Redis(connection_pool=_async_pool(sentinel.connection_pool, SENTINEL_SECONDS))
        for sentinel in pool.sentinel_manager.sentinels
    ]
    make: Any = redis.asyncio.sentinel.SentinelConnectionPool
    return make(
        pool.service_name,
        manager,
        is_master=pool.is_master,
        check_connection=pool.check_connection,
        **settings,
    )


def _cluster_retries(no_retry: Any) -> dict[str, Any]:
    # Version 6 moved the number of a cluster's retries into the retry object.
    return {"retry": no_retry} if _MAJOR >= 6 else {"cluster_error_retry_attempts": 0}  # noqa: PLR2004 - as just said


def node_maker(client: Any) -> Callable[[tuple[str, int]], Any]:
    """What makes a ``redis.Redis`` of a cluster's node, like those of a ``redis.RedisCluster``."""
    settings = _settings(client.get_connection_kwargs(), Retry(NoBackoff(), 0))
    for name in ("db", "redis_connect_func", "host", "port"):
        settings.pop(name, None)
    plain = redis.SSLConnection if settings.pop("ssl", False) else redis.Connection
    settings["connection_class"] = bounded(settings.get("connection_class", plain))
    own = client.user_on_connect_func
    if own is not None:

        def greet(connection: Any) -> None:
            connection.on_connect()
            own(connection)

        settings["redis_connect_func"] = greet

    def make(address: tuple[str, int]) -> Any:
        host, port = address
        return redis.Redis(connection_pool=redis.ConnectionPool(host=host, port=port, **settings))

    return make


def async_node_maker(client: Any) -> Callable[[tuple[str, int]], Any]:
    """:func:`node_maker` for asyncio."""
    settings = _settings(client.connection_kwargs, AsyncRetry(NoBackoff(), 0))
    for name in ("db", "redis_connect_func", "host", "port"):
        settings.pop(name, None)
    settings["connection_class"] = async_bounded(settings["connection_class"])

    def make(address: tuple[str, int]) -> Any:
        host, port = address
        pool = redis.asyncio.ConnectionPool(host=host, port=port, **settings)
        return redis.asyncio.Redis(connection_pool=pool)

    return make


def known_nodes(client: Any) -> list[tuple[str, int]]:
    """The addresses of the nodes that a cluster client knows, of either kind."""
    manager = client.nodes_manager
    known = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
    return list(dict.fromkeys((node.host, int(node.port)) for node in known))


def cluster_like(client: Any) -> Any:
    """A ``redis.RedisCluster`` made like the client; it asks the cluster for its slots at once."""
    node_at: Any = redis.cluster.ClusterNode
    settings = _settings(client.get_connection_kwargs(), None)
    for name in ("db", "retry", "retry_on_error", "redis_connect_func"):
        settings.pop(name, None)
    plain = redis.SSLConnection if settings.pop("ssl", False) else redis.Connection
    settings["connection_class"] = bounded(settings.get("connection_class", plain))
    nodes = [node_at(node.host, node.port) for node in client.get_nodes()]
    host = f"[{nodes[0].host}]" if ":" in nodes[0].host else nodes[0].host
    return redis.RedisCluster(
        # With an address as URL the nodes' connections may be of a class of our own.
        url=f"redis://{host}:{nodes[0].port}",
        startup_nodes=nodes[1:],
        redis_connect_func=client.user_on_connect_func,
        address_remap=client.nodes_manager.address_remap,
        **_cluster_retries(Retry(NoBackoff(), 0)),
        **settings,
    )


def async_cluster_like(client: Any) -> Any:
    """A ``redis.asyncio.RedisCluster`` made like the client; it asks for the slots when used."""
    settings = _settings(client.connection_kwargs, None)
    if issubclass(settings["connection_class"], redis.asyncio.SSLConnection):
        settings["ssl"] = True
    accepted = inspect.signature(redis.asyncio.RedisCluster).parameters
    settings = {name: value for name, value in settings.items() if name in accepted}
    nodes = client.nodes_manager.startup_nodes.values()
    return redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode(node.host, node.port) for node in nodes],
        address_remap=client.nodes_manager.address_remap,
        **{**settings, **_cluster_retries(AsyncRetry(NoBackoff(), 0))},
    )
