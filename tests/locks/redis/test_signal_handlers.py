"""Signal handlers that use a lock service while their thread is in it: nobody waits for himself.

A handler runs between any two instructions, and its thread stands still until it is done.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from redis.exceptions import MaxConnectionsError

from fencing.clock import now
from fencing.locks.redis import stack
from fencing.locks.redis.stack import ConnectionStack
from tests.support.interrupting import ends, handled_before_step


class Connection:
    """One that is always fine."""

    is_wanted = True

    def is_quiet(self) -> bool:
        return True

    def is_open(self) -> bool:
        return True

    def disconnect(self) -> None:
        """Nothing to do."""


def stack_of(size: int) -> ConnectionStack:
    return ConnectionStack(SimpleNamespace(max_connections=size, get_connection=Connection))


class TestStack:
    @pytest.mark.parametrize("size", [2, 3])
    def test_a_call_before_any_step_of_another(self, size: int) -> None:
        def call_at_every_step() -> None:
            number, was_called = 0, True
            while was_called:
                number += 1
                was_called = self.passes(size, number)
            assert number > 100

        assert ends(call_at_every_step)

    def passes(self, size: int, number: int) -> bool:
        """Calls of which one is interrupted by another; return whether there are so many steps."""
        connections = stack_of(size)

        def call() -> None:
            with contextlib.suppress(MaxConnectionsError):
                connections.give_back(connections.take(now()))

        def handler() -> None:
            # Others have given theirs back, and wait to hand them on.
            connections._idle.extend(taken)
            call()

        taken = [connections.take(now() + 20) for _ in range(size)]
        turn = stack._Turn()
        connections._queue(turn)  # of another thread
        with handled_before_step(number, handler, stack) as steps:
            call()
        was_called = len(steps) >= number
        if not was_called:
            connections._idle.extend(taken)
        connections._hand_on()
        assert turn.wait(now()), steps[-3:]
        connections.give_back(turn.connection)
        assert not connections._waiting
        assert set(connections._idle) == set(taken), steps[-3:]
        assert len(connections._idle) == connections._made == size, steps[-3:]
        return was_called
