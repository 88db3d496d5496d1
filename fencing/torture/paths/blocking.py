"""The ways to the database without asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import IsolationLevel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from fencing import Guard, fence, postgres
from fencing.torture.driver import listen_to_connections, listen_to_waits
from fencing.torture.paths.options import (
    LEAK,
    executing,
    libpq_url,
    psycopg_options,
    without_scheme,
)
from fencing.torture.rows import OrmRows, SqlRows, as_psycopg
from fencing.torture.settings import ISOLATION_LEVELS
from fencing.torture.steps import (
    Acquire,
    Leak,
    Readmit,
    Release,
    Resolve,
    Together,
    Transact,
    Trespass,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencing.lease import BaseLease
    from fencing.service import LockService
    from fencing.torture.rows import Rows
    from fencing.torture.settings import Plan
    from fencing.torture.steps import Step

__all__ = ["CorePath", "ExplicitPath", "OrmPath", "PsycopgPath", "SyncPath"]

_RESOLVE_TIMEOUT = 5.0


class SyncPath(ABC):
    """A way without asyncio; a context manager that closes its connections.

    Args:
        plan: What the worker was told.
        locks: Who grants leases.
        waits_for_answer: Called when something was sent and its answer is waited for.
    """

    def __init__(
        self, plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._locks = locks
        self._waits_for_answer = waits_for_answer
        self._resources = ExitStack()
        self._held = ExitStack()
        self._leases: tuple[BaseLease, ...] = ()

    def perform(self, step: Step) -> Any:  # noqa: ANN401 - each step's own
        """Perform one step."""
        match step:
            case Acquire():
                return self._acquire(step)
            case Transact(isolation, body):
                self._transact(isolation, body, self._leases)
            case Together(steps):
                return self._together(steps)
            case Trespass(isolation, body):
                self._trespass(isolation, body)
            case Leak(isolation, body):
                self._leak(isolation, body)
            case Resolve(error):
                return error.outcome(_RESOLVE_TIMEOUT)
            case Readmit():
                for lease in self._leases:
                    self._grants().admit(lease)
            case Release():
                self._leases = ()
                held, self._held = self._held, ExitStack()
                held.close()
        return None

    def _acquire(self, step: Acquire) -> Sequence[BaseLease]:
        granting = self._grants()
        options: dict[str, Any] = {
            "ttl": step.ttl, "blocking_timeout": step.patience, "keepalive": step.keepalive,
        }  # fmt: skip
        if len(step.resources) == 1:
            lease = granting.acquire(step.resources[0], **options)
            self._held.enter_context(lease)
            self._leases = (lease,)
        else:
            group = granting.acquire_all(step.resources, **options)
            self._held.enter_context(group)
            self._leases = tuple(group)
        return self._leases

    @abstractmethod
    def _grants(self) -> Any:  # noqa: ANN401 - a guard of some kind, or the lock service alone
        """Who is asked for leases."""

    @abstractmethod
    def _transact(
        self, isolation: str, body: Callable[[Rows], None], leases: Sequence[BaseLease]
    ) -> None:
        """Do work in a transaction under leases."""

    def _together(self, steps: Sequence[Transact]) -> list[BaseException | None]:
        """Each in a thread of its own, to which nothing is ambient."""
        with ThreadPoolExecutor(len(steps)) as pool:
            futures = [
                pool.submit(self._alongside, step.isolation, step.body, self._leases)
                for step in steps
            ]
        return [future.exception() for future in futures]

    def _alongside(
        self, isolation: str, body: Callable[[Rows], None], leases: Sequence[BaseLease]
    ) -> None:
        """Do work in a transaction under leases in a session of its own, from any thread."""
        with self._bare() as connection:
            connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
            begun = (
                postgres.transaction(connection, *leases)
                if self._plan.settings.guarded
                else connection.transaction()
            )
            with begun:
                body(_rows_of(connection))

    def _trespass(self, isolation: str, body: Callable[[Rows], None]) -> None:
        with self._bare() as connection:
            connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
            with postgres.errors_translated(connection), connection.transaction():
                body(_rows_of(connection))

    def _leak(self, isolation: str, body: Callable[[Rows], None]) -> None:
        with self._bare() as connection:
            connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
            with postgres.transaction(connection, *self._leases):
                connection.execute(LEAK)
            with postgres.errors_translated(connection), connection.transaction():
                body(_rows_of(connection))

    @contextmanager
    def _bare(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of psycopg's that knows nothing of leases."""
        with psycopg.connect(
            libpq_url(self._plan.database_url), **psycopg_options(self._plan)
        ) as connection:
            yield connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()
        self._resources.close()


class CorePath(SyncPath):
    """Connections of an engine, and the leases ambient."""

    def __init__(
        self, plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]
    ) -> None:
        super().__init__(plan, locks, waits_for_answer)
        engine = create_engine(
            f"postgresql+psycopg{without_scheme(plan.database_url)}",
            pool_size=2, max_overflow=0,
            connect_args=psycopg_options(plan),
        )  # fmt: skip
        self._resources.callback(engine.dispose)
        listen_to_connections(engine, waits_for_answer)
        self._guard = (
            self._resources.enter_context(Guard(locks, engine, evict_after=plan.evict_after))
            if plan.settings.guarded else None
        )  # fmt: skip
        self._engines = {
            level: engine.execution_options(isolation_level=level) for level in ISOLATION_LEVELS
        }

    def _grants(self) -> Any:  # noqa: ANN401 - as its base has it
        return self._guard or self._locks

    def _leak(self, isolation: str, body: Callable[[Rows], None]) -> None:
        # The connection goes back to its pool as it is.
        suspended = self._guard.suspended() if self._guard else nullcontext()
        with self._engines[isolation].connect() as connection:
            with connection.begin():
                connection.exec_driver_sql(LEAK)
            with suspended, connection.begin():
                body(SqlRows(executing(connection)))

    def _alongside(
        self, isolation: str, body: Callable[[Rows], None], leases: Sequence[BaseLease]
    ) -> None:
        with Session(self._engines[isolation]) as session:
            fenced = fence(session, *leases) if self._guard else nullcontext()
            with fenced, session.begin():
                body(OrmRows(session))

    def _transact(
        self,
        isolation: str,
        body: Callable[[Rows], None],
        leases: Sequence[BaseLease],  # noqa: ARG002 - they are ambient
    ) -> None:
        with self._engines[isolation].connect() as connection, connection.begin():
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the engine's
            body(SqlRows(executing(connection), driver))


class OrmPath(CorePath):
    """Sessions, and the leases ambient."""

    def _transact(
        self,
        isolation: str,
        body: Callable[[Rows], None],
        leases: Sequence[BaseLease],  # noqa: ARG002 - they are ambient
    ) -> None:
        with Session(self._engines[isolation]) as session, session.begin():
            body(OrmRows(session))


class ExplicitPath(CorePath):
    """Sessions that are told their leases by ``fence()``, with nothing ambient."""

    def _transact(
        self, isolation: str, body: Callable[[Rows], None], leases: Sequence[BaseLease]
    ) -> None:
        self._alongside(isolation, body, leases)


class PsycopgPath(SyncPath):
    """A connection of psycopg's, without SQLAlchemy."""

    def __init__(
        self, plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]
    ) -> None:
        super().__init__(plan, locks, waits_for_answer)
        self._guard = (
            self._resources.enter_context(
                postgres.PsycopgGuard(
                    locks, libpq_url(plan.database_url), evict_after=plan.evict_after
                )
            )
            if plan.settings.guarded else None
        )  # fmt: skip
        self._connection: psycopg.Connection[Any] | None = None

    def _grants(self) -> Any:  # noqa: ANN401 - as its base has it
        return self._guard or self._locks

    def _transact(
        self, isolation: str, body: Callable[[Rows], None], leases: Sequence[BaseLease]
    ) -> None:
        connection = self._connected()
        connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
        begun = (
            postgres.transaction(connection, *leases) if self._guard else connection.transaction()
        )
        with begun:
            body(_rows_of(connection))

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                libpq_url(self._plan.database_url), **psycopg_options(self._plan)
            )
            listen_to_waits(self._connection, self._waits_for_answer)
            self._resources.callback(self._connection.close)
        return self._connection


def _rows_of(connection: psycopg.Connection[Any]) -> SqlRows:
    def execute(statement: str, parameters: dict[str, Any]) -> Sequence[Any]:
        cursor = connection.execute(as_psycopg(statement), parameters)
        return cursor.fetchall() if cursor.description else ()

    return SqlRows(execute, connection)
