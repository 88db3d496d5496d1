"""Wrap a database session in a lease: whoever is overtaken cannot write.

fencing dev -- python examples/write_session.py
"""

import os

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import Guard, RedisLockService, UnfencedWriteError, fenced_by, resource_of


class Base(DeclarativeBase):
    pass


@fenced_by("example-account:{id}")  # which lease a row needs
class Account(Base):
    __tablename__ = "example_accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def migrate(connection: Connection) -> None:
    """What your migrations do; the guard comes with the table that declares it."""
    Base.metadata.drop_all(connection)
    Base.metadata.create_all(connection)


def withdraw(guard: Guard, engine: Engine, account_id: int, amount: int) -> None:
    with (
        guard.acquire(resource_of(Account, id=account_id), ttl=10) as lease,
        Session(engine) as session,
        session.begin(),  # this transaction, and every other one in the block, presents the lease
    ):
        account = session.get_one(Account, account_id)
        account.balance -= amount
        print(f"token {lease.token}: {account.balance + amount} - {amount} = {account.balance}")


def main() -> None:
    engine = create_engine(os.environ["FENCING_DATABASE_URL"])
    with engine.begin() as connection:
        migrate(connection)

    with (
        RedisLockService.from_url(os.environ["FENCING_REDIS_URL"]) as locks,
        Guard(locks, engine) as guard,
    ):
        with (
            guard.acquire(resource_of(Account, id=42), ttl=10) as lease,
            Session(engine) as session,
            session.begin(),
        ):
            session.add(Account(id=42, balance=100))
            print(f"token {lease.token}: opened with 100")

        withdraw(guard, engine, 42, 30)
        withdraw(guard, engine, 42, 20)

        try:
            with Session(engine) as session, session.begin():  # no lease
                session.get_one(Account, 42).balance = 1_000_000
        except UnfencedWriteError as error:
            print(f"refused: {error}")

    with Session(engine) as session:  # reading needs no lease
        print(f"left: {session.get_one(Account, 42).balance}")
    engine.dispose()


if __name__ == "__main__":
    main()
