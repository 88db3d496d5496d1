"""The offset of a resource's tokens: how it is raised. Without I/O and without a clock.

The numbers of transactions cannot be raised. After an ensemble has lost its data they begin anew,
far below what a database has seen; so each resource may have an offset, which is added to them. It
is only ever raised, and only together with a check that the one who does it still has the lock: so
no two holders can be given tokens in the wrong order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.locks.zookeeper.asking import Check, Create, Get, Multi, Refused, Set

if TYPE_CHECKING:
    from fencing.locks.zookeeper.asking import Call, Steps

__all__ = ["lift"]


def lift(call: Call, path: str, floor: int) -> Steps[int | None]:
    """Raise the offset until the token of the holder's node is greater than ``floor``.

    Returns:
        The token; ``None``: the node is not there any more.
    """
    where = call.space.offset(call.resource)
    while True:
        reply = yield from call.ask(Get(path), Get(where))
        mine, found = reply.came
        if isinstance(mine, Refused):
            return None
        token = call.token_of(mine[1], found)
        if token > floor:
            return token
        data = b"%d" % (floor + 1 - mine[1].czxid)
        writes = Create(where, data) if isinstance(found, Refused) else _rewrite(where, data, found)
        reply = yield from call.ask(Multi((Check(path), writes)))
        came = reply.came[0]
        if isinstance(came, Refused) and came.at == 0:
            return None
        if isinstance(came, Refused) and came.why == "no node":
            yield from call.set_up()
        # Whoever has written in between, an earlier request of ours perhaps: what is there counts.


def _rewrite(where: str, data: bytes, found: tuple[bytes, object]) -> Set:
    version: int = getattr(found[1], "version")  # noqa: B009 - a `Stat`, whatever its class
    return Set(where, data, version)
