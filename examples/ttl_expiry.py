"""A holder is stopped until its lease has run out, and cannot write when it comes back.

fencing dev -- python examples/ttl_expiry.py
"""

import multiprocessing
import os
import signal

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session

from fencing import Guard, RedisLockService, StaleFenceError
from fencing.migration import fence_table, install

READ = text("SELECT balance FROM example_savings WHERE id = 1")
WRITE = text("UPDATE example_savings SET balance = :balance WHERE id = 1")


def migrate(connection: Connection) -> None:
    install(connection)
    connection.execute(text("DROP TABLE IF EXISTS example_savings"))
    connection.execute(text("CREATE TABLE example_savings (id int PRIMARY KEY, balance int)"))
    connection.execute(text("INSERT INTO example_savings VALUES (1, 100)"))
    fence_table(connection, "example_savings", resource="example-savings:{id}")


def withdraw(name: str, amount: int, ttl: float, *, stops: bool = False) -> None:
    engine = create_engine(os.environ["FENCING_DATABASE_URL"])
    locks = RedisLockService.from_url(os.environ["FENCING_REDIS_URL"])
    with (
        locks,
        Guard(locks, engine) as guard,
        guard.acquire("example-savings:1", ttl=ttl) as lease,
    ):
        with Session(engine) as session:
            balance = session.scalars(READ).one()
        print(f"{name}: token {lease.token}, reads {balance}", flush=True)
        if stops:
            stop_before_sending(engine)
        try:
            with Session(engine) as session, session.begin():
                session.execute(WRITE, {"balance": balance - amount})
            print(f"{name}: writes {balance - amount}", flush=True)
        except StaleFenceError as error:
            print(f"{name}: cannot write {balance - amount}: {error}", flush=True)
    engine.dispose()


def stop_before_sending(engine: Engine) -> None:
    """Stop between the next look at the clock and the sending, where no client can help."""

    @event.listens_for(engine, "before_cursor_execute", once=True)
    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    engine = create_engine(os.environ["FENCING_DATABASE_URL"])
    with engine.begin() as connection:
        migrate(connection)

    process = multiprocessing.get_context("spawn").Process(
        target=withdraw, args=("A", 30, 2.0), kwargs={"stops": True}
    )
    process.start()
    assert process.pid is not None
    os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
    print("A: is stopped", flush=True)
    withdraw("B", 20, ttl=10)  # waits for the lease of A to run out
    os.kill(process.pid, signal.SIGCONT)
    process.join()

    with engine.connect() as connection:
        print(f"left: {connection.scalar(READ)}, so B's update stands")
    engine.dispose()


if __name__ == "__main__":
    main()
