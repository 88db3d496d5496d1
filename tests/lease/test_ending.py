"""Waiting for the end of a lease, whoever brings it about and whenever."""

from __future__ import annotations

import threading

from fencing.lease import ending, leases
from tests.support.interrupting import ends, handled_before_step
from tests.support.scripted import ScriptedLocks


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
