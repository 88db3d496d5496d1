"""The sync and the async classes have the same public methods with the same parameters."""

from __future__ import annotations

import inspect
import re

import pytest

from fencing.guard import AsyncGuard, Guard
from fencing.lease import AsyncLease, Lease
from fencing.lease.group import AsyncLeaseGroup, LeaseGroup
from fencing.locks.etcd import AsyncEtcdLockService, EtcdLockService
from fencing.locks.postgres import AsyncPostgresLockService, PostgresLockService
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redlock import AsyncRedlockService, RedlockService
from fencing.locks.zookeeper import AsyncZooKeeperLockService, ZooKeeperLockService
from fencing.postgres import AsyncPsycopgGuard, PsycopgGuard
from fencing.service import AsyncLockService, LockService

TWINS = [
    (RedisLockService, AsyncRedisLockService),
    (EtcdLockService, AsyncEtcdLockService),
    (RedlockService, AsyncRedlockService),
    (ZooKeeperLockService, AsyncZooKeeperLockService),
    (PostgresLockService, AsyncPostgresLockService),
    (Lease, AsyncLease),
    (LeaseGroup, AsyncLeaseGroup),
    (LockService, AsyncLockService),
]
RENAMED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
CANCEL = ", cancel_on_loss: 'bool' = False"
# The asynchronous ones return what is awaited for it.
ACQUIRING = {"acquire", "acquire_all"}
MAGIC = {"__init__", "__enter__", "__exit__"}


def interface(kind: type) -> dict[str, str]:
    members = {RENAMED.get(name, name): member for name, member in inspect.getmembers(kind)}
    return {
        name: re.sub(r"\bAsync|Any|\bAcquisition\b", lambda m: m[0] if m[0] == "Any" else "", text)
        for name, member in members.items()
        if callable(member) and (not name.startswith("_") or name in MAGIC)
        # Only a task can be cancelled.
        for text in [str(inspect.signature(member)).replace(CANCEL, "")]
    }


# A guard and its twin take engines or pools of their own kind, and return what is awaited.
GUARDS = [(Guard, AsyncGuard), (PsycopgGuard, AsyncPsycopgGuard)]


@pytest.mark.parametrize(("sync", "asynchronous"), GUARDS)
def test_guards_have_equal_parameters(sync: type, asynchronous: type) -> None:
    mine, theirs = without_returns(interface(sync)), without_returns(interface(asynchronous))
    assert mine == theirs


def test_both_kinds_of_guard_acquire_with_equal_parameters() -> None:
    one, other = without_returns(interface(Guard)), without_returns(interface(PsycopgGuard))
    for name in ("acquire", "acquire_all", "try_acquire", "admit", "close"):
        assert one[name] == other[name]


def without_returns(signatures: dict[str, str]) -> dict[str, str]:
    # ``acquire`` returns what is awaited for the lease; ``__init__`` takes another client.
    return {name: text.partition(" -> ")[0] for name, text in signatures.items()}


@pytest.mark.parametrize(("sync", "asynchronous"), TWINS)
def test_twins_have_equal_signatures(sync: type, asynchronous: type) -> None:
    mine, theirs = interface(sync), interface(asynchronous)
    for signatures in (mine, theirs):
        for name, text in signatures.items():
            signatures[name] = text.replace("AnyAsyncClient", "AnyClient").replace(
                "AnyClient", "Client"
            )
    assert without_returns(mine) == without_returns(theirs)
    returns = {n: t.partition(" -> ")[2] for n, t in mine.items() if n not in ACQUIRING}
    assert returns == {n: t.partition(" -> ")[2] for n, t in theirs.items() if n not in ACQUIRING}


@pytest.mark.parametrize(
    ("protocol", "service"),
    [
        (LockService, RedisLockService),
        (AsyncLockService, AsyncRedisLockService),
        (LockService, EtcdLockService),
        (AsyncLockService, AsyncEtcdLockService),
        (LockService, RedlockService),
        (AsyncLockService, AsyncRedlockService),
        (LockService, ZooKeeperLockService),
        (AsyncLockService, AsyncZooKeeperLockService),
        (LockService, PostgresLockService),
        (AsyncLockService, AsyncPostgresLockService),
    ],
)
def test_a_service_has_the_protocol_s_signatures(protocol: type, service: type) -> None:
    promised, kept = interface(protocol), interface(service)
    promised.pop("__init__", None)
    assert {name: kept.get(name) for name in promised} == promised
