"""What a verification finds, as facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ABSENT",
    "SEVERITIES",
    "Finding",
    "ServiceVerification",
    "Severity",
    "Verification",
    "VerifiedTable",
    "by_gravity",
    "together",
]

ABSENT = "table-absent"
"""The code of a declared table that a database does not have."""

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Gravest first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a verification has found.

    Attributes:
        severity: ``"error"``: there is a way around a guard, or the guard or the lock service
            does not work; ``"warning"``: something weakens it, or may; ``"info"``: good to know.
        code: What kind of thing, such as ``"trigger-disabled"``; stable between versions.
        message: What was found, in a sentence.
        remedy: What to do about it; where it is SQL, it can be run as it is.
        table: The table concerned, with its schema; ``None`` where it is the whole database, or
            a lock service.
        subject: The trigger, function, role, setting, ... concerned, if it is one.
    """

    severity: Severity
    code: str
    message: str
    remedy: str
    table: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A table that is guarded, or declared to be.

    Attributes:
        name: Its name, with its schema.
        guarded: Whether a guard was found on it.
        declared: Whether the metadata declare it; ``None`` where no metadata was given.
        resource: The resource template of its guard; of its declaration, where it has none.
        operations: What is guarded, of ``"insert"``, ``"update"`` and ``"delete"``.
        mode: ``"enforce"`` or ``"observe"``.
        parts: The partitions and inheritance children that its guard should cover.
    """

    name: str
    guarded: bool
    declared: bool | None
    resource: str
    operations: tuple[str, ...]
    mode: str
    parts: tuple[str, ...] = ()


class _Judged:
    """What can be said of findings, wherever they were found."""

    __slots__ = ()
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """How many findings of a severity there are."""
        return sum(finding.severity == severity for finding in self.findings)

    def passes(self, *, strict: bool = False) -> bool:
        """Whether there is no error; if ``strict``, no warning either."""
        return not self.count("error") and not (strict and self.count("warning"))


@dataclass(frozen=True, slots=True)
class Verification(_Judged):
    """What was found in one database.

    Attributes:
        database: Its name.
        schema_version: The version of schema ``fencing``; 0 where there is none.
        tables: Every table that is guarded or declared, by name.
        findings: What was found, the gravest first.
    """

    database: str
    schema_version: int
    tables: tuple[VerifiedTable, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ServiceVerification(_Judged):
    """What was found on the servers of one lock service.

    Attributes:
        service: What they are, such as ``"valkey 9.1.2"``.
        nodes: Which were looked at, as ``host:port`` or the path of a socket.
        findings: What was found, the gravest first.
    """

    service: str
    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]


def by_gravity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, the gravest first."""
    return tuple(sorted(findings, key=_gravity))


def _gravity(finding: Finding) -> tuple[int, str, str, str]:
    return (
        SEVERITIES.index(finding.severity),
        finding.table or "",
        finding.code,
        finding.subject or "",
    )


def together(verifications: Sequence[Verification]) -> list[Verification]:
    """Several databases of one application, verified against the same declarations.

    What is declared is in one of them; that the others lack it is no finding.
    """

    def lacks(verification: Verification) -> set[str | None]:
        return {finding.table for finding in verification.findings if finding.code == ABSENT}

    nowhere = set.intersection(*map(lacks, verifications)) if verifications else set()
    return [
        replace(
            each,
            tables=tuple(t for t in each.tables if t.name not in lacks(each) - nowhere),
            findings=tuple(f for f in each.findings if f.code != ABSENT or f.table in nowhere),
        )
        for each in verifications
    ]
