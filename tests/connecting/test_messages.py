"""What is told to who begins: which server, which setting, and what to write instead."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import (
    AsyncEtcdLockService,
    AsyncGuard,
    AsyncPostgresLockService,
    AsyncRedisLockService,
    AsyncRedlockService,
    AsyncZooKeeperLockService,
    EtcdLockService,
    FencingError,
    Guard,
    PostgresLockService,
    RedisLockService,
    RedlockService,
    ZooKeeperLockService,
    connect,
    connect_async,
)
from fencing.locks.postgres.trouble import trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = ("redis://a", "redis://b", "redis://c")


async def ask(url: Any, kind: str) -> None:
    if kind == "sync":
        locks: Any = connect(url)
        with locks:
            locks.try_acquire("r")
    else:
        locks = connect_async(url)
        async with locks:
            await locks.try_acquire("r")


async def error_of(url: Any, kind: str) -> str:
    """What an acquisition at an address is refused with."""
    with pytest.raises(FencingError) as caught:
        await ask(url, kind)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "url",
    [
        "etcd://127.0.0.1:1/",
        "zookeeper://127.0.0.1:1/",
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/SERVICE",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "redis+cluster://127.0.0.1:1",
    ],
)
async def test_who_cannot_be_reached_is_named(kind: str, url: str) -> None:
    said = await error_of(url, kind)
    assert "127.0.0.1:1" in said or "('127.0.0.1', 1)" in said
    assert "redis.client" not in said


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_sentinel_that_is_down_is_told_without_its_settings(kind: str) -> None:
    said = await error_of("redis+sentinel://127.0.0.1:1/SERVICE", kind)
    assert "no Sentinel names a primary" in said
    assert "SERVICE" in said
    assert "<" not in said


@pytest.mark.parametrize(
    "make",
    [
        lambda: RedisLockService("redis://a"),  # type: ignore[arg-type]  # that is the point
        lambda: AsyncRedisLockService("redis://a"),
        lambda: RedlockService("redlock://a,b,c"),
        lambda: RedlockService(NODES),
        lambda: AsyncRedlockService("redlock://a,b,c"),
        lambda: AsyncRedlockService(NODES),
        lambda: EtcdLockService("etcd://a"),
        lambda: AsyncEtcdLockService(["etcds://a"]),
        lambda: ZooKeeperLockService("zookeeper://a"),
        lambda: AsyncZooKeeperLockService("zk://a:2181/chroot"),
        lambda: Guard("redis://a", create_engine("postgresql+psycopg://a/b")),
        lambda: AsyncGuard("redis://a", create_async_engine("postgresql+psycopg://a/b")),
    ],
)
def test_who_gives_an_address_to_a_constructor_is_told_where_it_goes(
    make: Callable[[], object],
) -> None:
    with pytest.raises((TypeError, ValueError), match=r"fencing\.connect\(url\)"):
        make()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0?sokcet_timeout=1",
        "unix:///nowhere?sokcet_timeout=1",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0?sokcet_timeout=1",
        "redis+cluster://127.0.0.1:1?sokcet_timeout=1",
        "redis+sentinel://127.0.0.1:1/SERVICE?sokcet_timeout=1",
        "zookeeper://127.0.0.1:1/",
    ],
)
def test_a_misspelled_setting_is_told_when_a_service_is_made(kind: str, url: str) -> None:
    settings = {} if "?" in url else {"sokcet_timeout": 1}
    with pytest.raises(TypeError, match="sokcet_timeout"):
        (connect if kind == "sync" else connect_async)(url, **settings)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_redis_that_is_none_of_a_cluster_is_told(kind: str, redis_url: str) -> None:
    url = redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")
    assert "leave +cluster out of its address" in await error_of(url, kind)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg2"])
def test_an_address_may_name_a_driver_of_sqlalchemy(driver: str, fenced_database: str) -> None:
    url = make_url(fenced_database).set(drivername=f"postgresql+{driver}")
    with connect(url.render_as_string(hide_password=False)) as locks:
        locks.acquire("r", ttl=60).release()


@pytest.mark.parametrize(
    "make", [connect, connect_async, PostgresLockService, AsyncPostgresLockService.from_url]
)
def test_an_url_of_sqlalchemy_is_an_address(make: Callable[[Any], object]) -> None:
    made = make(make_url("postgresql+psycopg://user:secret@db.example:5433/bank"))
    assert "db.example:5433/bank" in repr(made)


@pytest.mark.parametrize(
    "make", [connect, connect_async, PostgresLockService, AsyncPostgresLockService]
)
def test_a_password_that_sqlalchemy_has_hidden_is_told(make: Callable[[Any], object]) -> None:
    url = make_url("postgresql+psycopg://user:secret@db.example:5433/bank")
    with pytest.raises(ValueError, match=r"\*\*\* for a password.*engine\.url itself"):
        make(str(url))


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("missing", ["username", "database"])
async def test_a_missing_role_or_database_is_not_out_of_reach(
    kind: str, missing: str, fenced_database: str
) -> None:
    url = make_url(fenced_database).set(**{missing: "nobody_made_it"})
    said = await error_of(url.render_as_string(hide_password=False), kind)
    assert "refused the connection" in said
    assert "nobody_made_it" in said
    assert "cannot be reached" not in said


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_of_several_hosts_each_is_told(kind: str) -> None:
    said = await error_of("postgresql://127.0.0.1:1,127.0.0.1:2/bank", kind)
    assert "cannot be reached" in said
    if Version(version("psycopg")) >= Version("3.2.8"):  # older ones tell of the last alone
        assert "port 1" in said or "port: '1'" in said
    assert "port 2" in said or "port: '2'" in said


def test_what_a_starting_server_says_is_told_and_waited_for() -> None:
    trouble = trouble_of(OSError("FATAL:  the database system is starting up"), at=0.0)
    assert "refused the connection" in trouble.help
    assert trouble.passing


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_database_without_the_schema_is_named(kind: str, database: str) -> None:
    url = make_url(database)
    said = await error_of(url, kind)
    assert said.startswith("GuardNotInstalledError: ")
    assert f"/{url.database}: schema fencing is not installed" in said
