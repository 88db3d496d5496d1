"""Two repositories: one that knows nothing of locks, and one that declares its leases.

fencing dev -- python examples/repository.py
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import Guard, RedisLockService, UnfencedWriteError, fenced_by, resource_of
from fencing.migration import fence_table


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "example_stock"

    item: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int]


class StockRepository:
    """Code as it was before there was a guard; none of it has to change."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, item: str, count: int) -> None:
        self._session.add(Stock(item=item, count=count))

    def take(self, item: str, count: int) -> int:
        stock = self._session.get_one(Stock, item)
        stock.count -= count
        return stock.count


@fenced_by("example-order:{customer}")  # several rows may share a lease
class Order(Base):
    __tablename__ = "example_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]


class OrderRepository:
    """The orders of one customer, to be changed under the lease that the model declares."""

    def __init__(self, session: Session, customer: str) -> None:
        self._session = session
        self._customer = customer

    @classmethod
    @contextmanager
    def changing(cls, guard: Guard, engine: Engine, customer: str) -> Iterator["OrderRepository"]:
        with (
            guard.acquire(resource_of(Order, customer=customer), ttl=10),
            Session(engine) as session,
            session.begin(),
        ):
            yield cls(session, customer)

    def place(self, item: str) -> None:
        self._session.add(Order(customer=self._customer, item=item))

    def items(self) -> list[str]:
        orders = select(Order.item).where(Order.customer == self._customer).order_by(Order.id)
        return list(self._session.scalars(orders))


def migrate(connection: Connection) -> None:
    """What your migrations do."""
    Base.metadata.drop_all(connection)
    Base.metadata.create_all(connection)  # orders, with the guard they declare
    fence_table(connection, "example_stock", resource="example-stock:{item}")


def main() -> None:
    engine = create_engine(os.environ["FENCING_DATABASE_URL"])
    with engine.begin() as connection:
        migrate(connection)

    with (
        RedisLockService.from_url(os.environ["FENCING_REDIS_URL"]) as locks,
        Guard(locks, engine) as guard,
    ):
        # Guarded from outside: the lease is in force for whatever is called in its block.
        with (
            guard.acquire("example-stock:tea", ttl=10),
            Session(engine) as session,
            session.begin(),
        ):
            stock = StockRepository(session)
            stock.add("tea", 10)
            print(f"tea left: {stock.take('tea', 3)}")

        # Forgotten: the repository does not know, but the database does.
        try:
            with Session(engine) as session, session.begin():
                StockRepository(session).take("tea", 3)
        except UnfencedWriteError as error:
            print(f"refused by the database: {error}")

        # Declared: there is no way to this repository but through its lease ...
        with OrderRepository.changing(guard, engine, "ada") as orders:
            orders.place("tea")
            orders.place("milk")
            print(f"ada has ordered {', '.join(orders.items())}")

        # ... and what goes around it is refused before anything is sent.
        try:
            with Session(engine) as session, session.begin():
                session.add(Order(customer="ada", item="sugar"))
        except UnfencedWriteError as error:
            print(f"refused before it was sent: {error}")
    engine.dispose()


if __name__ == "__main__":
    main()
