"""Waiting for the end of a lease, whoever brings it about and whenever."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencing.lease import base, ending, leases
from tests.support.interrupting import ends, handled_before_step
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks
from tests.support.waiting import until

SECONDS = 20


def test_a_signal_handler_may_release_what_its_own_thread_waits_for():
    """Before any step of the waiting, that of Python's own locks included."""

    def is_released_before(number: int) -> bool:
        """Wait; return whether there were so many steps until nothing else was to be done."""
        lease = ScriptedLocks().acquire("r", ttl=3600)
        released: list[int] = []

        def release() -> None:
            if not lease.released:
                released.append(number)
                lease.release()

        end = threading.Timer(1.0, lease.release)
        end.start()
        with handled_before_step(number, release, leases, ending, threading):
            assert not lease.wait_lost()
        end.cancel()
        return bool(released)

    def release_before_each_step() -> None:
        number = 1
        while is_released_before(number):
            number += 1
        assert number > 20

    assert ends(release_before_each_step)


def test_all_who_wait_are_told():
    lease = ScriptedLocks().acquire("r", ttl=3600)
    told = [threading.Thread(target=lease.wait_lost) for _ in range(3)]
    for thread in told:
        thread.start()
    lease.release()
    for thread in told:
        thread.join(20)
        assert not thread.is_alive()


def test_a_signal_handler_may_shorten_what_its_own_thread_waits_for():
    """Before any step of the waiting, also between how long it is and the sleep."""

    def is_shortened_before(number: int) -> bool:
        lease = ScriptedLocks().acquire("r", ttl=3600)
        shortened: list[int] = []

        def shorten() -> None:
            if not shortened and not lease.lost and not lease.released:
                shortened.append(number)
                lease.renew(0.01)

        end = threading.Timer(1.0, lease.release)
        end.start()
        with handled_before_step(number, shorten, leases, ending, threading):
            assert lease.wait_lost() is bool(shortened)
        end.cancel()
        return bool(shortened)

    def shorten_before_each_step() -> None:
        number = 1
        while is_shortened_before(number):
            number += 1
        assert number > 20

    assert ends(shorten_before_each_step)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_loss_that_comes_earlier_than_it_would_have_is_told(kind):
    if kind == "sync":
        lease = ScriptedLocks().acquire("r", ttl=3600)
        threads = ThreadPoolExecutor(3)
        told = [asyncio.wrap_future(threads.submit(lease.wait_lost)) for _ in range(3)]
        await asyncio.to_thread(until, lambda: lease._ended and len(lease._ended._waiting) == 3)
        lease.renew(0.05)
    else:
        lease = await AsyncScriptedLocks().acquire("r", ttl=3600)
        told = [asyncio.ensure_future(lease.wait_lost()) for _ in range(3)]
        await asyncio.sleep(0)  # all of them wait
        await lease.renew(0.05)
    try:
        assert await asyncio.wait_for(asyncio.gather(*told), SECONDS) == [True] * 3
    finally:
        lease.note_lost()  # whoever still waits


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_who_looks_again_in_vain_waits_on(kind, monkeypatch):
    looks = []
    now = base.now
    monkeypatch.setattr(leases, "now", lambda: looks.append(None) or now())
    if kind == "sync":
        lease = ScriptedLocks().acquire("r", ttl=3600)
        threads = ThreadPoolExecutor(1)
        told = asyncio.wrap_future(threads.submit(lease.wait_lost))
        await asyncio.to_thread(until, lambda: lease._ended and lease._ended._waiting)
        lease.renew(1800)
        await asyncio.to_thread(until, lambda: len(looks) == 4)
        lease.release()
    else:
        lease = await AsyncScriptedLocks().acquire("r", ttl=3600)
        told = asyncio.ensure_future(lease.wait_lost())
        await asyncio.sleep(0)
        await lease.renew(1800)
        await asyncio.to_thread(until, lambda: len(looks) == 4)
        await lease.release()
    assert await asyncio.wait_for(told, SECONDS) is False
    assert len(looks) == 4  # twice at each look: it does not look all the time
