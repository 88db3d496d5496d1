# ruff: noqa: ANN401 - redis-py leaves untyped what its clients take
"""A client of redis-py from an address: of one Redis, of a cluster, or of what Sentinel watches.

::

    redis://[user:password@]host:6379/0             rediss:// with TLS
    unix:///run/redis.sock
    redis+cluster://[user:password@]host:6379,host2:6379
    redis+sentinel://[user:password@]sentinel:26379,sentinel2:26379/SERVICE[/0]

``rediss+cluster://`` and ``rediss+sentinel://`` speak TLS. Options follow behind ``?`` and are
those of ``redis.Redis.from_url``; for Sentinel there are also ``sentinel_username``,
``sentinel_password`` and ``min_other_sentinels``.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.redis.bounded import bounded, call_end
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of

__all__ = [
    "as_cluster",
    "async_client_at",
    "async_one_client_at",
    "check_behind_hosts",
    "client_at",
    "one_client_at",
    "place_in",
]

FIND_SECONDS = 5.0
"""How long the nodes of a cluster may take to be found, in seconds."""

_SCHEME = re.compile(r"(rediss?)\+(cluster|sentinel)://", re.IGNORECASE)

_PORTS = {"cluster": 6379, "sentinel": 26379}

_FOR_SENTINELS = ("username", "password")
"""What Sentinels are told besides, as ``sentinel_…``."""

_SHARED = ("socket_", "ssl_")
"""What settings begin with that hold for Sentinels as well."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an address of several hosts says.

    Attributes:
        kind: ``"cluster"`` or ``"sentinel"``.
        tls: Whether it wants TLS.
        hosts: With their ports.
        path: Its parts, unquoted.
        one: An address of the first host alone, with everything else that redis-py reads in it.
    """

    kind: str
    tls: bool
    hosts: list[tuple[str, int]]
    path: list[str]
    one: str


def client_at(url: str, **settings: Any) -> Any:
    """A client for an address; of a cluster, its nodes are found at once.

    Args:
        url: The address.
        **settings: For redis-py's client; what the address says goes before.

    Raises:
        LockServiceError: No node of the cluster could be reached.
        ValueError: The address makes no sense.
    """
    parts = _parts_of(url)
    if parts is None:
        return one_client_at(url, **settings)
    said = _read(parts.one)
    if parts.kind == "sentinel":
        return _watched(redis.sentinel.Sentinel, parts, settings, said)
    node_at: Any = redis.cluster.ClusterNode
    nodes = [node_at(*host) for host in parts.hosts[1:]]
    given = _settings(settings, said)
    _check_cluster_settings(given)
    plain = redis.SSLConnection if parts.tls else redis.Connection
    finding = call_end.set(now() + FIND_SECONDS)
    try:
        client: Any = redis.RedisCluster(
            # With an address as URL the nodes' connections may be of a class of our own.
            url="redis://{}:{}".format(*_bracketed(parts.hosts[0])),
            startup_nodes=nodes,
            **{"connection_class": bounded(plain), **given},
        )
    except REDIS_ERRORS as error:
        trouble = trouble_of(error, at=now())
        raise LockServiceError(f"lock service: {trouble.help}") from error
    finally:
        call_end.reset(finding)
    client.disconnect_connection_pools()  # a service has connections of its own
    return client


def async_client_at(url: str, **settings: Any) -> Any:
    """:func:`client_at` for asyncio; nothing is sent yet."""
    parts = _parts_of(url)
    if parts is None:
        return async_one_client_at(url, **settings)
    said = _read(parts.one)
    if parts.kind == "sentinel":
        return _watched(redis.asyncio.sentinel.Sentinel, parts, settings, said)
    nodes = [redis.asyncio.cluster.ClusterNode(*host) for host in parts.hosts]
    tls: dict[str, Any] = {"ssl": True} if parts.tls else {}
    return redis.asyncio.RedisCluster(startup_nodes=nodes, **tls, **_settings(settings, said))


def one_client_at(url: str, **settings: Any) -> Any:
    """A ``redis.Redis`` for an address that redis-py reads.

    Raises:
        ValueError: The address makes no sense. Neither a user nor a password is told.
    """
    _read(url)
    return _check_settings(redis.Redis.from_url(url, **settings))


def async_one_client_at(url: str, **settings: Any) -> Any:
    """:func:`one_client_at` for asyncio."""
    _read(url)
    return _check_settings(redis.asyncio.Redis.from_url(url, **settings))


def _check_settings(client: Any) -> Any:
    """Return a client if connections can be made as it says; redis-py sees when it makes one."""
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise TypeError(f"{_NO_SUCH_SETTING}: {error}") from None
    return client


_NO_SUCH_SETTING = (
    "redis-py does not know all settings behind the ? of the address or beside the address"
)


def _check_cluster_settings(given: dict[str, Any]) -> None:
    """Raise TypeError if one is none of redis-py's, which a ``RedisCluster`` passes over."""
    known = {
        name
        for made in (redis.RedisCluster, redis.Redis, *redis.SSLConnection.__mro__)
        for name in inspect.signature(made).parameters
    }
    if unknown := sorted(set(given) - known):
        raise TypeError(f"{_NO_SUCH_SETTING}: {', '.join(unknown)}")


def _read(url: str) -> dict[str, Any]:
    """What redis-py reads in an address of one server; its errors may show parts of a password."""
    check_behind_hosts(url)
    read: Any = redis.connection.parse_url
    try:
        return dict(read(url))
    except ValueError as error:
        told = str(error)
    if not told.startswith(_HARMLESS):
        told = f"the address of a Redis makes no sense: {_ESCAPING}"
    raise ValueError(told) from None


def check_behind_hosts(url: str) -> None:
    """Raise ``ValueError`` where a password with a /, ? or # in it is taken for something else."""
    scheme, _, rest = url.partition("://")
    behind = re.split("[/?#]", rest, maxsplit=1)[1:]
    if not behind or scheme.lower() == "unix":
        return
    before_values, _, values = behind[0].partition("=")
    if "@" in before_values or "@" in values.partition("#")[2]:
        raise ValueError(f"the address of a Redis makes no sense: {_ESCAPING}")


def as_cluster(url: str) -> str:
    """The address of a node of a cluster as that of the cluster.

    Raises:
        ValueError: It is no address of a server that is reached by TCP.
    """
    scheme, colon, rest = url.partition("://")
    if scheme.lower().endswith("+cluster"):
        return url
    if not colon or scheme.lower() not in ("redis", "rediss"):
        raise ValueError("the address of a cluster's node begins with redis:// or rediss://")
    return f"{scheme}+cluster://{rest}"


def _watched(sentinel: Any, parts: _Parts, settings: dict[str, Any], said: Any) -> Any:
    given = _settings(settings, said)
    given["db"] = said.get("db", given.get("db", 0))
    tls = {"ssl": True} if parts.tls else {}
    of_sentinels = {name: value for name, value in given.items() if name.startswith(_SHARED)}
    of_sentinels.update(given.pop("sentinel_kwargs", None) or {})
    for name in _FOR_SENTINELS:
        if (value := given.pop(f"sentinel_{name}", None)) is not None:
            of_sentinels[name] = value
    try:
        others = int(given.pop("min_other_sentinels", 0))
    except ValueError:
        raise _wrong(parts.kind, "min_other_sentinels must be a number") from None
    made = sentinel(
        parts.hosts, min_other_sentinels=others, sentinel_kwargs={**tls, **of_sentinels}
    )
    _check_settings(made.sentinels[0])
    return _check_settings(made.master_for(parts.path[0], **tls, **given))


def _settings(settings: dict[str, Any], said: Any) -> dict[str, Any]:
    """Settings of a client, without those that tell a host or come of the scheme."""
    own = {"host", "port", "db", "connection_class"}
    return {**settings, **{name: value for name, value in said.items() if name not in own}}


def _parts_of(url: str) -> _Parts | None:
    """What an address says; ``None``: it is one of those that redis-py reads itself."""
    if not isinstance(url, str):
        raise TypeError(f"the address must be a str, not {type(url).__name__}")
    found = _SCHEME.match(url)
    if found is None:
        return None
    kind = found[2].lower()
    if "#" in url:
        raise _wrong(kind, "there must be no #; in a password it is %23")
    rest, _, query = url[found.end() :].partition("?")
    authority, _, path = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    places = [_place(kind, host) for host in hosts.split(",")]
    names = [unquote(name) for name in path.split("/")] if path else []
    db = _db_in(kind, names)
    host, port = _bracketed(places[0])
    one = f"redis://{user}{at}{host}:{port}/{db}"
    return _Parts(
        kind, found[1].lower() == "rediss", places, names, f"{one}?{query}" if query else one
    )


def _db_in(kind: str, path: list[str]) -> int:
    """The number of the database that a path ends with."""
    if kind == "cluster":
        if path not in ([], [""], ["0"]):
            raise _wrong(kind, "there must be nothing behind the hosts: a cluster has database 0")
        return 0
    service, *db = path or [""]
    if not service:
        raise _wrong(kind, "behind the hosts, /SERVICE must say which service to follow")
    if db in ([], [""]):
        return 0
    if len(db) > 1 or not (db[0].isascii() and db[0].isdecimal()):
        raise _wrong(kind, "behind the service there may be the number of a database, no more")
    return int(db[0])


# What is wrong is told without the text that is wrong: where a password is written with a "/" or an
# "@" in it, part of it may be taken for a host or a port.

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]+)(?::([0-9]{1,5}))?")


_ESCAPING = (
    "its hosts must look like host:port, with IPv6 addresses in brackets, and what is special in a "
    "password must be escaped (%40 for @, %2F for /, %3F for ?, %23 for #, %2C for a comma)"
)

_HARMLESS = ("Redis URL must specify", "Invalid value for")
"""What redis-py's errors begin with that tell no more than schemes and the name of an option."""


def place_in(text: str, default_port: int = 6379) -> tuple[str, int]:
    """The host and the port in a text.

    Raises:
        ValueError: They are not; the text is not told.
    """
    found = _PLACE.fullmatch(text)
    port = int(found[2] or default_port) if found else 0
    if found is None or not 1 <= port <= 65535:  # noqa: PLR2004 - of TCP
        raise ValueError(_ESCAPING)
    return found[1].strip("[]"), port


def _place(kind: str, text: str) -> tuple[str, int]:
    try:
        return place_in(text, _PORTS[kind])
    except ValueError as error:
        raise _wrong(kind, str(error)) from None


def _bracketed(place: tuple[str, int]) -> tuple[str, int]:
    host, port = place
    return f"[{host}]" if ":" in host else host, port


def _wrong(kind: str, what: str) -> ValueError:
    return ValueError(f"the redis+{kind}:// address makes no sense: {what}")
