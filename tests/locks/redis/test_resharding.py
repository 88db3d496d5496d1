"""A slot of a cluster moves from node to node while its locks are held and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from fencing.embedded.asking import until
from fencing.embedded.cluster import SLOTS, ValkeyCluster
from fencing.errors import LockServiceError
from fencing.locks import asking
from fencing.locks.asking import ATTEMPTS
from fencing.locks.redis import AsyncRedisLockService, RedisLockService, acquiring, steps, waiting
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.embedded import ValkeyProcess

LONG = 120.0
"""A ttl that nobody waits for, in seconds."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    # The clients have never heard of the node to spare, which has no slots.
    with ValkeyCluster(nodes=2, spare=1) as cluster:
        yield cluster


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@contextlib.asynccontextmanager
async def service(cluster: ValkeyCluster, kind: str, **settings: Any) -> AsyncIterator[Any]:
    module: Any = redis if kind == "sync" else redis.asyncio
    client = module.RedisCluster(host="127.0.0.1", port=cluster.port)
    if kind == "sync":
        with client, RedisLockService(client, **settings) as locks:
            yield ThreadedLocks(locks)
    else:
        async with client, AsyncRedisLockService(client, **settings) as locks:
            yield locks


@pytest.fixture
async def locks(cluster: ValkeyCluster, kind: str) -> AsyncIterator[Any]:
    async with service(cluster, kind) as locks:
        yield locks


class Move:
    """The move of a resource's slot from the first node to the one to spare.

    It goes to and fro, so that no test finds what another one has left.
    """

    def __init__(self, cluster: ValkeyCluster, resource: str) -> None:
        self.cluster = cluster
        self.slot = key_slot(resource.encode())
        self.source, self.target = cluster.nodes[0], cluster.nodes[2]
        self.lock, self.counter, self.queue, self.marks = keys_of("fencing", resource)

    def begin(self) -> None:
        name = self.cluster.name_of
        ask = self.cluster.ask
        ask(self.target, "CLUSTER SETSLOT", self.slot, "IMPORTING", name(self.source))
        ask(self.source, "CLUSTER SETSLOT", self.slot, "MIGRATING", name(self.target))

    def keys(self, *keys: bytes) -> None:
        """Move keys; without any, all that there are in the slot."""
        found = keys or self.cluster.ask(self.source, "CLUSTER GETKEYSINSLOT", self.slot, 100)
        if found:
            words = ("127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *found)
            assert self.cluster.ask(self.source, "MIGRATE", *words) in ("OK", b"OK", True)

    def end(self) -> None:
        self.keys()
        for node in (self.target, self.source, self.cluster.nodes[1]):
            self.cluster.ask(
                node, "CLUSTER SETSLOT", self.slot, "NODE", self.cluster.name_of(self.target)
            )

    def refused(self, node: ValkeyProcess) -> int:
        """How often a node has answered TRYAGAIN."""
        with redis.Redis.from_url(node.url) as client:
            stats: Any = client.info("errorstats")
        return int(stats.get("errorstat_TRYAGAIN", {}).get("count", 0))

    async def await_refusal(self, node: ValkeyProcess, before: int) -> None:
        """Wait until one more request has been answered so."""
        await asyncio.to_thread(until, lambda: self.refused(node) > before, "none was refused")


@pytest.fixture
def resource() -> str:
    """One in a slot of the first node, that no other test has used."""
    return next(
        name
        for name in (f"r{number}" for number in _numbers)
        if key_slot(name.encode()) < SLOTS // 2
    )


@pytest.fixture
def move(cluster: ValkeyCluster, resource: str) -> Move:
    return Move(cluster, resource)


async def test_a_lease_is_renewed_and_released_all_the_way(
    locks: Any, resource: str, move: Move
) -> None:
    lease = await locks.acquire(resource, ttl=LONG)
    move.begin()
    await lease.renew()  # its keys are here yet
    move.keys()
    await lease.renew()  # ASK
    await locks.raise_token(lease, floor=50)
    move.end()
    await lease.renew()  # MOVED
    assert await locks.try_acquire(resource) is None
    await lease.release()
    async with locks.acquire(resource, ttl=LONG, blocking=False) as later:
        assert later.token > lease.token > 50


async def test_keys_that_are_apart_are_tried_again(locks: Any, resource: str, move: Move) -> None:
    lease = await locks.acquire(resource, ttl=LONG)
    move.begin()
    move.keys(move.counter)
    before = move.refused(move.source)
    renewing = asyncio.ensure_future(lease.renew())
    await move.await_refusal(move.source, before)
    move.keys(move.lock)
    await renewing
    move.end()
    await lease.release()


@pytest.mark.parametrize("work", ["acquire", "renew", "release"])
async def test_they_are_tried_for_as_long_as_there_is_time(
    locks: Any, resource: str, move: Move, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in (
        (asking, "RETRY_SECONDS", 0.001),
        (asking, "LONGEST_RETRY_SECONDS", 0.001),
        (asking, "TROUBLE_SECONDS", LONG),
        (steps, "RELEASE_SECONDS", LONG),
        (acquiring, "NO_WAIT_SECONDS", LONG),
    ):
        monkeypatch.setattr(module, name, seconds)
    lease = await locks.acquire(resource, ttl=LONG)
    calls = {
        "acquire": lambda: locks.try_acquire(resource),
        "renew": lease.renew,
        "release": lease.release,
    }
    move.begin()
    move.keys(move.counter)
    before = move.refused(move.source)
    working = asyncio.ensure_future(calls[work]())
    await move.await_refusal(move.source, before + 2 * ATTEMPTS)
    move.end()  # until then keys that there are not keep a script from running
    assert await working is None
    if work != "release":
        await lease.release()


async def test_who_waits_for_a_lock_waits_for_the_move(
    locks: Any, resource: str, move: Move
) -> None:
    before = await locks.acquire(resource, ttl=LONG)
    await before.release()
    move.begin()
    refused = move.refused(move.source)
    acquiring = asyncio.ensure_future(locks.acquire(resource, ttl=LONG)._begin())
    await move.await_refusal(move.source, refused)  # there is a counter, but no lock
    move.end()
    lease = await acquiring
    assert lease.token > before.token
    await lease.release()


async def test_who_does_not_wait_is_told(locks: Any, resource: str, move: Move) -> None:
    lease = await locks.acquire(resource, ttl=LONG)
    move.begin()
    move.keys(move.counter)
    with pytest.raises(LockServiceError, match="the slot is being moved"):
        await locks.try_acquire(resource)
    move.end()
    assert await locks.try_acquire(resource) is None
    await lease.release()


async def test_who_was_registered_is_served(
    cluster: ValkeyCluster, kind: str, locks: Any, resource: str, move: Move
) -> None:
    async with service(cluster, kind) as others:
        held = await others.acquire(resource, ttl=LONG)
        waiter = asyncio.ensure_future(locks.acquire(resource, ttl=LONG)._begin())
        async with asyncio.timeout(30):
            while not (await others.inspect(resource)).waiters:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        move.begin()
        move.keys()
        releasing = asyncio.ensure_future(held.release())
        move.end()
        await releasing
        async with asyncio.timeout(LONG / 4):
            lease = await waiter
        assert lease.token > held.token
        await lease.release()


async def test_who_registers_anew_listens_where_the_slot_is(
    cluster: ValkeyCluster,
    kind: str,
    locks: Any,
    resource: str,
    move: Move,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "REFRESH_SECONDS", LONG)  # nobody asks just because time passes
    async with service(cluster, kind) as others:
        held = await others.acquire(resource, ttl=LONG)
        waiter = asyncio.ensure_future(locks.acquire(resource, ttl=LONG)._begin())
        async with asyncio.timeout(30):
            while not (await others.inspect(resource)).waiters:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        move.begin()
        move.end()
        # It comes back to the node that it knows, is sent on, and moves its ear as well.
        cluster.ask(move.source, "CLIENT KILL", "TYPE", "pubsub")

        def listens() -> bool:
            return bool(cluster.ask(move.target, "PUBSUB CHANNELS"))

        await asyncio.to_thread(until, listens, "nobody listens at the new node")
        await held.release()
        async with asyncio.timeout(LONG / 4):
            lease = await waiter
        assert lease.token > held.token
        await lease.release()


async def test_what_is_held_at_a_node_of_which_nobody_has_heard_is_listed(
    cluster: ValkeyCluster, kind: str, locks: Any, resource: str, move: Move
) -> None:
    await (await locks.acquire("elsewhere", ttl=LONG)).release()
    move.begin()
    move.end()
    async with service(cluster, kind) as others, others.acquire(resource, ttl=LONG):
        assert [state.resource async for state in locks.scan(resource)] == [resource]


async def test_replicas_are_waited_for_where_the_slot_goes(
    cluster: ValkeyCluster, kind: str, locks: Any, resource: str, move: Move
) -> None:
    async with service(cluster, kind, replicas=1, replica_timeout=0.05) as durable:
        lease = await locks.acquire(resource, ttl=LONG)
        for step in (move.begin, move.keys, move.end):
            step()
            with pytest.raises(LockServiceError, match="0 of 1 replicas have acknowledged"):
                await durable.renew(lease, LONG)
        await locks.release(lease)


async def test_leases_of_many_slots_are_renewed_together(
    cluster: ValkeyCluster, locks: Any, resource: str, move: Move
) -> None:
    leases = [await locks.acquire(f"{resource}:{number}", ttl=LONG) for number in range(20)]
    leases.append(await locks.acquire(resource, ttl=LONG))
    for step in (move.begin, move.keys, move.end):
        step()
        outcomes = await renew_many(locks, [(lease, LONG) for lease in leases], within=10)
        assert outcomes == [None] * len(leases)
    for lease in leases:
        await lease.release()


async def renew_many(locks: Any, leases: list[tuple[Any, float]], *, within: float) -> list[Any]:
    if isinstance(locks, ThreadedLocks):
        plain = [(lease.lease, ttl) for lease, ttl in leases]
        return await asyncio.to_thread(locks.locks.renew_many, plain, within=within)
    outcomes: list[Any] = await locks.renew_many(leases, within=within)
    return outcomes


async def test_slots_that_move_as_one_are_followed(
    cluster: ValkeyCluster, locks: Any, resource: str
) -> None:
    source, target = cluster.nodes[1], cluster.nodes[2]
    names = [
        name
        for name in (f"{resource}-{number}" for number in range(200))
        if key_slot(name.encode()) >= SLOTS - SLOTS // 8
    ]
    assert names
    over = asyncio.Event()
    tokens: dict[str, list[int]] = {name: [] for name in names}

    async def use(name: str) -> None:
        while not over.is_set() or len(tokens[name]) < 2:
            async with locks.acquire(name, ttl=LONG) as lease:
                await lease.renew()
                tokens[name].append(lease.token)

    users = [asyncio.ensure_future(use(name)) for name in names]
    try:
        for there, to in ((source, target), (target, source)):
            first, last = SLOTS - SLOTS // 8, SLOTS - 1
            words = ("SLOTSRANGE", first, last, "NODE", cluster.name_of(to))
            try:
                await asyncio.to_thread(cluster.ask, there, "CLUSTER MIGRATESLOTS", *words)
            except redis.ResponseError as error:
                pytest.skip(str(error))
            moved = functools.partial(owns, cluster, to, last)
            await asyncio.to_thread(until, moved, "it did not move")
    finally:
        over.set()
        await asyncio.gather(*users)
    for name in names:
        assert all(a < b for a, b in itertools.pairwise(tokens[name]))


def owns(cluster: ValkeyCluster, node: ValkeyProcess, slot: int) -> bool:
    """Whether all nodes say that a node has a slot."""
    return all(
        any(
            first <= slot <= last and primary[1] == node.port
            for first, last, primary, *_ in cluster.ask(each, "CLUSTER SLOTS")
        )
        for each in cluster.nodes
    )
