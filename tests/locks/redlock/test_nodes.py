"""Five real nodes: some are killed, cut off, stopped, restarted empty; and votes are split."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing import LeaseLostError, LockNotAcquiredError, LockServiceError
from fencing.embedded.proxy import TcpProxy
from fencing.locks.redis.scripts import keys_of
from tests.contract.redlocks import service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fencing.embedded import ValkeyProcess

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

SECONDS = 20


@pytest.fixture
async def locks(kind: str, five_nodes: list[ValkeyProcess], namespace: str) -> AsyncIterator[Any]:
    async with service(kind, five_nodes, namespace) as locks:
        yield locks


@pytest.fixture
async def others(five_nodes: list[ValkeyProcess], namespace: str) -> AsyncIterator[Any]:
    async with service("async", five_nodes, namespace) as others:
        yield others


def is_locked_on(node: ValkeyProcess, namespace: str, resource: str = "r") -> bool:
    with redis.Redis(port=node.port) as client:
        return bool(client.exists(keys_of(namespace, resource)[0]))


def restart_empty(nodes: Sequence[ValkeyProcess]) -> None:
    for node in nodes:
        node.kill()
        node.start()


async def until_gone(node: ValkeyProcess, namespace: str, resource: str = "r") -> None:
    async with asyncio.timeout(SECONDS):
        while is_locked_on(node, namespace, resource):  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(0.05)


async def test_a_minority_that_is_killed_is_not_noticed(
    locks: Any, others: Any, five_nodes: list[ValkeyProcess]
) -> None:
    before = await locks.acquire("before", ttl=60)
    first = await locks.acquire("r", ttl=60)
    for node in five_nodes[:2]:
        node.kill()
    await first.renew(50)
    assert first.ttl == 50
    assert await first.owned()
    assert await others.try_acquire("r") is None
    await first.release()
    async with others.acquire("r", ttl=60, blocking=False) as second:
        assert second.token == first.token + 1
        assert (await locks.inspect("r")).holder == second.holder
        assert {state.resource async for state in locks.scan()} == {"before", "r"}
    await locks.raise_token(before, floor=100)
    assert before.token == 101
    assert await locks.force_release("before")


async def test_without_a_majority_nothing_is_granted_and_nothing_held_is_lost(
    locks: Any, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    lease = await locks.acquire("held", ttl=60)
    for node in five_nodes[:3]:
        node.kill()
    for work in (
        locks.acquire("r", blocking=False),
        locks.acquire("r", blocking_timeout=0.5),
        lease.renew(),
        lease.owned(),
        locks.force_release("held"),
    ):
        with pytest.raises(LockServiceError, match="3 of 5 nodes have to agree, and 2 answered"):
            await work
    with pytest.raises(LockServiceError, match="3 of 5 nodes could not be asked which locks"):
        [state async for state in locks.scan()]
    assert not lease.lost
    assert lease.remaining > 0
    # What the others have granted was given back.
    assert [is_locked_on(node, namespace) for node in five_nodes[3:]] == [False, False]
    for node in five_nodes[:3]:
        node.start()
    async with locks.acquire("r", ttl=60, blocking_timeout=SECONDS) as back:
        assert back.token >= 1


async def test_a_node_that_is_cut_off_is_told_later(
    kind: str, five_nodes: list[ValkeyProcess], namespace: str, others: Any
) -> None:
    far = five_nodes[0]
    with TcpProxy.to(far.url) as proxy:
        async with service(kind, [proxy, *five_nodes[1:]], namespace, node_timeout=2.0) as locks:
            await (await locks.acquire("warm up", ttl=60)).release()
            proxy.hold()
            async with locks.acquire("r", ttl=60) as lease:
                await lease.renew()
                assert await others.try_acquire("r") is None
            assert await others.locked("r") is False
            proxy.release()
            async with locks.acquire("r", ttl=60, blocking=False) as later:
                assert later.token == lease.token + 1
        # Closing has waited for what was on its way.
        await until_gone(far, namespace)


async def test_a_node_that_is_stopped_takes_nothing_when_it_goes_on(
    locks: Any, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    await (await locks.acquire("warm up", ttl=60)).release()
    five_nodes[0].suspend()
    for _ in range(3):
        async with locks.acquire("r", ttl=60) as lease:
            await lease.renew()
    five_nodes[0].resume()
    async with locks.acquire("r", ttl=60, blocking=False) as later:
        assert later.token == lease.token + 1
    await until_gone(five_nodes[0], namespace)


async def test_a_minority_that_comes_back_empty_grants_nothing_twice(
    locks: Any, others: Any, five_nodes: list[ValkeyProcess]
) -> None:
    lease = await locks.acquire("r", ttl=60)
    restart_empty(five_nodes[:2])
    with pytest.raises(LockNotAcquiredError):
        await others.acquire("r", ttl=60, blocking_timeout=0.5)
    await lease.renew()
    assert await lease.owned()
    await lease.release()
    async with others.acquire("r", ttl=60, blocking=False) as second:
        assert second.token == lease.token + 1


async def test_a_majority_that_comes_back_empty_has_forgotten_the_lock_and_may_repeat_tokens(
    locks: Any, others: Any, five_nodes: list[ValkeyProcess]
) -> None:
    async with locks.acquire("r", ttl=60, floor=7):
        pass
    lease = await locks.acquire("r", ttl=60)
    assert lease.token == 9
    restart_empty(five_nodes)
    async with others.acquire("r", ttl=60, blocking=False) as thief:
        assert thief.token == 1
        for work in (lease.renew(), lease.release()):
            with pytest.raises(LeaseLostError, match="no majority of the nodes"):
                await work
        assert lease.lost


async def test_one_node_that_has_kept_its_counter_keeps_tokens_growing(
    locks: Any, others: Any, five_nodes: list[ValkeyProcess]
) -> None:
    async with locks.acquire("r", ttl=60, floor=40) as lease:
        pass
    restart_empty(five_nodes[:2])
    async with others.acquire("r", ttl=60, blocking=False) as second:
        assert second.token == lease.token + 1


async def test_nodes_restart_one_after_the_other_while_locks_are_in_use(
    locks: Any, five_nodes: list[ValkeyProcess]
) -> None:
    """Each time a minority: every acquisition is granted, and no token is issued twice."""
    tokens = []
    for node in five_nodes:
        node.kill()
        for _ in range(3):
            async with locks.acquire("r", ttl=60, blocking_timeout=SECONDS) as lease:
                tokens.append(lease.token)
        node.start()
        async with locks.acquire("r", ttl=60, blocking_timeout=SECONDS) as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


def vote(node: ValkeyProcess, namespace: str, holder: str, milliseconds: int) -> None:
    """What a client has done that died in the middle of a round."""
    with redis.Redis(port=node.port) as client:
        client.set(keys_of(namespace, "r")[0], f"0:{holder * 32}:the dead", px=milliseconds)


async def test_votes_that_are_split_by_the_dead_are_waited_for(
    locks: Any, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    for node, holder in zip(five_nodes, ["a", "a", "b"], strict=False):
        vote(node, namespace, holder, 60_000)
    # Nobody has a majority, so nobody has the lock; and nobody can get one.
    assert not await locks.locked("r")
    with pytest.raises(LockNotAcquiredError, match="the dead"):
        await locks.acquire("r", blocking=False)
    # What was voted for us has been given back.
    assert [is_locked_on(node, namespace) for node in five_nodes[3:]] == [False, False]
    for node, holder in zip(five_nodes, ["a", "a", "b"], strict=False):
        vote(node, namespace, holder, 500)
    async with locks.acquire("r", ttl=60, blocking_timeout=SECONDS) as lease:
        assert lease.token == 1


async def test_a_minority_of_dead_votes_holds_up_nobody(
    locks: Any, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    for node, holder in zip(five_nodes, ["a", "b"], strict=False):
        vote(node, namespace, holder, 60_000)
    async with locks.acquire("r", ttl=60, blocking=False) as lease:
        await lease.renew()
        assert (await locks.inspect("r")).holder == lease.holder


async def test_those_who_split_the_votes_get_the_lock_one_after_the_other(
    kind: str, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    """Services that know nothing of each other, all at once."""
    inside, tokens = 0, []

    async def enter(locks: Any) -> None:
        nonlocal inside
        for _ in range(5):
            async with locks.acquire("r", ttl=60):
                pass
            async with locks.acquire("r", ttl=60) as lease:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                assert inside == 1
                tokens.append(lease.token)
                inside -= 1

    async with contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(service(kind, five_nodes, namespace, node_timeout=2.0))
            for _ in range(4)
        ]
        await asyncio.gather(*[enter(locks) for locks in services])
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 20


async def test_one_of_those_who_do_not_wait_gets_it(
    kind: str, five_nodes: list[ValkeyProcess], namespace: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(service(kind, five_nodes, namespace, node_timeout=2.0))
            for _ in range(3)
        ]
        for number in range(10):
            name = f"r{number}"
            leases = await asyncio.gather(*[locks.try_acquire(name) for locks in services])
            granted = [lease for lease in leases if lease is not None]
            assert len(granted) <= 1
            for lease in granted:
                await lease.release()
            # Whoever was not granted it has left nothing behind.
            assert not await services[0].locked(name)
