"""Waiting for a lock that another holds: whose turn it is to ask, when, and who is told what.

::

    in line ──turn──► asks ──held──► listens, registered ──told──► believed ──► granted
                       ▲                      │             └───────► asks ─────► granted
                       └─ the time is up, or ─┘
                          the channel is lost

* Of the waiters of one process on one resource only the first asks Redis; the others stand in
  *line* behind it, and cost no request. A fair waiter stands in no line: it has a place of its own
  in the queue that Redis keeps, which is in the order of all processes' asking.
* Who asks and finds the lock held is *registered* by the same script: in the resource's queue, with
  the channel that its process listens to. A release hands the lock over to the first of the queue
  and says so on that channel. See ``lua/hand_over.lua``.
* What it is told it believes only if `Belief` allows it. Then the lease is trusted for two seconds
  at most, and made to last its ttl in the background: a process that is dead or stopped when the
  lock is handed to it delays the others by those two seconds, whatever its ttl.
* Nothing rests on a message arriving. A waiter asks again when the holder's lease should have
  ended, and after ``REFRESH_SECONDS`` at the latest; what was handed to it meanwhile the script
  gives it then. So a lost message, an emptied queue or a lost channel costs that time and no more.

Everything here is without I/O and without a clock; :mod:`fencing.locks.redis.waiters` performs it.
"""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Generic

from fencing.lease import trust_ends
from fencing.locks.asking import ATTEMPT_SECONDS
from fencing.locks.lines import TURN, Box, BoxT, Lines, Message
from fencing.request import MAX_TOKEN, count_in

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LISTEN_SECONDS",
    "LOST",
    "READY",
    "STRAY_SECONDS",
    "TURN",
    "Audience",
    "Belief",
    "Box",
    "BoxT",
    "Lines",
    "Message",
]
__all__ += ["channel_of", "pause", "record_of"]

REFRESH_SECONDS = 1.0
"""Longest time between two requests of a waiter, in seconds: how long a lost message costs."""

LISTEN_SECONDS = 1.0
"""How long a waiter waits for its process to listen before it asks without, in seconds."""

_AFTER_SECONDS = 0.001
"""Redis tells the time that is left in whole milliseconds, rounded; so much is waited beyond."""

HANDED_SECONDS = 2.0
"""How long a lock that was handed over is held if its holder does nothing, in seconds; or its ttl,
if that is shorter; as ``hand_over.lua`` says."""

QUEUE_SECONDS = 30.0
"""How long a queue is kept that nobody asks to be in, in seconds; as ``acquire.lua`` says."""

STRAY_SECONDS = ATTEMPT_SECONDS + QUEUE_SECONDS + HANDED_SECONDS
"""How long somebody who gave up may still be handed the lock, and then hold it, in seconds.

His last request is carried out, or fails, in the time of an attempt. If that put him into the
queue, he is in it until it ends, and is handed the lock for no longer than a waiter is.

There are two ways to be handed it later: others ask to be in the queue all that time, or Redis has
stood still with the request. Then it costs those behind him ``HANDED_SECONDS``, once, if nobody
here hears of it; and whoever waits here does.
"""

_ENOUGH = 0.25
"""Part of that time that must be left when a waiter hears of it; otherwise it asks."""

READY = "ready"
"""Its process listens now."""

LOST = "lost"
"""Its process does not listen any more; what was said meanwhile is lost."""


def channel_of(namespace: str, nonce: str) -> str:
    """The channel on which a process is told what it was handed; as ``hand_over.lua`` says."""
    return f"{namespace}:wake:{nonce}"


def record_of(holder: str, ttl: str, floor: str, nonce: str, owner: str) -> str:
    """A waiter's record in the queue of a resource; as ``hand_over.lua`` says."""
    return f"{holder}:{ttl}:{floor}:{nonce}:{owner}"


def pause(left: float, until_deadline: float) -> float:
    """How long to wait before asking again, in seconds.

    Args:
        left: For how long the lock is held, if not renewed, in seconds.
        until_deadline: How long until the caller's deadline, in seconds.
    """
    # A little at random, so that waiters who began together do not go on asking together.
    refresh = REFRESH_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
    return max(0.0, min(refresh, left + _AFTER_SECONDS, until_deadline))


class Belief:
    """What a waiter knows of a lock, and so whether it can believe to have been handed it.

    A lease is trusted from when it was asked for, and nobody has asked for this one. But it was
    granted after the last request that was answered with "held" had been sent, so it is trusted
    from then. That is so only if what we are told is newer than that answer: a message that comes
    late, of a grant that has run out since, carries a token that is not greater than all those
    which we have seen others hold.
    """

    def __init__(self, ttl: float) -> None:
        self.seconds = min(ttl, HANDED_SECONDS)
        self.asked_at = -math.inf
        self._newest = MAX_TOKEN
        self._ends = -math.inf

    def note_held(self, token: str, asked_at: float) -> None:
        """Another holds the lock.

        Args:
            token: The one it holds it under; empty, or any text, where that could not be read.
            asked_at: When the request was sent that says so (:func:`fencing.clock.now`, seconds).
        """
        seen = count_in(token)
        if seen is None:
            seen = MAX_TOKEN
        if self.asked_at > -math.inf and seen < self._newest:
            # Redis has lost its counter. What was said before of greater tokens is worth nothing,
            # and cannot be told from what is said now: nothing is believed any more.
            seen = MAX_TOKEN
        self.asked_at, self._newest = asked_at, seen
        self._ends = trust_ends(asked_at, self.seconds)

    def allows(self, token: int, at: float) -> bool:
        """Whether the lock is ours under this token, and for some time yet."""
        return token > self._newest and at + _ENOUGH * self.seconds <= self._ends


class Audience(Generic[BoxT]):
    """Who is told what is said on a channel.

    Attributes:
        has_listened: Whether the channel was ever listened to, as confirmed by Redis.
        over: Whether that has ended.
    """

    _TOLD = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,16})")

    def __init__(self) -> None:
        self._boxes: dict[bytes, BoxT] = {}
        self.has_listened = False
        self.over = False

    def __len__(self) -> int:
        return len(self._boxes)

    @property
    def listens(self) -> bool:
        """Whether the channel is listened to: once it was, until its end and never after."""
        return self.has_listened and not self.over

    def add(self, holder: str, box: BoxT) -> None:
        """Whoever waits as this holder is told from now on."""
        self._boxes[holder.encode()] = box
        if self.over:  # in this very moment: by a signal handler that has closed the service
            box.put(LOST)

    def remove(self, holder: str) -> None:
        """Nobody waits as this holder any more."""
        self._boxes.pop(holder.encode(), None)

    def hear(self, line: bytes) -> str | None:
        """Pass on what was said, whatever it is.

        Returns:
            A holder that was handed a lock and that nobody here waits as.
        """
        told = self._TOLD.fullmatch(line)
        if told is None:
            return None
        box = self._boxes.get(told[1])
        if box is None:
            return told[1].decode()
        box.put(int(told[2]))
        return None

    def begin(self) -> None:
        """The channel is listened to."""
        self.has_listened = True
        for box in self._everybody():
            box.put(READY)

    def end(self) -> None:
        """It is not listened to any more."""
        self.over = True
        for box in self._everybody():
            box.put(LOST)
        self._boxes.clear()

    def _everybody(self) -> Iterator[BoxT]:
        return iter(list(self._boxes.values()))
