"""The ways from a worker to the database: each an entrance that users have.

A path performs the steps of a unit (:mod:`fencing.torture.steps`). What a path needs is imported
only when it is opened, as a worker takes one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.service import AsyncLockService, LockService
    from fencing.torture.paths.blocking import SyncPath
    from fencing.torture.paths.nonblocking import AsyncPath
    from fencing.torture.settings import Plan

__all__ = ["ASYNC_PATHS", "PATHS", "SYNC_PATHS", "open_async", "open_sync"]

SYNC_PATHS = {
    "core": "CorePath", "orm": "OrmPath", "explicit": "ExplicitPath", "psycopg": "PsycopgPath",
}  # fmt: skip
"""Class in :mod:`fencing.torture.paths.blocking`, by the path's name."""
ASYNC_PATHS = {"async": "psycopg", "asyncpg": "asyncpg"}
"""Driver, by the path's name."""
PATHS = (*SYNC_PATHS, *ASYNC_PATHS)


def open_sync(plan: Plan, locks: LockService, waits_for_answer: Callable[[], None]) -> SyncPath:
    """The synchronous path that a plan names."""
    from fencing.torture.paths import blocking  # noqa: PLC0415 - see above

    kind: type[SyncPath] = getattr(blocking, SYNC_PATHS[plan.path])
    return kind(plan, locks, waits_for_answer)


def open_async(
    plan: Plan, locks: AsyncLockService, waits_for_answer: Callable[[], None]
) -> AsyncPath:
    """The path of asyncio that a plan names."""
    from fencing.torture.paths.nonblocking import AsyncPath  # noqa: PLC0415 - see above

    return AsyncPath(plan, locks, waits_for_answer, ASYNC_PATHS[plan.path])
