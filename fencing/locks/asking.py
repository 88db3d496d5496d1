"""Asking a lock service until it answers: when to try again, and when to give up.

Without I/O and without a clock: what is yielded is performed by a shell
(:mod:`fencing.locks.performing`), which sends back what came of it together with the time, or
throws :class:`Trouble`. The rules, for every lock service:

* *Trust* counts from when the request that was answered was sent, never from the answer. A lease
  whose answer arrives after its trust has ended is given back, not returned.
* A request whose outcome is unknown (no answer, cancelled, interrupted) may have taken the lock.
  It is repeated under the same holder, whom the lock service recognises; when we give up instead,
  the lock is released by holder, without knowing its token. That *clean-up* is repeated, too, until
  it is answered or its time is over, and neither a cancellation nor another ends it before.
* The *deadline* is absolute: nothing that happens on the way restarts it. A caller who waits for
  a lock gets one last attempt at the deadline itself.
* *Trouble* with the lock service is not the lock being held: it is a LockServiceError, after at
  most ``ATTEMPTS`` attempts (for who waits for the lock, or if it is one that is brief, however
  many) and ``TROUBLE_SECONDS`` without an answer, and by the deadline if there is one. Who cannot
  ask because others of his process do, and are answered, is not in trouble yet. A deadline
  that leaves no time for a round trip is stretched to ``GRACE_SECONDS`` for the attempt, and once
  more for the clean-up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fencing.errors import LockServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "ATTEMPTS", "ATTEMPT_SECONDS", "CLEAN_UP_SECONDS", "GRACE_SECONDS", "NO_WAIT_SECONDS",
    "RELEASE_SECONDS", "RETRY_SECONDS", "TROUBLE_SECONDS", "Answered", "BaseCall", "Pause",
    "Trouble", "pause_after",
]  # fmt: skip

ATTEMPTS = 5
"""How often a request is tried before the lock service counts as out of reach."""

TROUBLE_SECONDS = 4.0
"""How long a request is tried before the lock service counts as out of reach, in seconds."""

ATTEMPT_SECONDS = 2.0
"""Longest wait for one answer, in seconds; a shorter time-out of the client's holds."""

NO_WAIT_SECONDS = 2.0
"""How long a call that does not wait for the lock may take, retries included, in seconds."""

RELEASE_SECONDS = 2.0
"""How long a release may take, retries included, in seconds."""

CLEAN_UP_SECONDS = 1.0
"""How long the clean-up after an unknown outcome may take, in seconds."""

GRACE_SECONDS = 0.25
"""What an attempt or a clean-up is given even when the deadline leaves less, in seconds."""

RETRY_SECONDS = 0.05
"""Pause before the first retry after trouble, in seconds; doubled for each further one."""

LONGEST_RETRY_SECONDS = 0.4
"""Longest pause before a retry, in seconds."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds; send back the time.

    Attributes:
        seconds: How many.
        see_through: Whether it lasts that long even while the caller is being cancelled.
    """

    seconds: float
    see_through: bool = False


class Answered(Protocol):
    """What is sent back for a request.

    Attributes:
        at: When the answer was there (:func:`fencing.clock.now`, seconds).
    """

    at: float


AnsweredT = TypeVar("AnsweredT", bound=Answered)


class Trouble(Exception):  # noqa: N818 - what happened, not yet an error of ours
    """A request to the lock service has failed; the cause is chained.

    Attributes:
        help: What it means and what to do about it.
        passing: Whether trying again may help.
        at: When it failed (:func:`fencing.clock.now`, seconds).
        brief: Whether it passes by itself, and soon: it is tried for as long as there is time.
        busy: Whether it was not asked, since its connections were in use, but others were answered
            meanwhile: no trouble with the lock service, and he tries on whom his caller lets.
    """

    def __init__(
        self, help_: str, *, passing: bool, at: float, brief: bool = False, busy: bool = False
    ) -> None:
        super().__init__(help_)
        self.help = help_
        self.passing = passing
        self.at = at
        self.brief = brief or busy
        self.busy = busy


class BaseCall:
    """One call of a lock service.

    Attributes:
        resource: What it is about, or the first of several; empty: about none.
        about: What it is about, in messages, where that is not the resource.
        at: The time as last told by the shell (:func:`fencing.clock.now`, seconds).
        ends: When the call is to be over (the same clock).
        attempts: How often a request is tried at the most; who waits for a lock anyway has only
            ``TROUBLE_SECONDS`` for a limit, in which another server may take over.
        repeated: Whether the answer is to a repeated request: what it finds may be the work of an
            earlier one, of which we never heard.
    """

    attempts: float = ATTEMPTS
    about = ""
    repeated = False

    def __init__(self, resource: str, started_at: float, *, ends: float) -> None:
        self.resource = resource
        self.at = started_at
        self.ends = ends

    def until_answered(
        self,
        asking: Callable[[float], object],
        *,
        longer: float = 0.0,
        trouble: Trouble | None = None,
    ) -> Generator[Any, Any, Any]:
        """Ask until there is an answer; return it.

        Args:
            asking: Makes the step to be performed, of how long its answer may take, in seconds.
            longer: How much longer than usual an answer may take, in seconds.
            trouble: What has come of the first attempt, where that was made before.

        Raises:
            LockServiceError: There was none.
        """
        failures = brief = 0
        ends = min(self.ends, self.at + TROUBLE_SECONDS + longer)
        while True:
            if trouble is None:
                try:
                    reply = yield asking(self.within(ends, longer))
                except Trouble as error:
                    trouble = error
                else:
                    self.at = reply.at
                    return reply
            self.at = trouble.at
            failures += 1
            brief += trouble.brief
            if trouble.busy:
                ends = min(self.ends, self.at + TROUBLE_SECONDS + longer)
            try:
                pause = self._pause_after(trouble, failures, failures - brief, ends)
            finally:
                trouble = None  # its traceback would hold this frame, which holds it
            self.repeated = True
            yield from self.pause(pause)

    def within(self, ends: float, longer: float = 0.0) -> float:
        """How long the answer may take to a request that is sent now, in seconds.

        Args:
            ends: When the asking is to be over (:func:`fencing.clock.now`, seconds).
            longer: As in :meth:`until_answered`.
        """
        # A little is kept back, so that the clean-up ends by the deadline, too.
        return max(GRACE_SECONDS, min(ATTEMPT_SECONDS + longer, ends - GRACE_SECONDS - self.at))

    def _pause_after(self, trouble: Trouble, failures: int, lasting: int, ends: float) -> float:
        """How long to wait before the next attempt, in seconds, after so many that have failed.

        Raises:
            LockServiceError: There is none.
        """
        pause = 0.0 if trouble.busy else pause_after(failures)  # or back into the queue
        hopeless = self.at + pause >= ends - GRACE_SECONDS
        if not trouble.passing or lasting >= self.attempts or hopeless:
            tries = f" (attempts: {failures})" if failures > 1 else ""
            raise self.error(f"{trouble.help}{tries}") from trouble.__cause__
        return pause

    def pause(self, seconds: float, *, see_through: bool = False) -> Generator[Any, Any, None]:
        """Wait for so many seconds."""
        self.at = yield Pause(max(0.0, seconds), see_through)

    @property
    def clean_up_seconds(self) -> float:
        """How long a clean-up may take that begins now, in seconds."""
        return max(GRACE_SECONDS, min(CLEAN_UP_SECONDS, self.ends - self.at))

    def until_told(
        self, *askings: Callable[[float], object], see_through: bool = True
    ) -> Generator[Any, Any, bool]:
        """Ask for what is better done, each until it is answered; together as long as a clean-up.

        Whatever comes of it is no error: a lock of which nobody could be told ends by its ttl.

        Args:
            *askings: Each makes a step to be performed, of how long its answer may take, in
                seconds.
            see_through: Whether the pauses are, as these steps are then, not to be cancelled.

        Returns:
            Whether all was answered.
        """
        ends = self.at + self.clean_up_seconds
        failures = 0
        is_hopeless = False
        while True:
            missed = []
            for place, asking in enumerate(askings):
                left = ends - self.at
                if failures and left <= 0:
                    return False
                # A fair share, but enough for a round trip, and the first time for everyone.
                shortest = min(GRACE_SECONDS, left) if failures else GRACE_SECONDS
                try:
                    reply = yield asking(max(shortest, left / (len(askings) - place)))
                except Trouble as trouble:
                    self.at = trouble.at
                    failures += 1
                    is_hopeless = is_hopeless or not trouble.passing
                    if trouble.passing:
                        missed.append(asking)
                else:
                    self.at = reply.at
            pause = pause_after(failures)
            if not missed or self.at + pause >= ends:
                return not missed and not is_hopeless
            yield from self.pause(pause, see_through=see_through)
            askings = tuple(missed)

    def error(self, message: str) -> LockServiceError:
        """An error that names the resource."""
        about = self.about or (f", resource {self.resource!r}" if self.resource else "")
        return LockServiceError(f"lock service{about}: {message}", resource=self.resource)


def pause_after(failures: int) -> float:
    """How long to wait after so many failures, in seconds; a little at random."""
    pause: float = min(RETRY_SECONDS * 2 ** min(failures - 1, 9), LONGEST_RETRY_SECONDS)
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
