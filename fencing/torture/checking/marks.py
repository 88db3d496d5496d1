"""A resource's mark only rises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.views import by_resource
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Admission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.torture.history import History

__all__ = ["marks_survive"]


def marks_survive(history: History) -> list[Violation]:
    """I11: a resource's mark never goes back, pruned or not, and is there at the end.

    The mark's own holder may be admitted with it again, unless its fence was pruned meanwhile: then
    only a larger token may.
    """
    violations = []
    for resource, events in by_resource(history).items():
        admissions = [event for event in events if isinstance(event, Admission)]
        violations += _in_order(resource, admissions)
        highest = max(admissions, key=lambda each: each.token, default=None)
        if highest is None:
            continue
        final = history.final.marks.get(resource)
        if final is None or final < highest.token:
            message = f"the mark is {final} at the end; it was {highest.token}"
            violations.append(_violation(resource, message, highest))
    return violations


def _violation(resource: str, message: str, *evidence: object) -> Violation:
    return Violation("marks survive", "I11", resource, message, tuple(map(repr, evidence)))


def _in_order(resource: str, admissions: Sequence[Admission]) -> list[Violation]:
    violations = []
    highest: Admission | None = None
    pruned: Admission | None = None
    for event in admissions:
        if highest is not None and event.token < highest.token:
            message = f"the mark went back from {highest.token} to {event.token}"
            violations.append(_violation(resource, message, highest, event))
        elif pruned is not None and not event.pruned and event.token <= pruned.token:
            message = f"token {event.token} was admitted after the mark {pruned.token} was pruned"
            violations.append(_violation(resource, message, pruned, event))
        if event.pruned and (pruned is None or event.token > pruned.token):
            pruned = event
        if highest is None or event.token > highest.token:
            highest = event
    return violations
