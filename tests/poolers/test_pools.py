"""SQLAlchemy's own pools, of every kind and the smallest size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, NullPool, QueuePool, StaticPool, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, StaleFenceError, UnfencedWriteError
from fencing.hooks.database import Database
from tests.support.bank import Bank, BareAccount, BareTransfer
from tests.support.writes import WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.banking import MakeEngine
    from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks
    from tests.support.writes import Write

POOLS = {
    "one connection": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2},
    "pre-ping": {"pool_pre_ping": True},
    "one connection, pre-ping": {"pool_size": 1, "max_overflow": 0, "pool_pre_ping": True},
    "none": {"poolclass": NullPool},
    "static": {"poolclass": StaticPool},
    "recycled at once": {"pool_recycle": 0},
    "last in, first out": {"poolclass": QueuePool, "pool_use_lifo": True},
    "no reset": {"pool_reset_on_return": None},
}
every_pool = pytest.mark.parametrize("options", POOLS.values(), ids=POOLS.keys())


def withdraw(session: Session, account: int) -> None:
    session.get_one(BareAccount, account).balance -= 10
    session.commit()


@every_pool
class TestEveryPool:
    @pytest.fixture
    def engine(self, make_engine: MakeEngine, options) -> Engine:
        return make_engine(**options)

    def test_a_session_that_is_open_does_not_keep_an_acquisition_waiting(
        self, guard: Guard, engine: Engine, bank, account, resource
    ) -> None:
        """It holds the pool's only connection; admissions have connections of their own."""
        with Session(engine) as session:
            session.execute(text("SELECT 1"))
            session.rollback()
            with guard.acquire(resource):
                withdraw(session, account)
                session.execute(text("SELECT 1"))
                with guard.acquire(f"{resource}/another"):
                    pass
                session.rollback()
        assert bank.balance(account) == 90

    def test_refused_accepted_and_refused_again(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource
    ) -> None:
        for _ in range(2):
            with Session(engine) as session, pytest.raises(UnfencedWriteError):
                withdraw(session, account)
            with guard.acquire(resource), Session(engine) as session:
                withdraw(session, account)
        with guard.acquire(resource) as lease, Session(engine) as session:
            bank.admit(resource, lease.token + 1)
            with pytest.raises(StaleFenceError):
                withdraw(session, account)
        assert bank.balance(account) == 80

    def test_nothing_of_one_user_is_there_for_the_next(
        self, guard: Guard, engine: Engine, resource
    ) -> None:
        with guard.acquire(resource, ttl=60), Session(engine) as session:
            session.execute(text("SELECT 1"))
        with engine.connect() as connection:
            settings = connection.execute(
                text(
                    "SELECT current_setting('fencing.claim', true), "
                    "current_setting('statement_timeout'), "
                    "current_setting('idle_in_transaction_session_timeout'), "
                    "(SELECT count(*) FROM pg_locks "
                    "WHERE pid = pg_backend_pid() AND locktype = 'advisory')"
                )
            ).one()
        assert settings[0] in (None, "")
        assert tuple(settings[1:]) == ("0", "0", 0)


class TestPrePing:
    @pytest.mark.parametrize("pre_ping", [True, False])
    def test_a_connection_that_died_in_the_pool_is_no_reason_to_fail(
        self, make_engine: MakeEngine, locks: ScriptedLocks, bank: Bank, account, resource, pre_ping
    ) -> None:
        engine = make_engine(pool_pre_ping=pre_ping)
        guard = Guard(locks, engine)
        with guard.acquire(resource), Session(engine) as session:
            withdraw(session, account)
            pid = session.scalar(text("SELECT pg_backend_pid()"))
        bank.observer.execute("SELECT pg_terminate_backend(%s)", [pid])
        bank.wait_until_gone(pid)
        with guard.acquire(resource), Session(engine) as session:
            if not pre_ping:  # as SQLAlchemy without this package: the first user is told
                with pytest.raises(DBAPIError):
                    withdraw(session, account)
                session.rollback()
            withdraw(session, account)
        assert bank.balance(account) == 80


class TestAutocommit:
    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> Engine:
        return make_engine(isolation_level="AUTOCOMMIT")

    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
    def test_every_guarded_write_is_refused_under_a_lease_too(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource, write: Write
    ) -> None:
        before = bank.state(account)
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(UnfencedWriteError, match="AUTOCOMMIT"):
                write(session, account)
            session.rollback()
        assert bank.state(account) == before


class TestSeveralEngines:
    """A session whose classes live on engines of their own."""

    @pytest.fixture
    def engines(self, make_engine: MakeEngine) -> tuple[Engine, Engine]:
        return make_engine(), make_engine()

    @pytest.fixture
    def session(self, engines: tuple[Engine, Engine]) -> Iterator[Session]:
        binds = dict(zip((BareAccount, BareTransfer), engines, strict=True))
        with Session(binds=binds) as session:
            yield session

    def write(self, session: Session, account: int) -> None:
        session.get_one(BareAccount, account).balance -= 10
        session.add(BareTransfer(account_id=account, amount=10))
        session.commit()

    def test_a_guard_of_both_presents_on_both(
        self, locks: ScriptedLocks, engines, session: Session, bank: Bank, account, resource
    ) -> None:
        entries: list[Engine] = []
        for engine in engines:
            event.listen(
                engine,
                "after_cursor_execute",
                lambda connection, _cursor, statement, *_: (
                    "fencing.enter" in statement and entries.append(connection.engine)
                ),
            )
        before = bank.state(account)
        guard = Guard(locks, *engines)
        with guard.acquire(resource):
            self.write(session, account)
        after = bank.state(account)
        assert after[0] == before[0] - 10
        assert len(after[1]) == len(before[1]) + 1

    def test_a_guard_of_one_leaves_the_other_unfenced(
        self, locks: ScriptedLocks, engines, session: Session, bank: Bank, account, resource
    ) -> None:
        before = bank.state(account)
        guard = Guard(locks, engines[0])
        with guard.acquire(resource):
            with pytest.raises(DBAPIError) as refusal:
                self.write(session, account)
            assert refusal.value.orig.sqlstate == "ZF002"
            session.rollback()
        assert bank.state(account) == before

    def test_an_overtaken_holder_writes_on_neither(
        self, locks: ScriptedLocks, engines, session: Session, bank: Bank, account, resource
    ) -> None:
        before = bank.state(account)
        guard = Guard(locks, *engines)
        with guard.acquire(resource) as lease:
            bank.admit(resource, lease.token + 1)
            with pytest.raises(StaleFenceError):
                self.write(session, account)
            session.rollback()
        assert bank.state(account) == before

    def test_of_two_databases_each_has_its_own_mark(
        self, locks: ScriptedLocks, make_engine: MakeEngine, bank: Bank, own_bank: Bank
    ) -> None:
        account, twin = bank.new_account(), own_bank.new_account()
        resources = {f"account:{account}", f"account:{twin}"}
        here, there = make_engine(), make_engine(own_bank.url)
        guard = Guard(locks, here, there)
        own_bank.admit(f"account:{twin}", 40)
        leases = [guard.acquire(each) for each in sorted(resources)]
        with Session(binds={BareAccount: here, BareTransfer: there}) as session:
            for lease in leases:
                lease.__enter__()
            session.get_one(BareAccount, account).balance -= 10
            session.add(BareTransfer(account_id=twin, amount=1))
            session.commit()
            for lease in reversed(leases):
                lease.__exit__(None, None, None)
        assert bank.balance(account) == 90
        assert own_bank.mark(f"account:{twin}")[0] > 40


@pytest.mark.parametrize(
    "options",
    [{"pool_size": 1, "max_overflow": 0}, {"poolclass": NullPool}, {"pool_pre_ping": True}],
    ids=["one connection", "none", "pre-ping"],
)
async def test_under_asyncio_alike(
    async_locks: AsyncScriptedLocks, bank: Bank, account, resource, options
) -> None:
    engine = create_async_engine(bank.url, **options)
    guard = AsyncGuard(async_locks, engine)
    try:
        async with AsyncSession(engine) as session:
            async with guard.acquire(resource):
                await session.run_sync(withdraw, account)
                await session.execute(text("SELECT 1"))
                async with guard.acquire(f"{resource}/another"):
                    pass
                await session.rollback()
            with pytest.raises(UnfencedWriteError):
                await session.run_sync(withdraw, account)
        assert bank.balance(account) == 90
    finally:
        await Database.of(engine.sync_engine).admissions.aclose()
        await engine.dispose()
