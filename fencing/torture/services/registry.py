"""All lock services that can be tortured, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.services.adversary import AdversaryServers
from fencing.torture.services.cluster import ClusterServers
from fencing.torture.services.etcd import EtcdServers
from fencing.torture.services.postgres import PostgresApartServers, PostgresServers
from fencing.torture.services.redis import (
    RedisAofServers,
    RedisEverySecondServers,
    RedisServers,
)
from fencing.torture.services.redlock import RedlockOfThreeServers, RedlockServers
from fencing.torture.services.sentinel import SentinelServers
from fencing.torture.services.zookeeper import ZooKeeperServers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencing.torture.services.base import LockServers

__all__ = ["SERVICES", "lock_servers"]

_KINDS: tuple[type[LockServers], ...] = (
    RedisServers,
    RedisAofServers,
    RedisEverySecondServers,
    RedlockServers,
    RedlockOfThreeServers,
    ClusterServers,
    SentinelServers,
    EtcdServers,
    ZooKeeperServers,
    PostgresServers,
    PostgresApartServers,
    AdversaryServers,
)

SERVICES: Mapping[str, type[LockServers]] = {kind.name: kind for kind in _KINDS}


def lock_servers(name: str) -> LockServers:
    """The servers of a lock service, not started.

    Raises:
        ValueError: There is none of that name.
        MissingServerError: A program that it needs is not installed; the message says what to do.
    """
    if name not in SERVICES:
        raise ValueError(f"no lock service {name!r}; there are: {', '.join(sorted(SERVICES))}")
    return SERVICES[name]()
