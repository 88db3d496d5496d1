"""``fence(session_or_connection, lease)``: these leases, here, and nothing left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencing import AsyncGuard, FencingUsageError, Guard, fence
from fencing.hooks.database import EXPLICIT
from tests.support.bank import Account, Bank, BareAccount, Note, presented
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from tests.support.banking import MakeEngine


@pytest.fixture(params=["session", "connection", "scoped_session"])
def target(request: pytest.FixtureRequest, engine: Engine, guard: Guard) -> Any:
    if request.param == "scoped_session":
        registry = scoped_session(sessionmaker(engine))
        yield registry
        registry.remove()
        return
    with Session(engine) if request.param == "session" else engine.connect() as target:
        yield target


class TestFence:
    def test_it_covers_every_transaction_of_its_block_and_none_after(
        self, guard: Guard, target, resource: str
    ) -> None:
        lease = guard.acquire(resource)
        with fence(target, lease):
            for end in (target.rollback, target.commit):
                assert presented(target) == {resource: 1}
                end()
        assert presented(target) == {}

    def test_it_leaves_nothing_on_its_target(self, guard: Guard, target, resource: str) -> None:
        inner = target() if isinstance(target, scoped_session) else target
        with fence(target, guard.acquire(resource)):
            presented(target)
            target.rollback()
        if isinstance(inner, Session):
            assert "get_bind" not in vars(inner)
        else:
            assert not inner.get_execution_options().get(EXPLICIT)

    def test_it_beats_an_ambient_lease_on_the_same_resource_only(
        self, guard: Guard, engine: Engine, target, resource: str
    ) -> None:
        with guard.acquire(resource), guard.acquire(f"{resource}:other"):
            newer = Guard(ScriptedLocks(7), engine).acquire(resource)
            with fence(target, newer):
                assert presented(target) == {resource: 7, f"{resource}:other": 2}

    def test_several_leases_at_once_or_nested(self, guard: Guard, target, resource: str) -> None:
        leases = [guard.acquire(f"{resource}:{n}") for n in range(3)]
        with fence(target, *leases[:2]):
            assert len(presented(target)) == 2
            target.rollback()
            with fence(target, leases[2]):
                assert len(presented(target)) == 3
                target.rollback()
            assert len(presented(target)) == 2
            target.rollback()
        assert presented(target) == {}

    def test_fences_may_be_closed_in_another_order(self, guard, target, resource: str) -> None:
        outer = fence(target, guard.acquire(f"{resource}:1"))
        inner = fence(target, guard.acquire(f"{resource}:2"))
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert list(presented(target)) == [f"{resource}:2"]
        target.rollback()
        inner.__exit__(None, None, None)
        assert presented(target) == {}

    def test_a_begun_transaction_is_refused(self, guard: Guard, target, resource: str) -> None:
        lease = guard.acquire(resource)
        target.execute(text("SELECT 1"))
        with (
            pytest.raises(FencingUsageError, match="commit or roll back first"),
            fence(target, lease),
        ):
            pytest.fail("it was entered")
        target.rollback()
        with fence(target, lease):
            assert presented(target) == {resource: 1}

    def test_it_sends_nothing_of_its_own(self, guard, engine, target, resource: str) -> None:
        from tests.support.bank import statements_of

        lease = guard.acquire(resource)
        with statements_of(engine) as sent, fence(target, lease):
            pass
        assert sent == []

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_a_transaction_outlives_the_fence_with_its_lease(
        self, guard: Guard, bank: Bank, target, account: int, resource: str, ending: str
    ) -> None:
        change = text(f"UPDATE accounts SET balance = balance - 10 WHERE id = {account}")
        with fence(target, guard.acquire(resource)):
            target.execute(change)
        target.execute(change)
        assert presented(target) == {resource: 1}
        getattr(target, ending)()
        assert presented(target) == {}
        assert bank.balance(account) == (80 if ending == "commit" else 100)

    def test_an_error_in_the_block_ends_it(self, guard: Guard, target, resource: str) -> None:
        with pytest.raises(ZeroDivisionError), fence(target, guard.acquire(resource)):
            raise ZeroDivisionError
        assert presented(target) == {}


class TestSessions:
    def test_the_orm_goes_on_with_the_same_session(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with Session(engine) as session:
            with fence(session, guard.acquire(resource)):
                row = session.get_one(Account, account)
                row.balance -= 10
                session.commit()
                row.balance -= 10
                session.commit()
            assert row.balance == 80
        assert bank.balance(account) == 80

    def test_a_bind_that_was_kept_presents_nothing_after_the_fence(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with Session(engine) as session, fence(session, guard.acquire(resource)):
            kept = session.get_bind()
        with kept.connect() as connection:
            assert presented(connection) == {}

    def test_a_get_bind_of_a_subclass_is_asked(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        asked = []

        class Routed(Session):
            def get_bind(self, mapper=None, **_kwargs):
                asked.append(mapper)
                return engine

        with Routed() as session:
            with fence(session, guard.acquire(resource)):
                assert presented(session) == {resource: 1}
                session.rollback()
            assert presented(session) == {}
        assert asked
        assert "get_bind" not in vars(session)

    def test_each_bind_of_a_session_is_fenced(
        self, make_engine: MakeEngine, locks, bank: Bank, own_bank: Bank, account: int, resource
    ) -> None:
        engine, other = make_engine(), make_engine(own_bank.url)
        guard = Guard(locks, engine, other)
        binds = {Account: engine, Note: other, BareAccount: other}
        with Session(binds=binds) as session, fence(session, guard.acquire(resource)):
            session.get_one(Account, account).balance = 1
            session.get_one(BareAccount, account).balance = 2
            session.commit()
        assert (bank.balance(account), own_bank.balance(account)) == (1, 2)

    def test_the_ambient_lease_reaches_each_bind_too(
        self, make_engine: MakeEngine, locks, bank: Bank, own_bank: Bank, account: int, resource
    ) -> None:
        engine, other = make_engine(), make_engine(own_bank.url)
        guard = Guard(locks, engine, other)
        with guard.acquire(resource), Session(binds={Account: engine, BareAccount: other}) as s:
            s.get_one(Account, account).balance = 1
            s.get_one(BareAccount, account).balance = 2
            s.commit()
        assert (bank.balance(account), own_bank.balance(account)) == (1, 2)

    def test_a_session_on_a_connection_is_told_to_fence_the_connection(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        lease = guard.acquire(resource)
        with engine.connect() as connection, Session(connection) as session:
            with fence(session, lease), pytest.raises(FencingUsageError, match="the connection"):
                session.execute(text("SELECT 1"))
            session.rollback()
            with fence(connection, lease):
                assert presented(session) == {resource: 1}

    async def test_an_async_scoped_session_is_a_target(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, resource: str
    ) -> None:
        factory = sessionmaker(async_engine, class_=AsyncSession)
        registry = async_scoped_session(factory, scopefunc=lambda: 1)
        with fence(registry, await async_guard.acquire(resource)):
            assert await registry().run_sync(presented) == {resource: 1}
        await registry.remove()


class TestWrongUse:
    def test_an_engine_that_no_guard_knows(
        self, guard: Guard, make_engine: MakeEngine, resource: str
    ) -> None:
        lease = guard.acquire(resource)
        nobody_knows = pytest.raises(FencingUsageError, match="no Guard has been made")
        with make_engine().connect() as connection, nobody_knows:
            fence(connection, lease).__enter__()
        nobody_knows = pytest.raises(FencingUsageError, match="no Guard has been made")
        with Session(make_engine()) as session, fence(session, lease), nobody_knows:
            session.execute(text("SELECT 1"))

    @pytest.mark.parametrize("wrong", [None, "session", object()])
    def test_something_that_is_no_session(self, guard: Guard, resource: str, wrong) -> None:
        with pytest.raises(TypeError, match="session or connection"):
            fence(wrong, guard.acquire(resource)).__enter__()

    def test_an_engine_is_no_session(self, guard: Guard, engine: Engine, resource: str) -> None:
        with pytest.raises(TypeError, match="not Engine"):
            fence(engine, guard.acquire(resource)).__enter__()

    def test_no_lease_at_all(self, engine: Engine) -> None:
        with Session(engine) as session, pytest.raises(TypeError, match="at least one lease"):
            fence(session).__enter__()

    def test_something_that_is_no_lease(self, engine: Engine) -> None:
        with Session(engine) as session, pytest.raises(TypeError, match="takes leases, not str"):
            fence(session, "account:1").__enter__()

    async def test_an_async_connection_that_was_not_started(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, resource: str
    ) -> None:
        lease = await async_guard.acquire(resource)
        with pytest.raises(FencingUsageError, match="not started"):
            fence(async_engine.connect(), lease).__enter__()
