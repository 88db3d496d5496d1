"""The ways from a worker to the database: each an entrance that users have.

A path performs the steps of a unit (:mod:`fencing.torture.steps`). The synchronous ones and those
of asyncio stand side by side.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import IsolationLevel
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, fence, postgres
from fencing.schema.names import CLAIM_SETTING
from fencing.torture.driver import listen_to_connections, listen_to_waits
from fencing.torture.rows import OrmRows, SqlRows, as_psycopg
from fencing.torture.settings import ISOLATION_LEVELS
from fencing.torture.steps import Acquire, Leak, Readmit, Release, Resolve, Transact, Trespass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from fencing.lease import BaseLease
    from fencing.service import AsyncLockService, LockService
    from fencing.torture.rows import Rows
    from fencing.torture.settings import Plan
    from fencing.torture.steps import Step

__all__ = ["ASYNC_PATHS", "PATHS", "SYNC_PATHS", "AsyncPath", "SyncPath", "open_async", "open_sync"]

_RESOLVE_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 5


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

    def _trespass(self, isolation: str, body: Callable[[Rows], None]) -> None:
        with self._bare() as connection:
            connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
            with postgres.errors_translated(connection), connection.transaction():
                body(_rows_of(connection))

    def _leak(self, isolation: str, body: Callable[[Rows], None]) -> None:
        with self._bare() as connection:
            connection.isolation_level = IsolationLevel[isolation.replace(" ", "_")]
            with postgres.transaction(connection, *self._leases):
                connection.execute(
                    "SELECT set_config(%(claim)s, current_setting(%(claim)s), false)",
                    {"claim": CLAIM_SETTING},
                )
            with postgres.errors_translated(connection), connection.transaction():
                body(_rows_of(connection))

    @contextmanager
    def _bare(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of psycopg's that knows nothing of leases."""
        with psycopg.connect(
            libpq_url(self._plan.database_url), **_psycopg_options(self._plan)
        ) as connection:
            yield connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()
        self._resources.close()


class CorePath(SyncPath):
    """Connections of an engine, and the leases ambient."""

    explicit = False

    def __init__(
        self, plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]
    ) -> None:
        super().__init__(plan, locks, waits_for_answer)
        engine = create_engine(
            f"postgresql+psycopg{_without_scheme(plan.database_url)}",
            pool_size=2, max_overflow=0,
            connect_args=_psycopg_options(plan),
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

    def _transact(
        self,
        isolation: str,
        body: Callable[[Rows], None],
        leases: Sequence[BaseLease],  # noqa: ARG002 - they are ambient
    ) -> None:
        with self._engines[isolation].connect() as connection, connection.begin():
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)  # noqa: S101 - the engine's
            body(SqlRows(_executing(connection), driver))


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
        with Session(self._engines[isolation]) as session:
            fenced = fence(session, *leases) if self._guard else nullcontext()
            with fenced, session.begin():
                body(OrmRows(session))


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
                libpq_url(self._plan.database_url), **_psycopg_options(self._plan)
            )
            listen_to_waits(self._connection, self._waits_for_answer)
            self._resources.callback(self._connection.close)
        return self._connection


class AsyncPath:
    """Sessions of asyncio; an async context manager that closes its connections.

    Args:
        plan: What the worker was told.
        locks: Who grants leases.
        waits_for_answer: As of :class:`SyncPath`; psycopg tells, asyncpg does not.
        driver: ``"psycopg"`` or ``"asyncpg"``.
    """

    def __init__(
        self,
        plan: Plan,
        locks: AsyncLockService,
        waits_for_answer: Callable[[], None],
        driver: str,
    ) -> None:
        self._plan = plan
        self._locks = locks
        options = _psycopg_options(plan) if driver == "psycopg" else _asyncpg_options(plan)
        self._engine = create_async_engine(
            f"postgresql+{driver}{_without_scheme(plan.database_url)}",
            pool_size=2, max_overflow=0, connect_args=options,
        )  # fmt: skip
        listen_to_connections(self._engine.sync_engine, waits_for_answer)
        self._guard = (
            AsyncGuard(locks, self._engine, evict_after=plan.evict_after)
            if plan.settings.guarded else None
        )  # fmt: skip
        self._engines = {
            level: self._engine.execution_options(isolation_level=level)
            for level in ISOLATION_LEVELS
        }
        self._held = AsyncExitStack()
        self._leases: tuple[BaseLease, ...] = ()

    async def perform(self, step: Step) -> Any:  # noqa: ANN401 - each step's own
        """Perform one step."""
        match step:
            case Acquire():
                return await self._acquire(step)
            case Transact(isolation, body):
                async with AsyncSession(self._engines[isolation]) as session, session.begin():
                    await session.run_sync(lambda plain: body(OrmRows(plain)))
            case Trespass(isolation, body) | Leak(isolation, body):
                await self._trespass(isolation, body)
            case Resolve(error):
                return await error.aoutcome(_RESOLVE_TIMEOUT)
            case Readmit():
                for lease in self._leases:
                    await (self._guard or self._locks).admit(lease)  # type: ignore[union-attr, arg-type]  # only with a guard
            case Release():
                self._leases = ()
                held, self._held = self._held, AsyncExitStack()
                await held.aclose()
        return None

    async def _acquire(self, step: Acquire) -> Sequence[BaseLease]:
        granting: Any = self._guard or self._locks
        options: dict[str, Any] = {
            "ttl": step.ttl, "blocking_timeout": step.patience, "keepalive": step.keepalive,
        }  # fmt: skip
        if len(step.resources) == 1:
            lease = await self._held.enter_async_context(
                granting.acquire(step.resources[0], **options)
            )
            self._leases = (lease,)
        else:
            group = await self._held.enter_async_context(
                granting.acquire_all(step.resources, **options)
            )
            self._leases = tuple(group)
        return self._leases

    async def _trespass(self, isolation: str, body: Callable[[Rows], None]) -> None:
        suspended = self._guard.suspended() if self._guard else nullcontext()
        with suspended:
            async with self._engines[isolation].begin() as connection:
                await connection.run_sync(lambda plain: body(SqlRows(_executing(plain))))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._held.aclose()
        if self._guard is not None:
            await self._guard.aclose()
        await self._engine.dispose()


SYNC_PATHS = {
    "core": CorePath, "orm": OrmPath, "explicit": ExplicitPath, "psycopg": PsycopgPath,
}  # fmt: skip
ASYNC_PATHS = {"async": "psycopg", "asyncpg": "asyncpg"}
PATHS = (*SYNC_PATHS, *ASYNC_PATHS)


def open_sync(plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]) -> SyncPath:
    """The synchronous path that a plan names."""
    return SYNC_PATHS[plan.path](plan, locks, waits_for_answer)


def open_async(
    plan: Plan, locks: AsyncLockService, waits_for_answer: Callable[[], None]
) -> AsyncPath:
    """The path of asyncio that a plan names."""
    return AsyncPath(plan, locks, waits_for_answer, ASYNC_PATHS[plan.path])


def _psycopg_options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT}
    return {**options, "prepare_threshold": None} if plan.pooled else options


def _asyncpg_options(plan: Plan) -> dict[str, Any]:
    options: dict[str, Any] = {"timeout": _CONNECT_TIMEOUT}
    unprepared = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    return {**options, **unprepared} if plan.pooled else options


def libpq_url(url: str) -> str:
    """An address for libpq."""
    return f"postgresql{_without_scheme(url)}"


def _without_scheme(url: str) -> str:
    return re.sub(r"^\w+(\+\w+)?", "", url)


def _executing(connection: Connection) -> Callable[[str, dict[str, Any]], Sequence[Any]]:
    def execute(statement: str, parameters: dict[str, Any]) -> Sequence[Any]:
        result = connection.execute(text(statement), parameters)
        return result.all() if result.returns_rows else ()

    return execute


def _rows_of(connection: psycopg.Connection[Any]) -> SqlRows:
    def execute(statement: str, parameters: dict[str, Any]) -> Sequence[Any]:
        cursor = connection.execute(as_psycopg(statement), parameters)
        return cursor.fetchall() if cursor.description else ()

    return SqlRows(execute, connection)
