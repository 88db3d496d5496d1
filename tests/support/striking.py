"""Servers of the torture's lock services, and faults done to them one at a time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import fencing
from fencing.embedded.asking import until
from fencing.torture.faults import MissedError
from fencing.torture.services import lock_servers
from fencing.torture.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from fencing.service import LockService
    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.services import LockServers
    from fencing.torture.stage import Stage

TTL = 0.3
"""What faults take for a lease's length, in seconds: they last a few of them."""
WORKER = "w0.0"


class Most(Random):
    """Chooses the most of what there is."""

    def randint(self, a: int, b: int) -> int:
        """The larger."""
        return max(a, b)

    def uniform(self, a: float, b: float) -> float:
        """The larger."""
        return max(a, b)


class Struck:
    """The servers of a lock service, as a run has them.

    Attributes:
        servers: They.
        stage: Where they are.
    """

    def __init__(self, servers: LockServers, database_url: str = "") -> None:
        self.servers = servers
        self.stage = cast(
            "Stage",
            SimpleNamespace(
                settings=Settings(ttl=TTL),
                postgres=SimpleNamespace(url=database_url),
                database_url=lambda _worker: database_url,
                locks=servers,
            ),
        )

    @property
    def kinds(self) -> dict[str, FaultKind]:
        """What can be done to them."""
        return {kind.name: kind for kind in self.servers.faults()}

    def strike(self, name: str, chance: Random | None = None) -> Generator[Any, None, None]:
        """A fault that has not begun."""
        return self.kinds[name].strike(self.stage, chance or Random(1))

    def perform(self, name: str, chance: Random | None = None) -> None:
        """A fault from its beginning to its end; servers may have to find together before."""

        def passes() -> bool:
            try:
                for seconds in self.strike(name, chance):
                    self.wait(seconds)
            except MissedError:
                return False
            return True

        until(passes, f"{name!r} has missed its servers")

    @staticmethod
    def wait(seconds: float) -> None:
        """Let a fault last."""
        time.sleep(seconds)

    @contextmanager
    def during(self, name: str, chance: Random | None = None) -> Iterator[None]:
        """A fault that has struck and lasts, until it is ended before its time."""
        steps = self.begun(name, chance)
        try:
            yield
        finally:
            steps.close()

    def begun(self, name: str, chance: Random | None = None) -> Generator[Any, None, None]:
        """What is left of a fault that has struck; servers may have to find together before."""
        steps = self.strike(name, chance)

        def strikes() -> bool:
            nonlocal steps
            steps = self.strike(name, chance)
            try:
                next(steps)
            except MissedError:
                return False
            return True

        until(strikes, f"{name!r} has missed its servers")
        return steps

    def begun_and_served(self, name: str) -> Generator[Any, None, None]:
        """What is left of a fault whose one server serves again in the middle of it."""
        steps = self.begun(name)
        server = cast("Any", self.servers).server

        def serves() -> bool:
            next(steps)
            return server.pid is not None and server.serves()

        until(serves, f"no server serves in the middle of {name!r}")
        return steps

    @contextmanager
    def locks(self, worker: str = WORKER) -> Iterator[LockService]:
        """The lock service, as a worker has it."""
        locks = fencing.connect(self.servers.url(worker))
        try:
            yield locks
        finally:
            locks.close()

    def await_grants(self, locks: LockService) -> int:
        """Wait until the lock service grants again; the token of such a lease."""
        tokens: list[int] = []

        def grants() -> bool:
            try:
                with locks.acquire("anything", ttl=5.0, blocking_timeout=5.0) as lease:
                    tokens.append(lease.token)
            except fencing.FencingError:
                return False
            return True

        until(grants, "nothing was granted")
        return tokens[-1]


@contextmanager
def struck(name: str, database_url: str = "") -> Iterator[Struck]:
    """The servers of a lock service, started."""
    with lock_servers(name) as servers:
        of_run = Struck(servers, database_url)
        servers.start(of_run.stage)
        yield of_run


def fixture_of(name: str) -> Any:
    """A fixture: the servers of a lock service, started once for the tests of a module."""

    @pytest.fixture(scope="module")
    def servers() -> Iterator[Struck]:
        with struck(name) as servers:
            yield servers

    return servers
