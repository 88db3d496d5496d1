"""How the public names look to a type checker; checked by mypy, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import (
    AsyncGuard,
    AsyncLease,
    AsyncRedisLockService,
    Guard,
    Lease,
    LockNotAcquiredError,
    RedisLockService,
    StaleFenceError,
    UnfencedWriteError,
    fence,
    fenced_by,
    resource_of,
)
from fencing.compat.redis import AsyncFencedLock, FencedLock
from fencing.migration import (
    alter_fence,
    fence_table,
    include_name,
    include_object,
    including,
    upgrade,
)

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from alembic.runtime.environment import EnvironmentContext, IncludeObjectFn
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

    from fencing import AsyncLockService, LockService


class Base(DeclarativeBase):
    pass


@fenced_by("account:{id}", operations=("update", "delete"))
class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def sync(client: redis.Redis, engine: Engine) -> None:
    locks: LockService = RedisLockService(client, namespace="bank")
    guard = Guard(locks, engine)
    with guard.acquire(resource_of(Account, id=42), ttl=10, blocking_timeout=2.5) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
        assert_type(lease.remaining, float)
        assert_type(lease.wait_lost(0.1), bool)
        with Session(engine) as session:
            # The decorator returns the class it was given.
            assert_type(session.get_one(Account, 42), Account)
    assert_type(guard.try_acquire("account:42"), Lease | None)

    @guard.holding("account:{account_id}", ttl=10)
    def withdraw(account_id: int, amount: float = 1.0) -> str:
        return f"{account_id}: {amount}"

    assert_type(withdraw(42, amount=2.5), str)
    with guard.suspended(), Session(engine) as session, fence(session, lease):
        guard.admit(lease)


async def asynchronous(
    client: redis.asyncio.Redis, engine: AsyncEngine, session: AsyncSession
) -> None:
    locks: AsyncLockService = AsyncRedisLockService(client)
    guard = AsyncGuard(locks, engine)
    async with guard.acquire("account:42") as lease:
        assert_type(lease, AsyncLease)
        await lease.renew(ttl=20)
    awaited = await guard.acquire("account:42")
    assert_type(awaited, AsyncLease)
    assert_type(await guard.try_acquire("account:42"), AsyncLease | None)
    with fence(session, awaited):
        await guard.admit(awaited)

    @guard.holding("account:{account_id}")
    async def withdraw(account_id: int) -> int:
        return account_id

    assert_type(await withdraw(42), int)


def stand_in(client: redis.Redis, guard: Guard) -> None:
    made: FencedLock = client.lock("account:42", timeout=10, lock_class=FencedLock)
    with made as lock:
        assert_type(lock.lease, Lease)
        guard.admit(lock.lease)


async def async_stand_in(client: redis.asyncio.Redis, guard: AsyncGuard) -> None:
    async with AsyncFencedLock(client, "account:42", timeout=10) as lock:
        assert_type(lock.lease, AsyncLease)
        await guard.admit(lock.lease)


def migrate(context: EnvironmentContext, connection: Connection, own: IncludeObjectFn) -> None:
    context.configure(connection=connection, include_object=include_object)
    context.configure(connection=connection, include_object=including(own))
    context.configure(connection=connection, include_name=include_name)
    fence_table(connection, "accounts", resource="account:{id}", mode="observe")
    alter_fence(connection, "accounts", mode="enforce")
    assert_type(upgrade(connection), bool)


def facts(error: StaleFenceError | UnfencedWriteError | LockNotAcquiredError) -> None:
    if isinstance(error, StaleFenceError):
        assert_type(error.current_token, int | None)
    elif isinstance(error, UnfencedWriteError):
        assert_type(error.table, str | None)
    else:
        assert_type(error.blocked_by, tuple[int, ...])
