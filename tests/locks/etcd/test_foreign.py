"""What somebody else has written where locks are kept is told, and left alone."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest

from fencing import AsyncEtcdLockService, EtcdLockService, LockServiceError
from fencing.embedded.etcd import ask_etcd
from fencing.locks.etcd.keys import Keys

HOLDER = "ab" * 16


def ask(url: str, path: str, **body: Any) -> Any:
    return ask_etcd(url.replace("etcd", "http", 1).rstrip("/"), f"v3/{path}", body)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def put(url: str, key: bytes, value: bytes, lease: int = 0) -> None:
    ask(url, "kv/put", key=text(key), value=text(value), lease=str(lease))


async def test_a_foreign_value_is_not_released_by_force(locks, etcd_url, etcd_namespace):
    key = Keys(etcd_namespace).place("r", HOLDER)
    lease = int(ask(etcd_url, "lease/grant", TTL="60")["ID"])
    put(etcd_url, key, b"precious", lease)
    with pytest.raises(LockServiceError, match="not written by a lock service"):
        await locks.force_release("r")
    assert ask(etcd_url, "kv/range", key=text(key))["kvs"]
    assert int(ask(etcd_url, "lease/timetolive", ID=str(lease))["TTL"]) > 0


@pytest.mark.parametrize("wait", [0, 20])
async def test_a_lock_without_an_end_is_told(locks, etcd_url, etcd_namespace, wait):
    put(etcd_url, Keys(etcd_namespace).place("r", HOLDER), b"1000:me")
    state = await locks.inspect("r")
    assert state.held
    assert state.remaining == math.inf
    with pytest.raises(LockServiceError, match="attached to no lease"):
        await locks.acquire("r", ttl=1, blocking=bool(wait), blocking_timeout=wait or None)
    assert not (await locks.inspect("r")).waiters
    assert await locks.force_release("r")
    await (await locks.acquire("r", ttl=5)).release()


async def test_a_prefix_with_a_nul_is_no_name_s(others):
    async with others.acquire("a", ttl=10) as lease:
        for prefix in ("a\0", f"a\0{lease.holder}"):
            assert [state async for state in others.scan(prefix)] == []
        assert [state.resource async for state in others.scan("a")] == ["a"]


async def test_one_garbled_offset_hides_no_other_lock(others, etcd_url, etcd_namespace):
    async with others.acquire("bad", ttl=10), others.acquire("good", ttl=10) as good:
        put(etcd_url, Keys(etcd_namespace).offset("bad"), b"rubbish")
        states = {state.resource: state async for state in others.scan()}
        assert states["good"].token == good.token
        bad = states["bad"]
        assert (bad.held, bad.token, bad.counter) == (True, None, None)
        assert bad.remaining > 5
        with pytest.raises(LockServiceError, match="and no number"):
            await others.try_acquire("bad")


@pytest.mark.parametrize("kind", [EtcdLockService, AsyncEtcdLockService])
def test_a_namespace_that_is_no_text_is_refused_when_the_service_is_made(kind):
    with pytest.raises(ValueError, match="UTF-8"):
        kind(namespace="a\ud800")
