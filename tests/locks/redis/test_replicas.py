"""Locks that replicas must have acknowledged, on a real primary with two replicas."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
import redis.asyncio

from fencing.embedded import ValkeyProcess
from fencing.embedded.cluster import SLOTS
from fencing.embedded.places import free_port
from fencing.embedded.proxy import TcpProxy
from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks, in_thread
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

LOCK = keys_of("fencing", "r")[0]
PATIENCE = 20
"""Seconds, enough for any of this on any machine."""

pytestmark = pytest.mark.slow


class Replicated:
    """A primary and two replicas, of which some may be stopped."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.primary = stack.enter_context(ValkeyProcess("--repl-diskless-sync-delay", "0"))
        self.admin = stack.enter_context(redis.Redis.from_url(self.primary.url))
        self.replicas = [
            stack.enter_context(ValkeyProcess("--replicaof", "127.0.0.1", str(self.primary.port)))
            for _ in range(2)
        ]
        self.stopped: list[ValkeyProcess] = []

    def stop(self, count: int) -> None:
        for replica in self.replicas[:count]:
            replica.process.send_signal(signal.SIGSTOP)
            self.stopped.append(replica)
            process = psutil.Process(replica.pid)
            until(lambda process=process: process.status() == psutil.STATUS_STOPPED)

    def go_on(self) -> None:
        while self.stopped:
            self.stopped.pop().process.send_signal(signal.SIGCONT)
        self.admin.set("written by", "this connection")
        until(lambda: self.admin.wait(2, 100) == 2)

    def heal(self) -> None:
        self.admin.flushall()
        self.admin.script_flush()
        self.admin.config_resetstat()
        self.go_on()


@pytest.fixture(scope="module")
def servers() -> Iterator[Replicated]:
    with contextlib.ExitStack() as stack:
        yield Replicated(stack)


@pytest.fixture
def replicated(servers: Replicated) -> Iterator[Replicated]:
    servers.heal()
    yield servers
    servers.heal()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@contextlib.asynccontextmanager
async def service(kind: str, client: Any, **options: Any) -> AsyncIterator[Any]:
    if kind == "sync":
        with client, RedisLockService(client, **options) as locks:
            yield ThreadedLocks(locks)
    else:
        async with client, AsyncRedisLockService(client, **options) as locks:
            yield locks


def client_of(kind: str, port: int, **settings: Any) -> Any:
    module: Any = redis if kind == "sync" else redis.asyncio
    return module.Redis(port=port, **settings)


BRIEF = 0.1
"""For replicas that do not answer anyway, in seconds; one that does may be late, if not always."""

ATTEMPTS = 20


async def acknowledged(work: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of a request that all replicas have acknowledged in time."""
    for _ in range(ATTEMPTS):
        try:
            return await work()
        except LockServiceError as error:
            if "replicas have acknowledged" not in str(error):
                raise
    return await work()


async def refused_by_one(work: Callable[[], Awaitable[Any]], *, says: str) -> None:
    """A request that one of two replicas has acknowledged, and that in time."""
    for _ in range(ATTEMPTS):
        with pytest.raises(LockServiceError, match=says) as caught:
            await work()
        if "0 of 2 replicas" not in str(caught.value):
            break
    assert "1 of 2 replicas have acknowledged" in str(caught.value)


async def test_a_lock_is_on_the_replicas_when_it_is_granted(
    kind: str, replicated: Replicated
) -> None:
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=2, replica_timeout=4) as locks:
        for _ in range(20):
            async with locks.acquire("r", ttl=PATIENCE) as lease:
                for replica in replicated.replicas:
                    with redis.Redis.from_url(replica.url) as look:
                        value: Any = look.get(LOCK)
                        assert lease.holder.encode() in value


async def test_scripts_that_redis_does_not_know_are_no_way_around_it(
    kind: str, replicated: Replicated
) -> None:
    replicated.stop(2)
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=1, replica_timeout=0.05) as locks:
        for _ in range(2):
            replicated.admin.script_flush()
            with pytest.raises(LockServiceError, match="0 of 1 replicas"):
                await locks.acquire("r", ttl=PATIENCE)


@pytest.mark.parametrize("how", ["acquire", "try_acquire"])
async def test_with_too_few_the_lock_is_given_back_and_the_error_counts_them(
    kind: str, replicated: Replicated, how: str
) -> None:
    replicated.stop(1)
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=2, replica_timeout=BRIEF) as locks:
        await refused_by_one(lambda: ask(locks, how), says="acknowledged the lock,")
        assert replicated.admin.exists(LOCK) == 0
    async with service(kind, client_of(kind, replicated.primary.port), replicas=1) as locks:
        await (await locks.acquire("r", ttl=PATIENCE)).release()


async def test_with_too_few_several_locks_are_given_back_as_well(
    kind: str, replicated: Replicated
) -> None:
    replicated.stop(1)
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=2, replica_timeout=BRIEF) as locks:

        async def ask_for_both() -> Any:
            return await locks.acquire_all(["q", "r"], ttl=PATIENCE)

        await refused_by_one(ask_for_both, says="acknowledged the locks,")
        assert not [await locks.locked(name) for name in "qr"].count(True)
        replicated.go_on()
        async with await acknowledged(ask_for_both):
            assert replicated.admin.exists(LOCK) == 1


async def test_a_renewal_that_too_few_acknowledged_does_not_lengthen_trust(
    kind: str, replicated: Replicated
) -> None:
    client = client_of(kind, replicated.primary.port)
    async with (
        service(kind, client, replicas=2, replica_timeout=BRIEF) as locks,
        await acknowledged(lambda: ask(locks)) as lease,
    ):
        before = lease.trusted_until
        replicated.stop(1)
        await refused_by_one(lambda: lease.renew(2 * PATIENCE), says="the renewal")
        assert lease.trusted_until == before
        assert not lease.lost
        replicated.go_on()
        await acknowledged(lambda: lease.renew(2 * PATIENCE))
        assert lease.trusted_until > before


async def test_renewals_that_travel_together_wait_as_well(
    kind: str, replicated: Replicated
) -> None:
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=2, replica_timeout=BRIEF) as locks:
        leases = [await acknowledged(lambda n=n: ask(locks, "acquire", f"r{n}")) for n in range(3)]
        before = [lease.trusted_until for lease in leases]
        replicated.stop(1)

        async def renew_all() -> None:
            replicated.admin.script_flush()
            errors = await renewed(kind, locks, leases)
            assert len(errors) == 3
            raise min(errors, key=lambda error: "1 of 2 replicas" in str(error))

        await refused_by_one(renew_all, says="the renewal")
        assert [lease.trusted_until for lease in leases] == before
        replicated.go_on()

        async def renew_again() -> None:
            for error in filter(None, await renewed(kind, locks, leases)):
                raise error

        await acknowledged(renew_again)
        assert all(lease.trusted_until > then for lease, then in zip(leases, before, strict=True))


async def ask(locks: Any, how: str = "acquire", resource: str = "r") -> Any:
    """Acquire a lock, in one of the ways to."""
    return await getattr(locks, how)(resource, ttl=PATIENCE)


async def renewed(kind: str, locks: Any, leases: list[Any]) -> list[Any]:
    """What comes of renewals that travel together."""
    if kind == "async":
        return await locks.renew_many([(lease, 2 * PATIENCE) for lease in leases], within=PATIENCE)
    bare = [(lease.lease, 2 * PATIENCE) for lease in leases]
    return await in_thread(locks.locks.renew_many, bare, within=PATIENCE)


async def test_a_raised_token_waits_as_well(kind: str, replicated: Replicated) -> None:
    client = client_of(kind, replicated.primary.port)
    async with (
        service(kind, client, replicas=1, replica_timeout=BRIEF) as locks,
        await acknowledged(lambda: ask(locks)) as lease,
    ):
        replicated.stop(2)
        with pytest.raises(LockServiceError, match=r"0 of 1 replicas .*the new token"):
            await locks.raise_token(lease, floor=41)
        assert lease.token < 41


async def test_without_replicas_nobody_waits(kind: str, replicated: Replicated) -> None:
    replicated.stop(2)
    async with service(kind, client_of(kind, replicated.primary.port)) as locks:
        await (await locks.acquire("r", ttl=PATIENCE)).release()


async def test_it_costs_no_round_trip(kind: str, replicated: Replicated) -> None:
    with TcpProxy.to(replicated.primary.url) as proxy:
        client = client_of(kind, proxy.port)
        async with service(kind, client, replicas=2, replica_timeout=4) as locks:
            await (await locks.acquire("warm up", ttl=PATIENCE)).release()
            proxy.hold()
            proxy.reset_counts()
            # Both requests are there while neither answer has come.
            acquiring = asyncio.ensure_future(ask(locks))
            await in_thread(until, lambda: proxy.commands("WAIT") == 1)
            assert proxy.commands("EVALSHA") == 1
            assert not acquiring.done()
            proxy.release()
            await (await acquiring).release()


async def test_a_user_who_may_not_wait_leaves_no_lock(kind: str, replicated: Replicated) -> None:
    replicated.admin.execute_command(
        "ACL SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-wait"
    )
    client = client_of(kind, replicated.primary.port, username="u", password="p")
    async with service(kind, client, replicas=1) as locks:
        with pytest.raises(LockServiceError, match="NOPERM"):
            await locks.acquire("r", ttl=PATIENCE)
        assert replicated.admin.exists(LOCK) == 0


async def test_verification_knows_of_them(kind: str, replicated: Replicated) -> None:
    client = client_of(kind, replicated.primary.port)
    async with service(kind, client, replicas=3) as locks:
        found = await (in_thread(locks.locks.verify) if kind == "sync" else locks.verify())
    (missing,) = [each for each in found.findings if each.code == "replicas-missing"]
    assert missing.severity == "error"
    assert "waits for 3 replica(s), and 2 are connected" in missing.message


class SmallCluster:
    """One primary with all slots, and its replica."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        settings = ("--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0")
        self.primary, self.replica = (
            stack.enter_context(ValkeyProcess(*settings, "--cluster-port", str(free_port())))
            for _ in range(2)
        )
        self.admin = stack.enter_context(redis.Redis.from_url(self.primary.url))
        other: Any = stack.enter_context(redis.Redis.from_url(self.replica.url))
        self.admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        bus = self.replica._arguments[-1]
        self.admin.execute_command("CLUSTER MEET", "127.0.0.1", self.replica.port, bus)
        me = self.admin.execute_command("CLUSTER MYID")
        until(lambda: me.decode() in str(other.execute_command("CLUSTER NODES")))
        other.execute_command("CLUSTER REPLICATE", me)
        until(lambda: self.admin.wait(1, 100) == 1)
        until(lambda: self.admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallCluster]:
    with contextlib.ExitStack() as stack:
        yield SmallCluster(stack)


async def test_on_a_cluster_it_is_the_node_of_the_key(kind: str, cluster: SmallCluster) -> None:
    module: Any = redis if kind == "sync" else redis.asyncio
    cluster.admin.script_flush()
    client = module.RedisCluster(host="127.0.0.1", port=cluster.primary.port)
    async with (
        service(kind, client, replicas=1, replica_timeout=4) as locks,
        locks.acquire("r", ttl=PATIENCE) as lease,
    ):
        with redis.Redis.from_url(cluster.replica.url) as look:
            look.execute_command("READONLY")
            assert lease.holder.encode() in look.get(LOCK)
        await lease.renew()
        assert await renewed(kind, locks, [lease]) == [None]
    client = module.RedisCluster(host="127.0.0.1", port=cluster.primary.port)
    async with service(kind, client, replicas=2, replica_timeout=BRIEF) as locks:
        await refused_by_one(lambda: ask(locks), says="acknowledged the lock,")
        assert cluster.admin.exists(LOCK) == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"replicas": -1}, ValueError),
        ({"replicas": 1.0}, TypeError),
        ({"replicas": True}, TypeError),
        ({"replicas": 1, "replica_timeout": 0}, ValueError),
        ({"replicas": 1, "replica_timeout": 5}, ValueError),
        ({"replicas": 1, "replica_timeout": float("nan")}, ValueError),
        ({"replicas": 1, "replica_timeout": "1"}, TypeError),
        ({"replicas": 1, "replica_timeout": 1, "socket_timeout": 0.5}, ValueError),
    ],
    ids=str,
)
@pytest.mark.parametrize("service", [RedisLockService, AsyncRedisLockService])
def test_what_makes_no_sense_is_refused(service: Any, options: Any, error: type) -> None:
    with pytest.raises(error, match="replica"):
        service.from_url("redis://127.0.0.1:1", **options)
