"""Which leases a thread or task has."""

from __future__ import annotations

import asyncio
import gc
import threading

from fencing.core.held import Held
from tests.support.scripted import ScriptedLocks


def test_leases_that_are_gone_are_forgotten():
    held, locks = Held(), ScriptedLocks()
    kept = locks.acquire("kept")
    held.note(kept)
    for number in range(1000):
        held.note(locks.acquire(f"r{number}"))
    gc.collect()
    assert len(held._here.leases) < 200
    assert held.lease_here("kept") is kept
    assert held.lease_here("r999") is None


def test_a_lease_is_held_where_it_was_handed_out():
    held = Held()
    lease = ScriptedLocks().acquire("x")
    held.note(lease)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(held.lease_here("x")))
    thread.start()
    thread.join()

    async def in_a_task():
        return held.lease_here("x")

    assert elsewhere == [None]
    assert asyncio.run(in_a_task()) is None
    assert held.lease_here("x") is lease


def test_a_task_of_a_number_that_was_used_before_holds_nothing():
    held, lease = Held(), ScriptedLocks().acquire("x")

    async def note():
        held.note(lease)

    async def look():
        # Whatever its number: the key is made to fit.
        ((_, number),) = held._here.leases
        held._here.leases["x", id(asyncio.current_task())] = held._here.leases["x", number]
        return held.lease_here("x")

    asyncio.run(note())
    assert asyncio.run(look()) is None


def test_a_released_lease_is_not_held():
    held, lease = Held(), ScriptedLocks().acquire("x")
    held.note(lease)
    lease.release()
    assert held.lease_here("x") is None
