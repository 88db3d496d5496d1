"""What is particular to Redis: keys, round trips, clients, and errors spelled out."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from fencing.clock import now
from fencing.embedded.proxy import TcpProxy
from fencing.errors import LockNotAcquiredError, LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.clients import Sibling
from fencing.locks.redis.scripts import ACQUIRE, RAISE, RELEASE, RENEW, keys_of
from fencing.request import MAX_TOKEN
from fencing.service import Acquisition
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.embedded import ValkeyProcess


class TestKeys:
    def test_of_one_resource_are_in_one_slot_and_of_all_are_distinct(self) -> None:
        names = ["a", "{", "}", "{}", "}{", "%7B", "%", "%25", "a{b}c", "a}b{c", "%257B", ":lock"]
        keys = {key for name in names for key in keys_of("fencing", name)}
        assert len(keys) == 4 * len(names)
        for name in names:
            lock, *others = keys_of("fencing", name)
            assert len({redis.crc.key_slot(key) for key in (lock, *others)}) == 1
            tag = lock.split(b"{", 1)[1].split(b"}", 1)[0]
            assert lock == b"fencing:{" + tag + b"}:lock"
            assert redis.crc.key_slot(lock) == redis.crc.key_slot(tag)

    @pytest.mark.parametrize("namespace", ["", "a{", "}b", "a\0", "a\ud800"])
    @pytest.mark.parametrize("kind", [RedisLockService, AsyncRedisLockService])
    def test_a_bad_namespace(self, kind: Any, namespace: str) -> None:
        with pytest.raises(ValueError, match="namespace"):
            kind.from_url("redis://localhost:1", namespace=namespace)

    @pytest.mark.parametrize("kind", [RedisLockService, AsyncRedisLockService])
    def test_a_namespace_of_another_type(self, kind: Any) -> None:
        with pytest.raises(TypeError, match="namespace"):
            kind.from_url("redis://localhost:1", namespace=b"fencing")

    async def test_namespaces_know_nothing_of_each_other(
        self, redis_url: str, redis_namespace: str
    ) -> None:
        with (
            RedisLockService.from_url(redis_url, namespace=f"{redis_namespace}-1") as one,
            RedisLockService.from_url(redis_url, namespace=f"{redis_namespace}-2") as two,
            one.acquire("r", ttl=10) as first,
            two.acquire("r", ttl=10, blocking=False) as second,
        ):
            assert first.token == second.token == 1

    async def test_the_lock_s_value_can_be_read_by_people(
        self, locks: Any, lock_value: Callable[[str], str | None]
    ) -> None:
        async with locks.acquire("r", ttl=10, owner="Ünsal: deploy\n7") as lease:
            assert lock_value("r") == f"{lease.token}:{lease.holder}:Ünsal: deploy\n7"
            with pytest.raises(LockNotAcquiredError, match="Ünsal: deploy"):
                await locks.acquire("r", blocking=False)
            await locks.raise_token(lease, floor=9)
            assert lock_value("r") == f"10:{lease.holder}:Ünsal: deploy\n7"

    async def test_a_long_owner_is_cut(
        self, locks: Any, lock_value: Callable[[str], str | None]
    ) -> None:
        async with locks.acquire("r", ttl=10, owner="ü" * 5000) as lease:
            assert len(lock_value("r") or "") < 300
            assert lease.owner == "ü" * 5000


class TestRoundTrips:
    async def test_one_for_each_call(self, locks: Any, proxy: TcpProxy) -> None:
        async with locks.acquire("r", ttl=10) as lease:  # from now on each script is known
            await lease.renew()
            await locks.raise_token(lease, floor=5)
        proxy.reset_counts()
        lease = await locks.acquire("r", ttl=10, floor=5)
        assert proxy.commands() == 1
        await lease.renew()
        assert proxy.commands() == 2
        await locks.raise_token(lease, floor=50)
        assert proxy.commands() == 3
        await lease.release()
        assert proxy.commands("EVALSHA") == proxy.commands() == 4
        assert proxy.connections == 0

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_after_the_scripts_were_flushed(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        async def use(locks: Any) -> None:
            async with locks.acquire("r", ttl=10):
                pass

        with TcpProxy.to(own_valkey.url) as proxy, redis.Redis.from_url(own_valkey.url) as client:
            sync = RedisLockService.from_url(proxy.url)
            async with AsyncRedisLockService.from_url(proxy.url) as asynchronous:
                locks = ThreadedLocks(sync) if kind == "sync" else asynchronous
                await use(locks)
                client.script_flush()
                proxy.reset_counts()
                await use(locks)
                assert (proxy.commands("EVALSHA"), proxy.commands("EVAL")) == (2, 2)
                await use(locks)
                assert (proxy.commands("EVALSHA"), proxy.commands("EVAL")) == (4, 2)
            sync.close()

    def test_the_scripts_are_ascii(self) -> None:
        for script in (ACQUIRE, RENEW, RELEASE, RAISE):
            assert script.text.isascii()
            assert script.text.startswith("-- ")


class TestClients:
    @pytest.mark.parametrize(
        ("service", "make"),
        [
            (RedisLockService, redis.asyncio.Redis),
            (RedisLockService, lambda: redis.asyncio.RedisCluster("127.0.0.1", 1)),
            (RedisLockService, lambda: redis.Redis().pipeline()),
            (RedisLockService, lambda: redis.sentinel.Sentinel([("127.0.0.1", 1)])),
            (RedisLockService, redis.ConnectionPool),
            (RedisLockService, lambda: "redis://localhost"),
            (RedisLockService, lambda: None),
            (AsyncRedisLockService, redis.Redis),
            (AsyncRedisLockService, lambda: redis.asyncio.Redis().pipeline()),
            (AsyncRedisLockService, lambda: redis.asyncio.sentinel.Sentinel([("127.0.0.1", 1)])),
            (AsyncRedisLockService, lambda: "redis://localhost"),
        ],
    )
    def test_of_the_wrong_kind(self, service: Any, make: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match=f"^{service.__name__} needs"):
            service(make())

    def test_of_the_other_kind_names_the_right_service(self) -> None:
        with pytest.raises(TypeError, match="goes with AsyncRedisLockService"):
            RedisLockService(redis.asyncio.Redis())
        with pytest.raises(TypeError, match="goes with RedisLockService"):
            AsyncRedisLockService(redis.Redis())

    def test_the_client_is_neither_used_nor_changed(self, redis_url: str) -> None:
        client = redis.Redis.from_url(redis_url, decode_responses=True, socket_timeout=3)
        before = dict(client.connection_pool.connection_kwargs)
        with RedisLockService(client, namespace="unchanged") as locks:
            locks.acquire("r", ttl=10).release()
            assert not client.connection_pool._available_connections
        assert client.connection_pool.connection_kwargs == before
        assert client.set("unchanged:{r}:counter", "x", px=1)
        client.close()

    def test_a_time_out_of_the_client_s_is_kept_where_it_is_shorter(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        client = redis.Redis.from_url(proxy.url, socket_timeout=0.05)
        with RedisLockService(client, namespace=redis_namespace) as locks:
            locks.acquire("r", ttl=10).release()
            proxy.hold()
            proxy.reset_counts()
            with pytest.raises(LockServiceError, match="did not answer"):
                locks.acquire("r", ttl=10)
            # Five attempts where two of two seconds would have used up the time.
            assert proxy.connections >= 4
        client.close()

    @pytest.mark.parametrize("pool", [redis.ConnectionPool, redis.BlockingConnectionPool])
    def test_a_pool_s_limit_holds_and_callers_wait_for_their_turn(
        self, proxy: TcpProxy, redis_namespace: str, pool: Any
    ) -> None:
        client = redis.Redis(connection_pool=pool.from_url(proxy.url, max_connections=2))
        with RedisLockService(client, namespace=redis_namespace) as locks:
            proxy.delay(0.005)
            failures: list[BaseException] = []

            def work(number: int) -> None:
                try:
                    for _ in range(3):
                        locks.acquire(f"r{number}", ttl=10, blocking=False).release()
                except BaseException as error:  # noqa: BLE001 - reported below
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            assert proxy.connections == 2
        client.close()

    async def test_a_pool_s_limit_holds_in_asyncio(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        async with AsyncRedisLockService.from_url(
            proxy.url, namespace=redis_namespace, max_connections=1
        ) as locks:
            await (await locks.acquire("warm up")).release()
            proxy.delay(0.05)  # more turns than the retries after trouble would wait for

            async def work(number: int) -> None:
                await locks.acquire(f"r{number}", ttl=10, blocking=False)

            await asyncio.gather(*map(work, range(16)))
            assert proxy.connections == 1

    def test_who_gets_no_turn_in_time_is_told_so(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        with RedisLockService.from_url(
            proxy.url, namespace=redis_namespace, max_connections=1
        ) as locks:
            locks.acquire("r", ttl=10).release()
            proxy.hold()
            first = threading.Thread(target=lambda: locks.try_acquire("r", ttl=10))
            first.start()
            assert proxy.held.wait(20)
            with pytest.raises(LockServiceError, match="max_connections"):
                locks.acquire("r", blocking_timeout=0.1)
            proxy.release()
            first.join()

    def test_a_service_is_usable_after_close(self, redis_url: str, redis_namespace: str) -> None:
        locks = RedisLockService.from_url(redis_url, namespace=redis_namespace)
        for _ in range(2):
            locks.acquire("r", ttl=10).release()
            locks.close()

    def test_a_call_ends_in_time_even_while_connecting(self) -> None:
        # An address of the range for documentation: packets to it are answered by nobody, or
        # refused at once where there is no route.
        sibling = Sibling(redis.Redis(host="192.0.2.1", socket_connect_timeout=None))
        with pytest.raises(redis.RedisError):
            sibling.run(ACQUIRE, keys_of("fencing", "r"), [b"x"] * 4, now() + 0.05)

    async def test_an_acquisition_that_is_thrown_away_was_never_sent(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            assert isinstance(locks.acquire("r"), Acquisition)
            with pytest.raises(ValueError, match="resource"):
                locks.acquire("")
            assert proxy.connections == 0


class TestErrors:
    """Each is a LockServiceError that says what to do, and keeps the cause."""

    @pytest.fixture
    def client(self, own_valkey: ValkeyProcess) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(own_valkey.url) as client:
            yield client

    @pytest.fixture(params=["sync", "async"])
    def fails(self, request: pytest.FixtureRequest, own_valkey: ValkeyProcess) -> Any:
        """Call with what the message says, and the method to fail."""

        def fails(says: str, url: str = own_valkey.url) -> LockServiceError:
            async def acquire() -> None:
                async with AsyncRedisLockService.from_url(url) as locks:
                    await locks.acquire("the resource", blocking_timeout=3)

            def acquire_sync() -> None:
                with RedisLockService.from_url(url) as locks:
                    locks.acquire("the resource", blocking_timeout=3)

            attempt = acquire_sync if request.param == "sync" else lambda: asyncio.run(acquire())
            with pytest.raises(LockServiceError, match=says) as caught:
                attempt()
            assert "'the resource'" in str(caught.value)
            assert caught.value.resource == "the resource"
            return caught.value

        return fails

    def test_keys_of_another_type(self, client: redis.Redis, fails: Any) -> None:
        lock, counter, queue, _ = keys_of("fencing", "the resource")
        client.rpush(counter, "x")
        assert isinstance(fails("WRONGTYPE").__cause__, redis.ResponseError)
        client.delete(counter)
        client.rpush(queue, "x")
        fails("WRONGTYPE")
        client.delete(queue)
        client.rpush(lock, "x")
        fails("WRONGTYPE")

    def test_a_lock_without_expiry(self, client: redis.Redis, fails: Any) -> None:
        lock = keys_of("fencing", "the resource")[0]
        client.set(lock, "x")
        fails("no expiry")
        assert client.get(lock) == b"x"

    @pytest.mark.parametrize("counter", ["x", "", "-1", "1.5", "01", " 1", "1e3", "0x10", "+1"])
    def test_a_counter_that_is_none(self, client: redis.Redis, fails: Any, counter: str) -> None:
        lock, key, *_ = keys_of("fencing", "the resource")
        client.set(key, counter)
        fails("not a number")
        assert client.get(key) == counter.encode()
        assert client.get(lock) is None

    @pytest.mark.parametrize("counter", [MAX_TOKEN, MAX_TOKEN + 1, 2**63 - 1, 10**30])
    def test_a_counter_at_its_end(self, client: redis.Redis, fails: Any, counter: int) -> None:
        lock, key, *_ = keys_of("fencing", "the resource")
        client.set(key, counter)
        fails("2\\*\\*53")
        assert client.get(key) == str(counter).encode()
        assert client.get(lock) is None

    def test_no_credentials(self, client: redis.Redis, fails: Any) -> None:
        client.config_set("requirepass", "sesame")
        fails("NOAUTH")

    def test_wrong_credentials(
        self, client: redis.Redis, fails: Any, own_valkey: ValkeyProcess
    ) -> None:
        client.config_set("requirepass", "sesame")
        fails("WRONGPASS", url=f"redis://:open@127.0.0.1:{own_valkey.port}")

    @pytest.mark.parametrize("rights", [["+@all", "-eval", "-evalsha"], ["+@all", "-incr"]])
    def test_no_permission(
        self, client: redis.Redis, fails: Any, own_valkey: ValkeyProcess, rights: list[str]
    ) -> None:
        client.execute_command("ACL SETUSER", "u", "on", ">p", "~*", *rights)
        fails("NOPERM", url=f"redis://u:p@127.0.0.1:{own_valkey.port}")

    def test_a_replica(self, client: redis.Redis, fails: Any) -> None:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        client.config_set("replica-serve-stale-data", "yes")
        fails("READONLY")

    def test_a_replica_without_its_primary(self, client: redis.Redis, fails: Any) -> None:
        client.config_set("replica-serve-stale-data", "no")
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        fails("MASTERDOWN")

    def test_out_of_memory(self, client: redis.Redis, fails: Any) -> None:
        client.config_set("maxmemory", 1)
        fails("OOM")

    def test_anothers_endless_script(
        self, client: redis.Redis, fails: Any, own_valkey: ValkeyProcess
    ) -> None:
        client.config_set("lua-time-limit", 1)
        endless = redis.Redis.from_url(own_valkey.url, socket_timeout=0.1, retry=None)
        with pytest.raises(redis.TimeoutError):
            endless.eval("while true do end", 0)
        fails("BUSY")
        endless.close()

    def test_no_redis_at_all(self, fails: Any, own_valkey: ValkeyProcess) -> None:
        own_valkey.kill()
        assert isinstance(fails("cannot be reached").__cause__, redis.ConnectionError)

    def test_a_lock_of_a_later_format_is_waited_for(
        self, client: redis.Redis, own_valkey: ValkeyProcess
    ) -> None:
        lock = keys_of("fencing", "r")[0]
        client.set(lock, "v2|something", px=60_000)
        with RedisLockService.from_url(own_valkey.url) as locks:
            with pytest.raises(LockNotAcquiredError, match="another holder"):
                locks.acquire("r", blocking=False)
            client.pexpire(lock, 200)
            locks.acquire("r", ttl=10, blocking_timeout=10).release()

    @pytest.mark.parametrize("decode", [False, True])
    def test_an_owner_that_is_no_text_does_no_harm(
        self, client: redis.Redis, own_valkey: ValkeyProcess, *, decode: bool
    ) -> None:
        client.set(keys_of("fencing", "r")[0], b"7:" + b"f" * 32 + b":\xff", px=60_000)
        with (
            RedisLockService.from_url(own_valkey.url, decode_responses=decode) as locks,
            pytest.raises(LockNotAcquiredError, match="token 7"),
        ):
            locks.acquire("r", blocking=False)


class TestScripts:
    def test_a_repeated_request_re_arms_the_lock(
        self, redis_client: redis.Redis, redis_url: str, redis_namespace: str
    ) -> None:
        keys = keys_of(redis_namespace, "r")
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            lease = locks.acquire("r", ttl=60)
            redis_client.pexpire(keys[0], 5_000)  # as if the first request had been long ago
            acquire = redis_client.register_script(ACQUIRE.text)
            answer = acquire(keys, [lease.holder, 60_000, 0, "me"])
            assert answer[:3] == [b"granted", lease.holder.encode(), str(lease.token).encode()]
            assert redis_client.pttl(keys[0]) > 50_000
            lease.release()

    def test_a_request_that_comes_late_does_not_shorten_the_lock(
        self, redis_client: redis.Redis, redis_url: str, redis_namespace: str
    ) -> None:
        keys = keys_of(redis_namespace, "r")
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            lease = locks.acquire("r", ttl=60)
            acquire, renew = map(redis_client.register_script, (ACQUIRE.text, RENEW.text))
            assert acquire(keys, [lease.holder, 1000, 0, "me"])[0] == b"granted"
            assert renew(keys, [lease.holder, lease.token, 1000])[0] == b"renewed"
            assert redis_client.pttl(keys[0]) > 50_000
            lease.release()

    def test_a_renewal_compares_the_token_too(
        self, redis_client: redis.Redis, redis_url: str, redis_namespace: str
    ) -> None:
        keys = keys_of(redis_namespace, "r")
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            lease = locks.acquire("r", ttl=60)
            renew = redis_client.register_script(RENEW.text)
            assert renew(keys, [lease.holder, lease.token + 1, 1000])[0] == b"other"
            assert renew(keys, ["f" * 32, lease.token, 1000])[0] == b"other"
            lease.release()
            assert renew(keys, [lease.holder, lease.token, 1000])[0] == b"absent"
            assert redis_client.exists(keys[0]) == 0

    def test_a_raise_keeps_the_time_and_may_come_twice(
        self, redis_client: redis.Redis, redis_url: str, redis_namespace: str
    ) -> None:
        lock, counter, *_ = keys = keys_of(redis_namespace, "r")
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            lease = locks.acquire("r", ttl=60)
            redis_client.pexpire(lock, 30_000)
            raise_ = redis_client.register_script(RAISE.text)
            for _ in range(2):
                assert raise_(keys, [lease.holder, 41])[2] == b"42"
            assert redis_client.get(counter) == b"42"
            assert 20_000 < redis_client.pttl(lock) <= 30_000

    def test_the_last_token_of_all(self, redis_url: str, redis_namespace: str) -> None:
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            with locks.acquire("r", ttl=10, floor=MAX_TOKEN - 1) as lease:
                assert lease.token == MAX_TOKEN
                locks.raise_token(lease, floor=MAX_TOKEN - 1)
            with pytest.raises(LockServiceError, match="2\\*\\*53"):
                locks.acquire("r", ttl=10)
