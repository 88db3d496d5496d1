"""Which leases a thread or task has."""

from __future__ import annotations

import asyncio
import gc
import threading

from fencing.core import held as held_module
from fencing.core.held import Held
from fencing.lease import blocks
from tests.support.interrupting import handled_before_step, looks_for_signals
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


def test_a_lease_that_is_being_given_back_is_not_held():
    held, lease = Held(), ScriptedLocks().acquire("x")
    held.note(lease)
    assert lease.blocks.give_back()
    assert held.lease_here("x") is None
    assert not lease.blocks.give_back()
    assert not lease.acquire_again(1.0)


def test_the_end_of_a_block_and_a_release_give_back_once():
    for first in ("block", "release"):
        locks = ScriptedLocks()
        lease = locks.acquire("x")
        lease.blocks.enter()
        if first == "release":
            assert lease.blocks.give_back()
        assert lease.blocks.leave()
        assert lease.blocks.to_release is (first == "block")
        assert not lease.blocks.give_back()


def test_a_signal_handler_may_note_one_while_others_are_forgotten():
    number, was_handled = 0, True
    while was_handled:
        number += 1
        held, locks, kept = Held(), ScriptedLocks(), []

        def note(held=held, locks=locks, kept=kept):
            for resource in ("handler's", "r2"):  # and one that is to be forgotten
                kept.append(locks.acquire(resource))
                held.note(kept[-1])

        held._here.purge_at = 3
        for each in range(3):
            held.note(locks.acquire(f"r{each}"))
        lease = locks.acquire("x")
        with handled_before_step(number, note, held_module) as steps:
            held.note(lease)
        was_handled = len(steps) >= number
        assert held.lease_here("x") is lease
        if was_handled:
            assert held.lease_here("handler's") is kept[0], steps[-3:]
            assert held.lease_here("r2") is kept[1], steps[-3:]
    assert number > 30


def test_of_two_acquisitions_a_handler_gives_back_one_at_any_step():
    number, was_handled = 0, True
    while was_handled:
        number += 1
        lease = ScriptedLocks().acquire("x")
        assert lease.acquire_again(1.0)
        told = []

        def give_back(told=told, lease=lease):
            told.append(lease.blocks.give_back())

        with handled_before_step(number, give_back, blocks, where=looks_for_signals) as steps:
            told.append(lease.blocks.give_back())
        was_handled = len(steps) >= number
        if not was_handled:
            told.append(lease.blocks.give_back())
        assert sorted(told) == [False, True], steps[-3:]
    assert number > 4
