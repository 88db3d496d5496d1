"""The ways from workers to the servers: straight, through a proxy that fails, through a pooler."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from sqlalchemy import make_url

from fencing.embedded import EmbeddedServerError
from fencing.embedded.clocks import FalseClock
from fencing.embedded.pgbouncer import PgBouncer
from fencing.embedded.places import MissingProgramError
from fencing.embedded.proxy import TcpProxy

if TYPE_CHECKING:
    from pathlib import Path

    from fencing.torture.settings import Settings

__all__ = ["Ways"]

_PROXIED, _POOLED, _FALSE_CLOCK = (0, 3), (2,), (1, 3)
"""Which of five workers; the others go straight, as fast as they can."""
_OF = 5

_POOL = 5
"""Connections of the pooler to the server."""

_ONE_SERVER = {"redis", "etcd", "zookeeper", "postgresql"}


class Ways:
    """Who takes which way; a context manager.

    Args:
        settings: The run's; in one without faults nobody goes through a proxy.
        database_url: Of the database, as workers' role, without a driver.
        directory: For files.

    Attributes:
        databases: Proxies before the database, by the number of the worker.
        services: Proxies before the lock service, likewise.
        clocks: False clocks, by the number of the worker that runs by it.
        left_out: What is not installed, and what would bring it.
    """

    def __init__(self, settings: Settings, database_url: str, directory: Path) -> None:
        self.databases: dict[int, TcpProxy] = {}
        self.services: dict[int, TcpProxy] = {}
        self.clocks: dict[int, FalseClock] = {}
        self.left_out: list[str] = []
        self._settings = settings
        self._database_url = database_url
        self._directory = directory
        self._pooler: PgBouncer | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            if any(number % _OF in _POOLED for number in range(self._settings.workers)):
                try:
                    pooler = PgBouncer(self._database_url, pool_size=_POOL)
                    self._pooler = started.enter_context(pooler)
                except MissingProgramError as error:
                    self.left_out.append(f"PgBouncer ({error})")
            if self._settings.faults != ():
                for number in range(self._settings.workers):
                    if number % _OF in _PROXIED:
                        proxy = TcpProxy.to(self._database_url, counting=False)
                        self.databases[number] = started.enter_context(proxy)
                    if number % _OF in _FALSE_CLOCK:
                        folder = self._directory / f"clock{number}"
                        folder.mkdir()
                        try:
                            self.clocks[number] = FalseClock(folder)
                        except EmbeddedServerError as error:  # no compiler, or not Linux
                            why, _, _ = str(error).partition("\n")
                            missing = f"false clocks ({why})"
                            if missing not in self.left_out:
                                self.left_out.append(missing)
            self._resources = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def is_pooled(self, number: int) -> bool:
        """Whether a worker reaches the database through the pooler."""
        return self._pooler is not None and number % _OF in _POOLED

    def database_url(self, number: int) -> str:
        """Where a worker finds the database."""
        if number in self.databases:
            return self.databases[number].url
        if self.is_pooled(number):
            assert self._pooler is not None  # noqa: S101 - it would not be pooled
            return self._pooler.address(self._database_url)
        return self._database_url

    def locks_url(self, number: int, url: str) -> str:
        """Where a worker finds the lock service.

        Args:
            number: The worker's.
            url: Where it is.
        """
        parts = urlsplit(url)
        if number not in self.databases or parts.scheme not in _ONE_SERVER or "," in parts.netloc:
            return url
        if make_url(url).port == self.databases[number].port:
            return url  # it is in the database, and on this way already
        if number not in self.services:
            proxy = TcpProxy.to(url, counting=False)
            self.services[number] = self._resources.enter_context(proxy)
        return self.services[number].url

    def environment(self, number: int) -> dict[str, str]:
        """What is added to a worker's environment."""
        return self.clocks[number].environment if number in self.clocks else {}
