"""The end of a block: an exception of the body always wins, a loss is told, nothing is masked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    Guard,
    LeaseExpiredError,
    LeaseLostError,
    LockServiceError,
    StaleFenceError,
)
from tests.support.scripted import expire

if TYPE_CHECKING:
    from tests.support.bank import Bank
    from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

FAILURES = [LeaseLostError("taken by another"), LockServiceError("out of reach")]
each_failure = pytest.mark.parametrize("failure", FAILURES, ids=["lost", "unreachable"])


class BodyError(Exception):
    pass


def told(failure: Exception) -> str:
    """A loss is nothing to act on any more; what else went wrong is told as it is."""
    return (
        "only what was refused has to be repeated"
        if isinstance(failure, LeaseLostError)
        else str(failure)
    )


@each_failure
class TestGuardBlock:
    def test_it_is_logged_when_the_body_succeeded(
        self, guard: Guard, locks: ScriptedLocks, resource: str, caplog, failure
    ) -> None:
        locks.releases.append(failure)
        with guard.acquire(resource):
            pass
        assert told(failure) in caplog.text

    def test_it_is_a_note_on_the_bodys_exception(
        self, guard: Guard, locks: ScriptedLocks, resource: str, caplog, failure
    ) -> None:
        locks.releases.append(failure)
        with pytest.raises(BodyError) as error, guard.acquire(resource):
            raise BodyError
        assert any(str(failure) in note for note in error.value.__notes__)
        assert error.value.__context__ is None
        assert not caplog.records

    async def test_under_asyncio_alike(
        self, async_guard: AsyncGuard, async_locks: AsyncScriptedLocks, resource, caplog, failure
    ) -> None:
        async_locks.releases.extend([failure, failure])
        async with async_guard.acquire(resource):
            pass
        assert told(failure) in caplog.text
        with pytest.raises(BodyError) as error:
            async with async_guard.acquire(f"{resource}:2"):
                raise BodyError
        assert any(str(failure) in note for note in error.value.__notes__)


class TestPlainLockBlock:
    def test_a_loss_is_raised_when_the_body_succeeded(self, locks: ScriptedLocks) -> None:
        locks.releases.append(FAILURES[0])
        with pytest.raises(LeaseLostError, match="taken by another"), locks.acquire("x"):
            pass

    def test_a_lock_service_out_of_reach_is_only_logged(self, locks: ScriptedLocks, caplog) -> None:
        locks.releases.append(FAILURES[1])
        with locks.acquire("x"):
            pass
        assert "out of reach" in caplog.text

    def test_a_loss_that_was_noticed_in_the_block_is_raised_though_nothing_was_left_to_release(
        self, locks: ScriptedLocks
    ) -> None:
        with (
            pytest.raises(LeaseLostError, match="lost before it was released"),
            locks.acquire("x") as lease,
        ):
            lease.note_lost()
        assert lease.lost
        assert lease.released
        lease.release()

    async def test_and_under_asyncio(self, async_locks: AsyncScriptedLocks) -> None:
        with pytest.raises(LeaseLostError, match="lost before it was released"):
            async with async_locks.acquire("x") as lease:
                lease.note_lost()

    def test_the_bodys_exception_wins(self, locks: ScriptedLocks) -> None:
        locks.releases.append(FAILURES[0])
        with pytest.raises(BodyError) as error, locks.acquire("x"):
            raise BodyError
        assert any("taken by another" in note for note in error.value.__notes__)


def test_a_refusal_of_the_database_leaves_the_block_as_it_is(
    guard: Guard, engine: Engine, bank: Bank, resource: str, caplog
) -> None:
    with pytest.raises(StaleFenceError) as error, guard.acquire(resource):  # noqa: PT012 - its end is meant
        bank.admit(resource, 2)
        read(engine)
    assert any("was lost" in note for note in error.value.__notes__)
    assert not caplog.records


def test_an_expiry_in_the_block_does_not_mask_the_bodys_exception(
    guard: Guard, engine: Engine, resource: str
) -> None:
    with pytest.raises(BodyError), guard.acquire(resource) as lease, Session(engine) as session:  # noqa: PT012 - its end is meant
        session.execute(text("SELECT 1"))
        expire(lease)
        raise BodyError


def test_an_expiry_at_the_commit_of_a_begin_block_is_what_is_raised(
    guard: Guard, engine: Engine, resource: str
) -> None:
    with (  # noqa: PT012 - its end is meant
        pytest.raises(LeaseExpiredError) as error,
        guard.acquire(resource) as lease,
        Session(engine) as session,
        session.begin(),
    ):
        session.execute(text("SELECT 1"))
        expire(lease)
    assert (error.value.resource, error.value.token) == (resource, 1)


def read(engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(text("SELECT 1"))


def test_a_caught_refusal_is_logged_at_the_end(
    guard: Guard, engine: Engine, bank: Bank, resource: str, caplog
) -> None:
    with guard.acquire(resource) as lease, Session(engine) as session:
        bank.admit(resource, 2)
        with pytest.raises(StaleFenceError):
            session.execute(text("SELECT 1"))
        session.rollback()
    assert lease.lost
    assert "over before its block ended" in caplog.text


def test_a_synchronous_lease_in_async_with_says_so_and_is_not_left_behind(guard, locks) -> None:
    async def confused() -> None:
        async with guard.acquire("x"):
            pass

    with pytest.raises(TypeError, match="use a plain with block"):
        asyncio.run(confused())
    assert locks.calls[-1] == ("release", "x")


def test_an_asynchronous_acquisition_in_a_plain_with_says_so(async_guard, async_locks) -> None:
    with pytest.raises(TypeError, match="use async with"), async_guard.acquire("x"):
        pass
    assert async_locks.calls == []
