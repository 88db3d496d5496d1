"""Tells a verification: to people, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fencing.verification.findings import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fencing.verification.findings import (
        Finding,
        ServiceVerification,
        Verification,
        VerifiedTable,
    )

__all__ = ["as_json", "as_text", "service_as_json", "service_as_text"]

_WIDTH = 96


def as_json(verification: Verification) -> dict[str, Any]:
    """What ``fencing verify --json`` prints; its keys are kept between versions."""
    return {
        "database": verification.database,
        "schema_version": verification.schema_version,
        "tables": [asdict(table) for table in verification.tables],
        **_findings_as_json(verification),
    }


def service_as_json(verification: ServiceVerification) -> dict[str, Any]:
    """What it prints of a lock service."""
    return {
        "service": verification.service,
        "nodes": list(verification.nodes),
        **_findings_as_json(verification),
    }


def _findings_as_json(verification: Verification | ServiceVerification) -> dict[str, Any]:
    return {
        "findings": [asdict(finding) for finding in verification.findings],
        "counts": {severity: verification.count(severity) for severity in SEVERITIES},
    }


def as_text(verification: Verification, place: str) -> str:
    """What ``fencing verify`` prints.

    Args:
        verification: What was found.
        place: Which database it is, in words.
    """
    return "\n".join(_lines(verification, place))


def _lines(verification: Verification, place: str) -> Iterator[str]:
    version = verification.schema_version
    yield f"{place}: {f'schema fencing, version {version}' if version else 'no schema fencing'}"
    by_table: dict[str | None, list[Finding]] = {}
    for finding in verification.findings:
        by_table.setdefault(finding.table, []).append(finding)
    for table in verification.tables:
        yield ""
        yield _headline(table)
        yield from _several(by_table.pop(table.name, []))
        for part in table.parts:
            if part in by_table:
                yield f"  {part}"
                yield from _several(by_table.pop(part))
    everything_else = by_table.pop(None, [])
    for name, findings in by_table.items():
        yield ""
        yield str(name)
        yield from _several(findings)
    if everything_else:
        yield ""
        yield "the database"
        yield from _several(everything_else)
    yield ""
    yield _counts(verification)


def service_as_text(verification: ServiceVerification) -> str:
    """What ``fencing verify`` prints of a lock service."""
    lines = [f"{verification.service} at {', '.join(verification.nodes)}"]
    if verification.findings:
        lines += ["", *_several(verification.findings)]
    return "\n".join([*lines, "", _counts(verification)])


def _counts(verification: Verification | ServiceVerification) -> str:
    return ", ".join(
        f"{count} {severity if severity == 'info' or count == 1 else severity + 's'}"
        for severity in SEVERITIES
        for count in [verification.count(severity)]
    )


def _headline(table: VerifiedTable) -> str:
    facts = [table.name, table.resource, ", ".join(table.operations)]
    if table.mode != "enforce":
        facts.append(table.mode)
    if table.parts:
        facts.append(f"{len(table.parts)} part{'s' if len(table.parts) > 1 else ''}")
    if not table.guarded:
        facts.append("NOT GUARDED")
    return "  ".join(facts)


def _several(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        start = f"  {finding.severity:<8} {finding.code}: "
        yield from textwrap.wrap(
            start + finding.message, _WIDTH, subsequent_indent=" " * 11, break_on_hyphens=False
        )
        yield f"           -> {finding.remedy}"
