"""Locks in PostgreSQL: in the database that is guarded, or in one of their own."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import make_url

from fencing.embedded.postgres import PostgresProcess
from fencing.locks.postgres.acquiring import QUEUE_SECONDS
from fencing.torture.services.base import LockServers, kill, lock_fault, missed_if, some_leases

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from random import Random

    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["PostgresApartServers", "PostgresServers"]

_FORGET = "DELETE FROM fencing.lease"
_END = "UPDATE fencing.lease SET expires_at = '-infinity'"
_SET_BACK = "UPDATE fencing.lease SET token = least(token, %s)"


class PostgresServers(LockServers):
    """The guarded database grants the leases, too; what befalls it befalls both."""

    name = "postgres"
    # The turn of a waiter that has died or stands still is kept for so long.
    lingers = QUEUE_SECONDS

    def __init__(self) -> None:
        self._stage: Stage | None = None

    def start(self, stage: Stage) -> None:
        """Install what it needs, which a guarded database has already."""
        from fencing.migration import install  # noqa: PLC0415 - of no worker's concern

        self._stage = stage
        if not stage.settings.guarded:
            install(self.owner_url)

    def url(self, worker: str) -> str:
        """The database's address."""
        assert self._stage is not None  # noqa: S101 - it was started
        return self._stage.database_url(worker)

    @property
    def owner_url(self) -> str:
        """Its address, as its owner."""
        assert self._stage is not None  # noqa: S101 - it was started
        return self._stage.postgres.url

    def close(self) -> None:
        """The database is the stage's to end."""

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to its locks, by whoever may."""
        return (
            lock_fault("locks deleted", self._forget, breaks_order=True),
            lock_fault("locks ended", self._end, breaks_order=True),
            lock_fault("tokens set back", self._set_back, breaks_order=True),
        )

    def _forget(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        yield from self._execute(_FORGET)

    def _end(self, _stage: Stage, _chance: Random) -> Generator[float, None, None]:
        yield from self._execute(_END)

    def _set_back(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        # Of those that are held, too; nobody renews them under their old token any more.
        yield from self._execute(_SET_BACK, chance.randint(0, 5))

    def _execute(self, statement: str, *values: int) -> Generator[float, None, None]:
        with missed_if(psycopg.OperationalError), self.connected() as connection:
            connection.execute(statement, values)
        yield 0.0

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        """A connection of the owner's, which does not wait long for anybody."""
        url = make_url(self.owner_url).set(drivername="postgresql")
        with psycopg.connect(
            url.render_as_string(hide_password=False),
            autocommit=True,
            connect_timeout=2,
            options="-c statement_timeout=1000",
        ) as connection:
            yield connection


class PostgresApartServers(PostgresServers):
    """A server of its own grants the leases of a database that is elsewhere."""

    name = "postgres-apart"

    def __init__(self) -> None:
        super().__init__()
        self._server = PostgresProcess({"log_min_messages": "fatal"}, in_memory=True)

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start it, and install schema ``fencing``."""
        from fencing.migration import install  # noqa: PLC0415 - of no worker's concern

        self._server.start()
        install(self.owner_url)

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """Its address."""
        return make_url(self._server.url).set(drivername="postgresql").render_as_string()

    @property
    def owner_url(self) -> str:
        """Its address, as its owner."""
        return self._server.url

    def close(self) -> None:
        """End it."""
        self._server.close()

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it: with its locks, and as to any server."""
        return (
            *super().faults(),
            lock_fault("lock database killed", self._kill),
            lock_fault("lock database stopped", self._stop),
        )

    def _kill(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """SIGKILL of all of it; what it has acknowledged it keeps."""
        yield from kill(self._server, some_leases(stage, chance))

    def _stop(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """SIGSTOP of each of its processes."""
        with missed_if(psycopg.OperationalError), self.connected() as connection:
            ours = connection.info.backend_pid
            pids = [pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity")]
        stopped = [pid for pid in pids if pid != ours and _send(pid, signal.SIGSTOP)]
        try:
            self._server.suspend()
            yield some_leases(stage, chance)
        finally:
            self._server.resume()
            for pid in stopped:
                _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
