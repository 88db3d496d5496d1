"""The nodes of a lock service: what is asked of their clients, and their addresses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio

from fencing.locks.asking import ATTEMPT_SECONDS
from fencing.locks.redis.addresses import check_behind_hosts, place_in
from fencing.locks.redlock.asking import Quorum
from fencing.service import FOR_ADDRESS

__all__ = [
    "NODE_SECONDS",
    "AsyncClients",
    "Clients",
    "checked_clients",
    "quorum_of",
    "urls_in",
]

Clients = Iterable[redis.Redis]
AsyncClients = Iterable[redis.asyncio.Redis]
"""One for each node."""

NODE_SECONDS = 0.25
"""How long a node's answer may take, in seconds, connecting included."""

FEWEST = 3
"""The fewest nodes of which one can fail."""

SHORTEST_SECONDS = 0.001
"""The shortest time that a node can be given, in seconds."""

_SCHEMES = {"redlock": "redis", "redlocks": "rediss"}


def quorum_of(clients: list[Any], node_timeout: float) -> Quorum:
    """How many nodes there are, and how long each is waited for.

    Raises:
        TypeError: ``node_timeout`` is no number.
        ValueError: It is out of its range.
    """
    if isinstance(node_timeout, bool) or not isinstance(node_timeout, int | float):
        raise TypeError(f"node_timeout must be a number of seconds, not {node_timeout!r}")
    if math.isnan(node_timeout) or not SHORTEST_SECONDS <= node_timeout <= ATTEMPT_SECONDS:
        raise ValueError(
            f"node_timeout must be {SHORTEST_SECONDS} to {ATTEMPT_SECONDS:g} seconds, not "
            f"{node_timeout}"
        )
    return Quorum(len(clients), float(node_timeout))


def checked_clients(clients: Iterable[Any], *, twin: bool) -> list[Any]:
    """The clients, if a majority of them means something.

    Args:
        clients: One for each node.
        twin: Whether they are to be of ``redis.asyncio``.

    Raises:
        TypeError: One of them is of another kind.
        ValueError: There are not 3 or more of them, or not an odd number, or one server is there
            twice.
    """
    name = "AsyncRedlockService" if twin else "RedlockService"
    if isinstance(clients, redis.Redis | redis.asyncio.Redis | str):
        hint = f"; {FOR_ADDRESS}" if isinstance(clients, str) else ""
        raise TypeError(
            f"{name} needs a list of clients, one for each node, not {type(clients).__name__}{hint}"
        )
    found = list(clients)
    wanted, pipeline = (
        (redis.asyncio.Redis, redis.asyncio.client.Pipeline)
        if twin
        else (redis.Redis, redis.client.Pipeline)
    )
    for client in found:
        if not isinstance(client, wanted) or isinstance(client, pipeline):
            given = f"{type(client).__module__}.{type(client).__qualname__}"
            other = "RedlockService" if twin else "AsyncRedlockService"
            hint = (
                f"; {FOR_ADDRESS}"
                if isinstance(client, str)
                else f"; such clients go with {other}"
                if isinstance(client, redis.Redis | redis.asyncio.Redis)
                and not isinstance(client, redis.client.Pipeline | redis.asyncio.client.Pipeline)
                else "; each node is one Redis, which knows nothing of the others"
            )
            raise TypeError(
                f"{name} needs clients of the kind {wanted.__module__}.Redis, not {given}{hint}"
            )
    if len(found) < FEWEST or len(found) % 2 == 0:
        raise ValueError(
            f"{name} needs an odd number of nodes, {FEWEST} or more, not {len(found)}: with fewer "
            "none of them can fail, and one more than an odd number makes nothing safer"
        )
    seen: set[object] = set()
    for client in found:
        where = _where(client)
        if where is not None and where in seen:
            raise ValueError(
                f"{name} was given a node twice, {where}: its vote would count twice; the nodes "
                "must be servers of their own, on machines of their own"
            )
        seen.add(where)
    return found


def _where(client: Any) -> str | None:  # noqa: ANN401 - redis-py leaves its pools untyped
    settings = client.connection_pool.connection_kwargs
    if path := settings.get("path"):
        return str(path)
    if host := settings.get("host"):
        return f"{host}:{settings.get('port', 6379)}"
    return None


def urls_in(url: str) -> list[str]:
    """The addresses of the nodes, as ``redis.Redis.from_url`` reads them.

    Args:
        url: As in ``redlock://user:password@h1:6379,h2:6379,h3:6379/0?socket_timeout=1``, or
            ``redlocks://`` for TLS. User and password are for all nodes, unless they have their
            own; so is what follows the nodes. A comma in a password is written %2C.

    Raises:
        TypeError: It is no ``str``.
        ValueError: It is no such address. The message contains nothing of it but its scheme:
            there may be a password in it.
    """
    if not isinstance(url, str):
        raise TypeError(f"the address of a Redlock must be a str, not {type(url).__name__}")
    check_behind_hosts(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # which may show all of it
        raise ValueError(
            "the address of a Redlock makes no sense: brackets are for IPv6 addresses, and what "
            "is special in a password must be escaped (%5B for [, %5D for ])"
        ) from None
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        raise ValueError(
            f"the address of a Redlock begins with redlock:// or redlocks://, not "
            f"{parts.scheme or 'no scheme'}"
        )
    user = ""
    urls = []
    for place in parts.netloc.split(","):
        own, at, host = place.rpartition("@")
        if not host or host.startswith(":"):
            raise ValueError(
                f"the address of a Redlock names its nodes, as in {parts.scheme}://"
                "host1:6379,host2:6379,host3:6379/0, and here one of them is empty"
            )
        try:
            place_in(host)
        except ValueError as error:
            raise ValueError(f"the address of a Redlock makes no sense: {error}") from None
        user = f"{own}@" if at else user
        urls.append(urlunsplit(parts._replace(scheme=scheme, netloc=f"{user}{host}")))
    return urls
