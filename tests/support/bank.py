"""A bank to guard: its tables, its accounts, and what is seen of them from outside."""

from __future__ import annotations

import itertools
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencing import fenced_by
from fencing.hooks import engine as hooks_of_engines
from fencing.schema import ddl
from fencing.schema.names import claim_item
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

ALICE, BOB = "a" * 32, "b" * 32

TABLES = [
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance int NOT NULL CHECK (balance > -1000))",
    "CREATE TABLE transfers (id bigserial PRIMARY KEY, account_id bigint NOT NULL, amount int)",
    "CREATE TABLE notes (id bigserial PRIMARY KEY, note text UNIQUE)",
    "CREATE TABLE declared_only (id bigint PRIMARY KEY)",
    # An order debits its account when it is committed.
    "CREATE TABLE orders (id bigserial PRIMARY KEY, account_id bigint)",
    """
    CREATE FUNCTION debit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = NEW.account_id; RETURN NULL;
    END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER debit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION debit()
    """,
    "INSERT INTO accounts SELECT n, 100 FROM generate_series(1, 5000) AS n",
    "INSERT INTO transfers (account_id, amount) SELECT n, 5 FROM generate_series(1, 5000) AS n",
    *ddl.fence_table("accounts", "account:{id}"),
    *ddl.fence_table("transfers", "account:{account_id}"),
]


class Declared(DeclarativeBase):
    """Tables whose guard is declared."""


class Undeclared(DeclarativeBase):
    """The same tables without a declaration: only the database knows of their guard."""


@fenced_by("account:{id}")
class Account(Declared):
    """Guarded, and declared so."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@fenced_by("account:{account_id}")
class Transfer(Declared):
    """Guarded, and declared so."""

    __tablename__ = "transfers"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int]
    amount: Mapped[int | None]


@fenced_by("declared:{id}")
class DeclaredOnly(Declared):
    """Declared as guarded; the database has no guard on it."""

    __tablename__ = "declared_only"
    id: Mapped[int] = mapped_column(primary_key=True)


class Note(Declared):
    """Not guarded."""

    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


class BareAccount(Undeclared):
    """Guarded, unknown to the hooks."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class BareTransfer(Undeclared):
    """Guarded, unknown to the hooks."""

    __tablename__ = "transfers"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int]
    amount: Mapped[int | None]


def resource_of_account(account: int) -> str:
    """The resource of an account's rows."""
    return f"account:{account}"


class Bank:
    """A database with the tables above, and a connection of the test's own to look at it.

    Args:
        url: SQLAlchemy address of a database with schema ``fencing``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.plain_url = plain_url(url)
        self._ids = itertools.count(1)
        self.observer = psycopg.connect(self.plain_url, autocommit=True)
        for statement in TABLES:
            self.observer.execute(statement.encode())

    def new_account(self) -> int:
        """An account with a balance of 100 and one transfer, that no test has used."""
        return next(self._ids)

    def close(self) -> None:
        """Close the connection."""
        self.observer.close()

    def value(self, query: str, *values: Any) -> Any:
        """The single value of a query."""
        row = self.observer.execute(query.encode(), values).fetchone()
        return None if row is None else row[0]

    def balance(self, account: int) -> int | None:
        """What is committed on an account."""
        balance: int | None = self.value("SELECT balance FROM accounts WHERE id = %s", account)
        return balance

    def state(self, account: int) -> tuple[Any, ...]:
        """Everything that is committed about an account."""
        return (
            self.balance(account),
            self.observer.execute(
                "SELECT id, amount FROM transfers WHERE account_id = %s ORDER BY id", (account,)
            ).fetchall(),
        )

    def notes(self, note: str) -> int:
        """How many committed notes say this."""
        count: int = self.value("SELECT count(*) FROM notes WHERE note = %s", note)
        return count

    def mark(self, resource: str) -> tuple[int, str] | None:
        """Token and holder of a resource's high-water mark."""
        return self.observer.execute(
            "SELECT token, holder FROM fencing.fence WHERE resource = %s", (resource,)
        ).fetchone()

    def admit(self, resource: str, token: int, holder: str = BOB, wait_ms: int = 0) -> None:
        """Admit a holder as another process would."""
        self.observer.execute(
            "SELECT fencing.admit(%s, %s, %s, 'test', %s)", (resource, token, holder, wait_ms)
        )

    def raise_mark(self, resource: str, token: int) -> None:
        """Set a fence forward at once, whoever acts under it."""
        self.value("SELECT fencing.raise_fence(%s, %s)", resource, token)

    def wait_until_blocked(self, pid: int) -> None:
        """Until this backend waits for a lock."""
        self.wait_until("SELECT cardinality(pg_blocking_pids(%s)) > 0", pid)

    def wait_until_queued(self) -> None:
        """Until somebody waits for a resource's lock in this database."""
        self.wait_until(
            "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database "
            "WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database())"
        )

    def wait_until_queued_for(self, resource: str) -> None:
        """Until somebody waits for this resource's lock."""
        self.wait_until(
            "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database "
            "WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database() "
            "AND CAST(l.objid AS bigint) = (fencing.lock_key(%s) & 4294967295))",
            resource,
        )

    @contextmanager
    def admitting(self, resource: str, token: int, holder: str = BOB) -> Iterator[None]:
        """An admission in progress: it has the resource's lock, and is committed at the end."""
        with psycopg.connect(self.plain_url, options="-c lock_timeout=5s") as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.execute("SELECT pg_advisory_xact_lock(fencing.lock_key(%s))", (resource,))
            yield
            connection.execute(
                "SELECT fencing.admit(%s, %s, %s, 'test', 0)", (resource, token, holder)
            )

    def wait_until_gone(self, pid: int) -> None:
        """Until this backend has ended."""
        self.wait_until("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", pid)

    def wait_until(self, query: str, *values: Any) -> None:
        """Until a query's single value is true."""
        deadline = time.monotonic() + 20
        while not self.value(query, *values):
            assert time.monotonic() < deadline, f"never came true: {query} {values}"
            time.sleep(0.005)

    def kill_backend(self, pid: int) -> None:
        """End a session as an administrator would; it has ended when this returns."""
        self.observer.execute("SELECT pg_terminate_backend(%s)", (pid,))
        self.wait_until_gone(pid)

    def kill_session(self, driver: Any, pid: int | None = None) -> None:
        """:meth:`kill_backend` of a psycopg connection; its last words have arrived there, too.

        Args:
            driver: The connection.
            pid: The backend's, where a pooler has told the driver another; ``None``: the driver's.
        """
        self.kill_backend(driver.info.backend_pid if pid is None else pid)
        await_last_words(driver)


def await_last_words(driver: Any) -> None:
    """Until a psycopg connection has been told that its session has ended.

    It travels apart from what the server tells everyone else, and may come later.
    """
    arrival = select.poll()
    arrival.register(driver.fileno(), select.POLLIN)
    assert arrival.poll(20_000), "the end of the session never arrived"


def enter_by_hand(connection: psycopg.Connection, resource: str, token: int, holder: str) -> None:
    """Present a lease on a bare psycopg connection."""
    connection.execute("SELECT fencing.enter(%s, NULL)", (claim_item(resource, token, holder),))


FORGED_CLAIM = "SELECT set_config('fencing.claim', fencing.stamp() || ' ' || :claim, true)"
"""What a claim looks like that was never compared with the fence; a superuser may forge it."""


@contextmanager
def statements_of(engine: Engine) -> Iterator[list[str]]:
    """The statements that are sent on an engine inside the block, entries among them.

    An entry that goes in one message with BEGIN is none of SQLAlchemy's statements.
    """
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    def entry(connection: Connection) -> None:
        if connection.engine.pool is engine.pool:
            seen.append("fencing.enter")

    event.listen(engine, "before_cursor_execute", note)
    try:
        with before_each_entry(entry):
            yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def before_each_entry(act: Callable[[Connection], None]) -> Iterator[None]:
    """Do something when an entry is about to be sent: its deadlines have been checked."""
    hooks: Any = hooks_of_engines
    enter = hooks.enter

    def acting(connection: Connection, *arguments: Any) -> Any:
        act(connection)
        return enter(connection, *arguments)

    hooks.enter = acting
    try:
        yield
    finally:
        hooks.enter = enter


def presented(executor: Any) -> dict[str, int]:
    """What a session's or connection's transaction has presented, as the server knows it.

    Args:
        executor: A Session or Connection; a transaction is begun if there is none.

    Returns:
        Resource to token.
    """
    claim: str = executor.execute(
        text("SELECT coalesce(current_setting('fencing.claim', true), '')")
    ).scalar_one()
    items = [item.partition("=") for item in claim.split(" ")[1:]]
    return {bytes.fromhex(name).decode(): int(value.partition(".")[0]) for name, _, value in items}
