"""Admissions share a pool, and each keeps its own deadline nevertheless."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import NullPool, QueuePool, event, text

from fencing import AsyncGuard, Guard, LockNotAcquiredError
from fencing.clock import now
from fencing.core import slots as slots_of
from fencing.core.slots import NoSlotError, Slots
from tests.support.bank import enter_by_hand
from tests.support.interrupting import ends, handled_before_step
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks


@contextmanager
def holding(bank, lease):
    """An open transaction under a lease, of another process."""
    with psycopg.connect(bank.plain_url) as connection:
        enter_by_hand(connection, lease.resource, lease.token, lease.holder)
        yield


@pytest.fixture
def small(make_engine):
    """An engine whose pool has one connection, and would wait long for it."""
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=60)


class TestABusyPool:
    @pytest.fixture
    def busy(self, small, bank, resource):
        """The one connection of the admissions waits for an open transaction."""
        old = Guard(ScriptedLocks(), small).acquire(resource)
        with holding(bank, old):
            # Admitted as soon as the transaction is over.
            waiter = threading.Thread(
                target=Guard(ScriptedLocks(2), small).acquire, args=(resource,)
            )
            waiter.start()
            bank.wait_until_queued_for(old.resource)
            yield
        waiter.join()

    @pytest.mark.usefixtures("busy")
    def test_one_that_does_not_wait_does_not_wait_for_it(self, small, resource):
        assert Guard(ScriptedLocks(), small).try_acquire(f"{resource}:free") is None

    @pytest.mark.usefixtures("busy")
    def test_one_that_waits_gives_up_in_time_and_gives_the_lock_back(self, small, resource):
        locks = ScriptedLocks()
        with pytest.raises(LockNotAcquiredError, match="no connection was free"):
            Guard(locks, small).acquire(f"{resource}:free", blocking_timeout=0.1)
        assert locks.calls[-1][0] == "release"


def test_the_wait_for_open_transactions_ends_at_the_deadline_whatever_came_before(
    make_engine, resource
):
    engine = make_engine()
    guard = Guard(ScriptedLocks(), engine)
    sent: list[int] = []

    @event.listens_for(guard.databases[0].admissions.engine, "before_cursor_execute")
    def note(*arguments):
        sent.append(arguments[3]["wait_ms"])

    guard.acquire(resource, blocking_timeout=5).release()
    admissions = guard.databases[0].admissions
    admissions.admit(ScriptedLocks(2).acquire(resource), until=now() - 1)
    assert 0 < sent[0] <= 5000
    assert sent[1] == 0


class TestSlots:
    def test_they_are_as_many_as_the_pool_may_open(self, make_engine):
        def slots(**options):
            return Guard(ScriptedLocks(), make_engine(**options)).databases[0].admissions._slots

        assert slots(poolclass=QueuePool, pool_size=2, max_overflow=3).capacity == 5
        assert slots(max_overflow=-1).capacity == math.inf
        assert slots(poolclass=NullPool).capacity == math.inf

    def test_the_first_to_come_is_the_first_served(self):
        slots, order = Slots(1), []

        def wait(name):
            with slots.slot(now() + 60):
                order.append(name)

        with slots.slot(now()):
            threads = []
            for name in range(5):
                threads.append(threading.Thread(target=wait, args=(name,)))
                threads[-1].start()
                while len(slots._waiting) <= name:
                    pass
        for thread in threads:
            thread.join()
        assert order == [0, 1, 2, 3, 4]

    def test_one_that_gave_up_keeps_nothing_from_the_others(self):
        slots = Slots(1)
        with slots.slot(now()), pytest.raises(NoSlotError), slots.slot(now() + 0.01):
            pass
        with slots.slot(now()):
            pass

    async def test_so_it_is_among_tasks(self):
        slots, order = Slots(1), []

        async def wait(name):
            async with slots.aslot(now() + 60):
                order.append(name)
                await asyncio.sleep(0)

        async with slots.aslot(now()):
            tasks = [asyncio.create_task(wait(name)) for name in range(5)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            with pytest.raises(NoSlotError):
                async with slots.aslot(now() + 0.01):
                    pass
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 2, 3, 4]
        async with slots.aslot(now()):
            pass

    async def test_a_cancelled_admission_leaves_its_slot(self, async_engine, bank, resource):
        guard = AsyncGuard(AsyncScriptedLocks(), async_engine)
        old = await guard.acquire(resource)
        with holding(bank, old):
            task = asyncio.create_task(
                _acquire(AsyncGuard(AsyncScriptedLocks(2), async_engine), resource)
            )
            await asyncio.to_thread(bank.wait_until_queued_for, resource)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        slots = guard.databases[0].admissions._slots
        assert slots.taken == 0


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_signal_handler_may_come_for_a_slot_before_any_step(capacity):
    def come(slots):
        with contextlib.suppress(NoSlotError), slots.slot(now()):
            pass

    def come_at_every_step():
        number, has_come = 0, True
        while has_come:
            number += 1
            slots = Slots(capacity)
            first, second, third = turns = [Future() for _ in range(3)]
            for turn in turns:
                slots._queue(turn)
            with handled_before_step(number, lambda slots=slots: come(slots), slots_of) as steps:
                slots._leave(first)
                come(slots)
            has_come = len(steps) >= number
            assert second.done(), steps[-3:]
            slots._leave(second)
            assert third.done(), steps[-3:]
            slots._leave(third)
            assert slots.taken == 0, steps[-3:]
            assert not slots._waiting, steps[-3:]
        assert number > 50

    assert ends(come_at_every_step)


async def _acquire(guard, resource):
    await guard.acquire(resource)


def test_a_statement_time_out_of_the_role_is_not_ours_to_hide(make_engine, bank, resource):
    old = Guard(ScriptedLocks(), make_engine()).acquire(resource)
    engine = make_engine(connect_args={"options": "-c statement_timeout=500"})
    with (
        holding(bank, old),
        pytest.raises(LockNotAcquiredError, match="time-out that its role or database"),
    ):
        Guard(ScriptedLocks(2), engine).acquire(resource)


def test_no_message_holds_a_password_or_a_nonce(make_engine, bank, resource, caplog):
    url = f"{bank.url}?application_name=x&password=s3cret"
    engine = make_engine(url)
    guard = Guard(ScriptedLocks(), engine)
    with guard.acquire(resource) as lease:
        connection = engine.connect()
        connection.execute(text("SELECT 1"))
    with pytest.raises(LockNotAcquiredError) as refused:
        guard.acquire(resource)
    connection.close()
    told = str(refused.value) + caplog.text
    assert guard.databases[0].name in told
    assert "s3cret" not in told
    assert lease.holder not in told
    assert guard.databases[0].admissions._root.hide_parameters
