"""A lock service over clients of every kind, with what redis-py lets them be configured with."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis._parsers as parsers
import redis.asyncio
from redis.credentials import UsernamePasswordCredentialProvider

from fencing.embedded import ValkeyProcess
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PATIENCE = 20
"""Seconds, enough for any of this on any machine."""


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "valkey.sock"


@pytest.fixture(scope="module")
def server(socket: Path) -> Iterator[ValkeyProcess]:
    with ValkeyProcess("--unixsocket", str(socket)) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL SETUSER", "u", "on", ">geheim", "~*", "&*", "+@all")
        yield server


@pytest.fixture
def admin(server: ValkeyProcess) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@contextlib.asynccontextmanager
async def service(kind: str, client: Any) -> AsyncIterator[Any]:
    if kind == "sync":
        with client, RedisLockService(client) as locks:
            yield ThreadedLocks(locks)
    else:
        async with client, AsyncRedisLockService(client) as locks:
            yield locks


def client_of(kind: str, url: str, **settings: Any) -> Any:
    module: Any = redis if kind == "sync" else redis.asyncio
    return module.Redis.from_url(url, **settings)


async def use(locks: Any) -> None:
    """Everything, with a resource and an owner that are not ASCII, and somebody who waits."""
    resource = "Konto:42 – é\r\n"
    async with locks.acquire(resource, ttl=PATIENCE, owner="Zoë") as lease:
        assert await locks.try_acquire(resource) is None
        await lease.renew()
        await locks.raise_token(lease, floor=lease.token + 1)
        first = lease.token
    async with locks.acquire(resource, ttl=0.3) as short:  # waited for until it expires
        async with locks.acquire(resource, ttl=PATIENCE, blocking_timeout=PATIENCE) as lease:
            assert lease.token > short.token > first
        short.note_released()


PROTOCOLS = [2, 3]
PARSERS = {
    ("sync", 2): parsers._RESP2Parser,
    ("sync", 3): parsers._RESP3Parser,
    ("async", 2): parsers._AsyncRESP2Parser,
    ("async", 3): parsers._AsyncRESP3Parser,
}


@pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("parser", ["python", "hiredis"])
async def test_protocols_parsers_and_decoding(
    kind: str,
    server: ValkeyProcess,
    admin: redis.Redis,
    parser: str,
    protocol: int,
    *,
    decoded: bool,
) -> None:
    if parser == "python":
        chosen: Any = PARSERS[kind, protocol]
    else:
        pytest.importorskip("hiredis")
        chosen = parsers._HiredisParser if kind == "sync" else parsers._AsyncHiredisParser
    client = client_of(
        kind,
        server.url,
        protocol=protocol,
        decode_responses=decoded,
        parser_class=chosen,
        client_name="tested",
    )
    async with service(kind, client) as locks:
        await use(locks)
        spoken = {each["resp"] for each in admin.client_list() if each["name"] == "tested"}
        assert spoken == {str(protocol)}


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
async def test_an_encoding_of_its_own(
    kind: str, server: ValkeyProcess, admin: redis.Redis, encoding: str
) -> None:
    client = client_of(kind, server.url, encoding=encoding, decode_responses=True)
    async with service(kind, client) as locks:
        await use(locks)


async def test_a_unix_socket(
    kind: str, server: ValkeyProcess, admin: redis.Redis, socket: Path
) -> None:
    async with service(kind, client_of(kind, f"unix://u:geheim@{socket}")) as locks:
        await use(locks)
        mine = [each["flags"] for each in admin.client_list() if each["user"] == "u"]
        assert mine
        assert all("U" in flags for flags in mine)


@pytest.mark.parametrize("how", ["path", "query", "argument"])
async def test_a_database_number(
    kind: str, server: ValkeyProcess, admin: redis.Redis, how: str
) -> None:
    base = f"redis://127.0.0.1:{server.port}"
    url = {"path": f"{base}/3", "query": f"{base}?db=3", "argument": base}[how]
    client = client_of(kind, url, **({"db": 3} if how == "argument" else {}))
    async with service(kind, client) as locks, locks.acquire("r", ttl=PATIENCE):
        assert admin.dbsize() == 0
        with redis.Redis(port=server.port, db=3) as other:
            assert other.exists(*keys_of("fencing", "r")[:2]) == 2


async def test_a_client_name(kind: str, server: ValkeyProcess, admin: redis.Redis) -> None:
    client = client_of(kind, server.url, client_name="billing")
    async with service(kind, client) as locks:
        await use(locks)
        assert "billing" in {each["name"] for each in admin.client_list()}


async def test_health_checks_of_idle_connections(
    kind: str, server: ValkeyProcess, admin: redis.Redis
) -> None:
    client = client_of(kind, server.url, health_check_interval=0.001)
    async with service(kind, client) as locks:
        await use(locks)
        await use(locks)


@pytest.mark.parametrize("how", ["url", "provider"])
async def test_a_user_with_a_password(
    kind: str, server: ValkeyProcess, admin: redis.Redis, how: str
) -> None:
    if how == "url":
        client = client_of(kind, f"redis://u:geheim@127.0.0.1:{server.port}")
    else:
        provider = UsernamePasswordCredentialProvider("u", "geheim")
        client = client_of(kind, server.url, credential_provider=provider)
    async with service(kind, client) as locks:
        await use(locks)
        assert {each["user"] for each in admin.client_list()} == {"u", "default"}


async def test_a_provider_is_asked_for_each_connection(
    kind: str, server: ValkeyProcess, admin: redis.Redis
) -> None:
    class Rotating(UsernamePasswordCredentialProvider):
        """Its password changes, as a token of a cloud's does."""

        asked = 0

        def get_credentials(self) -> tuple[str, str]:
            self.asked += 1
            return "u", "geheim" if self.asked == 1 else "neu"

    provider = Rotating("u", "geheim")
    try:
        client = client_of(kind, server.url, credential_provider=provider)
        async with service(kind, client) as locks:
            await (await locks.acquire("r", ttl=PATIENCE)).release()
            admin.execute_command("ACL SETUSER", "u", "resetpass", ">neu")
            admin.execute_command("CLIENT KILL", "USER", "u")
            await (await locks.acquire("r", ttl=PATIENCE)).release()
        assert provider.asked == 2
    finally:
        admin.execute_command("ACL SETUSER", "u", "resetpass", ">geheim")


@pytest.mark.parametrize("connections", [1, 3])
async def test_a_blocking_pool(
    kind: str, server: ValkeyProcess, admin: redis.Redis, connections: int
) -> None:
    module: Any = redis if kind == "sync" else redis.asyncio
    pool = module.BlockingConnectionPool.from_url(
        server.url, max_connections=connections, timeout=1, client_name="pooled"
    )
    async with service(kind, module.Redis.from_pool(pool)) as locks:
        await use(locks)


async def test_a_client_of_a_single_connection(
    kind: str, server: ValkeyProcess, admin: redis.Redis
) -> None:
    if kind == "sync":
        client: Any = redis.Redis(port=server.port, single_connection_client=True)
    else:
        client = redis.asyncio.Redis(port=server.port, single_connection_client=True)
    async with service(kind, client) as locks:
        await use(locks)
