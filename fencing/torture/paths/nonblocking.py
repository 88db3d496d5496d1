"""The ways to the database with asyncio."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from fencing import AsyncGuard
from fencing.torture.driver import listen_to_connections
from fencing.torture.paths.options import (
    LEAK,
    asyncpg_options,
    executing,
    psycopg_options,
    without_scheme,
)
from fencing.torture.rows import OrmRows, SqlRows
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
    from collections.abc import Callable, Sequence

    from fencing.lease import BaseLease
    from fencing.service import AsyncLockService
    from fencing.torture.rows import Rows
    from fencing.torture.settings import Plan
    from fencing.torture.steps import Step

__all__ = ["AsyncPath"]

_RESOLVE_TIMEOUT = 5.0


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
        options = psycopg_options(plan) if driver == "psycopg" else asyncpg_options(plan)
        self._engine = create_async_engine(
            f"postgresql+{driver}{without_scheme(plan.database_url)}",
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
            case Transact():
                await self._transact(step)
            case Together(steps):
                # Each in a task of its own, to which the leases are ambient.
                each = (self._transact(one) for one in steps)
                return await asyncio.gather(*each, return_exceptions=True)
            case Trespass(isolation, body):
                await self._trespass(isolation, body)
            case Leak(isolation, body):
                await self._leak(isolation, body)
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

    async def _transact(self, step: Transact) -> None:
        async with AsyncSession(self._engines[step.isolation]) as session, session.begin():
            await session.run_sync(lambda plain: step.body(OrmRows(plain)))

    async def _leak(self, isolation: str, body: Callable[[Rows], None]) -> None:
        suspended = self._guard.suspended() if self._guard else nullcontext()
        async with self._engines[isolation].connect() as connection:
            async with connection.begin():
                await connection.exec_driver_sql(LEAK)
            with suspended:
                async with connection.begin():
                    await connection.run_sync(lambda plain: body(SqlRows(executing(plain))))

    async def _trespass(self, isolation: str, body: Callable[[Rows], None]) -> None:
        suspended = self._guard.suspended() if self._guard else nullcontext()
        with suspended:
            async with self._engines[isolation].begin() as connection:
                await connection.run_sync(lambda plain: body(SqlRows(executing(plain))))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._held.aclose()
        if self._guard is not None:
            await self._guard.aclose()
        await self._engine.dispose()
