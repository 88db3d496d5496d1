"""Asking Redis: the steps a shell performs, and what every answer has in common.

Without I/O and without a clock, like :mod:`fencing.locks.asking`, which states the rules.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.asking import BaseCall, Pause, Trouble
from fencing.locks.redis.durability import PLAIN
from fencing.locks.redis.scripts import RELEASE
from fencing.locks.redis.waiting import LISTEN_SECONDS
from fencing.request import count_in

if TYPE_CHECKING:
    from fencing.errors import LockServiceError
    from fencing.locks.redis.durability import Durability
    from fencing.locks.redis.scripts import Script

__all__ = [
    "NO_SUCH_NODE", "UNKNOWN", "Ask", "Call", "Came", "Line", "Listen", "Reply", "Signal", "Step",
    "Steps", "Wait", "Waiting",
]  # fmt: skip

T = TypeVar("T")

NO_SUCH_NODE = "nodeless"
"""What is answered, instead of by a script, where there is no primary of that number."""

UNKNOWN = "unknown"
"""Said at a release: what is on its way of this holder shall not acquire; see ``release.lua``."""


# What the shell performs.


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Ask:
    """Run a script on the resource's keys; send back a `Reply`, or throw `Trouble`.

    Attributes:
        script: Which one.
        arguments: Its ARGV.
        within: How long the answer may take, in seconds, connecting included.
        see_through: Whether it must be done even while the caller is being cancelled.
        to: Whose keys it works on, where that is not the call's one resource: those of several
            resources, or none, on the primary of that number (0 is there, and more on a cluster).
        wait: How many replicas to wait for behind it, on its connection, and how long at most, in
            seconds; the `Reply` says how many there were.
    """

    script: Script
    arguments: tuple[str, ...]
    within: float
    see_through: bool = False
    to: tuple[str, ...] | int | None = None
    wait: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Stand in line behind others of this process; send back a `Signal` when it is one's turn.

    Attributes:
        seconds: Longest time in line, in seconds.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen for a lock that is handed over; send back a `Signal`, whether or not it worked.

    Attributes:
        seconds: Longest time it may take, in seconds.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait to be told something, for so many seconds; send back a `Signal`."""

    seconds: float


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Signal:
    """What came of waiting.

    Attributes:
        at: The time (:func:`fencing.clock.now`, seconds).
        nonce: Of the channel that this process listens to; empty if it does not.
        token: The token with which the lock was handed over; 0 if it was not.
    """

    at: float
    nonce: str = ""
    token: int = 0


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Reply:
    """What Redis answered.

    Attributes:
        answer: As the script's header says.
        asked_at: When the request was sent (:func:`fencing.clock.now`, seconds).
        at: When the answer was there (the same clock).
        acknowledged: How many replicas have what it did; 0 where none were waited for.
    """

    answer: list[str]
    asked_at: float
    at: float
    acknowledged: int = 0


Came = Reply | BaseException | None
"""What has come of an `Ask`; ``None``: it was not yet performed."""

Waiting = Line | Listen | Wait
Step = Ask | Pause | Waiting
Steps = Generator[Step, Any, T]
"""What a call does: yields steps, and is sent a `Reply` for an `Ask`, the time for a `Pause`, and a
`Signal` for the others."""


class Call(BaseCall):
    """One call of the lock service.

    Attributes:
        to: Where what it asks goes, as in `Ask`.
        durability: What every request of it asks Redis to keep.
    """

    to: tuple[str, ...] | int | None = None
    durability: Durability = PLAIN

    def ask(self, script: Script, *arguments: str) -> Steps[tuple[Reply, list[str]]]:
        """Ask until there is an answer; return it, and its facts after the echoed holder."""
        reply = yield from self.answered(script, arguments)
        self.check_echo(reply, arguments[0])
        return reply, reply.answer[2:]

    def request(self, script: Script, arguments: tuple[str, ...]) -> Ask:
        """The first attempt to ask."""
        if self.durability.replicas:
            return self._asking(script, arguments, self.within(self.ends, self._longer))
        return Ask(script, arguments, self.within(self.ends), to=self.to)

    def answered(
        self, script: Script, arguments: tuple[str, ...], came: Came = None
    ) -> Steps[Reply]:
        """Ask until there is an answer; return it.

        Args:
            script: Which one.
            arguments: Its ARGV.
            came: What has come of the first attempt, if that was made; an exception is raised,
                unless another attempt may help.

        Raises:
            LockServiceError: There was none.
        """
        if isinstance(came, BaseException) and not isinstance(came, Trouble):
            try:
                raise came
            finally:
                del came  # its traceback will hold this frame
        if isinstance(came, Reply):
            self.at = came.at
            return came
        asking = partial(self._asking, script, arguments)
        steps = self.until_answered(asking, longer=self._longer, trouble=came)
        del came
        reply: Reply = yield from steps
        return reply

    @property
    def _longer(self) -> float:
        """How much longer than usual an answer may take, in seconds."""
        return self.durability.replica_timeout if self.durability.replicas else 0.0

    def _asking(self, script: Script, arguments: tuple[str, ...], within: float) -> Ask:
        wait = self.durability.wait_within(within) if self.durability.replicas else None
        return Ask(script, arguments, within, to=self.to, wait=wait)

    def check_echo(self, reply: Reply, holder: str) -> None:
        """Raise unless the answer is to our own question: it carries the holder who asked."""
        if reply.answer[1:2] != [holder]:
            raise self.nonsense(reply)

    def require_acknowledged(self, reply: Reply, what: str) -> None:
        """Raise LockServiceError unless enough replicas have acknowledged.

        Args:
            reply: To the request.
            what: What they should have, and what becomes of it now.
        """
        wanted = self.durability.replicas
        if reply.acknowledged < wanted:
            raise self.error(
                f"{reply.acknowledged} of {wanted} replicas have acknowledged {what}: look at the "
                "replicas (INFO replication), wait longer for them (replica_timeout), or ask for "
                "fewer (replicas)"
            )

    def stand_in_line(self, *, until: float) -> Steps[str]:
        """Wait for one's turn; return what to register with then, if anything."""
        signal: Signal = yield Line(max(0.0, until - self.at))
        self.at = signal.at
        return signal.nonce

    def listen(self, *, until: float) -> Steps[str]:
        """Listen for a hand-over; return what to register with, empty if it is not possible."""
        signal: Signal = yield Listen(max(0.0, min(LISTEN_SECONDS, until - self.at)))
        self.at = signal.at
        return signal.nonce

    def wait(self, seconds: float) -> Steps[int]:
        """Wait to be told something; return the token with which the lock was handed over, or 0."""
        signal: Signal = yield Wait(seconds)
        self.at = signal.at
        return signal.token

    def clean_up(self, holder: str, *record: str, known: bool = False) -> Steps[None]:
        """Release what we may have acquired without knowing it; the lock's ttl is the backstop.

        Args:
            holder: The nonce of the acquisition.
            *record: Its record in the queue, if it may be there.
            known: Whether it goes on; otherwise what is still on its way acquires nothing.
        """
        arguments = (holder,) if known else (holder, UNKNOWN, *record)
        yield from self.until_told(lambda within: Ask(RELEASE, arguments, within, see_through=True))

    def token_in(self, facts: list[str]) -> int:
        """The token an answer carries; one that cannot be counted with exactly is nonsense."""
        token = facts[0] if facts else ""
        if not (count := count_in(token)):
            raise self.error(
                f"the lock carries the token {token[:40]!r}, which is not from 1 to 2**53 - 1; "
                "the key was written by something else: look at it and delete it"
            )
        return count

    def unusable(self, found: str, reply: Reply) -> LockServiceError:
        """The error for an answer that no token can come of."""
        match found:
            case "exhausted":
                return self.error(
                    "the counter has reached 2**53 - 1, above which tokens could repeat; if it "
                    "was set so high by mistake, set it back to the last token that was issued"
                )
            case "garbled":
                return self.error(
                    "the counter is not a number from 0 upwards, so no token can be issued; set "
                    "it back to the last token that was issued"
                )
        return self.nonsense(reply)

    def nonsense(self, reply: Reply) -> LockServiceError:
        """The error for an answer that our scripts do not give."""
        return self.error(
            f"Redis answered {reply.answer!r}, which is no answer to "
            "what was asked: is there a proxy in between, or a client shared between threads "
            "or processes that must not share it?"
        )
