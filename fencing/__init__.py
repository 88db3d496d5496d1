"""Distributed locks whose expired holders cannot write.

Every lock with a time-out can run out while its holder is paused; the holder wakes up, believes
that it still holds the lock, and overwrites its successor's work. Here that write is refused, by
PostgreSQL itself:

1. A *lock service* (:class:`RedisLockService`) grants a lease and, in the same atomic step, a
   *fencing token*, a number that grows with every lease on the resource.
2. *Admission*: before the lease is handed out, its token is committed in the database as the
   resource's high-water mark. From then on every earlier holder is overtaken.
3. *Entry*: every transaction under the lease presents it in its first statement.
4. The *guard* of a table, a set of triggers, refuses each write whose resource is not covered by
   a lease that the transaction has presented and that nobody has overtaken.

Safety rests on the database alone: a lock service that forgets, repeats or reverses its tokens
makes someone wait or be refused, and never lets two holders write.

Not protected are effects outside the database, and values that were read before admission.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fencing.errors import (
    CommitOutcomeUnknownError,
    FencingError,
    FencingUsageError,
    GuardNotInstalledError,
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
    TableBusyError,
    UnfencedWriteError,
    WriteRefusedError,
)

if TYPE_CHECKING:
    from fencing.connecting import connect, connect_async
    from fencing.guard import AsyncGuard, Guard
    from fencing.hooks.declare import fenced_by, resource_of
    from fencing.hooks.explicit import fence
    from fencing.lease import AsyncLease, Lease
    from fencing.lease.group import AsyncLeaseGroup, LeaseGroup
    from fencing.locks.etcd import AsyncEtcdLockService, EtcdLockService
    from fencing.locks.postgres import AsyncPostgresLockService, PostgresLockService
    from fencing.locks.redis import AsyncRedisLockService, RedisLockService
    from fencing.locks.redlock import AsyncRedlockService, RedlockService
    from fencing.locks.zookeeper import AsyncZooKeeperLockService, ZooKeeperLockService
    from fencing.service import AsyncLockService, LockService
    from fencing.state import LockState

__all__ = [
    "AsyncEtcdLockService",
    "AsyncGuard",
    "AsyncLease",
    "AsyncLeaseGroup",
    "AsyncLockService",
    "AsyncPostgresLockService",
    "AsyncRedisLockService",
    "AsyncRedlockService",
    "AsyncZooKeeperLockService",
    "CommitOutcomeUnknownError",
    "EtcdLockService",
    "FencingError",
    "FencingUsageError",
    "Guard",
    "GuardNotInstalledError",
    "Lease",
    "LeaseExpiredError",
    "LeaseGroup",
    "LeaseLostError",
    "LockNotAcquiredError",
    "LockService",
    "LockServiceError",
    "LockState",
    "PostgresLockService",
    "RedisLockService",
    "RedlockService",
    "StaleFenceError",
    "TableBusyError",
    "UnfencedWriteError",
    "WriteRefusedError",
    "ZooKeeperLockService",
    "connect",
    "connect_async",
    "fence",
    "fenced_by",
    "resource_of",
]

# What needs SQLAlchemy or Redis is imported when it is first asked for: Alembic loads a plugin of
# this package with every `import alembic`, and a command line should start at once.
_HOMES = {
    "AsyncEtcdLockService": "fencing.locks.etcd",
    "AsyncGuard": "fencing.guard",
    "AsyncLease": "fencing.lease",
    "AsyncLeaseGroup": "fencing.lease.group",
    "AsyncLockService": "fencing.service",
    "AsyncPostgresLockService": "fencing.locks.postgres",
    "AsyncRedisLockService": "fencing.locks.redis",
    "AsyncRedlockService": "fencing.locks.redlock",
    "EtcdLockService": "fencing.locks.etcd",
    "AsyncZooKeeperLockService": "fencing.locks.zookeeper",
    "Guard": "fencing.guard",
    "Lease": "fencing.lease",
    "LeaseGroup": "fencing.lease.group",
    "LockService": "fencing.service",
    "LockState": "fencing.state",
    "PostgresLockService": "fencing.locks.postgres",
    "RedisLockService": "fencing.locks.redis",
    "RedlockService": "fencing.locks.redlock",
    "ZooKeeperLockService": "fencing.locks.zookeeper",
    "connect": "fencing.connecting",
    "connect_async": "fencing.connecting",
    "fence": "fencing.hooks.explicit",
    "fenced_by": "fencing.hooks.declare",
    "resource_of": "fencing.hooks.declare",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
