"""What to ask the nodes about leases and locks that there are, and what their answers mean.

Without I/O and without a clock; the rules are those of :mod:`fencing.locks.asking`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from fencing.errors import FencingError, LeaseLostError, LockServiceError
from fencing.locks.asking import RELEASE_SECONDS
from fencing.locks.judging import giving_back, lost, note_renewed
from fencing.locks.redis.asking import UNKNOWN
from fencing.locks.redis.inspecting import PAGE_KEYS
from fencing.locks.redis.scripts import (
    INSPECT,
    SCAN,
    milliseconds,
    pattern_of,
    resource_of_key,
)
from fencing.locks.redlock.acquiring import accepted
from fencing.locks.redlock.asking import (
    NodesCall,
    Quorum,
    Replies,
    Wanted,
    trouble_of_nodes,
)
from fencing.locks.redlock.scripts import RELEASE, RENEW
from fencing.request import MAX_TOKEN, count_in
from fencing.state import LockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.lease import BaseLease
    from fencing.locks.redlock.asking import Came, Steps

__all__ = [
    "ask_state", "end_anyones", "judge_renewal", "next_page", "raise_token", "release", "renew",
    "renewal_of",
]  # fmt: skip

ASKING_SECONDS = 2.0
"""How long a question may take, retries included, in seconds."""

_GONE = frozenset({"absent", "other"})

RENEWED = Wanted(frozenset({"renewed"}), _GONE)
RELEASED = Wanted(frozenset({"released", *_GONE}), any_majority=True)
FOUND = Wanted(frozenset({"found"}))
PAGE = Wanted(frozenset({"page"}))

Page = tuple[int, str]
"""Where a scan is: the number of a node, and the cursor there."""

_FACTS = 4
"""How many facts an answer has of a resource."""

# As the scripts write it.
_VALUE = re.compile(r"(\d{1,16}):([0-9a-fA-F]+):(.*)", re.ASCII | re.DOTALL)


def renew(lease: BaseLease, ttl: float, *, quorum: Quorum, started_at: float) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered requests were sent.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: It was extended, but the answers came after that, too, had run out.
        LockServiceError: Too few nodes could be asked; the lease is as it was.
    """
    call = NodesCall(quorum, lease.resource, started_at, ends=lease.trusted_until)
    replies = yield from call.ask(RENEWED, RENEW, *renewal_of(lease, ttl))
    _judge_renewal(call, lease, ttl, replies)


def renewal_of(lease: BaseLease, ttl: float) -> tuple[str, str]:
    """The arguments of the script that renews a lease."""
    return lease.holder, milliseconds(ttl)


def judge_renewal(
    lease: BaseLease,
    ttl: float,
    came: Sequence[Came],
    quorum: Quorum,
    *,
    asked_at: float,
    at: float,
) -> FencingError | None:
    """What has come of a renewal that travelled with others; noted in the lease.

    Args:
        lease: The lease.
        ttl: What it was renewed with, in seconds.
        came: What came from each node.
        quorum: The nodes.
        asked_at: When they were asked (:func:`fencing.clock.now`, seconds).
        at: Now.

    Returns:
        The error that :func:`renew` would raise; ``None``: it is renewed.
    """
    call = NodesCall(quorum, lease.resource, at, ends=lease.trusted_until)
    replies = Replies(came, asked_at, at)
    try:
        if not RENEWED.is_clear(quorum, replies.words()):
            trouble = trouble_of_nodes(quorum, came, at - asked_at, at=at)
            raise call.error(trouble.help) from trouble.__cause__
        _judge_renewal(call, lease, ttl, replies, in_background=True)
    except FencingError as error:
        return error
    return None


def _judge_renewal(
    call: NodesCall,
    lease: BaseLease,
    ttl: float,
    replies: Replies,
    *,
    in_background: bool = False,
) -> None:
    if replies.words().count("renewed") < call.quorum.majority:
        raise _lost(lease, replies)
    note_renewed(
        lease, ttl, asked_at=replies.asked_at, at=call.at, in_background=in_background,
        came="the answers came",
    )  # fmt: skip


def release(lease: BaseLease, *, quorum: Quorum, started_at: float) -> Steps[None]:
    """Give a lease back. Whatever comes of it, nothing can be done under the lease any more.

    Raises:
        LeaseLostError: It had been lost before; it is marked as lost.
        LockServiceError: Too few nodes could be told; the lock ends by its ttl.
    """
    call = NodesCall(quorum, lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
    unknown = (UNKNOWN,) if lease.asked_again else ()
    asking = call.ask(RELEASED, RELEASE, lease.holder, *unknown)
    replies = yield from giving_back(
        lease, asking, lambda: call.tell(RELEASE, lease.holder, UNKNOWN)
    )
    words = replies.words()
    others, gone = words.count("other"), words.count("other") + words.count("absent")
    trusted = started_at < lease.trusted_until
    if trusted:
        # What is absent was released by an earlier request of ours, or the nodes have lost all
        # they had; and while it was trusted nobody can say that it was ever another's. Unless a
        # majority is another's who did not get it from our own first request.
        is_lost = others >= call.quorum.majority and not call.repeated
    else:
        is_lost = gone > call.quorum.size - call.quorum.majority
    if is_lost:
        raise _lost(lease, replies, at_release=True)
    lease.note_released()


def raise_token(lease: BaseLease, floor: int, *, quorum: Quorum, started_at: float) -> Steps[None]:
    """Give a lease that is still ours, and was never admitted, a token above ``floor``.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LeaseLostError: It is not ours any more; it is marked as lost.
        LockServiceError: Too few nodes could be asked, or their counters cannot go that high.
    """
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    call = NodesCall(quorum, lease.resource, started_at, ends=lease.trusted_until)
    token = yield from accepted(
        call,
        lease.holder,
        max(lease.token, floor + 1),
        trusted_until=lease.trusted_until,
        own=True,
    )
    if token is not None:
        lease.note_token(token)
        return
    lease.raise_if_over()  # it may have run out on the way
    raise _lost(lease, None)


def _lost(lease: BaseLease, replies: Replies | None, *, at_release: bool = False) -> LeaseLostError:
    others = replies is not None and "other" in replies.words()
    now_what = "other holders have locks there" if others else "it is absent on too many of them"
    found = f"no majority of the nodes has it, and {now_what}"
    return lost(lease, found, at_release=at_release)


def ask_state(resource: str, *, nonce: str, quorum: Quorum, started_at: float) -> Steps[LockState]:
    """Ask what there is of a resource.

    Raises:
        LockServiceError: No majority of the nodes could be asked.
    """
    call = NodesCall(quorum, resource, started_at, ends=started_at + ASKING_SECONDS)
    replies = yield from call.ask(FOUND, INSPECT, nonce)
    found = replies.facts("found")
    try:
        return _state(quorum, resource, found)
    except ValueError:
        raise call.error(f"the nodes answered {found!r}, which makes no sense") from None


def _state(quorum: Quorum, resource: str, found: list[list[str]]) -> LockState:
    """What the nodes that have answered say of a resource, taken together.

    It is held by whoever may have a majority: nodes that have not answered count for him.
    """
    holders: dict[str | None, list[tuple[int, float, str]]] = {}
    counters: list[int | None] = []
    for value, left, last, _ in found:
        counters.append(_count(last))
        if int(left) == -2:  # noqa: PLR2004 - as PTTL answers of a key that is not there
            continue
        seconds = math.inf if int(left) == -1 else max(0, int(left)) / 1000
        match = _VALUE.fullmatch(value)
        if match is not None and int(match[1]) <= MAX_TOKEN:
            holders.setdefault(match[2], []).append((int(match[1]), seconds, match[3]))
        else:
            holders.setdefault(None, []).append((0, seconds, ""))
    unknown = quorum.size - len(found)
    counter = None if None in counters else max([count for count in counters if count], default=0)
    # A holder without a token does not have it yet, and perhaps only tries.
    holder, locks = max(
        holders.items(), key=lambda item: (len(item[1]), max(item[1])[0]), default=(None, [])
    )
    if not locks or len(locks) + unknown < quorum.majority:
        return LockState(resource=resource, counter=counter)
    token = max(locks)[0]
    lefts = sorted((seconds for _, seconds, _ in locks), reverse=True)
    return LockState(
        resource=resource,
        held=True,
        owner=locks[0][2],
        token=token or None,
        holder=holder,
        remaining=lefts[: quorum.majority][-1],
        counter=counter,
    )


def _count(counter: str) -> int | None:
    return count_in(counter) if counter else 0


def end_anyones(resource: str, *, nonce: str, quorum: Quorum, started_at: float) -> Steps[bool]:
    """Take a lock from whoever holds it now; whoever comes after him keeps it.

    Returns:
        Whether it was taken from somebody.

    Raises:
        LockServiceError: Too few nodes could be asked, or the keys are no locks of ours.
    """
    state = yield from ask_state(resource, nonce=nonce, quorum=quorum, started_at=started_at)
    if not state.held:
        return False
    call = NodesCall(quorum, resource, started_at, ends=started_at + 2 * ASKING_SECONDS)
    if state.holder is None:
        raise call.error(
            "what the lock's keys hold was not written by a lock service, so it is nobody's lease; "
            "look at the keys on the nodes and delete them"
        )
    replies = yield from call.ask(RELEASED, RELEASE, state.holder)
    # Gone by itself just now, unless it was an earlier request of ours that took it.
    return "released" in replies.words() or call.repeated


def next_page(
    namespace: str, prefix: str, page: Page, *, nonce: str, quorum: Quorum, started_at: float
) -> Steps[tuple[Page | None, list[str]]]:
    """Ask a node for the names on one page of a scan.

    Args:
        namespace: What the keys begin with.
        prefix: What the names begin with.
        page: Which page.
        nonce: Tells the answer from every other.
        quorum: The nodes.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Returns:
        The page after it, or ``None`` if it was the last one of that node, and the names.

    Raises:
        LockServiceError: The node could not be asked.
    """
    node, cursor = page
    alone = Quorum(1, quorum.node_timeout)
    call = NodesCall(alone, "", started_at, ends=started_at + ASKING_SECONDS)
    call.about = f", node {node}"
    pattern = pattern_of(namespace, prefix)
    replies = yield from call.ask(PAGE, SCAN, nonce, cursor, pattern, str(PAGE_KEYS), nodes=(node,))
    [[following, *keys]] = replies.facts("page")
    names = [resource_of_key(namespace, key) for key in keys]
    there = [name for name in names if name is not None]
    return None if following == "0" else (node, following), there


def check_scanned(failed: Sequence[LockServiceError], quorum: Quorum) -> None:
    """Raise unless those that could not be asked for names are a minority.

    A lock is on a majority of the nodes, so a minority need not be asked.

    Args:
        failed: Why each could not be asked.
        quorum: The nodes.

    Raises:
        LockServiceError: They are too many.
    """
    if len(failed) <= quorum.size - quorum.majority:
        return
    raise LockServiceError(
        f"{len(failed)} of {quorum.size} nodes could not be asked which locks they have, so "
        f"some may be missing: {'; '.join(map(str, failed))}"
    ) from failed[0].__cause__
