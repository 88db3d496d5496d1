"""Holds the guards that were found against what metadata declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.verification.findings import ABSENT, Finding, VerifiedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.verification.declared import Declared
    from fencing.verification.facts import Facts, Relation
    from fencing.verification.guards import Guard

__all__ = ["check", "tables"]


def check(
    facts: Facts, guards: Sequence[Guard], declared: Sequence[Declared] | None
) -> Iterator[Finding]:
    """Compare every declaration with the guard of its table."""
    if declared is None:
        return
    by_root = {guard.root.oid: guard for guard in guards}
    covered = {part: guard for guard in guards for part in facts.descendants(guard.root.oid)}
    for each in declared:
        relation = _find(facts, each)
        if relation is None:
            yield Finding(
                "error", ABSENT,
                "is declared with fenced_by, and the database has no such table",
                "create it, or verify the database that it is in", table=_name(each),
            )  # fmt: skip
        elif (guard := by_root.get(relation.oid)) is not None:
            yield from _compare(each, guard)
        elif relation.oid not in covered:
            yield Finding(
                "error", "guard-missing",
                "is declared with fenced_by, and has no guard: nothing is refused",
                f"op.fence_table({relation.as_arguments}, resource={each.resource!r}); "
                "`alembic revision --autogenerate` writes it",
                table=relation.name,
            )  # fmt: skip
    known = {relation.oid for each in declared if (relation := _find(facts, each)) is not None}
    for guard in guards:
        if guard.root.oid not in known:
            yield Finding(
                "info", "guard-undeclared",
                "is guarded, and no model declares it: its writes are refused by the database "
                "alone, never before they are sent",
                "declare it with fenced_by", table=guard.root.name,
            )  # fmt: skip


def tables(
    facts: Facts, guards: Sequence[Guard], declared: Sequence[Declared] | None
) -> Iterator[VerifiedTable]:
    """Every table that is guarded or declared, by name."""
    found: dict[str, VerifiedTable] = {}
    for each in declared or ():
        relation = _find(facts, each)
        name = _name(each) if relation is None else relation.name
        found[name] = VerifiedTable(
            name, guarded=False, declared=True,
            resource=each.resource, operations=each.operations, mode=each.mode,
        )  # fmt: skip
    for guard in guards:
        name = guard.root.name
        found[name] = VerifiedTable(
            name, guarded=True,
            declared=None if declared is None else name in found,
            resource=guard.resource or "", operations=guard.operations, mode=guard.mode,
            parts=tuple(sorted(
                facts.by_oid[oid].name
                for oid in facts.descendants(guard.root.oid) if oid in facts.by_oid
            )),
        )  # fmt: skip
    for name in sorted(found):
        yield found[name]


def _compare(declared: Declared, guard: Guard) -> Iterator[Finding]:
    differences = [
        f"{what} {_text(there)} instead of {_text(here)}"
        for what, here, there in (
            ("the resource", declared.resource, guard.resource),
            ("the operations", declared.operations, guard.operations),
            ("the mode", declared.mode, guard.mode),
        )
        if here != there
    ]
    if differences:
        yield Finding(
            "error", "guard-differs",
            f"its guard is not what is declared: it has {', '.join(differences)}",
            f"op.alter_fence({guard.root.as_arguments}, ...); `alembic revision --autogenerate` "
            "writes it",
            table=guard.root.name,
        )  # fmt: skip


def _text(value: str | tuple[str, ...] | None) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _find(facts: Facts, declared: Declared) -> Relation | None:
    places = facts.path if declared.schema is None else (declared.schema,)
    found = (facts.find(schema, declared.table) for schema in places)
    return next((relation for relation in found if relation is not None), None)


def _name(declared: Declared) -> str:
    return declared.table if declared.schema is None else f"{declared.schema}.{declared.table}"
