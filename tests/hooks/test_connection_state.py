"""SQLAlchemy, the driver and we agree on what is open, whatever has been raised."""

from __future__ import annotations

import gc

import pytest
import sqlalchemy as sa
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from fencing import GuardNotInstalledError, LeaseExpiredError, LeaseLostError, UnfencedWriteError
from tests.support.bank import Account, statements_of
from tests.support.scripted import expire

ISOLATION = text("SHOW transaction_isolation")
PID = text("SELECT pg_backend_pid()")
WRITE = text("UPDATE accounts SET balance = 0 WHERE id = :id")


@pytest.fixture
def engine(make_engine):
    """Whose next user gets the connection of the one before."""
    return make_engine(pool_size=1, max_overflow=0)


class TestASessionsSettings:
    @pytest.mark.parametrize("act", ["statement", "commit"])
    def test_its_isolation_level_comes_back_with_a_new_connection(
        self, guard, engine, resource, act
    ):
        with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
            with guard.acquire(resource) as lease:
                first = connection.scalar(PID)
                expire(lease)
                with pytest.raises(LeaseExpiredError):
                    connection.commit() if act == "commit" else connection.scalar(PID)
                connection.rollback()
            with guard.acquire(f"{resource}:next"):
                assert connection.scalar(ISOLATION) == "serializable"
                assert connection.scalar(PID) != first

    def test_a_rollback_that_the_server_still_hears_keeps_the_session(
        self, guard, engine, resource
    ):
        with engine.connect() as connection:
            connection.execute(text("SET application_name = 'mine'"))
            connection.commit()
            with guard.acquire(resource):
                connection.scalar(PID)
                # By our own clock alone: the server's limit is still far.
                guard.databases[0].presentations.get(connection).bounded_until = 0.0
                connection.rollback()
            assert connection.scalar(text("SHOW application_name")) == "mine"

    def test_one_holder_at_its_limit_leaves_the_pool_to_the_others(
        self, guard, make_engine, resource
    ):
        engine = make_engine(pool_size=3)
        guard = type(guard)(guard.locks, engine)
        others = [engine.connect() for _ in range(2)]
        pids = {other.scalar(PID) for other in others}
        for other in others:
            other.close()
        with (
            guard.acquire(resource, ttl=0.4),
            engine.connect() as connection,
            pytest.raises(LeaseExpiredError),
        ):
            connection.execute(text("SELECT pg_sleep(30)"))
        again = [engine.connect() for _ in range(2)]
        assert {other.scalar(PID) for other in again} & pids
        for other in again:
            other.close()


class TestAnInterruptedBegin:
    def test_nothing_is_left_open_on_the_connection(self, guard, engine, bank, resource):
        hooks = guard.databases[0]._hooks
        original = type(hooks)._present

        def interrupted(connection):
            original(hooks, connection)
            raise KeyboardInterrupt

        with guard.acquire(resource), engine.connect() as connection:
            hooks._present = interrupted
            with pytest.raises(KeyboardInterrupt):
                connection.execute(text("SELECT 1"))
            del hooks._present
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = ("
            held += "SELECT oid FROM pg_database WHERE datname = current_database())"
            bank.wait_until(f"SELECT ({held}) = 0")

    def test_the_pool_takes_no_open_transaction_back(self, guard, make_engine, bank, account):
        engine = make_engine(pool_size=1, max_overflow=0, pool_reset_on_return=None)
        guard = type(guard)(guard.locks, engine)
        event.listen(engine, "begin", lambda _: 1 / 0, once=True)  # after ours
        with guard.acquire(f"account:{account}"), engine.connect() as connection:
            with pytest.raises(ZeroDivisionError):
                connection.execute(text("SELECT 1"))
            connection.close()
            with guard.suspended(), engine.connect() as next_user:
                with pytest.raises(UnfencedWriteError):
                    next_user.execute(WRITE, {"id": account})
                next_user.rollback()
        assert bank.balance(account) == 100

    def test_the_next_user_of_one_that_was_never_closed_finds_nothing(
        self, guard, make_engine, bank, account
    ):
        engine = make_engine(pool_size=1, max_overflow=0, pool_reset_on_return="commit")
        guard = type(guard)(guard.locks, engine)
        with guard.acquire(f"account:{account}"):
            connection = engine.connect()
            connection.execute(WRITE, {"id": account})
            connection.close()
            del connection
            gc.collect()
        with engine.connect() as next_user:
            assert not next_user.scalar(text("SELECT current_setting('fencing.claim', true)"))
        assert bank.balance(account) == 100


class TestListenersOfOthers:
    def test_statements_of_an_earlier_begin_listener_are_not_of_the_transaction_before(
        self, make_engine, locks, resource
    ):
        from fencing import Guard

        engine = make_engine()
        tenant = text("SELECT set_config('app.tenant', '1', true)")
        event.listen(engine, "begin", lambda connection: connection.execute(tenant))
        guard = Guard(locks, engine)
        with engine.connect() as connection:
            for number in range(3):
                with guard.acquire(f"{resource}:{number}"):
                    connection.execute(text("SELECT 1"))
                    connection.commit()
            assert connection.scalar(text("SELECT current_setting('app.tenant')")) == "1"


class TestADetachedConnection:
    def test_it_presents_like_any_other(self, guard, engine, bank, account):
        with guard.acquire(f"account:{account}"), engine.connect() as connection:
            connection.detach()
            connection.execute(WRITE, {"id": account})
            connection.commit()
        assert bank.balance(account) == 0

    def test_what_was_refused_on_it_is_rolled_back_at_once(self, guard, engine, bank, account):
        with engine.connect() as connection, guard.acquire(f"account:{account}") as lease:
            connection.detach()
            pid = connection.scalar(PID)
            connection.execute(WRITE, {"id": account})
            expire(lease)
            with pytest.raises(LeaseExpiredError):
                connection.commit()
            bank.wait_until_gone(pid)
        assert bank.balance(account) == 100


class TestARefusalThatWasSwallowed:
    def test_a_commit_after_it_does_not_pretend(self, guard, engine, bank, account):
        with guard.acquire(f"account:{account}"), engine.connect() as connection:
            connection.execute(WRITE, {"id": account})
            with pytest.raises(UnfencedWriteError):
                connection.execute(WRITE, {"id": account + 1})
            with pytest.raises(UnfencedWriteError) as again:
                connection.commit()
            assert any("COMMIT was not sent" in note for note in again.value.__notes__)
        assert bank.balance(account) == 100

    @pytest.mark.usefixtures("guard")
    def test_nor_does_one_without_any_lease(self, engine, bank, account):
        note = f"beside {account}"
        with engine.connect() as connection:
            connection.execute(text("INSERT INTO notes (note) VALUES (:note)"), {"note": note})
            with pytest.raises(UnfencedWriteError):
                connection.execute(WRITE, {"id": account})
            with pytest.raises(UnfencedWriteError) as again:
                connection.commit()
            assert any("COMMIT was not sent" in each for each in again.value.__notes__)
        assert bank.notes(note) == 0

    def test_a_savepoint_takes_it_back(self, guard, engine, bank, account):
        with guard.acquire(f"account:{account}"), engine.begin() as connection:
            connection.execute(WRITE, {"id": account})
            with pytest.raises(UnfencedWriteError), connection.begin_nested():
                connection.execute(WRITE, {"id": account + 1})
        assert bank.balance(account) == 0

    def test_an_error_of_the_users_own_is_left_to_postgresql(self, guard, engine, resource):
        with guard.acquire(resource), engine.connect() as connection:
            with pytest.raises(DBAPIError):
                connection.execute(text("SELECT 1 / 0"))
            connection.commit()


def test_the_guard_is_looked_for_where_a_statement_is_sent(guard, engine, bank, resource):
    bank.observer.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
    bank.observer.execute("CREATE TABLE IF NOT EXISTS elsewhere.accounts (id int, balance int)")
    write = sa.update(Account.__table__).values(balance=1).where(Account.__table__.c.id == 1)
    options = {"schema_translate_map": {None: "elsewhere"}}
    with guard.acquire(resource), engine.connect() as connection:
        with statements_of(engine) as sent, pytest.raises(GuardNotInstalledError):
            connection.execute(write, execution_options=options)
        assert not any("UPDATE" in statement for statement in sent)


def test_a_lost_lease_is_refused_as_before(guard, engine, resource):
    with guard.acquire(resource) as lease, engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        lease.note_lost()
        with pytest.raises(LeaseLostError):
            connection.execute(text("SELECT 1"))
