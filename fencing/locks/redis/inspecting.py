"""What is asked about locks that are others', and what the answers mean.

Without I/O and without a clock, like :mod:`fencing.locks.redis.steps`.
Nothing here needs a lease.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from fencing.locks.redis.asking import NO_SUCH_NODE, Call
from fencing.locks.redis.scripts import (
    INSPECT,
    RELEASE,
    SCAN,
    pattern_of,
    resource_of_key,
)
from fencing.request import MAX_TOKEN, count_in
from fencing.state import LockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.locks.redis.asking import Steps

__all__ = ["FIRST_PAGE", "ask_states", "end_anyones", "next_page"]

ASKING_SECONDS = 2.0
"""How long each question may take on Redis, retries included, in seconds."""

PAGE_KEYS = 500
"""How many keys Redis looks at for one page of a scan."""

_FACTS = 4
"""How many facts an answer has of each resource."""

# As the acquire script writes it.
_VALUE = re.compile(r"(\d{1,16}):([0-9a-fA-F]+):(.*)", re.ASCII | re.DOTALL)

Page = tuple[int, str]
"""Where a scan is: the number of a primary, and Redis's cursor there."""

FIRST_PAGE: Page = (0, "0")


def ask_states(
    resources: Sequence[str], *, nonce: str, started_at: float
) -> Steps[list[LockState]]:
    """Ask what there is of each resource.

    Args:
        resources: Names, at least one; on a cluster not more.
        nonce: Tells the answer from every other.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Raises:
        LockServiceError: Redis could not be asked.
    """
    call = Call(resources[0], started_at, ends=started_at + ASKING_SECONDS)
    call.to = tuple(resources)
    reply, facts = yield from call.ask(INSPECT, nonce)
    if reply.answer[0] != "found" or len(facts) != _FACTS * len(resources):
        raise call.nonsense(reply)
    each = [facts[at : at + _FACTS] for at in range(0, len(facts), _FACTS)]
    try:
        return [_state(name, *found) for name, found in zip(resources, each, strict=True)]
    except ValueError:
        raise call.nonsense(reply) from None


def _state(resource: str, value: str, left: str, counter: str, waiters: str) -> LockState:
    found = _VALUE.fullmatch(value)
    ours = found is not None and int(found[1]) <= MAX_TOKEN
    held = int(left) != -2  # noqa: PLR2004 - as PTTL answers of a key that is not there
    return LockState(
        resource=resource,
        held=held,
        owner=found[3] if found and ours else "",
        token=int(found[1]) if found and ours else None,
        holder=found[2] if found and ours else None,
        remaining=math.inf if int(left) == -1 else max(0, int(left)) / 1000,
        counter=_count(counter),
        waiters=int(waiters),
    )


def _count(counter: str) -> int | None:
    return count_in(counter) if counter else 0


def next_page(
    namespace: str, prefix: str, page: Page, *, nonce: str, started_at: float
) -> Steps[tuple[Page | None, list[str]]]:
    """Ask for the names on one page of a scan.

    Args:
        namespace: What the keys begin with.
        prefix: What the names begin with.
        page: Which page.
        nonce: Tells the answer from every other.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Returns:
        The page after it, or ``None`` if it was the last one, and the names of held locks.

    Raises:
        LockServiceError: Redis could not be asked.
    """
    node, cursor = page
    call = Call("", started_at, ends=started_at + ASKING_SECONDS)
    call.to = node
    pattern = pattern_of(namespace, prefix)
    reply, facts = yield from call.ask(SCAN, nonce, cursor, pattern, str(PAGE_KEYS))
    if reply.answer[0] == NO_SUCH_NODE:
        return None, []
    if reply.answer[0] != "page" or not facts:
        raise call.nonsense(reply)
    names = [resource_of_key(namespace, key) for key in facts[1:]]
    following = (node + 1, "0") if facts[0] == "0" else (node, facts[0])
    return following, [name for name in names if name is not None]


def end_anyones(resource: str, *, nonce: str, started_at: float) -> Steps[bool]:
    """Take a lock from whoever holds it now; whoever comes after him keeps it.

    It is released for him, by his holder. So a repeated request, or one that comes late, takes
    nothing from his successor; and whoever waits is served as by any release.

    Returns:
        Whether it was taken from somebody.

    Raises:
        LockServiceError: Redis could not be asked, or the key is no lock of ours.
    """
    [state] = yield from ask_states([resource], nonce=nonce, started_at=started_at)
    if not state.held:
        return False
    call = Call(resource, started_at, ends=started_at + 2 * ASKING_SECONDS)
    if state.holder is None:
        raise call.error(
            "what the lock's key holds was not written by a lock service, so it is nobody's lease; "
            "look at the key and delete it"
        )
    reply, _ = yield from call.ask(RELEASE, state.holder)
    match reply.answer[0]:
        case "released":
            return True
        case "absent" | "other":
            # Gone by itself just now, unless it was an earlier request of ours that took it.
            return call.repeated
        case _:
            raise call.nonsense(reply)
