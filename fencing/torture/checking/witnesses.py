"""Nothing is refused for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.denials import wrongly_denied
from fencing.torture.checking.refusals import wrongly_refused
from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from fencing.torture.history import History

__all__ = ["refusals_have_a_witness"]


def refusals_have_a_witness(history: History) -> list[Violation]:
    """The converse of safety: nothing is refused without a reason that the history shows.

    Of a refused transaction: a newer admission on one of its resources, by someone who had asked
    before the refusal; a fence that was pruned or raised by hand; the end of its lease's trust; a
    fault that ends sessions or lets the lock service forget; an eviction. A transaction that is
    called stale was overtaken, and by the token it was told of; one that is called unfenced had no
    lease, or its fence was pruned.

    Of leases that were not granted: another holder, a backend that was named, or a fault of the
    lock service, the database or the worker itself.

    In a run without faults, nothing at all is refused to a lease that is still trusted, and
    nothing fails.
    """
    wrong = [
        *((each.name, message, repr(each)) for each, message in wrongly_refused(history)),
        *((each.name, message, repr(each)) for each, message in wrongly_denied(history)),
    ]
    return [
        Violation("refusals have a witness", "converse", name, message, (evidence,))
        for name, message, evidence in wrong
    ]
