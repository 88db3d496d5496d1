"""Cancellations and interrupts, wherever they come: nothing is left in the queue."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from fencing.core import held
from fencing.lease import base as lease_base
from fencing.lease import blocks, leases
from fencing.locks import asking as common_asking
from fencing.locks import base as locks_base
from fencing.locks import performing as common_performing
from fencing.locks.zookeeper import acquiring, asking, judging, performing, service, steps, tokens
from tests.support.interrupting import interrupted_before_line

MODULES = (
    acquiring, asking, blocks, common_asking, common_performing, held, judging, lease_base, leases,
    locks_base, performing, service, steps, tokens,
)  # fmt: skip


async def test_200_cancelled_acquisitions_leave_nothing(alocks: Any, looker: Any) -> None:
    chance = random.Random(7)
    await (await alocks.acquire("r")).release()  # it is connected
    kept = 0
    for number in range(200):
        holding = await alocks.acquire("r", ttl=60) if number % 2 else None
        task = asyncio.ensure_future(
            alocks.acquire("r", ttl=60, fair=bool(number % 3), blocking_timeout=None)._begin()
        )
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0 if chance.random() < 0.5 else 0.001)
        if holding is not None and chance.random() < 0.5:
            await holding.release()
        task.cancel()
        try:
            lease = await task
        except asyncio.CancelledError:
            pass
        else:
            kept += 1
            await lease.release()
        if holding is not None:
            await holding.release()
    assert kept < 200
    assert looker.nodes("r") == []
    assert alocks._session._debts == {}


async def test_many_waiters_that_are_cancelled_leave_nothing(alocks: Any, looker: Any) -> None:
    lease = await alocks.acquire("r", ttl=60)
    tasks = [
        asyncio.ensure_future(alocks.acquire("r", ttl=60, fair=bool(number % 2))._begin())
        for number in range(40)
    ]
    while len(looker.nodes("r")) < 21:  # noqa: ASYNC110 - of the server
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    for came in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(came, asyncio.CancelledError)
    assert len(looker.nodes("r")) == 1
    await lease.release()
    assert looker.nodes("r") == []


@pytest.fixture
def lines(locks: Any) -> int:
    """How many lines of ours an acquisition and its release take."""
    locks.acquire("warm up").release()
    with interrupted_before_line(10**9, *MODULES) as seen, locks.acquire("r", ttl=60, floor=5):
        pass
    return len(seen)


def test_an_interrupt_before_any_line_leaves_nothing(locks: Any, looker: Any, lines: int) -> None:
    for number in range(1, lines, max(1, lines // 60)):
        try:
            with interrupted_before_line(number, *MODULES), locks.acquire("r", ttl=60, floor=5):
                pass
        except KeyboardInterrupt:
            pass
        deadline = threading.Event()
        for _ in range(100):
            if not looker.nodes("r"):
                break
            deadline.wait(0.02)
        assert looker.nodes("r") == [], number
