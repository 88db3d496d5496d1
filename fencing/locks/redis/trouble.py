"""What an error of redis-py means for a lock service."""

from __future__ import annotations

import re

import redis
import redis.asyncio.sentinel
import redis.exceptions
import redis.sentinel

from fencing.locks.asking import Trouble
from fencing.locks.redis.permissions import (
    BY_SCRIPTS,
    FOR_REPLICAS,
    ON_CLUSTER,
    TO_LIST,
    TO_RUN,
    WHILE_MOVING,
)
from fencing.locks.redis.stack import AllInUseError

__all__ = ["NO_CLUSTER", "REDIS_ERRORS", "trouble_of"]

REDIS_ERRORS = (
    redis.RedisError,
    redis.exceptions.RedisClusterException,  # not a RedisError
    OSError,  # a builtin TimeoutError is one
)
"""What can come out of a call on a client because of Redis or the way to it."""


def _with_plus(*commands: str) -> str:
    return " ".join(f"+{command}" for command in commands)


_NO_PERMISSION = (
    "the Redis user lacks a permission (NOPERM): the lock service needs "
    f"{_with_plus(*TO_RUN, *BY_SCRIPTS)} on the keys of its "
    f"namespace, and on a cluster {_with_plus(*ON_CLUSTER, *WHILE_MOVING)}, "
    f"and to list its locks {_with_plus(*TO_LIST)}, "
    f"and for replicas= {_with_plus(*FOR_REPLICAS)}; "
    "`fencing verify` says which are missing"
)

# The first that fits: exception, text to be found in it, whether to try again, what it means.
_UNREACHABLE = "Redis cannot be reached: see that it runs and its address is right, then try again"

_SILENT = "Redis did not answer in time: see if it or the network is overloaded; then try again"

_TLS_ELSEWHERE = "name the port where it does, or use an address without TLS, such as redis://"

# What OpenSSL says, whatever redis-py makes of it, and what it means.
_OF_HANDSHAKES = {
    "handshake operation timed out": (
        "the TLS handshake with Redis did not end in time: the server does not seem to speak TLS "
        f"at this port ({_TLS_ELSEWHERE}), or it is overloaded"
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"),
        "the TLS handshake with Redis failed: the server does not speak TLS at this port: "
        f"{_TLS_ELSEWHERE}",
    ),
}

_NO_PRIMARY = (
    "no Sentinel names a primary: see that the Sentinels run and their addresses are right, that "
    "the service is called as they call it, and that it has a primary; then try again"
)

NO_CLUSTER = "this Redis is none of a cluster: leave +cluster out of its address"
"""What is told where a client of a cluster meets one that is none of it."""

_MEANINGS: list[tuple[type[BaseException], str, bool, str]] = [
    (
        redis.AuthenticationError,
        "",
        False,
        (
            "Redis wants other credentials (NOAUTH, WRONGPASS): check the client's user name and "
            "password"
        ),
    ),
    (redis.exceptions.NoPermissionError, "", False, _NO_PERMISSION),
    *(
        (redis.ResponseError, text, False, _NO_PERMISSION)
        for text in ("ACL failure in script", "The user executing the script can't")  # of 7.0
    ),
    (
        redis.exceptions.BusyLoadingError,
        "",
        True,
        "Redis is still loading its data (LOADING): try again when it has started",
    ),
    (
        redis.ReadOnlyError,
        "",
        False,
        (
            "this Redis is a read-only replica (READONLY): connect to the primary, and let "
            "Sentinel or a cluster client follow it through failovers"
        ),
    ),
    (
        redis.exceptions.OutOfMemoryError,
        "",
        False,
        (
            "Redis is out of memory (OOM): raise maxmemory, or give the lock service a Redis of "
            "its own that evicts nothing"
        ),
    ),
    (
        redis.exceptions.MaxConnectionsError,
        "",
        True,
        (
            "Redis was not asked, for all connections that the client's max_connections allows "
            "were in use: allow more, or let fewer callers ask at once"
        ),
    ),
    (
        redis.exceptions.MasterDownError,
        "",
        True,
        "the replica has lost its primary (MASTERDOWN): try again after the failover",
    ),
    (
        redis.exceptions.ClusterDownError,
        "",
        True,
        "the cluster does not serve this slot (CLUSTERDOWN): look at its state",
    ),
    *(
        (Exception, text, False, NO_CLUSTER)
        for text in ("Cluster mode is not enabled", "cluster support disabled")
    ),
    (
        redis.exceptions.RedisClusterException,
        "",
        True,
        "the cluster cannot be used: look at its nodes",
    ),
    (redis.exceptions.TryAgainError, "", True, "the slot is being moved (TRYAGAIN): try again"),
    (
        redis.exceptions.AskError,  # a MovedError is one
        "",
        False,
        (
            "this Redis is a node of a cluster: give the service a redis.RedisCluster, or a "
            "redis+cluster:// address"
        ),
    ),
    (
        redis.ResponseError,
        "NOREPLICAS",
        True,
        (
            "the primary has fewer replicas than min-replicas-to-write wants (NOREPLICAS): look at "
            "the replicas"
        ),
    ),
    (redis.sentinel.MasterNotFoundError, "", True, _NO_PRIMARY),
    (redis.asyncio.sentinel.MasterNotFoundError, "", True, _NO_PRIMARY),
    (redis.ConnectionError, "", True, _UNREACHABLE),
    (redis.TimeoutError, "", True, _SILENT),
    (TimeoutError, "", True, _SILENT),
    (OSError, "", True, _UNREACHABLE),
    (
        redis.ResponseError,
        "WRONGTYPE",
        False,
        (
            "a key of the lock, its counter or its queue holds another type (WRONGTYPE), so it "
            "is somebody else's: use another namespace, or delete it"
        ),
    ),
    (
        redis.ResponseError,
        "BUSY",
        True,
        "Redis is busy with somebody's slow script (BUSY): wait, or SCRIPT KILL it",
    ),
    (
        redis.ResponseError,
        "unknown command 'SENTINEL'",
        False,
        "a Redis is at the address of a Sentinel: name the Sentinels, or use redis:// for it",
    ),
    (
        redis.ResponseError,
        "unknown command",
        False,
        "this Redis cannot run scripts: it must know EVAL",
    ),
]


_PRINTED_CLIENT = re.compile(
    r"<redis\.(?:asyncio\.)?client\..*?\bhost=([^,)]*),port=(\d+).*?\)>\)>\)>"
)
"""How redis-py tells which Sentinel it has asked: with all settings of the connection."""


def trouble_of(error: BaseException, *, at: float) -> Trouble:
    """Say what an error of redis-py means.

    Args:
        error: One of `REDIS_ERRORS`.
        at: When it happened (:func:`fencing.clock.now`, seconds).
    """
    told = _PRINTED_CLIENT.sub(r"\1:\2", str(error)) or type(error).__name__
    passing, meaning = next(
        (
            (passing, meaning)
            for kind, text, passing, meaning in _MEANINGS
            if isinstance(error, kind) and text in told
        ),
        (False, "Redis refused"),
    )
    if (of_handshake := _of_handshake(error)) is not None:
        passing, meaning = True, of_handshake
    # While a slot moves key by key, keys of one resource are apart for moments.
    brief = isinstance(error, redis.exceptions.TryAgainError)
    busy = isinstance(error, AllInUseError) and error.busy
    trouble = Trouble(f"{meaning} ({told})", passing=passing, at=at, brief=brief, busy=busy)
    trouble.__cause__ = error
    return trouble


def _of_handshake(error: BaseException) -> str | None:
    """What it means if it, or what it came from, is a TLS handshake that failed."""
    each: BaseException | None = error
    while each is not None:
        for sign, meaning in _OF_HANDSHAKES.items():
            if sign in str(each):
                return meaning
        each = each.__cause__ or each.__context__
    return None
