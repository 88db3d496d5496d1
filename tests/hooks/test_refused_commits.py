"""A COMMIT that was not sent is never sent: not by the next user of the connection either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, LeaseLostError
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks, expire

if TYPE_CHECKING:
    from fencing.lease import BaseLease
    from tests.support.bank import Bank
    from tests.support.banking import MakeEngine

WRITE = text("UPDATE accounts SET balance = 0 WHERE id = :id")
UNRELATED = text("INSERT INTO notes (note) VALUES (CAST(gen_random_uuid() AS text))")


def release(lease: BaseLease) -> None:
    lease.note_released()


def lose(lease: BaseLease) -> None:
    lease.note_lost()


ENDS = pytest.mark.parametrize("end", [release, lose, expire])


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """Whose next user gets the connection of the one before."""
    return make_engine(pool_size=1, max_overflow=0)


@ENDS
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_it_is_rolled_back_for_good(
    engine: Engine, bank: Bank, account: int, resource: str, kind: str, end
) -> None:
    lease = Guard(ScriptedLocks(), engine).acquire(resource)
    begin = Session(engine) if kind == "session" else engine.connect()
    with begin as it:
        with lease:
            it.execute(WRITE, {"id": account})
            end(lease)
            with pytest.raises(LeaseLostError) as refused:
                it.commit()
        assert any("COMMIT was not sent" in note for note in refused.value.__notes__)
    with engine.begin() as next_user:
        next_user.execute(UNRELATED)
    assert bank.balance(account) == 100
    # Nobody waits for what is left of it, once the server has seen its connection closed.
    assert Guard(ScriptedLocks(2), engine).acquire(resource, blocking_timeout=10).admitted


@ENDS
def test_leaving_the_block_first_makes_no_difference(
    engine: Engine, bank: Bank, account: int, resource: str, end
) -> None:
    with Session(engine) as session:
        with Guard(ScriptedLocks(), engine).acquire(resource) as lease:
            session.execute(WRITE, {"id": account})
            end(lease)
        with pytest.raises(LeaseLostError):
            session.commit()
        session.rollback()
        session.execute(UNRELATED)
        session.commit()
    assert bank.balance(account) == 100


@ENDS
async def test_so_it_is_under_asyncio(bank: Bank, account: int, resource: str, end) -> None:
    engine = create_async_engine(bank.url, pool_size=1, max_overflow=0)
    async with AsyncGuard(AsyncScriptedLocks(), engine) as guard:
        async with AsyncSession(engine) as session, guard.acquire(resource) as lease:
            await session.execute(WRITE, {"id": account})
            end(lease)
            with pytest.raises(LeaseLostError):
                await session.commit()
        async with engine.begin() as next_user:
            await next_user.execute(UNRELATED)
    await engine.dispose()
    assert bank.balance(account) == 100
