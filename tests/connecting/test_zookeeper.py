"""The lock service at a zookeeper:// address."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fencing
from fencing import AsyncZooKeeperLockService, ZooKeeperLockService
from fencing.locks.zookeeper.address import Address


def test_an_address_names_a_lock_service():
    locks = fencing.connect("zookeeper://127.0.0.1:1/", namespace="mine")
    assert isinstance(locks, ZooKeeperLockService)
    assert locks.namespace == "mine"
    assert isinstance(fencing.connect_async("ZK://127.0.0.1"), AsyncZooKeeperLockService)


def test_a_lock_is_acquired_at_an_address(zookeeper_url, zookeeper_namespace):
    with (
        fencing.connect(zookeeper_url, namespace=zookeeper_namespace) as locks,
        locks.acquire("r", ttl=10) as lease,
    ):
        assert lease.token >= 1


@pytest.mark.parametrize(
    ("url", "hosts", "user", "password"),
    [
        ("zookeeper://localhost", "localhost", None, None),
        ("zk://a:1,b:2/", "a:1,b:2", None, None),
        ("zk://a:1,b/c/d/", "a:1,b/c/d", None, None),
        ("zk://[::1]:2181/x", "[::1]:2181/x", None, None),
        ("zk://me:p%40s:s%2F@a", "a", "me", "p@s:s/"),
    ],
)
def test_what_an_address_says(url, hosts, user, password):
    assert Address.parse(url) == Address(hosts, user, password)


@pytest.mark.parametrize(
    "url", ["zk://", "zk://a,/", "zk://:2181/", "zk://a:b/", "zk://a?x=1", "http://a", "a:2181"]
)
def test_an_address_that_makes_no_sense(url):
    with pytest.raises(ValueError, match="address"):
        ZooKeeperLockService.from_url(url)


@pytest.mark.parametrize(
    ("hosts", "options", "error"),
    [
        ("", {}, ValueError),
        (["a"], {}, TypeError),
        ("a", {"namespace": "a/b"}, ValueError),
        ("a", {"session_timeout": 0}, ValueError),
        ("a", {"session_timeout": "1"}, TypeError),
        ("a", {"session_timeout": float("nan")}, ValueError),
        ("a", {"user": "me"}, ValueError),
        ("a", {"password": "secret"}, ValueError),
    ],
)
def test_settings_that_make_no_sense(hosts, options, error):
    with pytest.raises(error):
        ZooKeeperLockService(hosts, **options)


def test_a_password_is_in_no_message():
    with pytest.raises(ValueError, match="address") as caught:
        ZooKeeperLockService.from_url("zk://me:secret@a?b")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Address("a", "me", "secret"))
    assert "secret" not in repr(ZooKeeperLockService.from_url("zk://me:secret@a"))


WITHOUT_KAZOO = """
import sys
sys.modules["kazoo"] = None
from fencing import *
import fencing
for connect in (fencing.connect, fencing.connect_async):
    try:
        connect("zookeeper://localhost")
    except ModuleNotFoundError as error:
        print(error)
assert fencing.connect("redis://localhost")
"""


def test_a_missing_extra_is_named():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KAZOO], capture_output=True, text=True, check=True
    )
    message = (
        'ZooKeeperLockService needs kazoo, which is not installed: pip install "fencing[zookeeper]"'
    )
    assert done.stdout.splitlines() == [message] * 2
