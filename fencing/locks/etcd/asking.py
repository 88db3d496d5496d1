"""Asking etcd: the steps a shell performs, and what every call has in common.

Without I/O and without a clock, like :mod:`fencing.locks.asking`, which states the rules.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.asking import BaseCall, Pause, Trouble
from fencing.locks.etcd import requests
from fencing.locks.etcd.answers import EXISTS, Kv, Reply, Transacted, transacted
from fencing.request import MAX_TOKEN, count_in

if TYPE_CHECKING:
    from fencing.errors import LockServiceError
    from fencing.locks.etcd.keys import Keys
    from fencing.locks.etcd.requests import Body

__all__ = ["TRIES", "Alive", "Ask", "Call", "Line", "Rank", "Signal", "Step", "Steps", "Watch"]

T = TypeVar("T")

TRIES = 5
"""How often something is begun anew because what it rested on had changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask etcd; send back a `Reply`, or throw `Trouble`.

    Attributes:
        path: What for: the path behind ``/v3/``.
        body: The request.
        within: How long the answer may take, in seconds, connecting included.
        see_through: Whether it must be done even while the caller is being cancelled.
    """

    path: str
    body: Body
    within: float
    see_through: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """Wait until a key is deleted, for so many seconds; send back a `Signal`, whatever came of it.

    Attributes:
        key: The key.
        revision: From which on a deletion is told.
        seconds: Longest time it may take, in seconds.
    """

    key: bytes
    revision: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """Stand in line behind others of this process, for so many seconds; send back a `Signal`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rank:
    """Wait until no fair waiter of this process has an earlier place; send back a `Signal`.

    Attributes:
        revision: At which our place was created.
        seconds: Longest time it may take, in seconds.
    """

    revision: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """What came of waiting.

    Attributes:
        at: The time (:func:`fencing.clock.now`, seconds).
        failed: Whether it is not as it should be: etcd could not be watched, or there is still
            somebody before us.
    """

    at: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Alive:
    """An etcd lease that is kept.

    Attributes:
        asked_at: When the request was sent since which it lasts its time
            (:func:`fencing.clock.now`, seconds).
        seconds: How long etcd keeps it.
    """

    asked_at: float
    seconds: int


Step = Ask | Pause | Watch | Line | Rank
Steps = Generator[Step, Any, T]
"""What a call does: yields steps, and is sent a `Reply` for an `Ask`, the time for a `Pause`, and a
`Signal` for the others."""


class Call(BaseCall):
    """One call of the lock service.

    Attributes:
        keys: Those of its namespace.
    """

    def __init__(self, keys: Keys, resource: str, started_at: float, *, ends: float) -> None:
        super().__init__(resource, started_at, ends=ends)
        self.keys = keys

    def ask(self, path: str, body: Body) -> Steps[Reply]:
        """Ask until there is an answer; return it."""
        reply: Reply = yield from self.until_answered(lambda within: Ask(path, body, within))
        return reply

    def transact(
        self, compare: list[Body], success: list[Body], failure: list[Body]
    ) -> Steps[Transacted]:
        """Do one or the other, by whether all comparisons hold."""
        body = requests.transaction(compare, success, failure)
        reply = yield from self.ask("kv/txn", body)
        try:
            done = transacted(reply)
        except ValueError:
            raise self.nonsense(reply) from None
        wanted = success if done.succeeded else failure
        if not done.failed and len(done.found) != len(wanted):
            raise self.nonsense(reply)
        return done

    def read(self, key: bytes) -> Steps[Kv | None]:
        """Read a key."""
        reply = yield from self.ask("kv/range", requests.get(key)["request_range"])
        try:
            answer = {"header": reply.body["header"], "responses": [{"range": reply.body}]}
            found = transacted(Reply(answer, reply.asked_at, reply.at)).found[0]
        except (KeyError, ValueError):
            raise self.nonsense(reply) from None
        return found[0] if found else None

    def grant(self, lease: int, seconds: int) -> Steps[Alive]:
        """Have an etcd lease of this number; one that is there already is kept alive.

        It can be there only because of an earlier request of ours.
        """
        for _ in range(TRIES):
            reply = yield from self.ask("lease/grant", {"ID": str(lease), "TTL": str(seconds)})
            if reply.failed != EXISTS:
                return self._alive(reply, at_least=seconds)
            alive = yield from self.keep_alive(lease)
            if alive is not None:
                return alive
        raise self.error("the lease in etcd ran out while it was being granted: try again")

    def keep_alive(self, lease: int) -> Steps[Alive | None]:
        """Let an etcd lease last its time from now on; ``None``: there is none any more."""
        reply = yield from self.ask("lease/keepalive", {"ID": str(lease)})
        if reply.body.get("TTL", "0") == "0":
            return None
        return self._alive(reply, at_least=1)

    def _alive(self, reply: Reply, *, at_least: int) -> Alive:
        seconds = str(reply.body.get("TTL", ""))
        if not (seconds.isascii() and seconds.isdecimal() and int(seconds) >= at_least):
            raise self.nonsense(reply)
        return Alive(reply.asked_at, int(seconds))

    def attempt(self, path: str, body: Body) -> Steps[None]:
        """Ask once for something that is not needed, but better done."""
        try:
            reply: Reply = yield Ask(path, body, self.clean_up_seconds)
        except Trouble as trouble:
            self.at = trouble.at
        else:
            self.at = reply.at

    def clean_up(self, path: str, *bodies: Body, see_through: bool = True) -> Steps[None]:
        """Ask, as long as a clean-up may take, for what leaves a lock behind if it is not done.

        Args:
            path: What for, as in `Ask`.
            *bodies: The requests.
            see_through: As in `Ask`.
        """

        def asking(body: Body, within: float) -> Ask:
            return Ask(path, body, within, see_through=see_through)

        askings = [partial(asking, body) for body in bodies]
        yield from self.until_told(*askings, see_through=see_through)

    def revoke(self, *leases: int, see_through: bool = False) -> Steps[None]:
        """End etcd leases, and what is attached to them, if a clean-up's time is enough for it."""
        bodies: list[Body] = [{"ID": str(lease)} for lease in leases]
        yield from self.clean_up("lease/revoke", *bodies, see_through=see_through)

    def left_of(self, lease: int, ttl: float) -> Steps[float]:
        """For how long a holder has his lock if he does not renew it, in seconds.

        For ever, if it is attached to no lease: then it is none of ours. The rounding is not his:
        he stops when his ttl is over. What etcd does not say at once is told as if he had just got
        it.

        Args:
            lease: The number of his etcd lease.
            ttl: His ttl, in seconds.
        """
        if not lease:
            return math.inf
        within = self.clean_up_seconds
        try:
            reply: Reply = yield Ask("lease/timetolive", {"ID": str(lease)}, within)
        except Trouble as trouble:
            self.at = trouble.at
            return ttl
        self.at = reply.at
        try:
            left, whole = int(reply.body.get("TTL", 0)), int(reply.body.get("grantedTTL", 0))
        except (TypeError, ValueError):
            raise self.nonsense(reply) from None
        return max(0.0, min(ttl, left - max(0.0, whole - ttl)))

    def token_of(self, created: int, offset: Kv | None) -> int:
        """The token of a place, by its create revision and what is added to it."""
        token = created + self.offset_in(offset)
        if not 1 <= token <= MAX_TOKEN:
            raise self.error(
                f"the token would be {token}, which is not from 1 to 2**53 - 1; if the offset of "
                "the resource was set so high by mistake, look at its key and set it lower, but "
                "so that tokens stay above all that were issued"
            )
        return token

    def offset_in(self, offset: Kv | None) -> int:
        """What is added to revisions."""
        if offset is None:
            return 0
        count = count_in(offset.value.decode(errors="replace"))
        if count is None:
            raise self.error(
                f"the offset of its tokens is {offset.value[:40]!r} and no number up to 2**53 - 1, "
                "so no token can be issued; something else has written the key: set it back to a "
                "number with which tokens are above all that were issued"
            )
        return count

    def not_ours(self, key: bytes) -> LockServiceError:
        """The error for a key whose value is no place's."""
        return self.error(
            f"the key {key!r} was not written by a lock service: look at it and delete it"
        )

    def nonsense(self, reply: Reply) -> LockServiceError:
        """The error for an answer that etcd does not give."""
        return self.error(
            f"etcd answered {str(reply.body)[:300]}, which is no answer to what was asked: is "
            "there a proxy in between?"
        )
