"""A worker hangs, and an operator takes its lock: the next in line gets it, the first is refused.

fencing dev -- python examples/take_over.py
"""

import os
import threading
import time

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import Guard, LeaseLostError, RedisLockService, fenced_by

REPORT = "example-report:daily"


class Base(DeclarativeBase):
    pass


@fenced_by("example-report:{name}")
class Report(Base):
    __tablename__ = "example_reports"

    name: Mapped[str] = mapped_column(primary_key=True)
    author: Mapped[str]


def migrate(connection: Connection) -> None:
    Base.metadata.drop_all(connection)
    Base.metadata.create_all(connection)


def write(engine: Engine, author: str) -> None:
    with Session(engine) as session, session.begin():
        session.merge(Report(name="daily", author=author))


def hang(guard: Guard, engine: Engine, holds: threading.Event, goes_on: threading.Event) -> None:
    """A worker whose lease is renewed in the background, however long it does nothing."""
    with guard.acquire(REPORT, ttl=1, owner="A", keepalive=True, max_lifetime=600) as lease:
        print(f"A: token {lease.token}, and hangs")
        holds.set()
        goes_on.wait()
        lease.wait_lost()  # found out by the next renewal
        try:
            write(engine, "A")
        except LeaseLostError as error:
            print(f"A: refused: {error}")


def wait_in_line(guard: Guard, engine: Engine) -> None:
    with guard.acquire(REPORT, ttl=10, owner="B", blocking_timeout=60, fair=True) as lease:
        print(f"B: token {lease.token}, and writes")
        write(engine, "B")


def main() -> None:
    engine = create_engine(os.environ["FENCING_DATABASE_URL"])
    with engine.begin() as connection:
        migrate(connection)
    holds, goes_on = threading.Event(), threading.Event()
    with (
        RedisLockService.from_url(os.environ["FENCING_REDIS_URL"]) as locks,
        Guard(locks, engine) as guard,
    ):
        first = threading.Thread(target=hang, args=(guard, engine, holds, goes_on))
        first.start()
        if not holds.wait(60):
            raise SystemExit("A did not get the lock")
        second = threading.Thread(target=wait_in_line, args=(guard, engine))
        second.start()

        while second.is_alive() and not locks.inspect(REPORT).waiters:
            time.sleep(0.01)
        state = locks.inspect(REPORT)
        print(f"operator: {state.owner} holds it, {state.waiters} waits")
        locks.force_release(REPORT)

        second.join()
        goes_on.set()
        first.join()

    with Session(engine) as session:
        print(f"written by {session.get_one(Report, 'daily').author}")
    engine.dispose()


if __name__ == "__main__":
    main()
