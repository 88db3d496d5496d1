"""``connect()`` itself: which addresses there are, and what it says of others."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fencing
from fencing.connecting import connect, connect_async


@pytest.mark.parametrize("begin", [connect, connect_async])
@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("memcached://me:secret@host", "memcached://"),
        ("localhost:6379", "no scheme"),
        ("secret", "no scheme"),
        ("", "no scheme"),
        ("://", "://"),
    ],
)
def test_an_unknown_scheme_lists_the_known_ones(begin, url: str, what: str) -> None:
    with pytest.raises(ValueError, match="no lock service has addresses with") as error:
        begin(url)
    said = str(error.value)
    assert what in said
    assert "secret" not in said
    for scheme in ("redis", "redis+sentinel", "redlock", "etcd", "zookeeper", "postgresql"):
        assert f"{scheme}://" in said


def test_a_scheme_is_written_in_any_case(redis_url: str, redis_namespace: str) -> None:
    url = redis_url.replace("redis://", "REDIS://")
    with connect(url, namespace=redis_namespace) as locks:
        assert not locks.locked("r")


@pytest.mark.parametrize("begin", [connect, connect_async])
def test_an_address_is_a_str(begin) -> None:
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        begin(b"redis://localhost")


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "etcd://127.0.0.1:1", "zookeeper://127.0.0.1:1"]
)
def test_a_setting_that_the_service_does_not_have(url: str) -> None:
    with pytest.raises((TypeError, fencing.LockServiceError), match="colour"):
        connect(url, colour="red").acquire("r", blocking_timeout=0.1)


def test_the_name_of_each_scheme_stands_in_the_documentation() -> None:
    from fencing.connecting import _KINDS

    assert connect.__doc__ is not None
    for scheme in _KINDS:
        assert f"{scheme}://" in connect.__doc__


@pytest.mark.parametrize(
    ("making", "package", "extra"),
    [
        ("fencing.connect('etcd://h')", "httpx", "etcd"),
        ("fencing.connect_async('etcds://h')", "httpx", "etcd"),
        ("EtcdLockService()", "httpx", "etcd"),
        ("fencing.connect('zookeeper://h')", "kazoo", "zookeeper"),
        ("AsyncZooKeeperLockService('h')", "kazoo", "zookeeper"),
    ],
)
def test_a_missing_extra_is_named_by_who_makes_a_service(making, package, extra) -> None:
    """And by nobody else: all names can be imported."""
    program = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
import fencing
from fencing import *
try:
    {making}
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert f'pip install "fencing[{extra}]"' in done.stdout
