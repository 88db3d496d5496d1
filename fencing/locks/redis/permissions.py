"""What the Redis user of a lock service must be allowed to do: the only list of it.

Messages, the verification and the documentation tell it; a test runs everything a service does as
a user with just these rights, and again without each of them.
"""

from __future__ import annotations

__all__ = [
    "BY_SCRIPTS",
    "FOR_REPLICAS",
    "ON_CLUSTER",
    "TO_LIST",
    "TO_RUN",
    "TO_WAKE",
    "WHILE_MOVING",
    "acl_rules",
]

TO_RUN = ("evalsha", "eval")
"""What a service sends."""

BY_SCRIPTS = (
    "get", "exists", "set", "incr", "decr", "del", "pttl", "pexpire", "persist", "zadd", "zrange",
    "zrem", "zcard",
)  # fmt: skip
"""What its scripts call, each on keys of its namespace; EXISTS is also sent (`packed_behind`)."""

TO_WAKE = ("subscribe", "publish", "pubsub|numsub")
"""What wakes those who wait, on channels of its namespace; without it they ask now and then."""

TO_LIST = ("scan",)
"""What only ``scan()`` and ``fencing locks`` need, which are for administrators."""

FOR_REPLICAS = ("wait",)
"""What is sent besides, where a service waits for replicas."""

ON_CLUSTER = ("cluster|slots", "command")
"""What is sent besides, to find the node of a key: by a service, and by redis-py's clients."""

WHILE_MOVING = ("asking",)
"""What is sent besides on a cluster, to a node that is being given a slot."""


def acl_rules(namespace: str, *, cluster: bool = False, replicas: int = 0) -> str:
    """The rules for ``ACL SETUSER``, after the user's name and password.

    Args:
        namespace: The lock service's.
        cluster: Whether the user is one of a Redis Cluster.
        replicas: For how many replicas the service waits.
    """
    commands = (
        *TO_RUN,
        *BY_SCRIPTS,
        *TO_WAKE,
        *(FOR_REPLICAS if replicas else ()),
        *((*ON_CLUSTER, *WHILE_MOVING) if cluster else ()),
    )
    where = (f"~{namespace}:*", f"&{namespace}:wake:*", "-@all")
    return " ".join([*where, *(f"+{command}" for command in commands)])
