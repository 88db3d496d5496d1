"""Acquiring a lock from a majority of nodes, and agreeing with them on its token.

Without I/O and without a clock; the rules are those of :mod:`fencing.locks.asking`. A *round*::

    lock on all nodes ──majority──► token := largest counter + 1
          │                              │
          │ no majority                  ▼
          ▼                         accept the token on all nodes ──majority──► granted
    release on all nodes,                │         ▲
    wait, another round                  └─ above ─┘  token := that counter + 1

**Why a later holder's token is larger.** A holder returns when a majority has accepted its token,
and while its locks on a majority still last. The next holder has a majority of locks only after
that, and asks for its token to be accepted only then; its majority has a node in common with the
earlier one's. That node accepts nothing that is not larger.

To take the largest counter that was seen when locking is not enough, even if the nodes are told
afterwards: a node may have been locked, and its counter seen, before the earlier holder's token
arrived there, and the majority of locks been completed after it was released. So it is the
*acceptance*, refused by a node that has accepted as much, that decides.

**Why a round has a holder of its own.** What a round has sent may arrive late. A release of an
earlier round would undo what a later one was granted, and nobody would know.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from fencing.lease import trust_ends
from fencing.locks.asking import NO_WAIT_SECONDS
from fencing.locks.outcome import Grant, Held, label_of
from fencing.locks.redis.asking import UNKNOWN
from fencing.locks.redis.scripts import milliseconds
from fencing.locks.redlock.asking import NodesCall, Wanted
from fencing.locks.redlock.scripts import ACCEPT, LOCK, RELEASE
from fencing.request import MAX_TOKEN, count_in

if TYPE_CHECKING:
    from fencing.locks.outcome import Outcome
    from fencing.locks.redlock.asking import Quorum, Replies, Steps
    from fencing.request import AcquireRequest

__all__ = ["accepted", "acquire", "counter_in", "give_up", "holder_of_round", "rounds_of"]

TOO_LATE = 3
"""How often a lock may be granted too late before the ttl counts as too short."""

SPLIT_ROUNDS = 8
"""How many rounds somebody who does not wait tries while nobody has a majority."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.3
"""Pause before the second round, and the longest before a later one, in seconds; each is half as
long again as the one before, less up to all of it at random after a split vote, and up to half of
it otherwise."""

_STEM = 24
"""How many digits of a holder all rounds of an acquisition share; the others count the rounds."""

_AFTER_SECONDS = 0.002
"""Redis tells the time that is left in whole milliseconds, rounded; so much is waited beyond."""

LOCKED = Wanted(
    frozenset({"granted"}), frozenset({"held", "endless", "garbled"}), any_majority=True
)
ACCEPTED = Wanted(
    frozenset({"accepted"}), frozenset({"absent", "other", "garbled"}), frozenset({"above"})
)


def rounds_of(holder: str) -> str:
    """What the holders of all rounds of an acquisition begin with."""
    return holder[:_STEM]


def holder_of_round(holder: str, number: int) -> str:
    """The holder of a round of an acquisition, counted from 0."""
    return f"{rounds_of(holder)}{number:0{len(holder) - _STEM}x}"


def acquire(
    request: AcquireRequest,
    *,
    holder: str,
    quorum: Quorum,
    started_at: float,
    in_line: bool = False,
) -> Steps[Outcome]:
    """Acquire a lock, waiting for it as long as the request says.

    Args:
        request: What the caller asks for.
        holder: The nonce of this acquisition.
        quorum: The nodes.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        in_line: Whether others of this process are before us.

    Returns:
        A grant that is trusted at the time of its answer, or who held the lock at the deadline.

    Raises:
        LockServiceError: Too few nodes are in reach, or what they keep cannot be a lock of ours.
    """
    acquiring = _Acquiring(request, holder, quorum, started_at)
    try:
        return (yield from acquiring.go_on(in_line=in_line))
    except GeneratorExit:
        raise
    except BaseException:
        # No round follows, so a release that arrives late can undo nothing of a later one.
        yield from acquiring.call.tell(RELEASE, rounds_of(holder), UNKNOWN)
        raise


def give_up(
    request: AcquireRequest, holder: str, *, quorum: Quorum, started_at: float
) -> Steps[None]:
    """Release what may have been acquired, whatever has become of the acquisition's own steps."""
    call = NodesCall(quorum, request.resource, started_at, ends=started_at)
    yield from call.tell(RELEASE, rounds_of(holder), UNKNOWN)


class _Acquiring:
    """An acquisition on its way."""

    def __init__(
        self, request: AcquireRequest, holder: str, quorum: Quorum, started_at: float
    ) -> None:
        self.request = request
        self.holder = holder
        self.started_at = started_at
        self.deadline = started_at + request.patience
        patience = request.patience or NO_WAIT_SECONDS
        self.call = NodesCall(
            quorum, request.resource, started_at, ends=started_at + patience, ttl=request.ttl
        )
        if request.patience:
            self.call.attempts = math.inf
        self.rounds = 0
        self.too_late = 0
        self.pause = FIRST_PAUSE

    def go_on(self, *, in_line: bool) -> Steps[Outcome]:
        call = self.call
        if in_line:
            yield from call.stand_in_line(until=self.deadline)
        while True:
            is_last = call.at >= self.deadline
            outcome = yield from self.round()
            if isinstance(outcome, Grant):
                return outcome
            is_split = outcome is None or not outcome.token
            tries = is_split and not self.request.patience and self.rounds < SPLIT_ROUNDS
            if is_last and not tries:
                return outcome or Held(0.0, "", "", call.at - self.started_at)
            yield from self.wait(outcome, is_split=is_split)

    def round(self) -> Steps[Grant | Held | None]:
        """One round; ``None`` if the lock was had and could not be kept."""
        call, request = self.call, self.request
        holder = holder_of_round(self.holder, self.rounds)
        self.rounds += 1
        call.repeated = False
        replies = yield from call.ask(
            LOCKED, LOCK, holder, milliseconds(request.ttl), label_of(request)
        )
        counters = [counter_in(call, facts) for facts in replies.facts("granted")]
        asked_at, repeated = replies.asked_at, call.repeated
        if len(counters) < call.quorum.majority:
            held = self.held(replies)
            yield from self.give_back(holder, replies, repeated=repeated)
            return held
        trusted_until = trust_ends(asked_at, request.ttl)
        token = max(*counters, request.floor, 0) + 1
        agreed = yield from accepted(call, holder, token, trusted_until=trusted_until)
        if call.at >= trusted_until:
            yield from self.give_back_too_late(holder, asked_at)
            return None
        if agreed is None:  # a node was restarted in between, and has forgotten us
            yield from call.tell(RELEASE, holder)
            return None
        return Grant(agreed, asked_at, repeated=repeated, holder=holder)

    def give_back(self, holder: str, replies: Replies, *, repeated: bool) -> Steps[None]:
        """Release what a round has got, or may get yet, on some nodes."""
        words = replies.words()
        got = tuple(node for node, word in enumerate(words) if word == "granted")
        if repeated:  # an earlier request may still be on its way
            yield from self.call.tell(RELEASE, holder, UNKNOWN, again=got, patient=False)
            return
        nodes = tuple(node for node, word in enumerate(words) if word in ("granted", ""))
        if nodes:
            yield from self.call.tell(RELEASE, holder, nodes=nodes, again=got, patient=False)

    def held(self, replies: Replies) -> Held:
        """Who holds the lock, as nodes say that have not granted it; no token: nobody, as yet."""
        call = self.call
        for word, what in (("endless", _ENDLESS), ("garbled", _GARBLED)):
            if len(replies.facts(word)) > call.quorum.size - call.quorum.majority:
                raise call.error(what)
        holders: dict[str, list[tuple[float, int, str]]] = {}
        lefts: list[float] = [0.0] * len(replies.facts("granted"))
        for left, token, other, owner in replies.facts("held"):
            lefts.append(int(left) / 1000)
            holders.setdefault(other, []).append((int(left) / 1000, count_in(token) or 0, owner))
        waited = call.at - self.started_at
        # When so many have let go that a majority is free.
        lefts = sorted(lefts)[: call.quorum.majority]
        most = max(holders.values(), key=lambda facts: (len(facts), max(facts)[1]), default=[])
        unknown = call.quorum.size - len(replies.facts("granted")) - len(replies.facts("held"))
        largest = max((issued for _, issued, _ in most), default=0)
        has_majority = largest > 0 and len(most) + unknown >= call.quorum.majority
        return Held(
            lefts[-1] if lefts else 0.0,
            str(largest) if has_majority else "",
            most[0][2] if most else "",
            waited,
        )

    def give_back_too_late(self, holder: str, asked_at: float) -> Steps[None]:
        call = self.call
        self.too_late += 1
        if self.too_late == TOO_LATE or call.at >= self.deadline:
            raise call.error(
                f"the lock was granted, but a ttl of {self.request.ttl} s had run out before the "
                f"nodes had agreed on its token ({call.at - asked_at:.3f} s): ask for a longer "
                "ttl, or look why they answer so slowly"
            )
        yield from call.tell(RELEASE, holder)

    def wait(self, held: Held | None, *, is_split: bool) -> Steps[None]:
        """Wait until it is worth asking again, or the lock is released in this process."""
        left = self.deadline - self.call.at
        if not self.request.patience:
            left = self.call.ends - self.call.at
        # At random, so that those who have split the votes do not go on doing so.
        seconds = self.pause * random.uniform(0.0 if is_split else 0.5, 1.0)  # noqa: S311 - no secret
        self.pause = min(LONGEST_PAUSE, self.pause * 1.5)
        if held is not None and not is_split:
            seconds = min(seconds, held.left + _AFTER_SECONDS)
        yield from self.call.wait(min(seconds, left))


def accepted(
    call: NodesCall, holder: str, token: int, *, trusted_until: float, own: bool = False
) -> Steps[int | None]:
    """Have a majority of the nodes accept a token, or else a larger one.

    Args:
        call: The call it is for.
        holder: Whose lock it is.
        token: The smallest that will do.
        trusted_until: When there is no point in it any more (:func:`fencing.clock.now`, seconds).
        own: Whether only nodes shall accept it where the holder has the lock.

    Returns:
        The token; ``None`` if the holder has no majority of the locks any more, or it is too late.

    Raises:
        LockServiceError: Too few nodes have answered, or no larger token is left.
    """
    while call.at < trusted_until:
        if token > MAX_TOKEN:
            raise call.error(
                "the counter has reached 2**53 - 1, above which tokens could repeat; if it was set "
                "so high by mistake, set it back on every node to the last token that was issued"
            )
        flag = ("own",) if own else ()
        replies = yield from call.ask(ACCEPTED, ACCEPT, holder, str(token), *flag)
        words = replies.words()
        if words.count("accepted") >= call.quorum.majority:
            return token
        if words.count("garbled") > call.quorum.size - call.quorum.majority:
            raise call.error(_GARBLED)
        above = [counter_in(call, facts) for facts in replies.facts("above")]
        if not above:
            return None
        token = max(above) + 1
    return None


def counter_in(call: NodesCall, facts: list[str]) -> int:
    """The counter that an answer carries."""
    counter = count_in(facts[0]) if facts else None
    if counter is None:
        raise call.error(_GARBLED)
    return counter


_ENDLESS = (
    "on a majority of the nodes the lock's key has no expiry, so nobody would ever be granted it: "
    "it was not written by a lock service, or somebody ran PERSIST on it; look at the key and "
    "delete it"
)
_GARBLED = (
    "a node's counter is not a number from 0 to 2**53 - 1, so no token can be issued; set it back "
    "to the last token that was issued"
)
