"""The decorator: a function that runs under the lease that its arguments name."""

from __future__ import annotations

import inspect
import uuid

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencing import LockNotAcquiredError
from tests.support.bank import Account


def test_it_runs_under_the_lease_that_its_arguments_name(guard, locks, engine, bank, account):
    @guard.holding("account:{account_id}", ttl=20, owner="teller")
    def set_balance(account_id: int, balance: int = 7) -> str:
        """Set it."""
        with Session(engine) as session:
            session.get_one(Account, account_id).balance = balance
            session.commit()
        return "done"

    assert set_balance(account_id=account) == "done"
    assert bank.balance(account) == 7
    assert set_balance(account, 9) == "done"
    assert bank.balance(account) == 9
    assert [call[:2] for call in locks.calls] == [
        ("acquire", f"account:{account}"),
        ("release", f"account:{account}"),
    ] * 2
    assert set_balance.__name__ == "set_balance"
    assert set_balance.__doc__ == "Set it."
    assert list(inspect.signature(set_balance).parameters) == ["account_id", "balance"]


async def test_so_does_an_asynchronous_one(async_guard, async_engine, bank, account):
    @async_guard.holding("account:{account_id}")
    async def set_balance(account_id: int, balance: int) -> str:
        async with AsyncSession(async_engine) as session:
            (await session.get_one(Account, account_id)).balance = balance
            await session.commit()
        return "done"

    assert await set_balance(account, balance=7) == "done"
    assert bank.balance(account) == 7
    assert inspect.iscoroutinefunction(set_balance)


def test_methods_defaults_and_further_keywords_name_it_too(guard, locks):
    class Teller:
        @guard.holding("{kind}:{number}:{extra}")
        def work(self, number: uuid.UUID, kind: str = "x", **more: object) -> tuple:
            return (self, number, kind, more)

    teller, number = Teller(), uuid.UUID(int=5)
    assert teller.work(number, extra=True) == (teller, number, "x", {"extra": True})
    assert locks.calls[0][1] == f"x:{number}:true"


def test_what_it_raises_is_raised_and_the_lease_is_given_back(guard, locks):
    @guard.holding("x")
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert locks.calls[-1] == ("release", "x")


def test_what_is_held_by_another_is_not_run(guard, locks):
    @guard.holding("x", blocking=False)
    def work() -> None:
        pytest.fail("ran")

    locks.tokens.append(None)
    with pytest.raises(LockNotAcquiredError):
        work()


class TestBadInput:
    @pytest.mark.parametrize(
        ("template", "options", "error"),
        [
            ("account:{nope}", {}, ValueError),
            ("account:{", {}, ValueError),
            ("", {}, ValueError),
            (7, {}, TypeError),
            ("x", {"ttl": 0}, ValueError),
            ("x", {"ttl": "1"}, TypeError),
            ("x", {"blocking": False, "blocking_timeout": 1}, ValueError),
        ],
    )
    def test_is_refused_when_the_function_is_decorated(self, guard, template, options, error):
        with pytest.raises(error):
            guard.holding(template, **options)(lambda account_id: account_id)

    def test_without_a_template_is_refused_where_it_stands(self, guard, async_guard):
        for each in (guard, async_guard):
            with pytest.raises(TypeError, match="not a function"):

                @each.holding
                def work() -> None: ...

    def test_of_a_call_is_refused_before_anything_is_sent(self, guard, locks):
        @guard.holding("account:{account_id}")
        def work(account_id: object) -> None:
            pytest.fail("ran")

        for value, error in ((None, ValueError), (1.5, TypeError), ("a\0b", ValueError)):
            with pytest.raises(error):
                work(value)
        with pytest.raises(TypeError, match="missing a required argument"):
            work()
        assert locks.calls == []

    def test_the_wrong_kind_of_function_is_refused(self, guard, async_guard):
        async def asynchronous() -> None: ...

        def generator():
            yield

        async def async_generator():
            yield

        for of, function in (
            (guard, asynchronous), (async_guard, lambda: None), (guard, generator),
            (async_guard, generator), (async_guard, async_generator),
        ):  # fmt: skip
            with pytest.raises(TypeError):
                of.holding("x")(function)


def test_it_presents_nothing_after_the_call(guard, engine):
    @guard.holding("x")
    def work() -> None: ...

    work()
    with engine.connect() as connection:
        claim = connection.scalar(text("SELECT current_setting('fencing.claim', true)"))
        assert not claim
