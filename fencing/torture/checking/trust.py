"""For how long workers believed in their leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.views import leases_by_resource
from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from fencing.torture.history import Believed, History

__all__ = ["trust_never_overlaps"]


def trust_never_overlaps(history: History) -> list[Violation]:
    """I15: while the lock service keeps its order, nobody believes in a lease while another does.

    Only one clock is compared with itself: all processes of a machine have the same. A lease whose
    trust was over when it was granted was believed in at no time.
    """
    if not history.keeps_order:
        return []
    violations = []
    for resource, leases in leases_by_resource(history).items():
        last: Believed | None = None
        for lease in leases:
            if lease.until <= lease.since:
                continue
            if last is not None and lease.holder != last.holder and lease.since < last.until:
                message = (
                    f"token {lease.token} was believed in {last.until - lease.since:.6f} s before "
                    f"the trust in token {last.token} ended"
                )
                violations.append(
                    Violation(
                        "trust never overlaps", "I15", resource, message, (repr(last), repr(lease))
                    )
                )
            if last is None or lease.until > last.until:
                last = lease
    return violations
