"""What is declared is refused before it is sent; and a declaration without a guard is noticed."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import Guard, GuardNotInstalledError, UnfencedWriteError, fenced_by
from fencing.migration import maintain
from tests.support.bank import Account, Bank, DeclaredOnly, Transfer, statements_of

transfers: Table = Transfer.__table__


def flush_update(session: Session, account: int) -> None:
    session.get_one(Account, account).balance = 0
    session.flush()


def flush_insert(session: Session, account: int) -> None:
    session.add(Transfer(account_id=account, amount=1))
    session.flush()


def flush_delete(session: Session, account: int) -> None:
    session.delete(session.get_one(Account, account))
    session.flush()


def cte(session: Session, account: int) -> None:
    gone = delete(transfers).where(transfers.c.account_id == account).returning(transfers.c.id)
    session.execute(select(gone.cte("gone"))).all()


def nested_cte(session: Session, account: int) -> None:
    gone = delete(transfers).where(transfers.c.account_id == account).returning(transfers.c.id)
    inner = select(gone.cte("gone")).cte("inner_select")
    session.execute(select(inner.c.id)).all()


DECLARED = {
    "flush of an update": flush_update,
    "flush of an insert": flush_insert,
    "flush of a delete": flush_delete,
    "update": lambda s, a: s.execute(update(Account).where(Account.id == a).values(balance=0)),
    "delete": lambda s, a: s.execute(delete(Transfer).where(Transfer.account_id == a)),
    "insert": lambda s, a: s.execute(insert(Transfer).values(account_id=a)),
    "bulk insert": lambda s, a: s.execute(insert(Transfer), [{"account_id": a}] * 2),
    "bulk update": lambda s, a: s.execute(update(Account), [{"id": a, "balance": 0}]),
    "bulk_insert_mappings": lambda s, a: s.bulk_insert_mappings(Transfer, [{"account_id": a}]),
    "Core": lambda s, a: s.connection().execute(
        transfers.delete().where(transfers.c.account_id == a)
    ),
    "Core executemany": lambda s, a: s.connection().execute(
        transfers.insert(), [{"account_id": a}] * 2
    ),
    "Core CTE": cte,
    "CTE in a CTE": nested_cte,
}


@pytest.mark.parametrize("write", DECLARED.values(), ids=DECLARED.keys())
class TestDeclared:
    @pytest.mark.usefixtures("guard")
    def test_an_unfenced_write_is_refused_before_it_is_sent(
        self, engine: Engine, bank: Bank, account: int, write
    ) -> None:
        before = bank.state(account)
        with Session(engine) as session:
            with statements_of(engine) as sent, pytest.raises(UnfencedWriteError) as refusal:
                write(session, account)
            assert refusal.value.table in {"accounts", "transfers"}
            assert "nothing was sent" in str(refusal.value)
            assert refusal.value.__cause__ is None
            assert not [s for s in sent if not s.startswith("SELECT")]
            session.rollback()
            assert session.scalar(text("SELECT 1")) == 1
        assert bank.state(account) == before

    @pytest.mark.usefixtures("async_guard")
    async def test_so_it_is_under_asyncio(
        self, async_engine: AsyncEngine, account: int, write
    ) -> None:
        async with AsyncSession(async_engine) as session:
            with pytest.raises(UnfencedWriteError, match="nothing was sent"):
                await session.run_sync(write, account)

    def test_under_the_lease_it_passes(
        self, guard: Guard, engine: Engine, account: int, resource: str, write
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            write(session, account)
            session.commit()


def test_nothing_has_failed_in_the_database_so_its_transaction_goes_on(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
        with pytest.raises(UnfencedWriteError):
            connection.execute(insert(transfers).values(account_id=account))
        connection.commit()
    assert bank.notes(resource) == 1


def test_text_is_opaque_here_and_refused_by_the_database(
    guard: Guard, engine: Engine, account: int, resource: str
) -> None:
    statement = f"UPDATE accounts SET balance = 0 WHERE id = {account}"
    with (
        Session(engine) as session,
        statements_of(engine) as sent,
        pytest.raises(UnfencedWriteError) as refusal,
    ):
        session.execute(text(statement))
    assert sent == [statement]
    assert refusal.value.__cause__.sqlstate == "ZF002"
    assert (refusal.value.table, refusal.value.resource) == ("public.accounts", resource)


def test_reading_a_declared_table_needs_nothing(guard: Guard, engine: Engine, account) -> None:
    with Session(engine) as session, statements_of(engine) as sent:
        session.execute(select(Account).where(Account.id == account)).scalar_one()
        session.execute(select(transfers).with_for_update()).first()
    assert len(sent) == 2


def test_the_guard_is_looked_for_once_per_table_and_engine(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource), statements_of(engine) as sent:
        for _ in range(3):
            with Session(engine) as session:
                flush_update(session, account)
                flush_insert(session, account)
    assert sum("pg_trigger" in statement for statement in sent) == 2


@pytest.mark.parametrize("held", [True, False])
def test_a_declared_table_without_a_guard_is_named(
    guard: Guard, engine: Engine, bank: Bank, resource: str, *, held: bool
) -> None:
    with guard.acquire(resource if held else "other:" + resource), Session(engine) as session:
        with pytest.raises(GuardNotInstalledError, match=r"op\.fence_table\('declared_only'") as e:
            session.execute(insert(DeclaredOnly).values(id=1))
        assert e.value.table == "declared_only"
        assert session.scalar(text("SELECT 1")) == 1
    assert bank.value("SELECT count(*) FROM declared_only") == 0


def test_a_disabled_guard_is_noticed(
    own_bank: Bank, make_engine, locks, account: int, resource: str
) -> None:
    own_bank.observer.execute("ALTER TABLE accounts DISABLE TRIGGER fencing_update")
    engine = make_engine(own_bank.url)
    with Guard(locks, engine).acquire(resource), Session(engine) as session:
        with pytest.raises(GuardNotInstalledError, match="UPDATE"):
            flush_update(session, account)
        session.rollback()
        flush_insert(session, account)


def test_an_operation_that_is_not_declared_is_not_refused_early(
    guard: Guard, engine: Engine, bank: Bank, account: int
) -> None:
    from sqlalchemy import BigInteger, Column, Integer, MetaData

    appended = Table(
        "transfers", MetaData(), Column("id", BigInteger, primary_key=True),
        Column("account_id", BigInteger), Column("amount", Integer),
    )  # fmt: skip
    fenced_by("account:{account_id}", operations=("delete",))(appended)
    with engine.connect() as connection:
        with statements_of(engine) as sent, pytest.raises(UnfencedWriteError) as refusal:
            connection.execute(appended.insert().values(account_id=account))
        assert len(sent) == 1
        assert refusal.value.table == "public.transfers"


def test_a_schema_that_is_translated_is_looked_for_where_it_is(
    own_bank: Bank, make_engine, locks, account: int, resource: str
) -> None:
    own_bank.observer.execute("CREATE SCHEMA tenant")
    own_bank.observer.execute("CREATE TABLE tenant.accounts AS SELECT * FROM accounts")
    engine = make_engine(own_bank.url).execution_options(schema_translate_map={None: "tenant"})
    guard = Guard(locks, engine)
    with (
        guard.acquire(resource),
        engine.connect() as connection,
        pytest.raises(GuardNotInstalledError),
    ):
        connection.execute(update(Account).where(Account.id == account).values(balance=0))


def test_a_table_that_is_declared_to_be_observed_needs_no_guard_and_is_not_refused_here(
    guard: Guard, engine: Engine, bank: Bank
) -> None:
    metadata = MetaData()
    notes = Table(
        "notes", metadata, Column("id", BigInteger, primary_key=True), Column("note", Text)
    )
    fenced_by("note:{id}", mode="observe")(notes)
    with engine.begin() as connection, statements_of(engine) as sent:
        connection.execute(insert(notes).values(note="observed only"))
    assert [statement.split()[0] for statement in sent] == ["INSERT"], "nothing was looked for"
    assert bank.notes("observed only") == 1


def test_a_maintenance_is_not_refused_here(own_bank: Bank, locks) -> None:
    engine = create_engine(own_bank.url)
    Guard(locks, engine)
    change = update(Account).where(Account.id == 1)
    with engine.begin() as connection:
        maintain(connection, "accounts")
        connection.execute(change.values(balance=1))
    assert own_bank.balance(1) == 1
    with engine.connect() as connection:
        connection.execute(text("LOCK TABLE accounts IN EXCLUSIVE MODE"))
        with pytest.raises(UnfencedWriteError):
            connection.execute(change.values(balance=2))
    engine.dispose()
