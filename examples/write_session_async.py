"""Wrap an async database session in a lease: write_session.py, awaited.

fencing dev -- python examples/write_session_async.py
"""

import asyncio
import os

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencing import AsyncGuard, AsyncRedisLockService, UnfencedWriteError, fenced_by, resource_of


class Base(DeclarativeBase):
    pass


@fenced_by("example-async-account:{id}")  # which lease a row needs
class Account(Base):
    __tablename__ = "example_async_accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def migrate(connection: Connection) -> None:
    """What your migrations do; the guard comes with the table that declares it."""
    Base.metadata.drop_all(connection)
    Base.metadata.create_all(connection)


async def withdraw(guard: AsyncGuard, engine: AsyncEngine, account_id: int, amount: int) -> None:
    async with (
        guard.acquire(resource_of(Account, id=account_id), ttl=10) as lease,
        AsyncSession(engine) as session,
        session.begin(),  # this transaction, and every other one in the block, presents the lease
    ):
        account = await session.get_one(Account, account_id)
        account.balance -= amount
        print(f"token {lease.token}: {account.balance + amount} - {amount} = {account.balance}")


async def main() -> None:
    engine = create_async_engine(os.environ["FENCING_DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(migrate)

    async with (
        AsyncRedisLockService.from_url(os.environ["FENCING_REDIS_URL"]) as locks,
        AsyncGuard(locks, engine) as guard,
    ):
        async with (
            guard.acquire(resource_of(Account, id=42), ttl=10) as lease,
            AsyncSession(engine) as session,
            session.begin(),
        ):
            session.add(Account(id=42, balance=100))
            print(f"token {lease.token}: opened with 100")

        # Three tasks at once; each waits for its turn.
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(withdraw(guard, engine, 42, 20))

        try:
            async with AsyncSession(engine) as session, session.begin():  # no lease
                account = await session.get_one(Account, 42)
                account.balance = 1_000_000
        except UnfencedWriteError as error:
            print(f"refused: {error}")

    async with AsyncSession(engine) as session:  # reading needs no lease
        print(f"left: {(await session.get_one(Account, 42)).balance}")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
