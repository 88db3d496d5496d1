"""Where a run takes place: servers, files, workers."""

from __future__ import annotations

import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Self

from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from fencing.embedded import EmbeddedServerError, PostgresProcess
from fencing.torture.installed import missing_paths
from fencing.torture.installing import create_tables
from fencing.torture.processes import WorkerProcess
from fencing.torture.settings import Plan
from fencing.torture.tables import ROLE
from fencing.torture.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Engine

    from fencing.embedded.server import LocalServer
    from fencing.torture.services.base import LockServers
    from fencing.torture.settings import Settings

__all__ = ["POSTGRES_SETTINGS", "Stage"]

POSTGRES_SETTINGS: Mapping[str, str] = {
    "log_min_messages": "fatal",
    "restart_after_crash": "on",
}

_STOPS, _DEATHS = 0.004, 0.0005
"""How likely a worker stops, or dies, at each point it comes to, with a fault in each lease."""


_EVICTS = {2: 0.4, 4: 1.0}
_OF = 5
"""Which of five workers evict, and after how many leases."""

_RECOVERY = 30.0
"""How long the database may take to serve again, in seconds."""


class Stage:
    """The database, the servers of a lock service, and the workers; a context manager.

    Args:
        settings: The run's.
        locks: The servers of the lock service, not started.
        launch: Starts a worker; see :class:`~fencing.torture.processes.WorkerProcess`.
        prepare: Called with the owner's engine when the tables are there: changes the database.
        postgres: A server that runs, in which it makes a database of its own; by default one of
            its own.

    Attributes:
        postgres: The database's server.
        owner: An engine of the database's owner, without a guard and without a pool.
        role: Who the workers are in the database.
        workers: Those that live, or have just died.
        ways: The ways that workers take to the servers.
        altered: Whether the database was changed on purpose, and must not be mended.
        records: The folder of their files.
    """

    role = ROLE

    def __init__(
        self,
        settings: Settings,
        locks: LockServers,
        *,
        launch: Callable[..., WorkerProcess] = WorkerProcess,
        prepare: Callable[[Engine], None] | None = None,
        postgres: PostgresProcess | None = None,
    ) -> None:
        self.settings = settings
        self.locks = locks
        self.workers: list[WorkerProcess] = []
        self.altered = prepare is not None
        self._launch = launch
        self._prepare = prepare
        self._shared = postgres
        self._incarnations: dict[int, int] = {}
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            directory = started.enter_context(
                tempfile.TemporaryDirectory(prefix="fencing-torture-")
            )
            self.records = Path(directory)
            self.postgres = self._shared or started.enter_context(
                PostgresProcess(POSTGRES_SETTINGS, in_memory=True)
            )
            self._url = make_url(self.postgres.url)
            if self._shared is not None:
                name = started.enter_context(_database(self._shared))
                self._url = self._url.set(database=name)
            self.owner = create_engine(
                self._url, poolclass=NullPool, connect_args={"connect_timeout": 10}
            )
            create_tables(self.owner, self.settings)
            if self._prepare is not None:
                self._prepare(self.owner)
            self.ways = started.enter_context(
                Ways(self.settings, self._database_url(), self.records)
            )
            started.enter_context(self.locks)
            self.locks.start(self)
            started.callback(self._end_workers)
            self._resources = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    @property
    def left_out(self) -> Sequence[str]:
        """What the run goes without, as it is not installed; and what would bring it."""
        return (*missing_paths(self.settings), *self.ways.left_out)

    def start_worker(
        self, number: int, *, stops: bool = True, deaths: bool = True, **changes: object
    ) -> None:
        """Start a worker, or the next one in the place of one that has ended.

        Args:
            number: Its place, from 0.
            stops: Whether it stops by itself now and then.
            deaths: Whether it dies by itself now and then.
            changes: Fields of its :class:`Plan` that are given.
        """
        incarnation = self._incarnations.get(number, -1) + 1
        self._incarnations[number] = incarnation
        name = f"w{number}.{incarnation}"
        chance = Random(f"worker {self.settings.seed} {name}")  # noqa: S311 - to be repeated
        paths = self.settings.paths
        facts: dict[str, object] = {
            "worker": name,
            "seed": chance.getrandbits(63),
            "path": paths[(self.settings.seed + number + incarnation) % len(paths)],
            "database_url": self.ways.database_url(number),
            "locks_url": self.ways.locks_url(number, self.locks.url(name)),
            "pooled": self.ways.is_pooled(number),
            "evict_after": self._evict_after(number),
            "record": str(self.records / f"{name}.jsonl"),
            "settings": self.settings,
            "stops": _STOPS / self.settings.calm if stops else 0.0,
            "deaths": _DEATHS / self.settings.calm if deaths else 0.0,
            **changes,
        }
        plan = Plan(**facts)  # type: ignore[arg-type]  # checked there
        worker = self._launch(plan, environment=self.ways.environment(number))
        self.workers.append(worker)

    def database_url(self, worker: str) -> str:
        """Where a worker finds the database, as its role; past the pooler."""
        number = int(worker.removeprefix("w").partition(".")[0])
        return (
            self._database_url() if self.ways.is_pooled(number) else self.ways.database_url(number)
        )

    def _database_url(self) -> str:
        url = self._url.set(drivername="postgresql", username=ROLE)
        return url.render_as_string(hide_password=False)

    def _evict_after(self, number: int) -> float | None:
        """Two of five end the sessions in their way; one of them through the pooler."""
        return self.settings.ttl * _EVICTS[number % _OF] if number % _OF in _EVICTS else None

    def await_database(self) -> None:
        """Wait until the database serves, after a crash say.

        Raises:
            EmbeddedServerError: It does not in 30 s.
        """
        deadline = time.monotonic() + _RECOVERY
        while True:
            try:
                with self.owner.connect():
                    return
            except OperationalError as error:
                if time.monotonic() > deadline:
                    message = f"PostgreSQL does not serve any more:\n{self.postgres.process.tail()}"
                    raise EmbeddedServerError(message) from error
            time.sleep(0.01)

    def keep(self, server: LocalServer) -> None:
        """End a server with this stage."""
        self._resources.callback(server.close)

    @property
    def is_shared(self) -> bool:
        """Whether others use the database's server as well."""
        return self._shared is not None

    def forget(self, worker: WorkerProcess) -> None:
        """Close what is left of a worker that has ended."""
        self.workers.remove(worker)
        worker.close()

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        self.owner.dispose()


@contextmanager
def _database(server: PostgresProcess) -> Iterator[str]:
    """A database of a server that others use as well."""
    name = f"torture_{uuid.uuid4().hex}"
    engine = create_engine(server.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield name
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
