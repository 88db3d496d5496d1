"""Leases that are kept alive, and those whose loss is told: sync and async, on a real server."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencing import LeaseExpiredError, LeaseLostError, LockServiceError
from fencing.clock import now
from fencing.keepalive import keepers, rules
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLease, ThreadedLocks, in_thread

if TYPE_CHECKING:
    from fencing.lease import BaseLease

PATIENCE = 20.0
"""How long a test waits for what is to happen much sooner, in seconds."""


def own(lease: Any) -> BaseLease:
    return lease.lease if isinstance(lease, ThreadedLease) else lease


class Lost:
    """An ``on_lost`` that can be awaited."""

    def __init__(self) -> None:
        self.calls: list[tuple[BaseLease, float, str]] = []
        self._came = threading.Semaphore(0)

    def __call__(self, lease: BaseLease) -> None:
        self.calls.append((lease, now(), threading.current_thread().name))
        self._came.release()

    async def wait(self) -> None:
        """Wait until it is called; each time for one call more."""
        assert await in_thread(self._came.acquire, timeout=PATIENCE)


def run_out(*leases: Any) -> None:
    """Have the trust in leases end now, and be looked at together."""
    for lease in map(own, leases):
        lease.trusted_until = now()
        lease.watcher.notice(lease)


TTL = 2.0
"""Of leases that are kept alive, in seconds: a busy machine may do nothing for a second."""


async def outlive(lease: Any) -> None:
    """Let so much time pass that a lease which is renewed once at most would be over."""
    until = now() + 1.6 * TTL
    while now() < until:
        assert not lease.lost
        await asyncio.sleep(0.05)


async def test_a_lease_that_is_kept_alive_outlives_its_ttl(locks, lock_value):
    async with locks.acquire("r", ttl=TTL, keepalive=True) as lease:
        await outlive(lease)
        assert lease.remaining > 0
        assert lock_value("r") is not None
    assert lock_value("r") is None


async def test_a_lease_that_is_not_kept_alive_does_not(locks):
    lease = await locks.acquire("r", ttl=0.3)
    assert await lease.wait_lost(PATIENCE)


async def test_nothing_is_renewed_once_the_lease_is_released(locks, proxy, lock_value):
    lease = await locks.acquire("r", ttl=1, keepalive=True)
    await lease.release()
    proxy.reset_counts()
    await asyncio.sleep(0.5)
    assert proxy.commands() == 0
    assert lock_value("r") is None


async def test_what_is_due_together_travels_together(locks, proxy):
    began_at = now()
    leases = [await locks.acquire(f"r{n}", ttl=3, keepalive=True) for n in range(50)]
    acquired_in = now() - began_at
    ends = [lease.trusted_until for lease in leases]
    while any(lease.trusted_until == end for lease, end in zip(leases, ends, strict=True)):
        await asyncio.sleep(0.02)
        assert not any(lease.lost for lease in leases)
    # One moment of asking for each pipeline, which takes along what would be due a little later.
    pipelines = len({own(lease).trusted_until for lease in leases})
    assert pipelines < 4 + acquired_in / rules.early(3)
    for lease in leases:
        await lease.release()


async def test_max_lifetime_is_where_it_ends(locks, caplog):
    lost = Lost()
    lease = await locks.acquire("r", ttl=TTL, keepalive=True, max_lifetime=2 * TTL, on_lost=lost)
    await outlive(lease)
    await lost.wait()
    assert own(lease).lives_until - 0.1 < own(lease).trusted_until <= own(lease).lives_until
    assert "max_lifetime of 4.0 s" in caplog.text
    with pytest.raises(LeaseExpiredError, match="max_lifetime"):
        await lease.renew()


async def test_an_explicit_renewal_cannot_exceed_max_lifetime(locks, redis_client, redis_namespace):
    lease = await locks.acquire("r", ttl=TTL, keepalive=True, max_lifetime=5)
    lives_until = own(lease).lives_until
    await lease.renew(60)
    assert lives_until - 1 < own(lease).trusted_until <= lives_until
    left = redis_client.pttl(keys_of(redis_namespace, "r")[0]) / 1000
    assert now() + left < lives_until + 0.5
    await lease.release()


async def test_an_explicit_shorter_renewal_is_kept_up_with(locks):
    lease = await locks.acquire("r", ttl=30, keepalive=True)
    await lease.renew(TTL)
    await outlive(lease)
    await lease.release()


async def test_a_lock_that_somebody_deleted_is_lost_at_the_next_renewal(
    locks, redis_client, redis_namespace, caplog
):
    lost = Lost()
    lease = await locks.acquire("r", ttl=3, keepalive=True, on_lost=lost)
    redis_client.delete(keys_of(redis_namespace, "r")[0])
    await lost.wait()
    assert lease.lost
    assert now() < own(lease).trusted_until
    assert [call[0] for call in lost.calls] == [own(lease)]
    records = [r for r in caplog.records if "'r'" in r.message and r.levelno == logging.WARNING]
    assert len(records) == 1
    assert f"token {lease.token}" in records[0].message
    assert "not ours any more" in records[0].message


async def test_scripts_that_redis_forgot_are_no_trouble(locks, redis_client):
    async with locks.acquire("r", ttl=TTL, keepalive=True) as lease:
        until = now() + 1.2 * TTL
        while now() < until:
            await in_thread(redis_client.script_flush)
            assert not lease.lost
            await asyncio.sleep(0.1)


async def test_cut_connections_are_no_trouble(locks, proxy):
    async with locks.acquire("r", ttl=TTL, keepalive=True) as lease:
        until = now() + 1.2 * TTL
        while now() < until:
            proxy.cut()
            assert not lease.lost
            await asyncio.sleep(0.3)


async def test_a_redis_that_is_out_of_reach_for_a_while_is_no_trouble(locks, proxy):
    async with locks.acquire("r", ttl=3, keepalive=True) as lease:
        end = lease.trusted_until
        proxy.refuse()
        while not own(lease).trouble:
            assert not lease.lost
            await asyncio.sleep(0.02)
        assert lease.trusted_until == end
        proxy.accept()
        while lease.trusted_until == end:
            assert not lease.lost
            await asyncio.sleep(0.02)
        assert not own(lease).trouble


async def test_loss_is_told_at_the_end_of_trust_though_redis_does_not_answer(locks, proxy, caplog):
    lost = Lost()
    lease = await locks.acquire("r", ttl=1, keepalive=True, on_lost=lost)
    proxy.hold()
    await lost.wait()
    assert lease.lost
    assert lost.calls[0][1] >= own(lease).trusted_until
    assert "could not be renewed" in caplog.text
    with pytest.raises(LeaseExpiredError):
        await lease.renew()
    proxy.release()


async def test_an_answer_that_comes_after_the_loss_was_told_revives_nothing(locks, proxy):
    lost = Lost()
    lease = await locks.acquire("r", ttl=1, on_lost=lost)
    while lease.remaining > 0.15:
        assert not lost.calls
        await asyncio.sleep(0.01)
    proxy.hold()
    renewal = asyncio.create_task(lease.renew())
    await lost.wait()
    proxy.release()
    with pytest.raises((LeaseLostError, LockServiceError)):
        await renewal
    assert lease.lost
    assert lease.remaining == 0


async def test_loss_is_told_without_keepalive_too(locks, caplog):
    lost = Lost()
    lease = await locks.acquire("r", ttl=0.2, on_lost=lost)
    await lost.wait()
    assert lease.lost
    assert len([r for r in caplog.records if "ran out" in r.message]) == 1
    with pytest.raises(LeaseLostError):
        async with lease:
            pass
    assert len(lost.calls) == 1


async def test_a_release_is_no_loss(locks, caplog):
    lost = Lost()
    async with locks.acquire("r", ttl=1, keepalive=True, on_lost=lost):
        pass
    async with locks.acquire("r", ttl=1, on_lost=lost):
        pass
    await asyncio.sleep(1.2)
    assert lost.calls == []
    assert not caplog.records


async def test_what_on_lost_raises_is_logged_and_stops_nobody(locks, caplog):
    def fails(lease):
        raise ZeroDivisionError

    lost = Lost()
    one = await locks.acquire("one", ttl=0.2, on_lost=fails)
    other = await locks.acquire("other", ttl=0.3, on_lost=lost)
    await lost.wait()
    assert one.lost
    assert other.lost
    assert "ZeroDivisionError" in caplog.text


class Unlike(BaseException):
    """No Exception, as what a failing check of pytest's raises is none."""


async def test_what_on_lost_raises_keeps_nobody_of_the_same_moment_from_being_told(locks, caplog):
    def fails(lease):
        raise Unlike

    lost = Lost()
    leases = [
        await locks.acquire(str(n), ttl=60, on_lost=on_lost)
        for n, on_lost in enumerate([fails, lost, lost])
    ]
    run_out(*leases)
    await lost.wait()
    await lost.wait()
    assert [call[0] for call in lost.calls] == [own(lease) for lease in leases[1:]]
    assert "Unlike" in caplog.text


async def test_a_slow_on_lost_stops_no_renewal(locks, redis_client, redis_namespace):
    goes_on = threading.Event()
    if not isinstance(locks, ThreadedLocks):
        pytest.skip("in asyncio nothing that blocks may run in the loop")
    lost = await locks.acquire("lost", ttl=0.2, on_lost=lambda _: goes_on.wait(PATIENCE))
    async with locks.acquire("kept", ttl=TTL, keepalive=True) as kept:
        await lost.wait_lost()
        await outlive(kept)
        goes_on.set()


async def test_a_lease_that_was_dropped_is_no_longer_renewed(locks, lock_value, caplog):
    lease = await locks.acquire("r", ttl=TTL, keepalive=True)
    del lease
    until = now() + PATIENCE
    while lock_value("r") is not None:
        gc.collect()
        assert now() < until
        await asyncio.sleep(0.02)
    while "dropped without having been released" not in caplog.text:
        assert now() < until
        await asyncio.sleep(0.02)


async def test_a_closed_service_renews_no_longer(locks, caplog):
    lost = Lost()
    lease = await locks.acquire("r", ttl=TTL, keepalive=True, on_lost=lost)
    if isinstance(locks, ThreadedLocks):
        locks.locks.close()
    else:
        await locks.aclose()
    assert "closed while leases were to be renewed in the background (1)" in caplog.text
    await lost.wait()
    assert lease.lost
    # It is still usable.
    async with locks.acquire("r", ttl=TTL, keepalive=True) as another:
        await outlive(another)


async def test_a_confirmed_lease_is_renewed_once(locks, lock_value):
    lease = await locks.acquire("r", ttl=2)
    end = lease.trusted_until
    keepers.keeper_of(own(lease)).confirm(own(lease))
    while lease.trusted_until == end:
        assert not lease.lost
        await asyncio.sleep(0.01)
    assert await lease.wait_lost(PATIENCE)


async def test_threads_end_when_there_is_nothing_to_keep(locks, monkeypatch):
    monkeypatch.setattr("fencing.keepalive.tickers._IDLE_SECONDS", 0.1)
    before = {thread.ident for thread in threading.enumerate()}
    lease = await locks.acquire("r", ttl=60, keepalive=True)
    await lease.release()
    until = now() + PATIENCE
    names = {"fencing-keepalive", "fencing-loss"}
    while any(t.name in names and t.ident not in before for t in threading.enumerate()):
        assert now() < until
        await asyncio.sleep(0.05)


# Re-entry


async def test_re_entry_is_one_lease_that_the_outermost_frees(locks, lock_value):
    if isinstance(locks, ThreadedLocks):
        await in_thread(reenter, locks.locks, lock_value)
        return
    async with locks.acquire("r") as outer:
        async with locks.acquire("r", reentrant=True, blocking_timeout=0) as inner:
            assert inner is outer
            await inner.release()
            await inner.release()
            assert not outer.released
        assert lock_value("r") is not None
        again = await locks.try_acquire("r", reentrant=True)
        await again.release()
        assert again is outer
        assert not outer.released
    assert outer.released
    assert lock_value("r") is None


def reenter(locks, lock_value):
    with locks.acquire("r") as outer:
        with locks.acquire("r", reentrant=True, blocking_timeout=0) as inner:
            assert inner is outer
            inner.release()
            inner.release()
            assert not outer.released
        assert lock_value("r") is not None
        again = locks.try_acquire("r", reentrant=True)
        again.release()
        assert again is outer
        assert not outer.released
    assert outer.released
    assert lock_value("r") is None


async def test_re_entry_lengthens_and_never_shortens(locks):
    if isinstance(locks, ThreadedLocks):
        await in_thread(lengthen, locks.locks)
        return
    async with locks.acquire("r", ttl=5) as lease:
        async with locks.acquire("r", ttl=1, reentrant=True):
            assert lease.remaining > 2
        async with locks.acquire("r", ttl=60, reentrant=True):
            assert lease.remaining > 30


def lengthen(locks):
    with locks.acquire("r", ttl=5) as lease:
        with locks.acquire("r", ttl=1, reentrant=True):
            assert lease.remaining > 2
        with locks.acquire("r", ttl=60, reentrant=True):
            assert lease.remaining > 30


async def test_another_thread_or_task_does_not_re_enter(locks):
    if isinstance(locks, ThreadedLocks):
        with locks.locks.acquire("r"):
            assert await in_thread(locks.locks.try_acquire, "r", reentrant=True) is None
        return
    async with locks.acquire("r"):
        other = asyncio.create_task(locks.try_acquire("r", reentrant=True))
        assert await other is None


async def test_without_the_wish_nobody_re_enters(locks):
    if isinstance(locks, ThreadedLocks):
        with locks.locks.acquire("r"):
            assert locks.locks.try_acquire("r") is None
    else:
        async with locks.acquire("r"):
            assert await locks.try_acquire("r") is None


# Copies


async def test_a_lease_is_neither_copied_nor_pickled(locks):
    async with locks.acquire("r") as lease:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                make(own(lease))
