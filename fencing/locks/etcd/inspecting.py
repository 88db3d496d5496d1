"""What is asked about locks that are others', and what the answers mean.

Without I/O and without a clock, like :mod:`fencing.locks.etcd.acquiring`. Nothing here needs a
lease.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from fencing.errors import LockServiceError
from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import Call
from fencing.locks.etcd.keys import ttl_and_label
from fencing.state import LockState

if TYPE_CHECKING:
    from fencing.locks.etcd.asking import Steps
    from fencing.locks.etcd.keys import Keys

__all__ = ["ask_state", "end_anyones", "next_page"]

ASKING_SECONDS = 2.0
"""How long each question may take, retries included, in seconds."""

PAGE_KEYS = 500
"""How many places are read for one page of a scan."""


def ask_state(keys: Keys, resource: str, *, started_at: float) -> Steps[LockState]:
    """Ask what there is of a resource.

    Raises:
        LockServiceError: etcd could not be asked.
    """
    call = Call(keys, resource, started_at, ends=started_at + ASKING_SECONDS)
    done = yield from call.transact(
        [], [requests.first(keys.places(resource)), requests.get(keys.offset(resource))], []
    )
    if not done.found[0]:
        # What was the last token is not kept: the next one is greater, whatever it was.
        return LockState(resource=resource, counter=None)
    first, places = done.found[0][0], done.counts[0]
    found = keys.of_place(first.key)
    try:
        ttl, label = ttl_and_label(first.value)
    except ValueError:
        return LockState(resource=resource, held=True, counter=None, waiters=places - 1)
    token: int | None
    try:
        token = call.token_of(first.created, next(iter(done.found[1]), None))
    except LockServiceError:  # something else has written the offset; who holds it, is known
        token = None
    return LockState(
        resource=resource,
        held=True,
        owner=label,
        token=token,
        holder=found[1] if found else None,
        remaining=(yield from call.left_of(first.lease, ttl)),
        counter=token,
        waiters=places - 1,
    )


def next_page(
    keys: Keys, prefix: str, after: bytes, *, started_at: float
) -> Steps[tuple[bytes | None, list[str]]]:
    """Ask for the names on one page of a scan.

    Args:
        keys: Those of the namespace.
        prefix: What the names begin with.
        after: The last key of the page before; empty for the first page.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Returns:
        The last key on it, or ``None`` if it was the last page, and names of resources, each once.

    Raises:
        LockServiceError: etcd could not be asked.
    """
    call = Call(keys, "", started_at, ends=started_at + ASKING_SECONDS)
    start, end = keys.all_places(prefix)
    body = requests.page((after + b"\0" if after else start, end), PAGE_KEYS)
    reply = yield from call.ask("kv/range", body)
    names: dict[str, None] = {}
    last = None
    try:
        for kv in reply.body.get("kvs", []):
            last = base64.b64decode(kv["key"], validate=True)
            found = keys.of_place(last)
            if found is not None and found[0].startswith(prefix):  # a prefix may hold a NUL
                names[found[0]] = None
    except (KeyError, TypeError, ValueError):
        raise call.nonsense(reply) from None
    return last if reply.body.get("more") else None, list(names)


def end_anyones(keys: Keys, resource: str, *, started_at: float) -> Steps[bool]:
    """Take a lock from whoever holds it now; whoever comes after him keeps it.

    His place is deleted, as long as it is the same. So a repeated request, or one that comes late,
    takes nothing from his successor; and whoever waits is served as by any release.

    Returns:
        Whether it was taken from somebody.

    Raises:
        LockServiceError: etcd could not be asked, or the key is not a lock's.
    """
    call = Call(keys, resource, started_at, ends=started_at + 2 * ASKING_SECONDS)
    done = yield from call.transact([], [requests.first(keys.places(resource))], [])
    if not done.found[0]:
        return False
    first = done.found[0][0]
    try:
        ttl_and_label(first.value)
    except ValueError:
        raise call.not_ours(first.key) from None
    call.repeated = False
    done = yield from call.transact(
        [requests.created(first.key, first.created)], [requests.delete(first.key)], []
    )
    if not done.succeeded:
        # Gone by itself just now, unless it was an earlier request of ours that took it.
        return call.repeated
    if first.lease:
        yield from call.revoke(first.lease)
    return True
