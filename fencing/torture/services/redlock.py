"""A majority of Redis nodes, of three and of five."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

import redis

from fencing.embedded.asking import ask
from fencing.embedded.proxy import TcpProxy
from fencing.embedded.valkey import ValkeyProcess
from fencing.torture.services.base import (
    LockServers,
    kill,
    lock_fault,
    missed_if,
    some_leases,
    stop,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from random import Random

    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["RedlockOfThreeServers", "RedlockServers"]


class RedlockServers(LockServers):
    """Five nodes without persistence. Some workers reach them through proxies, which may fail."""

    name = "redlock"
    count: ClassVar[int] = 5

    def __init__(self) -> None:
        self.nodes = [ValkeyProcess() for _ in range(self.count)]
        self.proxies: list[TcpProxy] = []
        self._stack = ExitStack()

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start all."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_ready()
        self.proxies = [self._stack.enter_context(TcpProxy.to(node.url)) for node in self.nodes]

    def url(self, worker: str) -> str:
        """The addresses of all; every second worker's are those of the proxies."""
        doors = self.proxies if int(worker[1:].partition(".")[0]) % 2 else self.nodes
        return f"redlock://{','.join(f'127.0.0.1:{door.port}' for door in doors)}/0"

    def close(self) -> None:
        """End all."""
        self._stack.close()
        for node in self.nodes:
            node.close()

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to one of them, or to several."""
        return (
            lock_fault("node killed", self._kill, breaks_order=True),
            lock_fault("node stopped", self._stop_one),
            lock_fault("majority stopped", self._stop_most, weight=0.5),
            lock_fault("node emptied", self._empty, breaks_order=True),
            lock_fault("nodes cut off", self._cut_off),
            lock_fault("nodes silent", self._silence),
        )

    def _kill(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """One node ends, and comes back empty: a lock of a bare majority is no longer one."""
        yield from kill(chance.choice(self.nodes), some_leases(stage, chance))

    def _stop_one(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        yield from stop(chance.choice(self.nodes), some_leases(stage, chance))

    def _stop_most(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """So many stand still that nobody is granted anything."""
        stopped = chance.sample(self.nodes, self.count // 2 + 1)
        try:
            for node in stopped:
                node.suspend()
            yield some_leases(stage, chance)
        finally:
            for node in stopped:
                node.resume()

    def _empty(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        with missed_if(redis.RedisError):
            ask(chance.choice(self.nodes), "FLUSHALL")
        yield 0.0

    def _cut_off(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Some workers cannot connect to some nodes, to most of them maybe; others can."""
        unreachable = chance.sample(self.proxies, chance.randint(1, self.count))
        try:
            for proxy in unreachable:
                proxy.refuse()
            yield some_leases(stage, chance)
        finally:
            for proxy in unreachable:
                proxy.accept()

    def _silence(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Some workers' requests are heard by some nodes, and the answers held back."""
        held = chance.sample(self.proxies, chance.randint(1, self.count))
        try:
            for proxy in held:
                proxy.hold()
            yield some_leases(stage, chance)
        finally:
            for proxy in held:
                proxy.release()


class RedlockOfThreeServers(RedlockServers):
    """Three nodes, of which two are enough."""

    name = "redlock-3"
    count = 3
