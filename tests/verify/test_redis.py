"""What a verification finds on the Redis of a lock service, on real servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from click.testing import CliRunner

from fencing import connect, connect_async
from fencing.cli.main import main
from fencing.embedded import ValkeyProcess
from fencing.embedded.cluster import ValkeyCluster
from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.permissions import BY_SCRIPTS, TO_WAKE, acl_rules
from fencing.locks.redis.server import Facts
from fencing.locks.redis.verifying import judged
from tests.contract.facade import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.verification import ServiceVerification

SECRET = "geheim"
HEALTHY = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "timeout": "0",
    "tcp-keepalive": "300",
    "min-replicas-to-write": "0",
    "save": "",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess("--appendonly", "yes", "--repl-diskless-sync-delay", "0") as server:
        yield server


@pytest.fixture
def valkey(server: ValkeyProcess) -> Iterator[redis.Redis]:
    """A client of a healthy server, which is healthy again afterwards."""
    with redis.Redis.from_url(server.url) as client:
        yield client
        for name, value in HEALTHY.items():
            client.config_set(name, value)
        client.flushall()


@pytest.fixture(params=["sync", "async"])
def look(request: pytest.FixtureRequest) -> Any:
    """Verifies the Redis at an address, by each kind of service."""

    async def sync(url: str) -> ServiceVerification:
        with redis.Redis.from_url(url) as client, RedisLockService(client) as locks:
            return await in_thread(locks.verify)

    async def asynchronous(url: str) -> ServiceVerification:
        async with (
            redis.asyncio.Redis.from_url(url) as client,
            AsyncRedisLockService(client) as locks,
        ):
            return await locks.verify()

    return sync if request.param == "sync" else asynchronous


def codes(found: ServiceVerification) -> set[tuple[str, str]]:
    return {(finding.severity, finding.code) for finding in found.findings}


async def test_of_a_healthy_server_there_is_nothing_to_say(look, valkey, server):
    found = await look(server.url)
    assert found.findings == ()
    assert found.passes(strict=True)
    assert found.service == f"valkey {valkey.info()['valkey_version']}"
    assert found.nodes == (f"127.0.0.1:{server.port}",)


async def test_it_leaves_nothing_behind(look, valkey, server):
    before = len(valkey.client_list())
    await look(server.url)
    assert valkey.keys() == []
    assert len(valkey.client_list()) == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "maxmemory-evicts"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "maxmemory-evicts"),
        ({"maxmemory": "1mb"}, "memory-nearly-full"),
        ({"appendonly": "no"}, "persistence-none"),
        ({"appendfsync": "no"}, "fsync-never"),
        ({"timeout": "60"}, "timeout-cuts"),
        ({"tcp-keepalive": "0"}, "keepalive-off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_setting_that_may_lose_locks_is_a_warning(look, valkey, server, settings, expected):
    for name, value in settings.items():
        valkey.config_set(name, value)
    found = await look(server.url)
    assert codes(found) == {("warning", expected)}
    assert found.passes()
    assert not found.passes(strict=True)


@pytest.mark.parametrize(
    ("settings", "severity", "expected"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, None, None),  # no limit, so nothing is evicted
        ({"maxmemory": "1gb"}, None, None),
        ({"appendonly": "no", "save": "3600 1"}, "info", "persistence-snapshots"),
        ({"min-replicas-to-write": "1"}, "error", "replicas-missing"),
    ],
)
async def test_settings_that_are_no_warning(look, valkey, server, settings, severity, expected):
    for name, value in settings.items():
        valkey.config_set(name, value)
    assert codes(await look(server.url)) == ({(severity, expected)} if expected else set())


async def test_a_replica_is_an_error_and_its_primary_hears_of_optional_replicas(
    look, valkey, server
):
    with ValkeyProcess(
        "--replicaof", "127.0.0.1", str(server.port), "--appendonly", "yes"
    ) as other:
        with redis.Redis.from_url(other.url) as client:
            assert client.info("replication")["role"] == "slave"
            found = await look(other.url)
            assert codes(found) == {("error", "replica")}
        valkey.set("x", "1")
        assert valkey.wait(1, 10_000) == 1
        assert codes(await look(server.url)) == {("info", "replicas-optional")}


async def test_a_user_without_a_permission_is_told_which_one(look, valkey, server):
    for missing in BY_SCRIPTS:
        valkey.execute_command(
            "ACL", "SETUSER", "some", "reset", "on", f">{SECRET}",
            *acl_rules("fencing").split(), "+info", "+config|get", f"-{missing}",
        )  # fmt: skip
        found = await look(f"redis://some:{SECRET}@127.0.0.1:{server.port}")
        assert codes(found) == {("error", "permission-missing")}
        assert f"may not call {missing} on keys" in found.findings[0].message


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_waiting_for_replicas_is_a_permission_where_it_is_asked_for(kind, valkey, server):
    for rules in (acl_rules("fencing"), acl_rules("fencing", replicas=1)):
        valkey.execute_command("ACL SETUSER", "some", "reset", "on", ">p", *rules.split(), "+info")
        user = {"port": server.port, "username": "some", "password": "p"}
        if kind == "sync":
            with redis.Redis(**user) as client:
                found = await in_thread(RedisLockService(client, replicas=1).verify)
        else:
            async with redis.asyncio.Redis(**user) as client:
                found = await AsyncRedisLockService(client, replicas=1).verify()
        told = {each.code: each.message for each in found.findings}
        assert ("may not call wait on" in told.get("permission-missing", "")) == (
            "wait" not in rules
        )


@pytest.mark.parametrize("missing", [*(f"-{command}" for command in TO_WAKE), "resetchannels"])
async def test_waiters_that_nobody_may_wake_are_a_warning(look, valkey, server, missing):
    valkey.execute_command(
        "ACL", "SETUSER", "some", "reset", "on", f">{SECRET}",
        *acl_rules("fencing").split(), "+info", "+config|get", missing,
    )  # fmt: skip
    found = await look(f"redis://some:{SECRET}@127.0.0.1:{server.port}")
    assert codes(found) == {("warning", "waking-denied")}


async def test_keys_of_another_namespace_are_no_permission(look, valkey, server):
    valkey.execute_command(
        "ACL", "SETUSER", "some", "reset", "on", f">{SECRET}",
        *acl_rules("others").split(), "+info", "+config|get",
    )  # fmt: skip
    found = await look(f"redis://some:{SECRET}@127.0.0.1:{server.port}")
    assert codes(found) == {("error", "permission-missing"), ("warning", "waking-denied")}
    assert ", ".join(BY_SCRIPTS) in found.findings[0].message


@pytest.mark.parametrize("missing", ["eval", "evalsha"])
async def test_a_user_without_scripts_is_told_so(look, valkey, server, missing):
    valkey.execute_command(
        "ACL", "SETUSER", "some", "reset", "on", f">{SECRET}",
        *acl_rules("fencing").split(), "+info", "+config|get", f"-{missing}",
    )  # fmt: skip
    found = await look(f"redis://some:{SECRET}@127.0.0.1:{server.port}")
    assert ("error", "permission-missing") in codes(found)
    assert f"may not call {missing} on keys" in found.findings[0].message


async def test_what_cannot_be_looked_at_is_said(look, valkey, server):
    valkey.config_set("maxmemory", "100mb")
    valkey.config_set("maxmemory-policy", "allkeys-lru")
    rules = acl_rules("fencing").split()
    valkey.execute_command("ACL", "SETUSER", "some", "reset", "on", f">{SECRET}", *rules, "+info")
    url = f"redis://some:{SECRET}@127.0.0.1:{server.port}"
    # INFO tells of memory as well; of what only CONFIG tells nothing is claimed.
    assert codes(await look(url)) == {("warning", "maxmemory-evicts"), ("info", "not-looked-at")}
    valkey.execute_command("ACL", "SETUSER", "some", "-info")
    found = await look(url)
    assert codes(found) == {("warning", "not-looked-at"), ("info", "not-looked-at")}
    assert found.service == "redis"


async def test_a_server_out_of_reach_is_an_error_of_the_lock_service(look):
    with ValkeyProcess() as gone:
        url = gone.url
    with pytest.raises(LockServiceError, match="cannot be reached"):
        await look(url)


@pytest.mark.parametrize(
    ("scheme", "path", "told"),
    [
        ("redis", "99", "DB index is out of range"),
        ("redis+sentinel", "primary", "a Redis is at the address of a Sentinel"),
    ],
)
async def test_what_is_refused_on_the_way_there_is_no_missing_permission(
    server, scheme, path, told
):
    url = f"{scheme}://127.0.0.1:{server.port}/{path}"
    with connect(url) as locks, pytest.raises(LockServiceError, match=told):
        await in_thread(locks.verify)
    async with connect_async(url) as locks:
        with pytest.raises(LockServiceError, match=told):
            await locks.verify()
    for command, status in (("verify", 2), ("locks", 1)):
        result = CliRunner().invoke(main, [command, url])
        assert result.exit_code == status
        assert told in result.output
        assert result.output.count("\n") == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_every_primary_of_a_cluster_is_looked_at(kind, cluster):
    nodes = {f"127.0.0.1:{node.port}" for node in cluster.nodes}
    with redis.Redis(port=cluster.nodes[1].port) as second:
        second.config_set("timeout", 60)
    if kind == "sync":
        with redis.RedisCluster(port=cluster.port, host="127.0.0.1") as client:
            found = await in_thread(RedisLockService(client).verify)
    else:
        async with redis.asyncio.RedisCluster(port=cluster.port, host="127.0.0.1") as client:
            found = await AsyncRedisLockService(client).verify()
    assert set(found.nodes) == nodes
    told = {finding.code: finding.message for finding in found.findings}
    assert set(told) == {"persistence-none", "timeout-cuts"}
    assert told["timeout-cuts"].startswith(f"127.0.0.1:{cluster.nodes[1].port}: ")
    assert not told["persistence-none"].startswith("127.0.0.1")


async def test_a_plain_client_of_a_cluster_is_an_error(look, cluster):
    found = await look(f"redis://127.0.0.1:{cluster.port}")
    assert ("error", "cluster-client") in codes(found)


def test_a_cluster_with_slots_that_nobody_serves_is_an_error():
    state = {"cluster_state": "fail", "cluster_slots_ok": "10923"}
    found = judged(
        {"here": Facts(info={"cluster_enabled": 1, "aof_enabled": 1}, cluster=state)},
        namespace="fencing",
        by_cluster=True,
    )
    assert codes(found) == {("error", "cluster-down")}
    assert "5461 of its 16384" in found.findings[0].message


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"redis_version": "6.0.16"}, {("error", "version-old")}),
        ({"redis_version": "6.2.0"}, set()),
        ({"redis_version": "10.0.1"}, set()),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, {("error", "persistence-failing")}),
        ({"maxclients": 100, "connected_clients": 95}, {("warning", "clients-nearly-full")}),
        ({"maxclients": 100, "connected_clients": 5}, set()),
        ({"rdb_last_bgsave_status": "err"}, {("error", "persistence-failing")}),
        ({"role": "slave"}, {("error", "replica")}),
    ],
)
def test_states_that_are_hard_to_bring_about(info, expected):
    settings = {"save": "60 1", "stop-writes-on-bgsave-error": "yes"}
    found = judged({"here": Facts({"aof_enabled": 1, **info}, settings)}, namespace="fencing")
    assert codes(found) == expected


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["verify", *arguments], env={"FENCING_DATABASE_URL": None})


@pytest.mark.usefixtures("valkey")
class TestCommand:
    def test_a_healthy_server_is_status_0(self, server):
        result = call(server.url, "--strict")
        assert result.exit_code == 0, result.output
        assert f"at 127.0.0.1:{server.port}" in result.output
        assert "0 errors, 0 warnings, 0 info" in result.output

    def test_a_warning_fails_only_when_strict(self, valkey, server):
        valkey.config_set("timeout", 60)
        assert call(server.url).exit_code == 0
        result = call(server.url, "--strict")
        assert result.exit_code == 1
        assert "warning  timeout-cuts: timeout is 60" in result.output
        assert "-> CONFIG SET timeout 0" in result.output

    def test_json_has_the_documented_keys(self, valkey, server):
        valkey.config_set("min-replicas-to-write", 1)
        result = call(server.url, "--json")
        assert result.exit_code == 1
        told = json.loads(result.output)
        assert set(told) == {"service", "nodes", "findings", "counts"}
        assert told["nodes"] == [f"127.0.0.1:{server.port}"]
        assert told["counts"] == {"error": 1, "warning": 0, "info": 0}
        assert told["findings"][0]["subject"] == "min-replicas-to-write"

    def test_the_namespace_is_looked_at(self, valkey, server):
        rules = acl_rules("others").split()
        valkey.execute_command("ACL", "SETUSER", "some", "reset", "on", f">{SECRET}", *rules)
        url = f"redis://some:{SECRET}@127.0.0.1:{server.port}"
        assert call(url).exit_code == 1
        result = call(url, "--namespace", "others")
        assert result.exit_code == 0
        assert SECRET not in result.output

    def test_a_cluster_is_recognised_by_any_of_its_nodes(self, cluster):
        result = call(f"redis://127.0.0.1:{cluster.nodes[2].port}")
        assert result.exit_code == 0, result.output
        for node in cluster.nodes:
            assert f"127.0.0.1:{node.port}" in result.output.splitlines()[0]

    @pytest.mark.parametrize(
        "url", [f"redis://:{SECRET}@127.0.0.1:1", "unix:///nowhere", "redis://localhost:port"]
    )
    def test_what_cannot_be_looked_at_is_status_2_in_one_line(self, url):
        result = call(url)
        assert result.exit_code == 2
        assert result.output.startswith("Error: ")
        assert result.output.count("\n") == 1
        assert SECRET not in result.output

    @pytest.mark.parametrize("namespace", ["", "a{b}"])
    def test_a_namespace_that_no_service_takes(self, server, namespace):
        result = call(server.url, "--namespace", namespace)
        assert result.exit_code == 2
        assert result.output.startswith("Error: namespace must ")
        listed = CliRunner().invoke(main, ["locks", server.url, "--namespace", namespace])
        assert listed.output == result.output

    def test_models_belong_to_databases(self, server):
        result = call(server.url, "--models", "x:y")
        assert result.exit_code == 2
        assert "--models goes with the URL of a database" in result.output
