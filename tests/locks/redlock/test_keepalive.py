"""Leases that are kept alive, and re-entered, on three real nodes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fencing import LeaseLostError
from fencing.clock import now
from fencing.embedded import ValkeyProcess
from fencing.embedded.proxy import TcpProxy
from tests.contract.redlocks import service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

TTL = 2.0
"""Of leases that are kept alive, in seconds: a busy machine may do nothing for a second."""

SECONDS = 20


@pytest.fixture
def nodes() -> Iterator[list[ValkeyProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(3)]


@pytest.fixture
async def locks(kind: str, nodes: list[ValkeyProcess], namespace: str) -> AsyncIterator[Any]:
    async with service(kind, nodes, namespace) as locks:
        yield locks


async def hold_on(lease: Any, seconds: float) -> bool:
    """Whether a lease has held for so long."""
    return not await lease.wait_lost(seconds)


async def test_leases_outlive_their_ttl_while_a_node_is_down(
    locks: Any, nodes: list[ValkeyProcess]
) -> None:
    leases = [await locks.acquire(f"r{n}", ttl=TTL, keepalive=True) for n in range(5)]
    nodes[0].kill()
    assert await hold_on(leases[0], 1.6 * TTL)
    assert [await lease.owned() for lease in leases] == [True] * 5
    for lease in leases:
        await lease.release()


async def test_a_node_that_hangs_keeps_no_lease_from_being_renewed(
    kind: str, nodes: list[ValkeyProcess], namespace: str
) -> None:
    with TcpProxy.to(nodes[0].url) as proxy:
        async with service(kind, [proxy, *nodes[1:]], namespace) as locks:
            lease = await locks.acquire("r", ttl=TTL, keepalive=True)
            proxy.hold()
            assert await hold_on(lease, 1.6 * TTL)
            await lease.release()


async def test_a_majority_that_forgets_is_a_loss_that_is_told(
    locks: Any, nodes: list[ValkeyProcess]
) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[Any] = asyncio.Queue()
    lease = await locks.acquire(
        "r",
        ttl=60,
        keepalive=True,
        on_lost=lambda lost: loop.call_soon_threadsafe(told.put_nowait, lost.resource),
    )
    for node in nodes[:2]:
        node.kill()
        node.start()
    with pytest.raises(LeaseLostError):
        await lease.renew()
    assert await asyncio.wait_for(told.get(), SECONDS) == "r"
    assert lease.lost


async def test_without_a_majority_a_lease_that_is_kept_alive_ends_in_time(
    locks: Any, nodes: list[ValkeyProcess]
) -> None:
    lease = await locks.acquire("r", ttl=TTL, keepalive=True)
    for node in nodes[:2]:
        node.kill()
    dead_at = now()
    assert await lease.wait_lost(SECONDS)
    assert lease.trusted_until < dead_at + TTL


async def test_re_entry_keeps_the_lease(locks: Any) -> None:
    async with locks.acquire("r", ttl=60, reentrant=True) as lease:
        if hasattr(lease, "lease"):
            # Behind the facade each call runs in a thread of its own, which is another holder.
            return
        async with locks.acquire("r", ttl=60, reentrant=True) as again:
            assert again is lease
        assert await lease.owned()
    assert not await locks.locked("r")


async def standing_in_line(locks: Any, count: int) -> None:
    lines = getattr(locks, "locks", locks)._nodes.room._lines._lines
    async with asyncio.timeout(SECONDS):
        while len(lines.get("r", ())) != count:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.002)


async def test_waiters_of_one_process_are_served_in_turn(locks: Any) -> None:
    served = []

    async def wait(number: int) -> None:
        async with locks.acquire("r", ttl=60):
            served.append(number)

    async with locks.acquire("r", ttl=60):
        tasks = []
        for number in range(5):
            tasks.append(asyncio.ensure_future(wait(number)))
            await standing_in_line(locks, number + 1)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
