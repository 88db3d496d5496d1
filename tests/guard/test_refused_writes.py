"""Every kind of write through SQLAlchemy, unfenced and stale, is refused by the database.

The tables are mapped without a declaration, so that nothing but the database refuses.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, StaleFenceError, UnfencedWriteError, WriteRefusedError
from fencing.schema.names import claim_item
from tests.support.bank import ALICE, FORGED_CLAIM, Bank
from tests.support.writes import WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.writes import Write

every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


@pytest.fixture
def untouched(bank: Bank, account: int) -> Iterator[None]:
    """What is committed on the account is the same before and after the test."""
    before = bank.state(account)
    yield
    assert bank.state(account) == before


def assert_usable(session: Session) -> None:
    session.rollback()
    assert session.execute(text("SELECT 1")).scalar_one() == 1
    session.rollback()


@every_write
class TestUnfenced:
    @pytest.mark.usefixtures("guard", "untouched")
    def test_a_write_without_a_lease_is_refused(
        self, engine: Engine, account: int, resource: str, write: Write
    ) -> None:
        with Session(engine) as session:
            with pytest.raises(UnfencedWriteError, match="no lease was in force") as refusal:
                write(session, account)
            assert refusal.value.resource == resource
            assert refusal.value.table in {"public.accounts", "public.transfers"}
            assert refusal.value.__cause__.sqlstate == "ZF002"
            assert_usable(session)

    @pytest.mark.usefixtures("untouched")
    def test_a_write_under_a_lease_on_something_else_is_refused(
        self, guard: Guard, engine: Engine, account: int, resource: str, write: Write
    ) -> None:
        with guard.acquire(f"other:{account}"), Session(engine) as session:
            with pytest.raises(UnfencedWriteError, match=f"leases on 'other:{account}'") as refusal:
                write(session, account)
            assert refusal.value.resource == resource
            assert_usable(session)

    @pytest.mark.usefixtures("async_guard", "untouched")
    async def test_a_write_without_a_lease_is_refused_under_asyncio(
        self, async_engine: AsyncEngine, account, resource, write: Write
    ) -> None:
        async with AsyncSession(async_engine) as session:
            with pytest.raises(UnfencedWriteError) as refusal:
                await session.run_sync(write, account)
            assert refusal.value.resource == resource
            await session.run_sync(assert_usable)

    @pytest.mark.usefixtures("untouched")
    def test_a_write_on_an_engine_without_a_guard_is_refused(
        self, engine: Engine, account: int, write: Write
    ) -> None:
        with Session(engine) as session:
            with pytest.raises(DBAPIError) as refusal:
                write(session, account)
            assert refusal.value.orig.sqlstate == "ZF002"
            assert_usable(session)


@every_write
class TestStale:
    @pytest.mark.usefixtures("untouched")
    def test_an_overtaken_holder_is_refused(
        self, guard: Guard, engine: Engine, bank, account, resource, write: Write
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            bank.admit(resource, 2)
            with pytest.raises(StaleFenceError) as refusal:
                write(session, account)
            facts = refusal.value
            assert (facts.resource, facts.token, facts.current_token) == (resource, 1, 2)
            session.rollback()
            with guard.suspended():
                assert_usable(session)

    @pytest.mark.usefixtures("untouched")
    async def test_an_overtaken_holder_is_refused_under_asyncio(
        self, async_guard: AsyncGuard, async_engine, bank, account, resource, write
    ) -> None:
        async with async_guard.acquire(resource), AsyncSession(async_engine) as session:
            bank.admit(resource, 2)
            with pytest.raises(StaleFenceError) as refusal:
                await session.run_sync(write, account)
            facts = refusal.value
            assert (facts.resource, facts.token, facts.current_token) == (resource, 1, 2)
            await session.rollback()
            with async_guard.suspended():
                await session.run_sync(assert_usable)

    @pytest.mark.usefixtures("guard", "untouched")
    def test_the_table_itself_refuses_a_claim_that_was_never_compared(
        self, engine: Engine, bank, account, resource, write: Write
    ) -> None:
        bank.admit(resource, 2)
        claim = claim_item(resource, 1, ALICE)
        with Session(engine) as session:
            session.execute(text(FORGED_CLAIM), {"claim": claim})
            with pytest.raises(StaleFenceError) as refusal:
                write(session, account)
            facts = refusal.value
            assert (facts.resource, facts.token, facts.current_token) == (resource, 1, 2)
            assert_usable(session)

    @pytest.mark.usefixtures("guard", "untouched")
    def test_the_table_itself_refuses_the_right_token_of_another_holder(
        self, engine: Engine, bank, account, resource, write: Write
    ) -> None:
        bank.admit(resource, 2)
        with Session(engine) as session:
            session.execute(text(FORGED_CLAIM), {"claim": claim_item(resource, 2, ALICE)})
            with pytest.raises(StaleFenceError):
                write(session, account)
            assert_usable(session)

    @pytest.mark.usefixtures("guard", "untouched")
    def test_the_table_itself_refuses_a_claim_without_a_fence(
        self, engine: Engine, account, resource, write: Write
    ) -> None:
        with Session(engine) as session:
            session.execute(text(FORGED_CLAIM), {"claim": claim_item(resource, 1, ALICE)})
            with pytest.raises(UnfencedWriteError, match="before this database had admitted it"):
                write(session, account)
            assert_usable(session)


@every_write
def test_the_holder_may_write(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str, write: Write
) -> None:
    before = bank.state(account)
    with guard.acquire(resource), Session(engine) as session:
        write(session, account)
        session.commit()
    assert bank.state(account) != before


def test_a_refusal_can_be_pickled_with_its_facts(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource), Session(engine) as session:
        bank.admit(resource, 9)
        with pytest.raises(StaleFenceError) as refusal:
            session.execute(text("SELECT 1"))
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert str(copy) == str(refusal.value)
    assert (copy.resource, copy.token, copy.current_token) == (resource, 1, 9)


class TestTruncate:
    @pytest.mark.usefixtures("untouched")
    def test_a_table_of_many_resources_is_never_truncated(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(UnfencedWriteError, match="rows of every resource") as refusal:
                session.execute(text("TRUNCATE accounts"))
            assert refusal.value.table == "public.accounts"
            assert_usable(session)

    @pytest.mark.parametrize("how", ["unfenced", "stale", "held"])
    def test_a_table_of_one_resource_is_truncated_under_its_lease_only(
        self, guard: Guard, engine: Engine, own_vault, bank: Bank, how: str
    ) -> None:
        table, resource = own_vault
        refused: type[WriteRefusedError] | None = None
        with Session(engine) as session:
            if how == "unfenced":
                refused = UnfencedWriteError
            else:
                lease = guard.acquire(resource)
                lease.__enter__()
            if how == "stale":
                refused = StaleFenceError
                session.execute(text("SELECT 1"))
                session.rollback()
                bank.admit(resource, 2)
            if refused is None:
                session.execute(text(f"TRUNCATE {table}"))
                session.commit()
            else:
                with pytest.raises(refused):
                    session.execute(text(f"TRUNCATE {table}"))
                session.rollback()
            if how != "unfenced":
                lease.__exit__(None, None, None)
        assert bank.value(f"SELECT count(*) FROM {table}") == (0 if how == "held" else 3)

    @pytest.fixture
    def own_vault(self, bank: Bank, account: int) -> tuple[str, str]:
        from fencing.schema import ddl

        table, resource = f"vault_{account}", f"vault:{account}"
        bank.observer.execute(f"CREATE TABLE {table} AS SELECT generate_series(1, 3) AS id")
        for statement in ddl.fence_table(table, resource):
            bank.observer.execute(statement.encode())
        return table, resource
