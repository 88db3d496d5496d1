"""Tokens and admissions in the order in which the database accepted them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.views import by_resource
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Admission, Write

if TYPE_CHECKING:
    from fencing.torture.history import History

__all__ = [
    "nothing_after_a_newer_admission",
    "one_holder_per_token",
    "tokens_never_decrease",
]


def tokens_never_decrease(history: History) -> list[Violation]:
    """I1: the tokens of a resource's accepted writes never decrease."""
    violations = []
    for resource, events in by_resource(history).items():
        last: Write | None = None
        for event in events:
            if not isinstance(event, Write) or event.token is None:
                continue
            if last is not None and last.token is not None and event.token < last.token:
                message = f"token {event.token} wrote after token {last.token}"
                violations.append(
                    Violation(
                        "tokens never decrease",
                        "I1",
                        resource,
                        message,
                        (repr(last), repr(event)),
                    )
                )
            else:
                last = event
    return violations


def nothing_after_a_newer_admission(history: History) -> list[Violation]:
    """I2: after an admission, no write with a smaller token is accepted on its resource.

    No clock is needed: a write's number is drawn while its transaction holds the resource's lock in
    share mode, and an admission's while it holds that lock alone.
    """
    violations = []
    for resource, events in by_resource(history).items():
        newest: Admission | None = None
        for event in events:
            if isinstance(event, Admission):
                if not event.pruned and (newest is None or event.token > newest.token):
                    newest = event
            elif newest is not None and event.token is not None and event.token < newest.token:
                message = f"token {event.token} wrote after the admission of {newest.token}"
                violations.append(
                    Violation(
                        "nothing after a newer admission",
                        "I2",
                        resource,
                        message,
                        (repr(newest), repr(event)),
                    )
                )
    return violations


def one_holder_per_token(history: History) -> list[Violation]:
    """I5: whoever is admitted or writes with a token has the holder it was first seen with."""
    violations = []
    for resource, events in by_resource(history).items():
        seen: dict[int, Write | Admission] = {}
        for event in events:
            if event.token is None or not event.holder:
                continue
            first = seen.setdefault(event.token, event)
            if first.holder != event.holder:
                message = f"token {event.token} has holders {first.holder} and {event.holder}"
                violations.append(
                    Violation(
                        "one holder per token",
                        "I5",
                        resource,
                        message,
                        (repr(first), repr(event)),
                    )
                )
    return violations
