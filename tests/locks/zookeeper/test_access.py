"""Users, chroots and what is not there: errors say what to do, and come in time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from fencing import LockServiceError, ZooKeeperLockService
from fencing.embedded.places import free_port
from fencing.embedded.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


def with_user(url: str, user: str) -> str:
    return url.replace("zookeeper://", f"zookeeper://{user}@")


def test_nodes_of_a_user_are_for_this_user_only(
    zookeeper_url: str, zookeeper_namespace: str, looker: Any
) -> None:
    mine = with_user(zookeeper_url, "me:p%40ss")
    with (
        ZooKeeperLockService.from_url(mine, namespace=zookeeper_namespace) as locks,
        ZooKeeperLockService.from_url(mine, namespace=zookeeper_namespace) as friends,
        ZooKeeperLockService.from_url(zookeeper_url, namespace=zookeeper_namespace) as others,
        ZooKeeperLockService.from_url(
            with_user(zookeeper_url, "me:wrong"), namespace=zookeeper_namespace
        ) as impostors,
    ):
        with locks.acquire("r", ttl=60, floor=10) as lease:
            assert friends.inspect("r").holder == lease.holder
            locks.raise_token(lease, floor=lease.token)
            for refused in (others, impostors):
                for work in (refused.inspect, refused.force_release, refused.acquire):
                    with pytest.raises(LockServiceError, match=r"NoAuth.*user and password") as e:
                        work("r")
                    assert e.value.resource == "r"
        friends.acquire("r", ttl=60).release()
    with pytest.raises(NoAuthError):
        looker.client.get_children(looker.space.locks)


def test_a_chroot_that_is_there(zookeeper_url: str, zookeeper_namespace: str, looker: Any) -> None:
    looker.client.create(f"/{zookeeper_namespace}-root", b"")
    url = f"{zookeeper_url}{zookeeper_namespace}-root"
    with (
        ZooKeeperLockService.from_url(url) as locks,
        locks.acquire("a/b", ttl=60, floor=3) as lease,
    ):
        assert locks.inspect("a/b").token == lease.token
        assert [state.resource for state in locks.scan()] == ["a/b"]
        assert looker.client.exists(f"/{zookeeper_namespace}-root/fencing/locks/a%2Fb")


def test_a_chroot_that_is_not_there_is_named(zookeeper_url: str, zookeeper_namespace: str) -> None:
    with (
        ZooKeeperLockService.from_url(f"{zookeeper_url}{zookeeper_namespace}-none") as locks,
        pytest.raises(
            LockServiceError, match=f"no node /{zookeeper_namespace}-none, which is the chroot"
        ),
    ):
        locks.acquire("r")


@pytest.mark.parametrize("patience", [{"blocking": False}, {"blocking_timeout": 1.0}], ids=str)
def test_nobody_there_is_told_in_time_and_once(
    patience: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = free_port(), free_port()
    with (
        ZooKeeperLockService(f"127.0.0.1:{one},127.0.0.1:{other}") as locks,
        pytest.raises(LockServiceError, match="cannot be reached"),
    ):
        locks.acquire("r", **patience)
    assert caplog.records == []  # kazoo would warn of each attempt


def test_a_server_behind_one_that_is_not_there_is_found(
    zookeeper_url: str, zookeeper_namespace: str
) -> None:
    nobody = free_port()
    port = urlsplit(zookeeper_url).port
    with ZooKeeperLockService(
        f"127.0.0.1:{nobody},127.0.0.1:{port}", namespace=zookeeper_namespace
    ) as locks:
        locks.acquire("r").release()


def test_what_is_in_the_queue_and_is_not_ours_is_named(locks: Any, looker: Any) -> None:
    locks.acquire("r").release()
    parent = looker.space.parent("r")
    looker.client.create(f"{parent}/{'0' * 32}-0000000000", b"whatever")
    for patience in ({"blocking": False}, {"blocking_timeout": 5.0}):
        with pytest.raises(LockServiceError, match="was not written by a lock service"):
            locks.acquire("r", **patience)
    assert locks.inspect("r").held
    with pytest.raises(LockServiceError, match="was not written by a lock service"):
        locks.force_release("r")


def test_an_empty_resource_s_node_is_removed_by_zookeeper() -> None:
    often = ("-Dznode.container.checkIntervalMs=200",)  # every minute by default
    with (
        ZooKeeperProcess(options=often) as server,
        ZooKeeperLockService.from_url(server.url, session_timeout=1.0) as locks,
        looking_at(server.url) as client,
    ):
        for _ in range(2):  # removed, it is made anew
            with locks.acquire("r", ttl=60) as lease:
                assert lease.owned()
            give_up = time.monotonic() + 30
            while client.exists("/fencing/locks/r"):
                assert time.monotonic() < give_up
                time.sleep(0.05)


@contextmanager
def looking_at(url: str) -> Iterator[Any]:
    client = KazooClient(url.removeprefix("zookeeper://").rstrip("/"))
    client.start()
    yield client
    client.stop()
    client.close()
