"""All lock services that can be tortured, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.services.adversary import AdversaryServers
from fencing.torture.services.postgres import PostgresApartServers, PostgresServers
from fencing.torture.services.redis import RedisServers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencing.torture.services.base import LockServers

__all__ = ["SERVICES", "lock_servers"]

SERVICES: Mapping[str, type[LockServers]] = {
    kind.name: kind
    for kind in (AdversaryServers, PostgresServers, PostgresApartServers, RedisServers)
}


def lock_servers(name: str) -> LockServers:
    """The servers of a lock service, not started.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in SERVICES:
        raise ValueError(f"no lock service {name!r}; there are: {', '.join(sorted(SERVICES))}")
    return SERVICES[name]()
