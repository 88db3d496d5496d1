"""Guards over an address, a pool or a function, without SQLAlchemy."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from fencing import LockNotAcquiredError, StaleFenceError, postgres
from fencing.clock import now
from tests.support.bank import ALICE, enter_by_hand
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks, expire
from tests.support.sides import SyncSide

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.bank import Bank

DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = %s"


async def test_a_lease_is_handed_out_when_the_database_has_admitted_it(
    side, guard, bank: Bank, resource
) -> None:
    async with side.block(guard.acquire(resource, ttl=10)) as lease:
        assert lease.admitted
        assert bank.mark(resource) == (lease.token, lease.holder)
    assert lease.released


async def test_several_leases_are_presented_together(side, guard, bank: Bank, connection) -> None:
    accounts = [bank.new_account(), bank.new_account()]
    names = [f"account:{account}" for account in accounts]
    async with (
        side.block(guard.acquire_all(names, ttl=10)) as group,
        side.block(postgres.transaction(connection, *group)),
    ):
        for account in accounts:
            await side.execute(connection, DEBIT, [account])
    assert [bank.balance(account) for account in accounts] == [90, 90]
    assert all(lease.admitted and lease.released for lease in group)
    async with side.block(guard.acquire_all(names, ttl=10)) as group:
        bank.admit(names[1], group[1].token + 1)
        with pytest.raises(StaleFenceError):
            async with side.block(postgres.transaction(connection, *group)):
                await side.execute(connection, DEBIT, [accounts[0]])
    assert [bank.balance(account) for account in accounts] == [90, 90]


async def test_a_lost_counter_is_healed(side, guard, locks, bank: Bank, resource) -> None:
    bank.admit(resource, 70)
    lease = await side.do(guard.acquire(resource))
    assert lease.token == 71
    assert locks.count("raise") == 1
    assert bank.mark(resource) == (71, lease.holder)


async def test_a_lost_counter_is_healed_for_all_databases_at_once(
    side, locks, bank: Bank, own_bank: Bank, resource
) -> None:
    own_bank.admit(resource, 70)
    guard = side.guard(locks, bank.plain_url, own_bank.plain_url)
    lease = await side.do(guard.acquire(resource))
    assert lease.token == 71
    assert bank.mark(resource) == own_bank.mark(resource) == (71, lease.holder)


async def test_what_cannot_be_admitted_is_not_handed_out(
    side, guard, locks, bank: Bank, resource
) -> None:
    bank.admit(resource, 1, ALICE)
    locks.counter = 1
    with psycopg.connect(bank.plain_url) as earlier:
        enter_by_hand(earlier, resource, 1, ALICE)
        with pytest.raises(LockNotAcquiredError) as error:
            await side.do(guard.acquire(resource, blocking_timeout=0.05))
        assert error.value.blocked_by == (earlier.info.backend_pid,)
        assert error.value.waited >= 0.05
        assert await side.try_acquire(guard, resource) is None
    assert locks.count("release") == 2
    assert (await side.try_acquire(guard, resource)) is not None


async def test_evict_after_ends_who_keeps_an_admission_waiting(
    side, locks, bank: Bank, resource, caplog
) -> None:
    guard = side.guard(locks, bank.plain_url, evict_after=0.05)
    earlier = await side.do(guard.acquire(resource))
    zombie = await side.connect(bank.plain_url)
    await side.do(postgres.enter(zombie, earlier))
    pid = zombie.info.backend_pid
    # It is somebody else's: another thread's, as far as the guard can tell.
    with caplog.at_level(logging.WARNING, "fencing"):
        lease = await asyncio.to_thread(acquire_elsewhere, side, guard, resource)
    assert lease.token == 2
    assert f"ended PostgreSQL backends {pid}" in caplog.text
    bank.wait_until_gone(pid)


def acquire_elsewhere(side: Any, guard: Any, resource: str) -> Any:
    """In a thread, and if need be in an event loop, of its own."""
    if isinstance(side, SyncSide):
        return guard.acquire(resource)

    async def acquire() -> Any:
        lease = await guard.acquire(resource)
        for database in guard.databases:  # these are of this event loop
            await database.connections.aclose()
        return lease

    return asyncio.run(acquire())


async def test_nobody_waits_for_himself(side, guard, locks, resource) -> None:
    async with side.block(guard.acquire(resource)):
        with pytest.raises(LockNotAcquiredError, match="already holds"):
            await side.do(guard.acquire(resource))
        assert await side.try_acquire(guard, resource) is None
    assert locks.count("acquire") == 1


async def test_a_transaction_of_one_s_own_that_was_left_open_is_named_at_once(
    side, guard, connection, resource, caplog
) -> None:
    with caplog.at_level(logging.WARNING, "fencing"):
        async with side.block(guard.acquire(resource)) as lease:
            block = postgres.transaction(connection, lease)
            left_open = side.block(block)
            await left_open.__aenter__()
    assert f"backend {connection.info.backend_pid}" in caplog.text
    with pytest.raises(LockNotAcquiredError, match="still open") as error:
        await side.do(guard.acquire(resource))
    assert error.value.blocked_by == (connection.info.backend_pid,)
    with pytest.raises(Exception, match="was released"):
        await left_open.__aexit__(None, None, None)
    assert (await side.do(guard.acquire(resource))).admitted


async def test_a_loss_that_is_found_at_the_end_is_logged_not_raised(
    side, guard, locks, resource, caplog
) -> None:
    from fencing import LeaseLostError

    locks.releases.append(LeaseLostError(resource=resource, token=1))
    with caplog.at_level(logging.WARNING, "fencing"):
        async with side.block(guard.acquire(resource)):
            pass
    assert "was over before its block ended" in caplog.text


async def test_admit_takes_a_lease_from_elsewhere(side, guard, locks, bank: Bank, resource) -> None:
    lease = await side.do(locks.acquire(resource))
    await side.do(guard.admit(lease))
    assert bank.mark(resource) == (1, lease.holder)
    bank.admit(resource, 9)
    late = await side.do(locks.acquire(resource))
    await side.do(guard.admit(late))
    assert bank.mark(resource) == (10, late.holder)
    bank.admit(resource, 11)
    with pytest.raises(StaleFenceError):
        await side.do(guard.admit(late))


async def test_a_connection_that_died_while_it_was_idle_is_no_reason_to_fail(
    side, guard, bank: Bank, resource
) -> None:
    await side.do(guard.acquire(resource))
    (idle,) = guard.databases[0].connections._idle
    bank.kill_backend(idle.info.backend_pid)
    lease = await side.do(guard.acquire(f"account:{bank.new_account()}"))
    assert lease.admitted
    (fresh,) = guard.databases[0].connections._idle
    assert fresh is not idle


async def test_when_one_has_died_the_other_idle_ones_are_not_tried(
    side, guard, bank: Bank, resource
) -> None:
    connections = guard.databases[0].connections
    async with (
        side.block(connections.connection(now() + 5)) as one,
        side.block(connections.connection(now() + 5)) as other,
    ):
        pass
    assert connections._idle == [other, one]
    for dead in (one, other):
        bank.kill_backend(dead.info.backend_pid)
    assert (await side.do(guard.acquire(resource))).admitted


async def test_admissions_share_few_connections(side, guard, bank: Bank) -> None:
    for _ in range(5):
        await side.do(guard.acquire(f"account:{bank.new_account()}"))
    assert len(guard.databases[0].connections._idle) == 1


async def test_a_function_that_connects_will_do(side, locks, bank: Bank, resource) -> None:
    made: list[Any] = []

    def connect() -> Any:
        connected = (
            psycopg.connect(bank.plain_url)
            if isinstance(locks, ScriptedLocks)
            else psycopg.AsyncConnection.connect(bank.plain_url)
        )
        made.append(connected)
        return connected

    lease = await side.do(side.guard(locks, connect).acquire(resource))
    assert bank.mark(resource) == (1, lease.holder)
    assert len(made) == 1


@pytest.fixture
async def pool(side: Any, bank: Bank) -> AsyncIterator[Any]:
    """A pool of psycopg_pool's, of one connection."""
    if isinstance(side, SyncSide):
        with ConnectionPool(bank.plain_url, min_size=1, max_size=1, name="pool-1", open=True) as p:
            yield p
    else:
        async with AsyncConnectionPool(
            bank.plain_url, min_size=1, max_size=1, name="pool-1", open=False
        ) as p:
            yield p


async def test_a_pool_will_do(side, locks, bank: Bank, pool, resource) -> None:
    guard = side.guard(locks, pool)
    lease = await side.do(guard.acquire(resource, ttl=5))
    assert bank.mark(resource) == (1, lease.holder)
    async with side.block(pool.connection()) as connection:
        assert not connection.autocommit
    assert "pool-1" in repr(guard)


async def test_a_pool_that_is_busy_does_not_outlast_the_deadline(
    side, locks, pool, resource
) -> None:
    guard = side.guard(locks, pool)
    async with side.block(pool.connection()):
        with pytest.raises(LockNotAcquiredError, match="no connection was free"):
            await side.do(guard.acquire(resource, ttl=0.05, blocking_timeout=0.05))
    assert (await side.do(guard.acquire(resource))).admitted


async def test_when_all_connections_are_busy_the_deadline_is_kept(
    side, locks, bank: Bank, resource
) -> None:
    guard = side.guard(locks, bank.plain_url, max_connections=1)
    async with guard.databases[0].connections.slots.aslot(float("inf")):
        with pytest.raises(LockNotAcquiredError, match="no connection was free"):
            await side.do(guard.acquire(resource, ttl=0.05, blocking_timeout=0.05))
    assert locks.count("release") == 1


def test_a_conninfo_is_read_when_the_guard_is_made(bank: Bank) -> None:
    with pytest.raises(ValueError, match=r"write postgresql://") as error:
        postgres.PsycopgGuard(ScriptedLocks(), "postgresql+psycopg://u:secret@localhost/bank")
    assert "secret" not in str(error.value)
    with pytest.raises(ValueError, match="cannot read") as error:
        postgres.PsycopgGuard(ScriptedLocks(), "host=x secret")
    assert "secret" not in str(error.value)
    guard = postgres.PsycopgGuard(ScriptedLocks(), "host=db dbname=bank password=secret")
    assert repr(guard) == "<PsycopgGuard of db:5432/bank>"


def test_arguments_are_checked(bank: Bank) -> None:
    with pytest.raises(TypeError, match="at least one database"):
        postgres.PsycopgGuard(ScriptedLocks())
    with pytest.raises(TypeError, match="use AsyncPsycopgGuard"):
        postgres.PsycopgGuard(AsyncScriptedLocks(), "")
    with pytest.raises(TypeError, match="use PsycopgGuard"):
        postgres.AsyncPsycopgGuard(ScriptedLocks(), "")
    with pytest.raises(TypeError, match="not a connection"):
        postgres.PsycopgGuard(ScriptedLocks(), bank.observer)
    with pytest.raises(TypeError, match="not int"):
        postgres.PsycopgGuard(ScriptedLocks(), 5)
    with pytest.raises(ValueError, match="max_connections"):
        postgres.PsycopgGuard(ScriptedLocks(), "", max_connections=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_no_connection_of_its_parent(bank: Bank, resource) -> None:
    with postgres.PsycopgGuard(ScriptedLocks(), bank.plain_url) as guard:
        guard.acquire(resource)
        (idle,) = guard.databases[0].connections._idle
        child = os.fork()
        if child == 0:
            guard.close()
            lease = guard.acquire(f"{resource}-child")
            (own,) = guard.databases[0].connections._idle
            os._exit(0 if lease.admitted and own is not idle else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert idle.execute("SELECT 1").fetchone() == (1,)


async def test_a_cancelled_acquisition_leaves_nothing_behind(bank: Bank, resource) -> None:
    locks = AsyncScriptedLocks()
    bank.admit(resource, 1, ALICE)
    locks.counter = 1
    async with postgres.AsyncPsycopgGuard(locks, bank.plain_url) as guard:
        with psycopg.connect(bank.plain_url) as earlier:
            enter_by_hand(earlier, resource, 1, ALICE)
            acquiring = asyncio.ensure_future(guard.try_acquire(resource))
            waiting = asyncio.ensure_future(_acquire(guard, resource))
            await asyncio.to_thread(bank.wait_until_queued_for, resource)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await acquiring
        assert locks.count("release") == 2
        assert (await guard.acquire(resource)).admitted


async def _acquire(guard: postgres.AsyncPsycopgGuard, resource: str) -> None:
    await guard.acquire(resource)


def test_threads_acquire_beside_each_other(bank: Bank) -> None:
    accounts = [bank.new_account() for _ in range(8)]
    failures: list[BaseException] = []
    with postgres.PsycopgGuard(ScriptedLocks(), bank.plain_url, max_connections=3) as guard:

        def debit(account: int) -> None:
            try:
                with (
                    guard.acquire(f"account:{account}") as lease,
                    psycopg.connect(bank.plain_url) as connection,
                    postgres.transaction(connection, lease),
                ):
                    connection.execute(DEBIT, (account,))
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        threads = [threading.Thread(target=debit, args=(account,)) for account in accounts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert {bank.balance(account) for account in accounts} == {90}


def test_expired_holders_are_told_before_anything_is_sent(bank: Bank, resource, account) -> None:
    with (
        postgres.PsycopgGuard(ScriptedLocks(), bank.plain_url) as guard,
        psycopg.connect(bank.plain_url) as connection,
    ):
        lease = guard.acquire(resource)
        expire(lease)
        with pytest.raises(Exception, match="ran out"):
            postgres.enter(connection, lease)
