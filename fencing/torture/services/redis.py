"""One Redis (or rather Valkey)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from fencing.embedded.valkey import ValkeyProcess
from fencing.torture.faults.kinds import FaultKind, MissedError
from fencing.torture.services.base import LockServers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from random import Random

    from fencing.torture.stage import Stage

__all__ = ["RedisServers"]


@contextmanager
def missed_if_away() -> Iterator[None]:
    """A fault whose server is away just now has missed it."""
    try:
        yield
    except redis.RedisError as error:
        raise MissedError from error


class RedisServers(LockServers):
    """One Redis without persistence: whenever it is killed it has forgotten everything."""

    name = "redis"

    def __init__(self) -> None:
        self._server = ValkeyProcess()
        self._client = redis.Redis(port=self._server.port)

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start it."""
        self._server.start()
        self._client = redis.Redis.from_url(self._server.url)

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """Its address."""
        return self._server.url

    def close(self) -> None:
        """End it."""
        self._client.close()
        self._server.close()

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it."""
        return (
            FaultKind("Redis killed", self._kill, breaks_order=True),
            FaultKind("Redis emptied", self._empty, breaks_order=True),
            FaultKind("counters set back", self._set_back, breaks_order=True),
        )

    def _kill(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        self._server.kill()
        try:
            yield stage.settings.ttl * chance.uniform(0.1, 2.0)
        finally:
            self._server.start()

    def _empty(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        with missed_if_away():
            self._client.flushall()
        yield 0.0

    def _set_back(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        with missed_if_away():
            for key in self._client.scan_iter("*:token"):
                self._client.set(key, chance.randint(1, 5))
        yield 0.0
