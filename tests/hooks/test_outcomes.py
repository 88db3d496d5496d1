"""A COMMIT without an answer: it is called unknown, and afterwards found out without guessing."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    CommitOutcomeUnknownError,
    Guard,
    LeaseExpiredError,
    StaleFenceError,
)
from fencing.embedded.proxy import TcpProxy
from fencing.hooks.database import Database
from fencing.hooks.driver import driver_of
from fencing.schema.names import OUTCOME_OF
from tests.support.bank import Account, Bank
from tests.support.databases import plain_url
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks, expire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def proxy(bank: Bank) -> Iterator[TcpProxy]:
    with TcpProxy.to(bank.url) as proxy:
        yield proxy


@pytest.fixture(params=[True, False], ids=["receipts", "no receipts"])
def receipts(request) -> bool:
    return request.param


@pytest.fixture
def engine(make_engine, proxy: TcpProxy) -> Engine:
    return make_engine(proxy.url)


@pytest.fixture
def guard(engine: Engine, bank: Bank, *, receipts: bool) -> Guard:
    return Guard(ScriptedLocks(), engine, receipts=receipts)


def lose_the_answer(guard: Guard, engine: Engine, proxy: TcpProxy, account: int):
    with guard.acquire(f"account:{account}"), Session(engine) as session:
        session.get_one(Account, account).balance = 1
        session.flush()
        proxy.swallow_reply(containing=b"COMMIT")
        with pytest.raises(CommitOutcomeUnknownError, match="may have been committed") as caught:
            session.commit()
    return caught.value


def test_a_lost_answer_is_an_error_of_its_own(guard, engine, proxy, bank, account, receipts):
    error = lose_the_answer(guard, engine, proxy, account)
    assert error.resources == (f"account:{account}",)
    assert (error.receipt is not None) is receipts
    assert isinstance(error.__cause__, psycopg.OperationalError)
    assert bank.balance(account) == 1


def test_with_a_receipt_it_is_found_to_be_committed_whenever_it_is_asked(
    engine, proxy, bank, account
):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_answer(guard, engine, proxy, account)
    assert [error.outcome() for _ in range(2)] == ["committed"] * 2


def test_without_one_a_transaction_that_is_over_is_unknown(engine, proxy, bank, account):
    guard = Guard(ScriptedLocks(), engine)
    error = lose_the_answer(guard, engine, proxy, account)
    assert bank.balance(account) == 1
    assert error.outcome() == "unknown"


def lose_the_question(
    guard: Guard, engine: Engine, proxy: TcpProxy, account: int
) -> CommitOutcomeUnknownError:
    """COMMIT is sent into a connection that is cut on the way to the server, which stays open."""
    with guard.acquire(f"account:{account}", ttl=60), Session(engine) as session:
        session.get_one(Account, account).balance = 1
        session.flush()
        proxy.withhold_request(containing=b"COMMIT")
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            session.commit()
    return caught.value


def test_a_commit_that_never_arrived_is_found_to_be_rolled_back_and_stays_so(
    engine, proxy, bank, account
):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_question(guard, engine, proxy, account)
    assert error.outcome(timeout=0.05) == "unknown", "it is still open"
    proxy.drop_withheld()
    assert [error.outcome(timeout=30) for _ in range(2)] == ["rolled back"] * 2
    assert bank.balance(account) == 100


@pytest.mark.parametrize(
    ("end", "outcome"), [("pass_withheld_on", "committed"), ("drop_withheld", "rolled back")]
)
def test_without_a_receipt_one_that_is_still_open_is_followed_to_its_end(
    engine, proxy, bank, account, end, outcome
):
    guard = Guard(ScriptedLocks(), engine)
    error = lose_the_question(guard, engine, proxy, account)
    assert error.outcome(timeout=0.05) == "unknown"
    asked = Database.of(engine).admissions.ask
    seen: list[str] = []

    def ask(statement: str, values: dict[str, object]) -> object:
        answer = asked(statement, values)
        if statement == OUTCOME_OF and statement not in seen:
            getattr(proxy, end)()  # only now, when its id is known
        seen.append(statement)
        return answer

    Database.of(engine).admissions.ask = ask
    assert error.outcome(timeout=30) == outcome
    assert bank.balance(account) == (1 if outcome == "committed" else 100)


def test_a_session_that_had_ended_before_commit_is_no_unknown_outcome(guard, engine, bank, account):
    with guard.acquire(f"account:{account}", ttl=60), Session(engine) as session:
        session.get_one(Account, account).balance = 1
        session.flush()
        bank.kill_session(driver_of(session.connection()))
        with pytest.raises(OperationalError):
            session.commit()
    assert bank.balance(account) == 100


def test_and_if_the_holder_was_overtaken_it_is_stale(guard, engine, bank, account):
    lease = guard.acquire(f"account:{account}", ttl=60)
    with lease, Session(engine) as session:
        session.get_one(Account, account).balance = 1
        session.flush()
        bank.kill_session(driver_of(session.connection()))
        bank.raise_mark(f"account:{account}", 9)

        event.listen(engine, "commit", lambda _connection: expire(lease))
        with pytest.raises(StaleFenceError):
            session.commit()


def test_without_a_lease_it_stays_sqlalchemys(guard, engine, proxy, bank):
    with Session(engine) as session:
        session.execute(text("INSERT INTO notes (note) VALUES (NULL)"))
        proxy.swallow_reply(containing=b"COMMIT")
        with pytest.raises(OperationalError):
            session.commit()


def test_a_pooled_connection_that_has_died_with_the_other_is_no_reason_not_to_know(
    engine, proxy, bank, account
):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_answer(guard, engine, proxy, account)
    proxy.cut()  # what admissions have kept, too
    assert error.outcome() == "committed"


def test_what_is_known_once_stays_known(engine, proxy, bank, account):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_answer(guard, engine, proxy, account)
    assert error.outcome() == "committed"
    proxy.refuse()
    assert error.outcome() == "committed"


def test_what_cannot_be_asked_is_unknown(engine, proxy, bank, account):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_answer(guard, engine, proxy, account)
    proxy.refuse()
    assert error.outcome() == "unknown"


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, -1.0])
def test_any_time_to_wait_will_do(engine, proxy, bank, account, timeout):
    guard = Guard(ScriptedLocks(), engine, receipts=True)
    error = lose_the_answer(guard, engine, proxy, account)
    assert error.outcome(timeout) == "committed"


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_server_that_is_down_is_one_that_cannot_be_asked(bank, proxy, account, driver):
    engine = create_async_engine(make_url(proxy.url).set(drivername=f"postgresql+{driver}"))
    async with AsyncGuard(AsyncScriptedLocks(), engine) as guard:
        async with guard.acquire(f"account:{account}"), AsyncSession(engine) as session:
            (await session.get_one(Account, account)).balance = 1
            await session.flush()
            proxy.swallow_reply(containing=b"COMMIT")
            with pytest.raises(CommitOutcomeUnknownError) as caught:
                await session.commit()
        proxy.refuse()
        # The first finds the pool's connection dead, the second has to connect.
        assert [await caught.value.aoutcome() for _ in range(2)] == ["unknown"] * 2
    await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_server_that_is_down_hides_no_error(bank, proxy, account, driver):
    engine = create_async_engine(make_url(proxy.url).set(drivername=f"postgresql+{driver}"))
    async with (
        AsyncGuard(AsyncScriptedLocks(), engine) as guard,
        guard.acquire(f"account:{account}"),
        AsyncSession(engine) as session,
    ):
        connection = (await session.connection()).sync_connection
        await guard.databases[0].admissions.aclose()
        # As if the server's limit were near, so that the mark is asked for.
        guard.databases[0].presentations.get(connection).bounded_until = 0.0
        proxy.refuse()
        with pytest.raises(LeaseExpiredError):
            await session.execute(text("SELECT 1"))
    await engine.dispose()


def test_what_fails_before_the_next_transaction_is_no_outcome_of_the_one_before(
    make_engine, proxy, bank, account
):
    engine = make_engine(proxy.url)

    @event.listens_for(engine, "begin")  # before the guard's
    def of_the_application(connection) -> None:
        connection.exec_driver_sql("SET LOCAL application_name = 'mine'")

    guard = Guard(ScriptedLocks(), engine)
    with guard.acquire(f"account:{account}"), engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        connection.commit()
        proxy.swallow_reply(containing=b"mine")
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))


def test_in_another_process_it_is_unknown(guard, engine, proxy, bank, account):
    error = pickle.loads(pickle.dumps(lose_the_answer(guard, engine, proxy, account)))
    assert error.resources == (f"account:{account}",)
    assert error.outcome() == "unknown"


def test_a_read_without_receipts_writes_nothing(make_engine, bank, account, receipts):
    engine = make_engine()
    guard = Guard(ScriptedLocks(), engine, receipts=receipts)
    with guard.acquire(f"account:{account}"), Session(engine) as session:
        session.get_one(Account, account)
        xid = session.scalar(text("SELECT pg_current_xact_id_if_assigned()::text"))
        assert (xid is not None) is receipts


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_under_asyncio(bank, proxy, account, driver):
    engine = create_async_engine(make_url(proxy.url).set(drivername=f"postgresql+{driver}"))
    async with AsyncGuard(AsyncScriptedLocks(), engine, receipts=True) as guard:
        async with guard.acquire(f"account:{account}"), AsyncSession(engine) as session:
            (await session.get_one(Account, account)).balance = 1
            await session.flush()
            proxy.swallow_reply(containing=b"COMMIT")
            with pytest.raises(CommitOutcomeUnknownError) as caught:
                await session.commit()
        assert await caught.value.aoutcome() == "committed"
    await engine.dispose()


@pytest.fixture
def own_engine(own_bank: Bank) -> Iterator[Engine]:
    engine = create_engine(own_bank.url)
    yield engine
    engine.dispose()


def test_a_receipt_that_was_forgotten_is_unknown_not_rolled_back(own_bank: Bank, own_engine):
    stamp = "1.1000000"
    with psycopg.connect(plain_url(own_bank.url)) as connection:
        connection.execute("SELECT fencing.forget_receipts('1 day')")
        ask = "SELECT fencing.outcome(gen_random_uuid(), %s, 0)"
        assert connection.execute(ask, (stamp,)).fetchone() == ("unknown",)
        young = connection.execute("SELECT fencing.stamp()").fetchone()
        assert connection.execute(ask, young).fetchone() == ("rolled back",)
