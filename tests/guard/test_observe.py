"""Observe mode as an application sees it: nothing fails, everything is told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, StaleFenceError, UnfencedWriteError
from fencing.schema import ddl
from tests.support.bank import Account, Bank
from tests.support.databases import plain_url
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

UNFENCED = ("public.accounts", "unfenced")
STALE = ("public.accounts", "stale")


def set_mode(bank: Bank, mode: str) -> None:
    with psycopg.connect(plain_url(bank.url)) as admin:
        for statement in ddl.alter_fence("accounts", mode=mode):
            admin.execute(statement.encode())


@pytest.fixture
def observed(own_bank: Bank) -> Bank:
    set_mode(own_bank, "observe")
    return own_bank


@pytest.fixture
def engine(observed: Bank) -> Iterator[Engine]:
    engine = create_engine(observed.url, pool_size=1)
    yield engine
    engine.dispose()


@pytest.fixture
def guard(engine: Engine) -> Iterator[Guard]:
    with Guard(ScriptedLocks(), engine) as guard:
        yield guard


def test_an_unfenced_write_passes_is_counted_and_logged_with_its_line(
    guard, engine, observed: Bank, caplog
) -> None:
    with Session(engine) as session, caplog.at_level(logging.WARNING, logger="fencing.observed"):
        session.get_one(Account, 1).balance -= 10
        session.commit()
    assert observed.balance(1) == 90
    assert guard.observed == {UNFENCED: 1}
    (message,) = caplog.messages
    assert message.startswith("observed: unfenced write: public.accounts is guarded")
    assert f"(written at {__file__}:" in message


def test_a_covered_write_is_nothing_to_report(guard, engine, observed: Bank) -> None:
    with guard.acquire("account:1"), Session(engine) as session:
        session.get_one(Account, 1).balance -= 10
        session.commit()
    assert guard.observed == {}


def test_a_stale_write_is_reported_and_passes(guard, engine, observed: Bank) -> None:
    with guard.acquire("account:1", ttl=60), Session(engine) as session:
        session.get_one(Account, 1).balance -= 10
        observed.raise_mark("account:1", 7)
        session.commit()
    assert guard.observed == {STALE: 1}
    assert observed.balance(1) == 90


def test_many_are_counted_though_few_are_sent(guard, engine, observed: Bank, caplog) -> None:
    with Session(engine) as session, caplog.at_level(logging.WARNING, logger="fencing.observed"):
        session.execute(text("UPDATE accounts SET balance = 0 WHERE id <= 250"))
        session.commit()
    assert guard.observed == {UNFENCED: 250}
    assert len(caplog.messages) == 100
    assert ", and 150 more" in caplog.messages[-1]


def test_a_connection_older_than_the_guard_reports_too(engine, observed: Bank) -> None:
    with Session(engine) as session:
        session.scalar(text("SELECT 1"))
    with Guard(ScriptedLocks(), engine) as guard:
        for _ in range(2):
            with Session(engine) as session:
                session.execute(update(Account).where(Account.id == 1).values(balance=1))
                session.commit()
        assert guard.observed == {UNFENCED: 2}


def test_notices_of_others_are_none_of_ours(guard, engine) -> None:
    with Session(engine) as session:
        session.execute(text("DO $$ BEGIN RAISE NOTICE 'hello' USING DETAIL = '{}'; END $$"))
    assert guard.observed == {}


def test_after_the_switch_to_enforce_the_same_write_is_refused_and_back_again(
    guard, engine, observed: Bank
) -> None:
    def write() -> None:
        with Session(engine) as session:
            session.execute(update(Account).where(Account.id == 1).values(balance=7))
            session.commit()

    write()
    set_mode(observed, "enforce")
    with pytest.raises(UnfencedWriteError):
        write()
    set_mode(observed, "observe")
    write()
    assert observed.balance(1) == 7


def test_entry_refuses_an_overtaken_lease_in_any_mode(guard, engine, observed: Bank) -> None:
    """A guard that is used at all keeps its promise at the first statement."""
    with guard.acquire("account:1", ttl=60):
        observed.raise_mark("account:1", 7)
        with pytest.raises(StaleFenceError), Session(engine) as session:
            session.get(Account, 1)


async def test_under_asyncio(observed: Bank) -> None:
    engine = create_async_engine(observed.url)
    async with AsyncGuard(AsyncScriptedLocks(), engine) as guard, AsyncSession(engine) as session:
        await session.execute(update(Account).where(Account.id == 1).values(balance=1))
        await session.commit()
        assert guard.observed == {UNFENCED: 1}
    await engine.dispose()
