"""Raising tokens: a revision cannot be raised, so something is added to it.

Without I/O and without a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import TRIES

if TYPE_CHECKING:
    from fencing.locks.etcd.asking import Call, Steps

__all__ = ["raise_above"]


def raise_above(call: Call, place: bytes, created: int | None, floor: int) -> Steps[int | None]:
    """See that the token of a place is above a floor, and those of all later ones above it.

    The offset of the resource is raised, never lowered, and only as long as the place is there: so
    it is the holder who raises it, and no request that comes late.

    Args:
        call: The call of which this is a part.
        place: Its key.
        created: Its create revision; ``None``: whatever it is.
        floor: The token will be greater.

    Returns:
        The token; ``None`` if the place is gone.

    Raises:
        LockServiceError: Something else has written the offset.
    """
    key = call.keys.offset(call.resource)
    for _ in range(TRIES):
        ours = yield from call.read(place)
        if ours is None or created not in (None, ours.created):
            return None
        offset = yield from call.read(key)
        token = ours.created + call.offset_in(offset)
        if token > floor:
            return call.token_of(ours.created, offset)
        done = yield from call.transact(
            [
                requests.created(place, ours.created),
                requests.modified(key, offset.modified if offset else 0),
            ],
            [requests.put(key, b"%d" % (floor + 1 - ours.created))],
            [],
        )
        if done.succeeded:
            return floor + 1
    raise call.error("the offset of its tokens was changed again and again meanwhile: try again")
