"""A primary with two replicas, and the three Sentinels that watch them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from fencing.embedded.asking import ask
from fencing.embedded.sentinel import SERVICE, Watched
from fencing.torture.faults.kinds import MissedError
from fencing.torture.services.base import kill, lock_fault, missed_if, some_leases, wait_until
from fencing.torture.services.together import ServersTogether

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from random import Random

    from fencing.embedded.valkey import ValkeyProcess
    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["SentinelServers"]

_REPLICAS = 2
_SERVERS = "servers"
"""The group of faults each of which needs all servers but one."""
_FAILOVER_MS = 1000


class SentinelServers(ServersTogether):
    """Replicas follow their primary without anybody waiting for them; so a failover forgets."""

    name = "sentinel"

    def __init__(self) -> None:
        self.watched = Watched(_REPLICAS)
        super().__init__(self.watched)

    def start(self, stage: Stage) -> None:
        """Start all, and wait until the Sentinels know them."""
        super().start(stage)
        for sentinel in self.watched.sentinels:  # else the next failover would wait for 8 s
            ask(sentinel, "SENTINEL SET", SERVICE, "failover-timeout", _FAILOVER_MS)

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to them."""
        return (
            lock_fault("primary killed", self._kill, breaks_order=True, group=_SERVERS),
            lock_fault("primary restarted", self._restart, breaks_order=True, group=_SERVERS),
            lock_fault("primary stopped", self._stop, breaks_order=True, group=_SERVERS),
            lock_fault("failover", self._fail_over, breaks_order=True, group=_SERVERS),
            lock_fault("replicas behind", self._fall_behind, breaks_order=True, group=_SERVERS),
        )

    def _kill(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        """The primary ends; a replica is promoted, with what has come to it by then."""
        primary = self._primary()
        primary.kill()
        try:
            yield from self._promoted(primary)
        finally:
            primary.start()
        yield from self._recover()

    def _restart(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """The primary ends, and is back, empty, before a Sentinel has missed it."""
        yield from kill(self._primary(), some_leases(stage, chance, 0.2))
        yield from self._recover()

    def _stop(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """The primary stands still until it is none any more, and does not know when it goes on."""
        primary = self._primary()
        primary.suspend()
        try:
            yield from self._promoted(primary)
            yield some_leases(stage, chance)
        finally:
            primary.resume()
        yield from self._recover()

    def _fail_over(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        """A Sentinel is told to promote a replica, whatever has come to it."""
        primary = self._primary()
        with missed_if(redis.RedisError):
            self.watched.ask(self.watched.sentinels[0], "SENTINEL FAILOVER", SERVICE)
        yield from self._promoted(primary)
        yield from self._recover()

    def _fall_behind(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """The replicas stand still for a while, and one of them is promoted when they go on."""
        primary = self._primary()
        replicas = [server for server in self.watched.servers if server is not primary]
        try:
            for replica in replicas:
                replica.suspend()
            # Else they would read, when they go on, what was sent to them all the while.
            with suppress(redis.RedisError):
                self.watched.ask(primary, "CLIENT KILL", "TYPE", "replica")
            yield some_leases(stage, chance)
            primary.kill()
            for replica in replicas:
                replica.resume()
            yield from self._promoted(primary)
        finally:
            for replica in replicas:
                replica.resume()
            if primary.pid is None:
                primary.start()
        yield from self._recover()

    def _primary(self) -> ValkeyProcess:
        """The primary, if all of them are well."""
        with missed_if(redis.RedisError):
            if not self._is_whole():
                raise MissedError
            return self.watched.primary

    def _promoted(self, old: ValkeyProcess) -> Generator[float, None, None]:
        """Wait until another server is the primary, and knows it."""

        def promoted() -> bool:
            new = self.watched.primary
            return new is not old and self.watched.ask(new, "ROLE")[0] == b"master"

        yield from wait_until(promoted, redis.RedisError)

    def _recover(self) -> Generator[float, None, None]:
        """Wait until all others follow the primary again."""
        yield from wait_until(self._is_whole, redis.RedisError)

    def _is_whole(self) -> bool:
        if any(server.pid is None for server in self.watched.servers):
            return False
        info = self.watched.ask(self.watched.primary, "INFO", "replication")
        return bool(
            info["role"] == "master"
            and info["connected_slaves"] == _REPLICAS
            and all(info[f"slave{number}"]["state"] == "online" for number in range(_REPLICAS))
        )
