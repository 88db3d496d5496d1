"""What the guard costs: transactions of one row, and statements over a thousand.

::

    python tests/benchmarks/guard.py [--postgres /usr/lib/postgresql/15/bin] [--rounds 40]

Guarded and unguarded work is done in turn, in one run, on connections of one server over a Unix
socket, with fsync and synchronous_commit on; figures are medians of the rounds, and what counts is
their ratio. Client and server are kept on two processors where there are two: whether the kernel
happens to put them on one makes more difference than anything measured here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import create_engine, event, make_url, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import Guard, postgres
from fencing.embedded import PostgresProcess
from fencing.schema import ddl
from tests.support.databases import plain_url
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine, Executable

ROWS = 1000
TABLES = """
CREATE TABLE plain (id bigint PRIMARY KEY, owner bigint NOT NULL, balance int NOT NULL);
CREATE TABLE bare (LIKE plain INCLUDING ALL);
CREATE TABLE accounts (LIKE plain INCLUDING ALL);
CREATE TABLE owned (LIKE plain INCLUDING ALL);
CREATE TABLE by_row (LIKE plain INCLUDING ALL);
CREATE TABLE parted (LIKE plain INCLUDING ALL) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100000);
CREATE FUNCTION each_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    PERFORM fencing.require('public.by_row', ARRAY['account:' || NEW.id]); RETURN NULL;
END $$;
CREATE TRIGGER each_row AFTER UPDATE ON by_row FOR EACH ROW EXECUTE FUNCTION each_row();
"""


class Base(DeclarativeBase):
    """Both tables."""


class Plain(Base):
    """Unguarded."""

    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[int]
    balance: Mapped[int]


class Account(Base):
    """Guarded; not declared, so that the database alone is measured."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[int]
    balance: Mapped[int]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", help="folder of the server's programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--bulk", action="store_true", help="only statements over many rows")
    arguments = parser.parse_args()
    settings = {"fsync": "on", "synchronous_commit": "on"}
    with PostgresProcess(settings, bin_directory=arguments.postgres) as server:
        with psycopg.connect(plain_url(server.url)) as connection:
            prepare(connection)
            print(connection.execute("SELECT version()").fetchone()[0])
        url = make_url(server.url).set(
            host=None,
            port=None,
            query={"host": str(server.socket_directory), "port": str(server.port)},
        )
        if not arguments.bulk:
            single(url, arguments.rounds)
        bulk(url, arguments.rounds)


def prepare(connection: psycopg.Connection) -> None:
    for statement in ddl.install():
        connection.execute(statement.encode())
    connection.execute(TABLES.encode())
    for table in ("plain", "bare", "accounts", "owned", "by_row", "parted"):
        connection.execute(
            f"INSERT INTO {table} SELECT n, 42, 0 FROM generate_series(1, {ROWS}) AS n".encode()
        )
    for table, template in (
        ("accounts", "account:{id}"),
        ("owned", "owner:{owner}"),
        ("parted", "owner:{owner}"),
    ):
        for statement in ddl.fence_table(table, template):
            connection.execute(statement.encode())


def single(url: Any, rounds: int) -> None:
    """Transactions of one row."""
    plain, guarded = (on_other_processor(create_engine(url)) for _ in range(2))
    guard = Guard(ScriptedLocks(), guarded)
    bare, fenced = (pin(psycopg.connect(conninfo(url))) for _ in range(2))
    with guard.acquire("account:42", ttl=3600) as lease:

        def orm(engine: Engine, entity: type[Plain | Account], *, write: bool) -> None:
            with Session(engine) as session:
                row = session.get_one(entity, 42)
                if write:
                    row.balance += 1
                session.commit()

        def core(engine: Engine, statement: Executable) -> None:
            with engine.begin() as connection:
                connection.execute(statement)

        def psycopg_bare(statement: bytes) -> None:
            with bare.transaction():
                bare.execute(statement)

        def psycopg_fenced(statement: bytes) -> None:
            with postgres.transaction(fenced, lease):
                fenced.execute(statement)

        read, write = (
            "SELECT balance FROM {} WHERE id = 42",
            ("UPDATE {} SET balance = balance + 1 WHERE id = 42"),
        )
        compare(
            rounds,
            {
                "ORM, read": (
                    lambda: orm(plain, Plain, write=False),
                    lambda: orm(guarded, Account, write=False),
                ),
                "ORM, read and write": (
                    lambda: orm(plain, Plain, write=True),
                    lambda: orm(guarded, Account, write=True),
                ),
                "Core, read": (
                    lambda: core(plain, select(Plain.balance).where(Plain.id == 42)),
                    lambda: core(guarded, select(Account.balance).where(Account.id == 42)),
                ),
                "Core, write": (
                    lambda: core(
                        plain,
                        update(Plain).where(Plain.id == 42).values(balance=Plain.balance + 1),
                    ),
                    lambda: core(
                        guarded,
                        update(Account).where(Account.id == 42).values(balance=Account.balance + 1),
                    ),
                ),
                "text(), read": (
                    lambda: core(plain, text(read.format("plain"))),
                    lambda: core(guarded, text(read.format("accounts"))),
                ),
                "text(), write": (
                    lambda: core(plain, text(write.format("plain"))),
                    lambda: core(guarded, text(write.format("accounts"))),
                ),
                "psycopg, read": (
                    lambda: psycopg_bare(read.format("plain").encode()),
                    lambda: psycopg_fenced(read.format("accounts").encode()),
                ),
                "psycopg, write": (
                    lambda: psycopg_bare(write.format("plain").encode()),
                    lambda: psycopg_fenced(write.format("accounts").encode()),
                ),
            },
            repeat=20,
        )


def bulk(url: Any, rounds: int) -> None:
    """Statements over a thousand rows, each in a transaction under all the leases it needs."""
    connection = pin(psycopg.connect(conninfo(url)))
    service = ScriptedLocks()
    one = service.acquire("owner:42", ttl=3600)
    many = [service.acquire(f"account:{n}", ttl=3600) for n in range(1, ROWS + 1)]
    for lease in [one, *many]:
        postgres.admit(connection, lease)

    def update(table: str, *leases: Any) -> Callable[[], float]:
        statement = f"UPDATE {table} SET balance = balance + 1".encode()

        def run() -> float:
            # The unguarded table is updated more often; dead rows would be in its way.
            connection.autocommit = True
            connection.execute(f"VACUUM {table}".encode())
            # Without BEGIN, entry and COMMIT: those are measured above.
            with postgres.transaction(connection, *leases):
                began = time.perf_counter()
                connection.execute(statement)
                return time.perf_counter() - began

        return run

    compare(
        rounds,
        {
            "1000 rows of one resource": (update("bare", one), update("owned", one)),
            "the same, partitioned": (update("bare", one), update("parted", one)),
            "1000 resources": (update("bare", *many), update("accounts", *many)),
            "1000 resources, by a row trigger": (update("bare", *many), update("by_row", *many)),
        },
        repeat=1,
    )


def compare(
    rounds: int, work: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], repeat: int
) -> None:
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds + 3):  # the first ones warm up
        for name, pair in work.items():
            for which in (0, 1) if number % 2 else (1, 0):
                began = time.perf_counter()
                told = [pair[which]() for _ in range(repeat)]
                took = (time.perf_counter() - began) / repeat
                if isinstance(told[0], float):
                    took = statistics.fmean(told)
                if number >= 3:
                    times.setdefault((name, which), []).append(took)
    for name in work:
        without, under = (statistics.median(times[name, which]) * 1e6 for which in (0, 1))
        print(f"{name:34} {without:9.0f} us  guarded {under:9.0f} us  ratio {without / under:.2f}")


def conninfo(url: Any) -> str:
    return f"host={url.query['host']} port={url.query['port']} user=postgres dbname={url.database}"


def pin(connection: psycopg.Connection) -> psycopg.Connection:
    if (os.cpu_count() or 1) > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
        os.sched_setaffinity(connection.info.backend_pid, {1})
    return connection


def on_other_processor(engine: Engine) -> Engine:
    event.listen(engine, "connect", lambda _dbapi, record: pin(record.driver_connection))
    return engine


if __name__ == "__main__":
    main()
