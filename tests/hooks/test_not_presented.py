"""Where a lease cannot be presented, reads work, and guarded writes are refused and told why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, InternalError
from sqlalchemy.orm import Session

from fencing import AsyncGuard, FencingUsageError, Guard, UnfencedWriteError
from tests.support.bank import Account, Bank, presented

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.support.banking import MakeEngine


class TestWhereNothingCanBePresented:
    UPDATE = "UPDATE accounts SET balance = 0 WHERE id = {}"

    def test_autocommit_reads_and_writes_what_is_not_guarded(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        with guard.acquire(resource), autocommit.connect() as connection:
            assert presented(connection) == {}
            connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
            assert bank.notes(resource) == 1
            with pytest.raises(UnfencedWriteError, match="AUTOCOMMIT") as refusal:
                connection.execute(text(self.UPDATE.format(account)))
            assert refusal.value.resource == resource
            assert presented(connection) == {}
        assert bank.balance(account) == 100

    def test_autocommit_of_the_whole_engine(
        self, make_engine: MakeEngine, locks, bank: Bank, account: int, resource: str
    ) -> None:
        engine = make_engine(isolation_level="AUTOCOMMIT")
        with (
            Guard(locks, engine).acquire(resource),
            Session(engine) as session,
            pytest.raises(UnfencedWriteError, match="AUTOCOMMIT"),
        ):
            session.execute(text(self.UPDATE.format(account)))
        assert bank.balance(account) == 100

    def test_read_only_transactions_read(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        read_only = engine.execution_options(postgresql_readonly=True)
        with guard.acquire(resource), read_only.connect() as connection:
            assert presented(connection) == {}
            with pytest.raises(InternalError) as refusal:
                connection.execute(text(self.UPDATE.format(account)))
            assert refusal.value.orig.sqlstate == "25006"
            connection.rollback()
            with Session(read_only) as session:
                session.get_one(Account, account).balance = 0
                with pytest.raises(UnfencedWriteError, match="READ ONLY"):
                    session.flush()
        assert bank.balance(account) == 100

    async def test_under_asyncio_alike(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, account: int, resource: str
    ) -> None:
        for options, why in (
            ({"isolation_level": "AUTOCOMMIT"}, "AUTOCOMMIT"),
            ({"postgresql_readonly": True}, "READ ONLY"),
        ):
            async with async_guard.acquire(resource), async_engine.connect() as plain:
                connection = await plain.execution_options(**options)
                assert await connection.run_sync(presented) == {}
                with pytest.raises(UnfencedWriteError, match=why):
                    await connection.execute(
                        Account.__table__.update().values(balance=0).where(Account.id == account)
                    )

    def test_two_phase_is_refused_under_a_lease_and_left_alone_without(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with engine.connect() as connection:
            with guard.acquire(resource):
                with pytest.raises(FencingUsageError, match="two-phase"):
                    connection.begin_twophase()
                with guard.suspended():
                    connection.begin_twophase().rollback()
            connection.begin_twophase().rollback()

    def test_after_a_refused_two_phase_the_connection_is_usable(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            with pytest.raises(FencingUsageError):
                connection.begin_twophase()
            connection.rollback()
            connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
            connection.commit()
        assert bank.notes(resource) == 1

    def test_a_two_phase_transaction_has_nothing_of_the_one_before(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with engine.connect() as connection:
            with guard.acquire(resource):
                assert presented(connection) == {resource: 1}
                connection.commit()
            transaction = connection.begin_twophase()
            assert presented(connection) == {}
            transaction.rollback()

    def test_set_transaction_comes_too_late_and_the_error_says_so(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(DBAPIError) as error:
                session.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
            assert error.value.orig.sqlstate == "25001"
            assert any("isolation_level" in note for note in error.value.__notes__)
            session.rollback()
            session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
            assert session.scalar(text("SHOW transaction_isolation")) == "serializable"
            assert presented(session) == {resource: 1}
