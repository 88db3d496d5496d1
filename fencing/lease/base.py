"""What a sync and an async lease have in common, and what others may ask of them."""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from fencing.clock import now
from fencing.errors import (
    FencingUsageError,
    LeaseExpiredError,
    LeaseLostError,
    LockServiceError,
)
from fencing.lease.blocks import Blocks
from fencing.lease.trust import MARGIN_SECONDS, margin, trust_ends
from fencing.request import MAX_TOKEN, MIN_TTL, check_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.lease.ending import AsyncEnding, Ending
    from fencing.lease.leases import AsyncGrantor, Grantor
    from fencing.state import LockState

__all__ = ["BaseLease", "Scope", "Watcher"]

_log = logging.getLogger("fencing")


class _Process:
    """Which process this is; asking the system takes longer than all of a deadline's check."""

    def __init__(self) -> None:
        self.notice()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.notice)

    def notice(self) -> None:
        self.pid = os.getpid()


_process = _Process()

_RLock = type(threading.RLock())  # threading's own is a function that calls it


class Scope(Protocol):
    """What a lease's ``with`` block means beyond holding the lock; a guard supplies one."""

    raises_loss: bool
    """Whether a loss that is found when the block has succeeded is raised (or only logged)."""

    def open(self) -> None:
        """A block begins; with re-entry there is one in the other."""

    def close(self, *, outermost: bool) -> None:
        """The innermost block has ended; with the outermost one the lease is then released."""

    def cut(self, depth: int) -> None:
        """So many blocks are left open, after an interrupt that came while one began or ended."""


class Watcher(Protocol):
    """Who is told when a lease changes, because he renews it or waits for its end."""

    def notice(self, lease: Any) -> None:  # noqa: ANN401 - a sync or an async lease, as is its own
        """The lease is over, or trusted until another moment than before."""


class BaseLease:
    """What a sync and an async lease have in common; see :class:`Lease`."""

    # What every lease begins with is its class's: who was just handed one waits until it is made.
    admitted = False
    released = False
    releasing = False
    raising = False
    scope: Scope | None = None
    kept = False
    lives_until = math.inf
    watcher: Watcher | None = None
    trouble = ""
    told = False
    _max_lifetime = math.inf
    _lost = False
    _expired = False
    _why = ""
    _ended: Ending | AsyncEnding | None = None  # whoever waits makes it

    def __init__(
        self,
        service: Grantor | AsyncGrantor,
        *,
        resource: str,
        token: int,
        holder: str,
        owner: str,
        ttl: float,
        asked_at: float,
        handed_for: float | None = None,
        asked_again: bool = False,
        place: object = None,
        admitted_in: str = "",
    ) -> None:
        self.service = service
        self.resource = resource
        if type(token) is not int or not 1 <= token <= MAX_TOKEN:
            check_token(token)
        self.token = token
        self.holder = holder
        self.owner = owner
        self.ttl = ttl
        self.place = place  # where the lock service keeps it; its own matter
        # What was handed over lasts so long, until a renewal gives it its ttl.
        self.trusted_until = trust_ends(asked_at, ttl if handed_for is None else handed_for)
        # The database that has granted it and admitted it in one transaction, if one has.
        self.admitted_in = admitted_in
        # A request to acquire it that was not answered may be on its way after the release.
        self.asked_again = asked_again
        self._asked_at = asked_at
        self._on_lost: list[Callable[[Any], object]] = []
        # Reentrant: what a signal handler does to a lease comes between any two lines of ours.
        self._lock = _RLock()
        self.blocks = Blocks(self._lock)
        self._pid = _process.pid

    def __reduce_ex__(self, protocol: Any) -> NoReturn:  # noqa: ANN401 - as its base has it
        raise TypeError(
            f"the lease on {self.resource!r} cannot be pickled or copied: it is this process's "
            "right, and two of it would be released twice; send its resource, and acquire a lease "
            "where the work is done"
        )

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else f"{self.remaining:.3f} s"
        return (
            f"<{type(self).__name__} {self.resource!r} token={self.token} "
            f"owner={self.owner!r} {state}>"
        )

    @property
    def remaining(self) -> float:
        """Trust left, in seconds; never negative, and 0 for a lease that is over."""
        if self.released or self._lost or self._expired or self.is_foreign:
            return 0.0
        return max(0.0, self.trusted_until - now())

    @property
    def transaction_limit(self) -> float:
        """How long a transaction under the lease may last, in seconds.

        As long as trust is left; for one that is kept alive, as long as it can be.
        """
        left = self.remaining
        return max(left, self.lives_until - now()) if self.kept and left else left

    @property
    def expired(self) -> bool:
        """Whether our own clock says that the lease has run out."""
        return now() >= self.trusted_until

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released: taken away, run out, or left in fork."""
        if self._lost or self._expired:
            return True
        # Asked before each statement: as is_foreign and expired say it.
        return not self.released and (self._pid != _process.pid or now() >= self.trusted_until)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a copy that ``os.fork`` made: a child owns nothing of its parent."""
        return self._pid != _process.pid

    @property
    def is_over(self) -> bool:
        """Whether it was given back, or is just being."""
        return self.released or self.releasing

    def raise_if_over(self) -> None:
        """Raise unless this process may still act under the lease.

        Raises:
            LeaseExpiredError: It has run out by our own clock.
            LeaseLostError: It was released, taken away, or belongs to a parent process.
        """
        if self.released or self.lost:
            raise self.loss()

    def loss(self) -> LeaseLostError:
        """The error that says why the lease is over."""
        what = f"the lease on {self.resource!r} (token {self.token})"
        if self.is_foreign:
            return self._as_lost(
                f"{what} belongs to process {self._pid}; a forked child owns nothing of its "
                "parent: acquire a lease of its own in the child"
            )
        if self.released:
            return self._as_lost(
                f"{what} was released; nothing can be done under it any more: acquire it again"
            )
        if self._lost:
            return self._as_lost(
                f"{what} was lost: the lock service says that it is not ours any more; acquire "
                "it again and repeat the work from its first read"
            )
        why = f" ({self._why})" if self._why else ""
        return LeaseExpiredError(
            f"{what} ran out {max(0.0, now() - self.trusted_until):.3f} s ago by our own "
            f"clock{why}, so nothing more was sent; acquire it again and repeat the work from its "
            "first read",
            resource=self.resource,
            token=self.token,
        )

    def _as_lost(self, message: str) -> LeaseLostError:
        return LeaseLostError(message, resource=self.resource, token=self.token)

    # What a lock service and a guard report to the lease.

    def note_renewed(self, *, asked_at: float, ttl: float, in_background: bool = False) -> None:
        """The lock service has extended the lease to ``ttl`` seconds from ``asked_at``.

        A lease that was given up is not revived: its holder may have been told. In the background
        a lease is never cut short: its holder may have renewed it for longer meanwhile.
        """
        trusted_until = min(trust_ends(asked_at, ttl), self.lives_until)
        with self._lock:
            if self._lost or self._expired:
                return
            earlier = trusted_until < self.trusted_until
            if not (earlier and in_background):
                self.ttl, self.trusted_until = ttl, trusted_until
            self.trouble = ""
        if earlier and self._ended is not None:
            self._ended.wake()  # who waits for the end would sleep past it
        if self.watcher is not None:
            self.watcher.notice(self)

    def note_token(self, token: int) -> None:
        """The lock service has given this lease a larger token.

        Raises:
            FencingUsageError: The lease has been admitted under its old token: whoever read
                under that one could not tell that he was overtaken in between.
        """
        if self.admitted:
            raise FencingUsageError(
                f"the lease on {self.resource!r} has been admitted under token {self.token}; an "
                "admitted lease is never given another token: release it and acquire again"
            )
        self.token = check_token(token)

    def note_admitted(self) -> None:
        """A database has committed the token as the resource's high-water mark."""
        self.admitted = True

    def note_lost(self, *, at_release: bool = False) -> None:
        """The lock service says that the lease is not ours any more.

        Args:
            at_release: Whether it was the release that it answered so. What it says to a renewal
                while that is on its way may be the release's own work, and no loss.
        """
        with self._lock:
            if self.released or (self.releasing and not at_release):
                return
            self._lost = True
        self._over()

    def note_expired(self) -> bool:
        """Give the lease up if its trust has ended, for good; whether it is lost."""
        with self._lock:
            if self.is_over and not self._lost:
                return False
            if not self._lost and self.expired and not self._expired:
                self._expired = True
                self._why = self.trouble
                if self.kept and self.at_its_limit:
                    self._why = f"it has lived for its max_lifetime of {self._max_lifetime} s"
        if self.lost:
            self._end()
        return self.lost

    def note_found(self, state: LockState) -> bool:
        """The lock service has told who holds the resource; whether it is this lease."""
        ours = state.holder == self.holder
        if not ours:
            self.note_lost()
        return ours and not self.lost

    def note_releasing(self) -> None:
        """The lease is being given back: what comes from now on, but for the answer, is no loss."""
        with self._lock:
            self.releasing = True
        if self.watcher is not None:
            self.watcher.notice(self)

    def note_released(self) -> None:
        """The lease was given back, or nothing is left to give back."""
        with self._lock:
            self.released = True
        if self._ended is not None or self.watcher is not None:
            self._over()

    # What keeps it alive.

    def keep(self, max_lifetime: float | None) -> None:
        """The lease is renewed in the background from now on; see :mod:`fencing.keepalive`."""
        if not self.kept and max_lifetime is not None:
            self._max_lifetime = max_lifetime
            self.lives_until = self._asked_at + max_lifetime
        self.kept = True

    def may_outlive(self, max_lifetime: float) -> bool:
        """Whether it can be kept alive for longer than so many seconds from its acquisition."""
        return self._max_lifetime > max_lifetime

    def ttl_for(self, ttl: float) -> float:
        """A ttl to renew with, in seconds, that does not exceed the lease's ``max_lifetime``.

        Raises:
            LeaseExpiredError: Nothing worth a renewal is left of that.
        """
        left = self.lives_until - now()
        if left < MIN_TTL:
            raise LeaseExpiredError(
                f"the lease on {self.resource!r} (token {self.token}) has lived for its "
                f"max_lifetime of {self._max_lifetime} s and is not renewed; acquire it again",
                resource=self.resource,
                token=self.token,
            )
        return min(ttl, left)

    @property
    def at_its_limit(self) -> bool:
        """Whether no renewal would make it live longer, because of its ``max_lifetime``."""
        return self.trusted_until + margin(self.ttl) >= self.lives_until - MARGIN_SECONDS

    def tell_lost(self, on_lost: Callable[[Any], object]) -> None:
        """Have a function called when the lease is lost; by its watcher, and once."""
        self._on_lost.append(on_lost)

    def take_listeners(self) -> list[Callable[[Any], object]]:
        """Those to be called now that it is lost; another time there are none of them left."""
        with self._lock:
            listeners, self._on_lost = self._on_lost, []
        return listeners

    def cancel_blocks(self) -> None:
        """Cancel the task whose block asked for it; a thread cannot be cancelled."""

    @property
    def was_found_lost(self) -> bool:
        """Whether its end was noticed before it was released."""
        return self._lost or self._expired

    def was_lost(self) -> LeaseLostError:
        """The error of a release that had nothing to give back any more."""
        # The lock service need not have noticed: it was the database that saw a newer holder, or
        # nothing of the lock was left to be released.
        return self._as_lost(
            f"the lease on {self.resource!r} (token {self.token}) was lost before it was released; "
            "acquire it again and repeat the work from its first read"
        )

    def _over(self) -> None:
        """Tell whoever waits for the lease's end, and its watcher."""
        if self._ended is not None:
            self._ended.set()
        if self.watcher is not None:
            self.watcher.notice(self)

    def _end(self) -> None:
        """Tell whoever waits for the lease's end."""
        if self._ended is not None:
            self._ended.set()

    def _open(self) -> None:
        if not self.blocks.enter():
            raise FencingUsageError(
                f"the lease on {self.resource!r} has had its with block; acquire a new one for "
                "another"
            )
        if self.scope is not None:
            self.scope.open()

    def _close(self) -> bool:
        """The innermost block has ended; whether the lease is to be released."""
        outermost = self.blocks.leave()
        if self.scope is not None:
            self.scope.close(outermost=outermost)
        return (
            outermost and self.blocks.to_release and not self.released and self._pid == _process.pid
        )

    def _settle(
        self, failure: LeaseLostError | LockServiceError, body: BaseException | None
    ) -> None:
        """Decide what the end of a block says about a release that went wrong.

        The body's exception always wins. A loss is raised by a plain lock, whose body may have
        run beside another's; under a guard the database has decided every write already, and
        raising would invite the caller to do the work twice. A lock service that could not be
        told is only logged: the lease was still trusted, and ends by itself.
        """
        if body is not None:
            body.add_note(f"fencing: at the end of the block: {failure}")
        elif isinstance(failure, LockServiceError):
            _log.warning("could not release the lease on %r: %s", self.resource, failure)
        elif self.scope is None or self.scope.raises_loss:
            raise failure
        else:
            _log.warning(
                "the lease on %r (token %d) was over before its block ended; what was committed in "
                "it stands, and only what was refused has to be repeated (%s)",
                self.resource, self.token, type(failure).__name__,
            )  # fmt: skip
