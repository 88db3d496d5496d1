"""The lock services at addresses of Redis: one server, a cluster, what Sentinel watches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from click.testing import CliRunner

import fencing
from fencing import AsyncRedisLockService, LockServiceError, RedisLockService
from fencing.cli.main import main
from fencing.embedded.cluster import ValkeyCluster
from fencing.embedded.sentinel import SERVICE, Watched
from fencing.locks.redis.addresses import async_client_at, client_at

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched(replicas=1) as watched:
        yield watched


@pytest.fixture(params=["server", "cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "server":
        address: str = request.getfixturevalue("redis_url")
    else:
        fixture = {"cluster": "cluster", "sentinel": "watched"}[request.param]
        address = request.getfixturevalue(fixture).url
    return address


class TestRealServers:
    def test_a_lock_is_acquired(self, url: str, redis_namespace: str) -> None:
        with fencing.connect(url, namespace=redis_namespace) as locks:
            assert isinstance(locks, RedisLockService)
            assert locks.namespace == redis_namespace
            with locks.acquire("r", ttl=10) as lease:
                assert lease.token == 1
                assert locks.try_acquire("r") is None

    async def test_a_lock_is_acquired_in_asyncio(self, url: str, redis_namespace: str) -> None:
        async with fencing.connect_async(url, namespace=redis_namespace) as locks:
            assert isinstance(locks, AsyncRedisLockService)
            async with locks.acquire("r", ttl=10) as lease:
                assert lease.token == 1
                assert await locks.try_acquire("r") is None

    def test_commands_take_it(self, url: str, redis_namespace: str) -> None:
        with RedisLockService.from_url(url, namespace=redis_namespace) as locks:
            locks.acquire("r", ttl=60, owner="me")
            told = CliRunner().invoke(main, ["locks", url, "--namespace", redis_namespace])
            assert told.exit_code == 0, told.output
            assert told.output.startswith('"r": token 1, "me"')
            taken = ["locks", url, "--namespace", redis_namespace, "--force-release", "r"]
            assert CliRunner().invoke(main, taken).exit_code == 0
            assert not locks.locked("r")
        verified = CliRunner().invoke(main, ["verify", url, "--json"])
        assert json.loads(verified.output)["findings"] is not None

    def test_the_option_says_that_it_is_a_cluster(
        self, cluster: ValkeyCluster, redis_namespace: str
    ) -> None:
        for url in (f"redis://127.0.0.1:{cluster.port}", cluster.url):
            with RedisLockService.from_url(cluster.url, namespace=redis_namespace) as locks:
                locks.acquire("a", ttl=60)
                locks.acquire("b", ttl=60)
                told = CliRunner().invoke(
                    main, ["locks", url, "--cluster", "--namespace", redis_namespace]
                )
                assert told.output.endswith("2 held.\n")
                assert locks.force_release("a")
                assert locks.force_release("b")

    def test_one_node_that_answers_is_enough(
        self, cluster: ValkeyCluster, redis_namespace: str
    ) -> None:
        url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.port}"
        with (
            RedisLockService.from_url(url, namespace=redis_namespace) as locks,
            locks.acquire("r", ttl=10) as lease,
        ):
            assert lease.token

    def test_one_sentinel_that_answers_is_enough(
        self, watched: Watched, redis_namespace: str
    ) -> None:
        (_, port), *_ = watched.addresses
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{SERVICE}"
        with (
            RedisLockService.from_url(url, namespace=redis_namespace) as locks,
            locks.acquire("r", ttl=10) as lease,
        ):
            assert lease.token

    def test_servers_and_sentinels_have_passwords_of_their_own(
        self, watched: Watched, redis_namespace: str
    ) -> None:
        sentinel = watched.sentinels[0]
        for server in watched.servers:  # whichever is the primary now
            watched.ask(server, "ACL SETUSER", "app", "on", ">s@cret", "~*", "&*", "+@all")
        watched.ask(sentinel, "ACL SETUSER", "asker", "on", ">other", "~*", "&*", "+@all")
        watched.ask(sentinel, "ACL SETUSER", "default", "off")
        address = f"127.0.0.1:{sentinel.port}/{SERVICE}"
        options = "?sentinel_username=asker&sentinel_password=other"
        url = f"redis+sentinel://app:s%40cret@{address}{options}"
        try:
            with (
                RedisLockService.from_url(url, namespace=redis_namespace) as locks,
                locks.acquire("r", ttl=10),
            ):
                assert "app" in {
                    each["user"] for server in watched.servers for each in clients(server.url)
                }
            with (
                RedisLockService.from_url(f"redis+sentinel://{address}") as locks,
                pytest.raises(LockServiceError),
            ):
                locks.try_acquire("r")
        finally:
            with redis.Redis.from_url(
                sentinel.url, username="asker", password="other"
            ) as administrator:
                administrator.execute_command("ACL SETUSER", "default", "on")


def clients(url: str) -> list[dict[str, str]]:
    with redis.Redis.from_url(url) as client:
        return list(client.client_list())


class TestSettings:
    def test_a_cluster_s(self, cluster: ValkeyCluster) -> None:
        url = f"{cluster.url}?socket_timeout=3&protocol=3"
        with client_at(url, client_name="billing", socket_timeout=9) as client:
            settings = client.get_connection_kwargs()
            assert settings["socket_timeout"] == 3, "what the address says goes before"
            assert settings["client_name"] == "billing"
            assert int(settings["protocol"]) == 3

    def test_a_cluster_s_in_asyncio(self) -> None:
        url = "rediss+cluster://me:p%2Fw@a:1,b,[::1]:3/0?socket_timeout=3"
        client = async_client_at(url, client_name="billing")
        assert {(n.host, n.port) for n in client.nodes_manager.startup_nodes.values()} == {
            ("a", 1),
            ("b", 6379),
            ("::1", 3),
        }
        settings = client.connection_kwargs
        assert (settings["username"], settings["password"]) == ("me", "p/w")
        assert (settings["socket_timeout"], settings["client_name"]) == (3, "billing")
        assert issubclass(settings["connection_class"], redis.asyncio.SSLConnection)

    @pytest.mark.parametrize("make", [client_at, async_client_at])
    def test_sentinel_s(self, make: Any) -> None:
        client = make(
            "rediss+sentinel://me:p%2Fw@a,[::1]:3/the%20service/7"
            "?sentinel_password=other&socket_timeout=3&min_other_sentinels=1",
            ssl_ca_certs="ca.pem",
        )
        pool = client.connection_pool
        assert (pool.service_name, pool.is_master) == ("the service", True)
        settings = pool.connection_kwargs
        assert (settings["username"], settings["password"]) == ("me", "p/w")
        assert (settings["db"], settings["socket_timeout"]) == (7, 3)
        assert settings["ssl_ca_certs"] == "ca.pem"
        assert "SSL" in pool.connection_class.__name__
        manager = pool.sentinel_manager
        assert manager.min_other_sentinels == 1
        asked = [sentinel.connection_pool for sentinel in manager.sentinels]
        assert [(a.connection_kwargs["host"], a.connection_kwargs["port"]) for a in asked] == [
            ("a", 26379),
            ("::1", 3),
        ]
        for each in asked:
            assert each.connection_kwargs["password"] == "other"
            assert each.connection_kwargs.get("username") is None
            assert each.connection_kwargs["ssl_ca_certs"] == "ca.pem"
            assert "SSL" in each.connection_class.__name__


@pytest.mark.parametrize("service", [RedisLockService, AsyncRedisLockService])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+cluster://", "hosts must look like"),
        ("redis+cluster://me:secret@", "hosts must look like"),
        ("redis+cluster://me:sec/ret@host", "hosts must look like"),
        ("redis+cluster://me:sec#ret@host", "%23"),
        ("redis+cluster://me:secret@host:x", "hosts must look like"),
        ("redis+cluster://me:secret@host:70000", "hosts must look like"),
        ("redis+cluster://me:secret@a,,b", "hosts must look like"),
        ("redis+cluster://me:secret@host/1", "database 0"),
        ("redis+cluster://me:secret@host?socket_timeout=x", "socket_timeout"),
        ("redis+sentinel://me:secret@host", "/SERVICE"),
        ("redis+sentinel://me:secret@host/", "/SERVICE"),
        ("redis+sentinel://me:secret@host/main/x", "number of a database"),
        ("redis+sentinel://me:secret@host/main/1/2", "number of a database"),
        ("redis+sentinel://me:secret@host/main?min_other_sentinels=x", "min_other_sentinels"),
        ("redis+other://me:secret@host/main", "scheme"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_without_its_password(
    service: Any, url: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        service.from_url(url)
    assert "sec" not in str(refused.value).replace("second", "")


def test_a_cluster_that_is_not_there_is_a_lock_service_out_of_reach() -> None:
    with pytest.raises(LockServiceError, match="look at its nodes") as refused:
        fencing.connect("redis+cluster://me:secret@127.0.0.1:1,127.0.0.1:2")
    assert "secret" not in str(refused.value)


async def test_in_asyncio_when_it_is_asked() -> None:
    async with fencing.connect_async("redis+cluster://me:secret@127.0.0.1:1") as locks:
        with pytest.raises(LockServiceError, match="no node of the cluster says") as refused:
            await locks.try_acquire("r")
    assert "secret" not in str(refused.value)


def test_a_redis_that_is_no_sentinel_is_told(redis_url: str) -> None:
    where = redis_url.partition("://")[2].partition("/")[0]
    with (
        fencing.connect(f"redis+sentinel://{where}/primary") as locks,
        pytest.raises(LockServiceError, match="name the Sentinels, or use redis://"),
    ):
        locks.locked("r")
