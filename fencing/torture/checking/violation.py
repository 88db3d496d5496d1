"""What a checker says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in a history that must never be.

    Attributes:
        checker: The checker that saw it, by its public name.
        invariant: What was violated, such as ``"I3"``.
        subject: The resource, row, transaction or acquisition that it is about.
        message: What is wrong with it.
        evidence: The records that show it, one each.
    """

    checker: str
    invariant: str
    subject: str
    message: str
    evidence: tuple[str, ...] = ()
