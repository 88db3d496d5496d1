"""Acquiring a lock in ZooKeeper: queueing up, waiting, and taking over.

::

    asks ──► queued, persistent ──first──► granted
                    │ others are before it
                    ▼
             waits, ephemeral ──first──► persistent again ──► granted
                    ▲   │ the one before it is gone, or its time is over
                    └───┘

* Everyone who asks has one node in the resource's queue, numbered by ZooKeeper; the first has the
  lock if its node is *persistent*. Whoever waits has an *ephemeral* one, so that nobody waits for a
  process that has died. From one kind to the other a node changes in one transaction, under its
  number, and so keeps its place.
* A holder's node is not ephemeral, since a session may end while the lease is still trusted: that
  of a process that was stopped or cut off. It ends with its ttl: whoever is behind it removes it
  then (:mod:`~fencing.locks.zookeeper.judging`).
* A waiter watches the node before it, and no other; a release wakes one.
* Of the waiters of one process on one resource only the first has a node; the others stand in
  *line* behind it, and cost ZooKeeper nothing. A fair waiter stands in no line: it has a node, and
  with it a place in the order of all processes' asking.
* The token is the number of the transaction that has made the holder's node persistent, plus the
  resource's offset.

Everything here is without I/O and without a clock.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from fencing.lease import trust_ends
from fencing.locks.asking import NO_WAIT_SECONDS
from fencing.locks.outcome import Grant, Held, label_of
from fencing.locks.zookeeper.asking import (
    Call,
    Children,
    Create,
    Delete,
    Get,
    Line,
    Multi,
    Place,
    Refused,
    Sync,
    Wait,
    milliseconds,
)
from fencing.locks.zookeeper.judging import Reference
from fencing.locks.zookeeper.names import Content, content_of
from fencing.locks.zookeeper.tokens import lift

if TYPE_CHECKING:
    from typing import Any

    from fencing.locks.outcome import Outcome
    from fencing.locks.zookeeper.asking import Operation, Reply, Stat, Steps
    from fencing.locks.zookeeper.judging import Sightings
    from fencing.locks.zookeeper.names import Node, Space
    from fencing.request import AcquireRequest

__all__ = ["acquire", "give_up"]

TOO_LATE = 3
"""How often a lock may be granted too late before the ttl counts as too short."""

LOOK_SECONDS = 10.0
"""Longest time between two looks of a waiter, in seconds; a watch should tell it before."""


def acquire(
    request: AcquireRequest,
    *,
    holder: str,
    started_at: float,
    space: Space,
    sightings: Sightings,
    in_line: bool = False,
) -> Steps[Outcome]:
    """Acquire a lock, waiting for it as long as the request says.

    Args:
        request: What the caller asks for.
        holder: The nonce of this acquisition.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        space: The nodes of the namespace.
        sightings: What this service has seen of holders' nodes.
        in_line: Whether others of this process are before us.

    Returns:
        A grant that is trusted at the time of its answer, or who held the lock at the deadline.

    Raises:
        LockServiceError: ZooKeeper is out of reach, or what it keeps cannot be a lock of ours.
    """
    waits = in_line or request.fair  # whoever may not have to wait begins as a holder
    acquiring = _Acquiring(request, holder, started_at, space, sightings, waits=waits)
    try:
        if in_line:
            acquiring.call.at = yield Line(max(0.0, acquiring.deadline - started_at))
        outcome = yield from acquiring.go_on()
        if isinstance(outcome, Held):
            yield from acquiring.leave()
    except GeneratorExit:
        raise
    except BaseException:
        yield from acquiring.call.sweep(holder)
        raise
    return outcome


def give_up(
    request: AcquireRequest, holder: str, *, started_at: float, space: Space
) -> Steps[None]:
    """Remove what may have been acquired, whatever has become of the acquisition's own steps."""
    call = Call(space, request.resource, started_at, ends=started_at)
    yield from call.sweep(holder)


class _Acquiring:
    """An acquisition on its way.

    Attributes:
        mine: Our node, as far as we know.
        waits: Whether it is ephemeral, as far as we know; or is to be made so.
        changes: How often it has changed, or may have.
        granted: What to believe if our node is the first of the queue: an answered request has made
            it persistent, and nobody was before it at that moment who could have been granted the
            lock since.
        line: The queue, as it was seen last.
    """

    def __init__(
        self,
        request: AcquireRequest,
        holder: str,
        started_at: float,
        space: Space,
        sightings: Sightings,
        *,
        waits: bool,
    ) -> None:
        self.request = request
        self.holder = holder
        self.started_at = started_at
        self.deadline = started_at + request.patience
        patience = request.patience or NO_WAIT_SECONDS
        self.call = Call(space, request.resource, started_at, ends=started_at + patience)
        if request.patience:
            self.call.attempts = math.inf
        self.content = Content(milliseconds(request.ttl), label_of(request)).encoded()
        self.offset = Get(space.offset(request.resource))
        self.sightings = sightings
        self.reference: Reference | None = None
        self.mine = ""
        self.waits = waits
        self.changes = 0
        self.granted: tuple[Stat, Any, Reply] | None = None
        self.line: list[Node] = []
        self.too_late = 0

    def go_on(self) -> Steps[Outcome]:
        call = self.call
        while True:
            is_last = call.at >= self.deadline
            if not self.mine:
                yield from self.queue_up()
            before = self.before()
            if before is None:
                self.mine = ""  # its session has ended, or somebody has removed it
            elif not before:
                grant = yield from self.take()
                if grant is not None:
                    return grant
            elif is_last:
                held = yield from self.judge(before[0])
                if held is not None:
                    return held
            else:
                yield from self.wait(before[-1])

    def before(self) -> list[Node] | None:
        """Who is before us in the queue; ``None``: we are not in it."""
        for place, node in enumerate(self.line):
            if node.path == self.mine:
                return self.line[:place]
        return None

    def queue_up(self) -> Steps[None]:
        """Make a node, or find one that an unanswered request has made."""
        call = self.call
        self.granted = None
        made = Create(
            f"{call.parent}/{self.holder}-", self.content, sequence=True, ephemeral=self.waits
        )
        look = Children(call.parent, stat=True)
        reply = yield from call.ask_once(made, look, self.offset, or_else=self.search)
        if call.repeated:
            self.find_mine(reply)
            return
        created, looked, offset = reply.came
        if isinstance(created, Refused):
            yield from call.set_up()
            return
        self.mine, stat = created
        self.reference = Reference.made(stat, reply.at)
        names, parent = looked if not isinstance(looked, Refused) else ([], None)
        self.line = call.line_in(names)
        # Only if the queue is the one that it was added to: one who was before us then may have
        # been granted the lock since, under a greater number, and be gone already.
        if not self.waits and parent is not None and parent.pzxid == stat.czxid:
            self.granted = stat, offset, reply

    @property
    def search(self) -> tuple[Operation, ...]:
        """What to ask when we do not know whether we have a node."""
        return Sync(self.call.parent), Children(self.call.parent)

    def find_mine(self, reply: Reply) -> None:
        """Find our node in the answer to that."""
        self.line = self.call.line_in(reply.came[1])
        found = [node.path for node in self.line if node.holder == self.holder]
        self.mine = found[0] if found else ""

    def take(self) -> Steps[Grant | None]:
        """We are the first: the lock is ours once our node is persistent."""
        call = self.call
        if self.granted is None:
            yield from self.change(self.offset, waits=False)
            if self.granted is None:
                return None
        (stat, offset, reply), self.granted = self.granted, None
        token = call.token_of(stat, offset)
        if token <= self.request.floor:
            lifted = yield from lift(call, self.mine, self.request.floor)
            if lifted is None:
                self.mine = ""
                return None
            token = lifted
        if call.at < trust_ends(reply.asked_at, self.request.ttl):
            place = Place(self.mine, reply.at + self.request.ttl)
            return Grant(token, reply.asked_at, place=place)
        yield from self.give_back_too_late(reply)
        return None

    def change(self, also: Operation, *, waits: bool) -> Steps[Any]:
        """Make our node ephemeral or persistent, and do something more; return what came of that.

        Its number stays, but not its name: whoever has found that the time of a node is over, and
        removes it, must not remove what it has become since.
        """
        call = self.call
        self.granted = None
        self.changes += 1
        changed = f"{self.mine.partition('.')[0]}.{self.changes}"
        both = Multi((Delete(self.mine), Create(changed, self.content, ephemeral=waits)))
        reply = yield from call.ask_once(both, Get(changed), also, or_else=self.search)
        if call.repeated:
            self.find_mine(reply)
            self.waits = False  # as far as we know
            return None
        done, got, came = reply.came
        if isinstance(done, Refused) or isinstance(got, Refused):
            self.mine = ""
            return None
        self.line = [
            replace(node, path=changed) if node.path == self.mine else node for node in self.line
        ]
        self.mine, self.waits = changed, waits
        self.reference = Reference.made(got[1], reply.at)
        if not waits:
            self.granted = got[1], came, reply
        return came

    def give_back_too_late(self, reply: Reply) -> Steps[None]:
        self.too_late += 1
        if self.too_late == TOO_LATE or self.call.at >= self.deadline:
            raise self.call.error(
                f"the lock was granted, but a ttl of {self.request.ttl} s had run out before the "
                f"answer came ({self.call.at - reply.asked_at:.3f} s): ask for a longer ttl, or "
                "look why ZooKeeper answers so slowly"
            )
        yield from self.call.ask(Delete(self.mine))
        self.mine = ""

    def wait(self, previous: Node) -> Steps[None]:
        """Wait until the node before ours is gone or over, or until the deadline."""
        call = self.call
        watched = Get(previous.path, watch=True)
        if not self.waits:
            came = yield from self.change(watched, waits=True)
            if came is None:
                return
        else:
            reply = yield from call.ask(watched, Get(self.mine))
            came, got = reply.came
            if isinstance(got, Refused):
                self.mine = ""  # its session has ended
                return
        if not isinstance(came, Refused):
            over = self.over(previous, came)
            until = min(call.at + LOOK_SECONDS, self.deadline, over)
            call.at = yield Wait(max(0.0, until - call.at))
            if call.at < min(over, self.deadline):
                return  # it has changed, or it is time to look again
            if call.at >= over:
                yield from call.ask(Delete(previous.path, came[1].version))
        self.line = yield from call.line()

    def over(self, node: Node, came: Any) -> float:  # noqa: ANN401 - as `Reply` has it
        """When the time of one before us is over; infinity: of one that waits as we do."""
        data, stat = came
        if stat.ephemeralOwner:
            return float("inf")
        content = content_of(data)
        if content is None:
            raise self.call.foreign(node.path)
        return self.sightings.ends(node.path, stat, content.ttl, self.reference, at=self.call.at)

    def judge(self, first: Node) -> Steps[Held | None]:
        """The last attempt: remove the first if its time is over, or say that it is held."""
        call = self.call
        self.granted = None  # somebody was before us then
        reply = yield from call.ask(Get(first.path), self.offset)
        came, offset = reply.came
        if not isinstance(came, Refused):
            over = self.over(first, came)
            if call.at < over:
                data, stat = came
                content = content_of(data)
                holds = not stat.ephemeralOwner
                return Held(
                    left=over - call.at if holds else 0.0,
                    token=str(call.token_of(stat, offset)) if holds else "",
                    owner=content.owner if content else "",
                    waited=call.at - self.started_at,
                )
            yield from call.ask(Delete(first.path, came[1].version))
        self.line = yield from call.line()
        return None

    def leave(self) -> Steps[None]:
        """Remove our node; if that cannot be done at once, as soon as it can be.

        It is the last that is done: what is swept later must not be a node made since.
        """
        if self.mine:
            yield from self.call.sweep(self.holder)
