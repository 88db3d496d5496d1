"""How leases end: released, lost or dropped, and told as what it was, whatever comes between."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from fencing import AsyncRedisLockService, LeaseLostError, LockServiceError, RedisLockService
from fencing.clock import now
from fencing.keepalive import agenda as agenda_module
from fencing.keepalive.agenda import Agenda, Entry
from fencing.locks.redis import steps
from fencing.locks.redis.asking import Reply
from tests.contract.facade import ThreadedLease, ThreadedLocks
from tests.locks.redis.waiting import until
from tests.support.interrupting import handled_before_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.lease import Lease

PATIENCE = 20.0
"""How long a test waits for what is to happen much sooner, in seconds."""

TTL = 2.0
"""Of leases that are kept alive, in seconds: a busy machine may do nothing for a second."""


async def outlive(lease: Any) -> None:
    """Let so much time pass that a lease which nobody renews would be over."""
    until = now() + 1.2 * TTL
    while now() < until:
        assert not lease.lost
        await asyncio.sleep(0.05)


# A release, while a renewal is on its way.


@pytest.fixture
def locks_here(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


def answer(lease: Lease, word: str) -> Reply:
    return Reply([word, lease.holder], now(), now())


def test_a_renewal_that_finds_the_lock_just_released_is_no_loss(locks_here):
    told: list[object] = []
    lease = locks_here.acquire("r", keepalive=True, on_lost=told.append)
    release = steps.Releasing(lease, started_at=now())
    release.begin()
    outcome = steps.judge_renewal(lease, 30, answer(lease, "absent"))
    assert isinstance(outcome, LeaseLostError)
    assert not lease.lost
    assert release.settle(answer(lease, "released")) is not None
    assert lease.released
    assert not lease.lost
    lease.watcher._keeper._ends._act([lease.watcher.end])
    assert told == []


def test_trust_that_ends_while_the_release_is_on_its_way_is_no_loss(locks_here):
    told: list[object] = []
    lease = locks_here.acquire("r", ttl=30, on_lost=told.append)
    release = steps.Releasing(lease, started_at=now())
    release.begin()
    lease.trusted_until = now()
    lease.watcher._keeper._ends._act([lease.watcher.end])
    assert release.settle(answer(lease, "released")) is not None
    assert told == []


def test_a_loss_that_the_release_itself_finds_is_told(locks_here):
    told = threading.Event()
    lease = locks_here.acquire("r", on_lost=lambda _: told.set())
    release = steps.Releasing(lease, started_at=now())
    release.begin()
    with pytest.raises(LeaseLostError):
        next(release.go_on(answer(lease, "other")))
    assert lease.lost
    assert told.wait(PATIENCE)


def test_nothing_can_be_done_after_a_release_that_was_answered_with_nonsense(locks_here):
    lease = locks_here.acquire("r")
    release = steps.Releasing(lease, started_at=now())
    release.begin()
    with pytest.raises(LockServiceError):
        next(release.go_on(answer(lease, "renewed")))
    assert lease.released


# A renewal in the background, while the holder renews.


def test_a_late_renewal_in_the_background_does_not_cut_short_the_holder_s_own(locks_here):
    lease = locks_here.acquire("r", ttl=10)
    in_the_background = answer(lease, "renewed")
    lease.renew(60)
    assert steps.judge_renewal(lease, 1, in_the_background) is None
    assert lease.ttl == 60
    assert lease.remaining > 30
    lease.renew(1)  # the holder himself may
    assert lease.remaining <= 1


# A renewal, while the token is being raised.


@pytest.mark.parametrize("noted", [False, True])
def test_a_renewal_under_the_old_token_is_no_loss(locks_here, noted):
    lease = locks_here.acquire("r")
    token = lease.token
    raising = steps.raise_token(lease, 41, started_at=now())
    next(raising)
    raised = Reply(["raised", lease.holder, "42"], now(), now())
    if noted:
        with pytest.raises(StopIteration):
            raising.send(raised)
    outcome = steps.judge_renewal(lease, 30, answer(lease, "other"), token=token)
    assert isinstance(outcome, LockServiceError)
    if not noted:
        with pytest.raises(StopIteration):
            raising.send(raised)
    assert not lease.lost
    assert isinstance(steps.judge_renewal(lease, 30, answer(lease, "other")), LeaseLostError)
    assert lease.lost


# Listeners.


def test_an_on_lost_that_wants_to_exit_stops_nobody(locks_here, caplog):
    told = threading.Event()
    one = locks_here.acquire("one", ttl=0.2, on_lost=lambda _: sys.exit(3))
    other = locks_here.acquire("other", ttl=0.4, on_lost=lambda _: told.set())
    assert told.wait(PATIENCE)
    assert one.lost
    assert other.lost
    assert "SystemExit" in caplog.text


async def test_an_on_lost_that_raises_a_cancellation_stops_nobody(
    redis_url: str, redis_namespace: str
) -> None:
    told = asyncio.Event()

    def cancelled(_: object) -> None:
        raise asyncio.CancelledError

    async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        one = await locks.acquire("one", ttl=0.2, on_lost=cancelled)
        other = await locks.acquire("other", ttl=0.4, on_lost=lambda _: told.set())
        async with asyncio.timeout(PATIENCE):
            await told.wait()
    assert one.lost
    assert other.lost


async def test_a_coroutine_that_is_told_of_a_loss_outlives_the_service(
    redis_url: str, redis_namespace: str
) -> None:
    begun, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def on_lost(_: object) -> None:
        begun.set()
        await goes_on.wait()
        ended.set()

    async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        with pytest.raises(LeaseLostError):
            async with locks.acquire("r", ttl=0.2, on_lost=on_lost, cancel_on_loss=True):
                await asyncio.sleep(PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        goes_on.set()
        await ended.wait()


# A service that was closed.


async def test_leases_from_before_a_close_do_not_stop_those_after_it(locks, monkeypatch):
    monkeypatch.setattr("fencing.keepalive.tickers._IDLE_SECONDS", 0.1)
    before = [await locks.acquire(f"before {n}", keepalive=True) for n in range(3)]
    if isinstance(locks, ThreadedLocks):
        locks.locks.close()
    else:
        await locks.aclose()
    async with locks.acquire("after", ttl=TTL, keepalive=True) as after:
        for lease in before:
            await lease.release()
        await outlive(after)


def test_a_cleared_agenda_knows_nothing_of_what_was_on_it():
    agenda: Agenda[Entry] = Agenda()
    entries = [Entry(weakref.ref(agenda)) for _ in range(3)]
    for entry in entries:
        agenda.put(entry, 1.0)
    agenda.drop(entries[0])
    agenda.clear()
    agenda.put(entries[1], 2.0)
    agenda.drop(entries[2])
    assert len(agenda) == 1
    assert agenda.take(2.0) == [entries[1]]
    assert len(agenda) == 0


def test_what_a_signal_handler_does_to_an_agenda_is_not_lost():
    """While its thread changes it, and builds its heap anew; before each of the lines of that."""

    def change(number: int) -> list[str]:
        agenda: Agenda[Entry] = Agenda()
        kept, moved, dropped, late, earliest = [Entry(weakref.ref(agenda)) for _ in range(5)]
        for entry, due in ((kept, 3.0), (dropped, 1.0), (moved, 2.0)):
            agenda.put(entry, due)

        def handle() -> None:
            agenda.put(late, 4.0)
            agenda.put(earliest, 0.5)
            agenda.drop(dropped)

        with handled_before_line(number, handle, agenda_module) as lines:
            for _ in range(40):  # until the heap holds too much that is outdated
                agenda.put(moved, 2.5)
                agenda.put(kept, 3.0)
            assert agenda.next <= 2.5
            taken = agenda.take(0.75)
        if len(lines) >= number:
            taken += agenda.take(10.0)
            assert taken == [earliest, moved, kept, late]
            assert len(agenda) == 0
        return lines

    for number, _ in enumerate(change(10**9), start=1):
        change(number)


# Leases that nobody holds.


async def test_a_lease_that_was_dropped_is_gone_without_the_garbage_collector(locks):
    gc.collect()
    gc.disable()
    try:
        lease = await locks.acquire("r", ttl=3600, keepalive=True, on_lost=print)
        own = lease.lease if isinstance(lease, ThreadedLease) else lease
        gone = weakref.ref(own)
        del lease, own
        # The thread that has acquired it may be late to let it go; nobody looks at it for an hour.
        await until(lambda: gone() is None)
    finally:
        gc.enable()
