"""Savepoints, further transactions, and transactions that could not begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    Guard,
    LeaseExpiredError,
    LeaseLostError,
    StaleFenceError,
    UnfencedWriteError,
)
from tests.support.bank import Account, Bank, BareAccount, presented, statements_of
from tests.support.scripted import expire

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class TestSavepoints:
    def test_writes_in_and_around_them_are_fenced(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            row = session.get_one(Account, account)
            with session.begin_nested():
                row.balance -= 1
            with session.begin_nested() as savepoint:
                row.balance -= 10
                session.flush()
                savepoint.rollback()
            row.balance -= 1
            session.commit()
        assert bank.balance(account) == 98

    def test_the_first_statement_may_be_in_one(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            with session.begin_nested() as savepoint:
                session.get_one(Account, account).balance = 0
                session.flush()
                savepoint.rollback()
            assert presented(session) == {resource: 1}, "the entry came before the savepoint"
            session.get_one(Account, account).balance = 1
            session.commit()
        assert bank.balance(account) == 1

    def test_a_refused_write_in_one_leaves_the_transaction_to_go_on(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        other = bank.new_account()
        with guard.acquire(resource), Session(engine) as session:
            session.get_one(Account, account).balance = 1
            with pytest.raises(UnfencedWriteError), session.begin_nested():
                session.get_one(BareAccount, other).balance = 0  # flushed at the savepoint's end
            session.execute(
                text("UPDATE accounts SET balance = balance + 1 WHERE id = :id"), {"id": account}
            )
            session.commit()
        assert (bank.balance(account), bank.balance(other)) == (2, 100)


class TestFurtherTransactions:
    def test_each_transaction_of_a_session_presents_anew(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            for end in (session.rollback, session.commit, session.rollback):
                with statements_of(engine) as sent:
                    assert presented(session) == {resource: 1}
                    session.execute(text("SELECT 1"))
                    end()
                assert sum("fencing.enter" in statement for statement in sent) == 1

    def test_two_leases_in_one_transaction_cover_two_accounts(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        other = bank.new_account()
        with (
            guard.acquire(resource),
            guard.acquire(f"account:{other}"),
            Session(engine) as session,
            session.begin(),
        ):
            session.get_one(Account, account).balance -= 10
            session.get_one(Account, other).balance += 10
        assert (bank.balance(account), bank.balance(other)) == (90, 110)

    @pytest.mark.parametrize("overtaken", [0, 1])
    def test_either_of_two_leases_may_be_the_stale_one(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource, overtaken: int
    ) -> None:
        other = f"account:{bank.new_account()}"
        with guard.acquire(resource), guard.acquire(other), Session(engine) as session:
            bank.admit((resource, other)[overtaken], 9)
            with pytest.raises(StaleFenceError) as refusal:
                session.get_one(Account, account)
        assert refusal.value.resource == (resource, other)[overtaken]

    def test_core_transactions_are_fenced_alike(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        change = text(f"UPDATE accounts SET balance = balance - 1 WHERE id = {account}")
        with guard.acquire(resource):
            with engine.begin() as connection:
                connection.execute(change)
            with engine.connect() as connection:
                connection.execute(change)
                connection.commit()
                with connection.begin():
                    connection.execute(change)
        assert bank.balance(account) == 97


class TestABeginThatFails:
    """The connection has then truly not begun, on each version of SQLAlchemy."""

    @pytest.fixture(params=[LeaseExpiredError, StaleFenceError])
    def loss(self, request: pytest.FixtureRequest) -> type[LeaseLostError]:
        return request.param

    def lose(self, bank: Bank, lease, loss: type) -> None:
        if loss is LeaseExpiredError:
            expire(lease)
        else:
            bank.admit(lease.resource, lease.token + 1)

    def test_what_is_written_and_committed_afterwards_is_committed(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str, loss
    ) -> None:
        with guard.acquire(resource) as lease, engine.connect() as connection:
            self.lose(bank, lease, loss)
            with pytest.raises(loss):
                connection.execute(text("SELECT 1"))
            connection.rollback()
            assert not connection.in_transaction()
            with guard.suspended():
                connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
                connection.commit()
        assert bank.notes(resource) == 1

    def test_and_so_it_is_without_a_rollback_in_between(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource) as lease, engine.connect() as connection:
            expire(lease)
            with pytest.raises(LeaseExpiredError):
                connection.execute(text("SELECT 1"))
            with guard.suspended():
                connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
                connection.commit()
        assert bank.notes(resource) == 1

    def test_and_with_begin(self, guard: Guard, engine: Engine, bank, resource: str, loss) -> None:
        with guard.acquire(resource) as lease, engine.connect() as connection:
            self.lose(bank, lease, loss)
            with pytest.raises(loss), connection.begin():
                connection.execute(text("SELECT 1"))
            connection.rollback()
            with guard.suspended(), connection.begin():
                connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
        assert bank.notes(resource) == 1

    def test_a_session_is_usable_again(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str, loss
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            self.lose(bank, lease, loss)
            for _ in range(2):
                with pytest.raises(loss if loss is LeaseExpiredError else LeaseLostError):
                    session.execute(text("SELECT 1"))
                session.rollback()
            with guard.suspended():
                session.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
                session.commit()
        assert bank.notes(resource) == 1

    async def test_under_asyncio_too(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, bank: Bank, resource: str, loss
    ) -> None:
        async with async_guard.acquire(resource) as lease, async_engine.connect() as connection:
            self.lose(bank, lease, loss)
            with pytest.raises(loss):
                await connection.execute(text("SELECT 1"))
            await connection.rollback()
            with async_guard.suspended():
                await connection.execute(
                    text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource}
                )
                await connection.commit()
        assert bank.notes(resource) == 1

    def test_an_expired_lease_sends_nothing(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            expire(lease)
            with statements_of(engine) as sent, pytest.raises(LeaseExpiredError) as error:
                session.execute(text("SELECT 1"))
        assert sent == []
        assert (error.value.resource, error.value.token) == (resource, 1)
