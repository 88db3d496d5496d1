"""A Redis Cluster: three primaries with a replica each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from fencing.embedded.cluster import ValkeyCluster
from fencing.torture.faults.kinds import MissedError
from fencing.torture.services.base import kill, lock_fault, missed_if, some_leases, wait_until
from fencing.torture.services.together import ServersTogether

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from random import Random

    from fencing.embedded.valkey import ValkeyProcess
    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["ClusterServers"]

_PRIMARIES = 3
_NODES = "nodes"
"""The group of faults each of which needs all nodes but one."""


class ClusterServers(ServersTogether):
    """Six nodes. Replicas follow their primaries without anybody waiting for them."""

    name = "cluster"

    def __init__(self) -> None:
        self.cluster = ValkeyCluster(_PRIMARIES, replicas=1)
        super().__init__(self.cluster)
        self._standing: set[int] = set()
        """Ports of those that are stopped, and would not answer."""

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to its nodes."""
        return (
            lock_fault("primary killed", self._kill, breaks_order=True, group=_NODES),
            lock_fault("primary restarted", self._restart, breaks_order=True, group=_NODES),
            lock_fault("primary stopped", self._stop, breaks_order=True, group=_NODES),
            lock_fault("failover", self._fail_over, group=_NODES),
            lock_fault("replica takes over", self._take_over, breaks_order=True, group=_NODES),
            lock_fault("replica behind", self._fall_behind, breaks_order=True, group=_NODES),
        )

    def _kill(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A primary ends; its replica takes its place, with what has come to it by then."""
        primary = self._pick(chance, "master")
        replicas = self._of_role("slave")
        primary.kill()
        try:
            yield from wait_until(
                lambda: any(self.cluster.role_of(each) == "master" for each in replicas),
                redis.RedisError,
            )
        finally:
            primary.start()
        yield from self._recover()

    def _restart(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A primary ends, and is back, empty, before anybody has taken its place."""
        yield from kill(self._pick(chance, "master"), some_leases(stage, chance, 0.2))
        yield from self._recover()

    def _stop(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A primary stands still, for so long that its replica takes its place; or almost."""
        primary = self._pick(chance, "master")
        yield from self._standing_still(primary, some_leases(stage, chance, 6.0))
        yield from self._recover()

    def _fail_over(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A replica takes its primary's place in order: when it has all that that one had."""
        replica = self._pick(chance, "slave")
        with missed_if(redis.RedisError):
            self.cluster.ask(replica, "CLUSTER FAILOVER")
        yield from wait_until(lambda: self.cluster.role_of(replica) == "master", redis.RedisError)
        yield from self._recover()

    def _take_over(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A replica takes its primary's place without asking anybody."""
        replica = self._pick(chance, "slave")
        with missed_if(redis.RedisError):
            self.cluster.ask(replica, "CLUSTER FAILOVER", "TAKEOVER")
        yield from self._recover()

    def _fall_behind(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A replica takes over that has not heard of its primary for a while."""
        replica = self._pick(chance, "slave")
        primaries = self._of_role("master")
        still = self._standing_still(replica, some_leases(stage, chance))
        seconds = next(still)
        # Else it would read, when it goes on, what was sent to it all the while.
        with suppress(redis.RedisError):
            for primary in primaries:
                self.cluster.ask(primary, "CLIENT KILL", "TYPE", "replica")
        try:
            yield seconds
        finally:
            still.close()
        with suppress(redis.RedisError):
            self.cluster.ask(replica, "CLUSTER FAILOVER", "TAKEOVER")
        yield from self._recover()

    def _standing_still(self, node: ValkeyProcess, seconds: float) -> Generator[float, None, None]:
        node.suspend()
        self._standing.add(node.port)
        try:
            yield seconds
        finally:
            node.resume()
            self._standing.discard(node.port)

    def _recover(self) -> Generator[float, None, None]:
        """Wait until each primary has its replica again, and all agree."""
        yield from wait_until(self._is_whole, redis.RedisError, MissedError)

    def _is_whole(self) -> bool:
        if len(self._of_role("master")) != _PRIMARIES:
            return False
        return all(
            self.cluster.ask(node, "CLUSTER INFO")["cluster_state"] == "ok"
            for node in self.cluster.nodes
        ) and all(
            self.cluster.ask(node, "INFO", "replication")["master_link_status"] == "up"
            for node in self._of_role("slave")
        )

    def _pick(self, chance: Random, role: str) -> ValkeyProcess:
        found = self._of_role(role)
        if len(found) != _PRIMARIES:
            raise MissedError
        return chance.choice(found)

    def _of_role(self, role: str) -> list[ValkeyProcess]:
        found: list[ValkeyProcess] = []
        with missed_if(redis.RedisError):
            for node in self.cluster.nodes:
                if node.pid is None or node.port in self._standing:
                    raise MissedError
                if self.cluster.role_of(node) == role:
                    found.append(node)
        return found
