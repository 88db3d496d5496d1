"""A Redis user needs the commands that `fencing.locks.redis.permissions` lists, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.embedded import ValkeyProcess
from fencing.embedded.cluster import ValkeyCluster
from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.permissions import (
    BY_SCRIPTS,
    ON_CLUSTER,
    TO_LIST,
    TO_RUN,
    WHILE_MOVING,
    acl_rules,
)
from fencing.locks.redis.trouble import trouble_of
from fencing.request import MAX_TOKEN
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PAGE = Path(__file__).parents[3] / "docs/how-to/redis.md"
USER = {"username": "locks", "password": "secret"}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


def allow(nodes: list[ValkeyProcess], *rules: str) -> None:
    """Give the user these rights, on empty servers that know no script."""
    for node in nodes:
        with redis.Redis.from_url(node.url) as client:
            client.execute_command("ACL", "SETUSER", "locks", "reset", "on", ">secret", *rules)
            client.flushall()
            client.script_flush()


@contextlib.asynccontextmanager
async def connected(kind: str, port: int, *, cluster: bool = False) -> AsyncIterator[Any]:
    """Two lock services of a kind as the user: one of a guard's, and one used alone."""
    if kind == "sync":
        module: Any = redis
    else:
        module = redis.asyncio
    client = (module.RedisCluster if cluster else module.Redis)(host="127.0.0.1", port=port, **USER)
    if kind == "sync":
        with client, RedisLockService(client) as alone, RedisLockService(client) as guarded:
            guarded.note_guarded()
            yield [ThreadedLocks(guarded), ThreadedLocks(alone)]
    else:
        async with (
            client,
            AsyncRedisLockService(client) as alone,
            AsyncRedisLockService(client) as guarded,
        ):
            guarded.note_guarded()
            yield [guarded, alone]


async def use(services: list[Any]) -> None:
    """Everything that lock services do, on resources in several slots of a cluster."""
    for locks, resource in itertools.product(services, "abcd"):
        lease = await locks.acquire(resource, ttl=10, floor=3)
        assert await locks.try_acquire(resource) is None
        await lease.renew(20)
        await locks.raise_token(lease, floor=lease.token + 5)
        assert await lease.owned()
        waiting = asyncio.ensure_future(locks.acquire(resource, ttl=10)._begin())
        while not (  # noqa: ASYNC110 - only the server knows
            waiting.done() or (await locks.inspect(resource)).waiters
        ):
            await asyncio.sleep(0.005)
        assert await locks.force_release(resource)
        await (await waiting).release()
        assert not await locks.locked(resource)
    for number, locks in enumerate(services):
        await (await locks.acquire(f"used up {number}", floor=MAX_TOKEN - 1)).release()
        try:
            await locks.acquire(f"used up {number}")
        except LockServiceError as error:
            if "has reached 2**53 - 1" not in str(error):
                raise


SAID = {
    "of Redis 7.0": [
        "NOPERM this user has no permissions to run the 'eval' command",
        "NOPERM this user has no permissions to access one of the keys used as arguments",
        (
            "ERR The user executing the script can't run this command or subcommand script: "
            "d3c21d0c2b9ca22f82737626a27bcaf5d288f99f, on @user_script:1."
        ),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned in "
            "the command arguments script: 00ddb0c1a858ec65cc8603fe1776212f207c81b4, "
            "on @user_script:1."
        ),
        (
            "ERR The user executing the script can't publish to the channel mentioned in the "
            "command script: 61eab992dc94c5099d07748f1fd9475f57e3bfdf, on @user_script:1."
        ),
    ],
    "of Redis 7.2 and Valkey": [
        "NOPERM User u has no permissions to run the 'eval' command",
        "NOPERM No permissions to access a key",
        (
            "ERR ACL failure in script: User u has no permissions to run the 'get' command script: "
            "on @user_script:1."
        ),
        "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
        "ERR ACL failure in script: No permissions to access a channel script: on @user_script:1.",
    ],
}


@pytest.mark.parametrize("connection", [redis.Connection, redis.asyncio.Connection])
@pytest.mark.parametrize("server", SAID)
def test_what_is_missing_is_told_as_such_however_the_server_says_it(
    server: str, connection: Any
) -> None:
    parse = connection()._parser.parse_error
    for said in SAID[server]:
        trouble = trouble_of(parse(said), at=0.0)
        assert not trouble.passing
        assert "lacks a permission (NOPERM)" in str(trouble)
        assert "`fencing verify` says which" in str(trouble)


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestOneServer:
    async def test_the_listed_commands_are_enough(self, kind: str, server: ValkeyProcess) -> None:
        allow([server], *acl_rules("fencing").split())
        async with connected(kind, server.port) as services:
            await use(services)

    @pytest.mark.parametrize("command", [*TO_RUN, *BY_SCRIPTS])
    async def test_none_of_them_can_be_left_out(
        self, kind: str, server: ValkeyProcess, command: str
    ) -> None:
        allow([server], *acl_rules("fencing").split(), f"-{command}")
        async with connected(kind, server.port) as services:
            with pytest.raises(LockServiceError, match="NOPERM") as raised:
                await use(services)
        assert f"+{command}" in str(raised.value)

    async def test_listing_needs_one_more(self, kind: str, server: ValkeyProcess) -> None:
        allow([server], *acl_rules("fencing").split())
        async with connected(kind, server.port) as (locks, _):
            with pytest.raises(LockServiceError, match="NOPERM") as raised:
                await anext(aiter(locks.scan()))
            (missing,) = TO_LIST
            assert f"+{missing}" in str(raised.value)
            allow([server], *acl_rules("fencing").split(), f"+{missing}")
            async with locks.acquire("a", ttl=10):
                assert [state.resource async for state in locks.scan()] == ["a"]

    @pytest.mark.parametrize("missing", ["publish", "subscribe"])
    async def test_who_may_not_wake_or_be_woken_is_warned_of_once(
        self, kind: str, server: ValkeyProcess, missing: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        allow([server], *acl_rules("fencing").split(), f"-{missing}")
        async with connected(kind, server.port) as (locks, _):
            for _ in range(2):
                lease = await locks.acquire("a", ttl=10)
                waiting = asyncio.ensure_future(locks.acquire("a", ttl=10)._begin())

                async def waits() -> bool:
                    if missing == "subscribe":
                        return bool(caplog.records)
                    return bool((await locks.inspect("a")).waiters)

                while not await waits():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
                await lease.release()
                await (await waiting).release()
        (warning,) = [record.getMessage() for record in caplog.records]
        assert f"+{missing}" in warning
        assert "once a second" in warning

    async def test_another_namespace_is_another_s(self, kind: str, server: ValkeyProcess) -> None:
        allow([server], *acl_rules("fencing2").split())
        async with connected(kind, server.port) as services:
            with pytest.raises(LockServiceError, match="NOPERM"):
                await use(services)


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestCluster:
    async def test_the_listed_commands_are_enough(self, kind: str, cluster: ValkeyCluster) -> None:
        allow(cluster.nodes, *acl_rules("fencing", cluster=True).split())
        async with connected(kind, cluster.port, cluster=True) as services:
            await use(services)


@pytest.mark.parametrize("command", ON_CLUSTER)
async def test_none_of_a_cluster_s_can_be_left_out(cluster: ValkeyCluster, command: str) -> None:
    # Each is needed by one client of redis-py at least.
    allow(cluster.nodes, *acl_rules("fencing", cluster=True).split(), f"-{command}")
    failed = 0
    for kind in ("sync", "async"):
        try:
            async with connected(kind, cluster.port, cluster=True) as services:
                await use(services)
        except (LockServiceError, redis.RedisError, redis.exceptions.RedisClusterException):
            failed += 1
    assert failed


def test_the_documentation_has_the_same_list() -> None:
    page = PAGE.read_text("utf-8")
    (rules,) = re.findall(
        r"^ACL SETUSER locks on >secret (.*?)\n```", page, re.MULTILINE | re.DOTALL
    )
    assert rules.replace("\\", "").split() == acl_rules("fencing").split()
    assert " ".join(f"+{command}" for command in (*ON_CLUSTER, *WHILE_MOVING)) in page.replace(
        "\\|", "|"
    )
