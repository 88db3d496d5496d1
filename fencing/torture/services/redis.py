"""One Redis (or rather Valkey), with and without persistence."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import redis

from fencing.embedded.valkey import ValkeyProcess
from fencing.torture.faults.kinds import MissedError
from fencing.torture.services.base import (
    LockServers,
    away,
    can_jump,
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

__all__ = ["RedisAofServers", "RedisEverySecondServers", "RedisServers"]

_COUNTERS = "*:counter"
_HOUR = 3600.0
_CLOCK = "clock"
"""The group of faults that set the clock."""
_TAIL = 2000
"""The most of an append-only file's end that is lost, in bytes: several locks."""


class RedisServers(LockServers):
    """One Redis without persistence: whenever it is killed it has forgotten everything."""

    name = "redis"
    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._jumps = can_jump()
        self.server = ValkeyProcess(*self.arguments, false_clock=self._jumps)
        self.client = redis.Redis(port=self.server.port)

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start it."""
        self.server.start()
        self.client = redis.Redis.from_url(self.server.url, socket_timeout=1.0)

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """Its address."""
        return self.server.url

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.server.close()

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it."""
        return (
            *self.crashes(),
            lock_fault("Redis stopped", self._stop),
            lock_fault("Redis paused", self._pause),
            lock_fault("Redis emptied", self._empty, breaks_order=True),
            lock_fault("keys evicted", self._evict, breaks_order=True),
            # A counter is nothing that a lock ends by.
            lock_fault("counters set back", self._set_back),
            lock_fault("counters deleted", self._delete),
            lock_fault("scripts forgotten", self._forget_scripts),
            lock_fault("clients cut off", self._cut_off),
            *self._of_clock(),
        )

    def _of_clock(self) -> Sequence[FaultKind]:
        if not self._jumps:
            return ()
        return (
            lock_fault("clock ahead", self._go_ahead, breaks_order=True, group=_CLOCK),
            lock_fault("clock behind", self._fall_behind, breaks_order=True, group=_CLOCK),
        )

    def crashes(self) -> Sequence[FaultKind]:
        """How it ends; what is lost by that depends on its persistence."""
        return (
            lock_fault("Redis killed", self.kill, breaks_order=True),
            lock_fault("Redis restored", self._restore, weight=0.5, breaks_order=True),
        )

    def kill(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """SIGKILL; what it has kept is there again some time later."""
        yield from kill(self.server, some_leases(stage, chance))

    def _restore(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Crash it, and start it with a copy from some time before."""
        with missed_if(redis.RedisError):
            self.client.save()
        copy = self.server.process.directory / "dump.rdb"
        try:
            yield stage.settings.ttl * chance.uniform(0.5, 4.0)
            yield from kill(self.server, some_leases(stage, chance))
        finally:
            copy.unlink(missing_ok=True)

    def _stop(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        yield from stop(self.server, some_leases(stage, chance))

    def _pause(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        seconds = some_leases(stage, chance)
        with missed_if(redis.RedisError):
            self.client.client_pause(round(seconds * 1000), all=True)
        yield seconds

    def _empty(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        with missed_if(redis.RedisError):
            self.client.flushall()
        yield 0.0

    def _evict(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Leave it no memory for a moment, and let it throw away what it likes."""
        with missed_if(redis.RedisError):
            self.client.config_set("maxmemory-policy", "allkeys-random")
            self.client.config_set("maxmemory", "1")
        try:
            yield stage.settings.ttl * chance.uniform(0.0, 0.5)
        finally:
            # Started again meanwhile it has its memory already.
            with suppress(redis.RedisError):
                self.client.config_set("maxmemory", "0")

    def _go_ahead(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Its time of day is an hour too late: locks end at once."""
        self.server.clock.set(_HOUR)
        try:
            yield some_leases(stage, chance)
        finally:
            self.server.clock.set(0.0)
            # What was written meanwhile would last for an hour; somebody clears that away.
            with suppress(redis.RedisError):
                self.client.flushall()

    def _fall_behind(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Its time of day is an hour too early; what it grants meanwhile ends when it is right."""
        self.server.clock.set(-_HOUR)
        try:
            yield some_leases(stage, chance)
        finally:
            self.server.clock.set(0.0)

    def _set_back(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        with missed_if(redis.RedisError):
            for key in self.client.scan_iter(_COUNTERS):
                self.client.set(key, chance.randint(1, 5))
        yield 0.0

    def _delete(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        with missed_if(redis.RedisError):
            for key in self.client.scan_iter(_COUNTERS):
                self.client.delete(key)
        yield 0.0

    def _forget_scripts(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        with missed_if(redis.RedisError):
            self.client.script_flush()
        yield 0.0

    def _cut_off(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        """Close all connections: of those who wait for a message, too."""
        with missed_if(redis.RedisError):
            for kind in ("normal", "pubsub"):
                self.client.client_kill_filter(_type=kind, skipme=True)
        yield 0.0


class RedisAofServers(RedisServers):
    """One Redis that writes down everything before it answers: a crash makes it forget nothing."""

    name = "redis-aof"
    arguments = ("--appendonly", "yes", "--appendfsync", "always")

    def crashes(self) -> Sequence[FaultKind]:
        """It ends and has kept all."""
        return (lock_fault("Redis killed", self.kill),)


class RedisEverySecondServers(RedisServers):
    """One Redis that writes down everything, and may lose the last second's in a crash."""

    name = "redis-everysec"
    arguments = ("--appendonly", "yes", "--appendfsync", "everysec")

    def crashes(self) -> Sequence[FaultKind]:
        """It ends, and loses nothing or a little."""
        return (
            # It answers before it has written while the disk is busy with the second before.
            lock_fault("Redis killed", self.kill, breaks_order=True),
            lock_fault("last writes lost", self._lose_the_last, breaks_order=True),
        )

    def _lose_the_last(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """Crash it as if the machine had crashed: the end of its file never came to the disk."""
        if self.server.pid is None:
            raise MissedError
        self.server.kill()
        folder = self.server.process.directory / "appendonlydir"
        for file in folder.glob("*.incr.aof"):
            size = file.stat().st_size
            with file.open("r+b") as written:
                written.truncate(max(0, size - chance.randint(1, _TAIL)))
        yield from away(self.server, some_leases(stage, chance))
