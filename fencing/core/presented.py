"""What a transaction has presented, and what it means when it was ended by force.

A session that a server's limit, an eviction or an administrator has ended tells nothing about its
lease; the resource's high-water mark, asked for on another connection, does.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.core.whereabouts import Whereabouts, current_task
from fencing.errors import CommitOutcomeUnknownError, LeaseExpiredError, StaleFenceError
from fencing.schema.names import claim_item

if TYPE_CHECKING:
    from fencing.errors import Inquiring
    from fencing.lease import BaseLease
    from fencing.schema.refusals import Refusal

__all__ = ["Presented"]

_LIMIT_SLACK = 0.05
"""A server's limit may fire this much before our own clock says that trust has ended, in seconds:
both start from the same trust, in whole milliseconds, on two clocks."""

_LONGEST_LIMIT_MS = 2**31 - 1
"""PostgreSQL's settings count milliseconds in 32 bits."""

# A session that a limit or an administrator has ended, and a statement that a limit has.
_ENDED = {"25P03", "25P04", "57P01", "57014"}
_TERMINATED = "57P01"
# At COMMIT only these prove that nothing was committed: the session had ended before.
_ENDED_BEFORE_COMMIT = {"25P03", "25P04", "57014"}
_LIMITS = {"25P03", "25P04"}
_LOCK_NOT_AVAILABLE = "55P03"
_SERIALIZATION_FAILURE = "40001"


class Presented:
    """The leases that one transaction has presented.

    Attributes:
        leases: The leases; empty when there were none, or none could be presented.
        backend_pid: PostgreSQL's pid of the session.
        begun_in: The thread and task that began it.
        committing: Whether COMMIT is being sent: a failure then has an unknown outcome.
        ended: Whether the session was seen to have ended before COMMIT was sent: nothing of it is
            committed.
        limit: How long the server may let it live, in seconds: the trust that was left in its
            leases when it began; for leases that are kept alive, what they can live.
        bounded_until: When the server's limits end it (:func:`fencing.clock.now`), in seconds.
        receipt: Id of the row by which its outcome can be told for certain; ``None``: no row.
        stamp: What tells the transaction from every other; empty until its entry was answered.
    """

    def __init__(
        self,
        leases: tuple[BaseLease, ...] = (),
        *,
        backend_pid: int = 0,
        with_receipt: bool = False,
    ) -> None:
        self.leases = leases
        self.receipt = str(uuid.uuid4()) if with_receipt and leases else None
        self.stamp = ""
        self.backend_pid = backend_pid
        self.committing = False
        self.ended = False
        self.begun_in = Whereabouts(current_task())
        self.limit = min([lease.transaction_limit for lease in leases]) if leases else 0.0
        self.bounded_until = now() + self.limit

    @property
    def claim(self) -> str:
        """The leases, as ``fencing.enter`` reads them."""
        return " ".join([claim_item(x.resource, x.token, x.holder) for x in self.leases])

    @property
    def limit_ms(self) -> int | None:
        """How long the server lets the transaction live, in milliseconds; ``None``: for ever."""
        if self.limit == math.inf:
            return None
        return max(1, min(int(self.limit * 1000), _LONGEST_LIMIT_MS))

    @property
    def entry(self) -> dict[str, object]:
        """The parameters of ``fencing.enter``."""
        return {"leases": self.claim, "limit_ms": self.limit_ms, "receipt": self.receipt}

    @property
    def may_have_ended(self) -> bool:
        """Whether the server's limits may have ended it by now."""
        return bool(self.leases) and now() >= self.bounded_until - _LIMIT_SLACK

    def lease_on(self, resource: str) -> BaseLease | None:
        """The lease it has presented on a resource."""
        return next((lease for lease in self.leases if lease.resource == resource), None)

    @property
    def lease_over(self) -> BaseLease | None:
        """A presented lease that nothing may be done under any more."""
        for lease in self.leases:  # no generator: asked before each statement
            if lease.released or lease.lost:
                return lease
        return None

    def note_commit(self, *, ended: bool) -> None:
        """COMMIT is about to be sent, on a session that is known to have ended or is not."""
        self.ended = ended
        self.committing = not ended

    def may_be_overtaken(self, refusal: Refusal, *, disconnected: bool) -> bool:
        """Whether an error may mean that a newer holder is there: then the mark has to be asked.

        Args:
            refusal: The error, which is about no fence.
            disconnected: Whether the connection ended with it.
        """
        sqlstate = refusal.sqlstate
        if sqlstate in {_SERIALIZATION_FAILURE, _LOCK_NOT_AVAILABLE}:
            # One that our own lock has met; the user's own conflicts stay what they are.
            return refusal.is_ours
        if self.committing:
            # Anything else that cuts COMMIT short may have come after the commit itself.
            return sqlstate in _ENDED_BEFORE_COMMIT
        if sqlstate == _TERMINATED or self.ended:
            # Perhaps by a successor's eviction, however good the lease looks from here. Between the
            # server and us a pooler may have the last word, and that does not say who has ended it.
            return True
        ended = sqlstate in _ENDED or (not sqlstate and disconnected)
        return ended and (self.may_have_ended or any(_is_over(lease) for lease in self.leases))

    def outcome_unknown(
        self, refusal: Refusal, inquiry: Inquiring
    ) -> CommitOutcomeUnknownError | None:
        """The error for a connection that was lost at COMMIT.

        Args:
            refusal: The error with which the connection ended.
            inquiry: Who can find out what has become of the transaction.
        """
        if not self.committing or not self.leases or refusal.sqlstate in _ENDED_BEFORE_COMMIT:
            return None
        names = ", ".join(repr(lease.resource) for lease in self.leases)
        return CommitOutcomeUnknownError(
            f"the connection was lost while COMMIT of a transaction under {names} was under way "
            f"({refusal.message}): it may have been committed, or not; ask outcome() of this "
            "error, and compare the data where that is unknown, before the work is repeated",
            resources=[lease.resource for lease in self.leases],
            receipt=self.receipt,
            inquiry=inquiry,
        )

    @staticmethod
    def overtaken(lease: BaseLease, mark: int | None, refusal: Refusal) -> StaleFenceError | None:
        """The error for a transaction that was ended, if the mark says that it was overtaken."""
        if mark is None or mark <= lease.token:
            return None
        lease.note_lost()
        return StaleFenceError(
            f"stale fence: the transaction under token {lease.token} on {lease.resource!r} was "
            f"ended ({refusal.message}), and token {mark} has been admitted; acquire again and "
            "repeat the work from its first read",
            resource=lease.resource,
            token=lease.token,
            current_token=mark,
        )

    def expired(self, refusal: Refusal) -> LeaseExpiredError | None:
        """The error for a transaction that was ended without having been overtaken."""
        # At COMMIT, and wherever a limit has ended the session, this is certain; a session that
        # just ended may have been sent a COMMIT by hand.
        certain = self.committing or self.ended or refusal.sqlstate in _LIMITS
        outcome = "; nothing of it was committed" if certain else ""
        for lease in self.leases:
            if _is_over(lease) or self.may_have_ended:
                how = (
                    "ran out during a transaction"
                    if _is_over(lease)
                    else "was renewed in a transaction, which goes on only for as long as the "
                    "lease was trusted when it began"
                )
                return LeaseExpiredError(
                    f"the lease on {lease.resource!r} (token {lease.token}) {how}, and the server "
                    f"has ended it ({refusal.message}){outcome}: acquire again, or begin a new "
                    "transaction under a lease that is good, and repeat the work from its first "
                    "read",
                    resource=lease.resource,
                    token=lease.token,
                )
        return None


def _is_over(lease: BaseLease) -> bool:
    return lease.lost or lease.released or lease.remaining <= _LIMIT_SLACK
