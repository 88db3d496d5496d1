"""Checks schema ``fencing`` itself: its version, functions, tables, and who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.schema import ddl
from fencing.verification import expected
from fencing.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from fencing.verification.facts import Facts, Function, Grant, OwnTable, Trigger
    from fencing.verification.findings import Severity

__all__ = ["ALWAYS", "check", "check_version", "is_current", "may_render", "state_of"]

UPGRADE = "run `fencing install URL`, or op.upgrade_fencing() in a migration"
REINSTALL = (
    "find out who has changed it and why; as the owner of schema fencing, upgrade to this "
    "version again: op.upgrade_fencing(), or the statements of fencing.schema.ddl.upgrade()"
)

ALWAYS = "A"

_STATES = {
    "D": "disabled, so nothing fires it",
    "O": "no longer ALWAYS: session_replication_role = replica switches it off",
    "R": "fired in sessions with session_replication_role = replica alone",
}


def check_version(facts: Facts) -> Iterator[Finding]:
    """Whether the schema is there, and of a version that this package knows."""
    ours, theirs = ddl.SCHEMA_VERSION, facts.version
    if facts.owner is None:
        yield Finding(
            "error", "schema-missing",
            "the database has no schema fencing, so nothing is guarded",
            "run `fencing install URL`, or op.install_fencing() in a migration",
        )  # fmt: skip
    elif not theirs:
        yield Finding(
            "error", "schema-foreign",
            "the database has a schema fencing, but nothing in it tells its version",
            "if it is another program's, it has to be renamed; if it is ours, install it again",
        )  # fmt: skip
    elif theirs < ours:
        yield Finding(
            "error", "schema-older",
            f"schema fencing is of version {theirs}, and this package is of version {ours}; its "
            "functions were not compared",
            UPGRADE,
        )  # fmt: skip
    elif theirs > ours:
        served = facts.oldest_client <= ours
        yield Finding(
            "warning" if served else "error", "schema-newer",
            f"schema fencing is of version {theirs}, and this package knows versions up to "
            f"{ours}: {'it is served' if served else 'it is not served any more'}, and its "
            "functions were not compared",
            "upgrade the package fencing",
        )  # fmt: skip


def is_current(facts: Facts) -> bool:
    """Whether the schema is of this package's version."""
    return facts.version == ddl.SCHEMA_VERSION


def check(facts: Facts, guards: AbstractSet[int]) -> Iterator[Finding]:
    """Everything but the version, for a schema of this package's version.

    Args:
        facts: The database.
        guards: The functions of tables' guards, which are compared elsewhere.
    """
    yield from _functions(facts, guards)
    yield from _tables(facts)
    yield from _constraints(facts)
    yield from _triggers(facts)
    # What is to be dropped needs no second finding.
    unknown = {function.oid for function in facts.functions if _is_unknown(function)}
    for grant in facts.grants:
        if grant.object not in unknown:
            yield from _grant(facts, grant)


def may_render(facts: Facts) -> bool:
    """Whether the functions that render guards are ours, and may be called."""
    found = {function.name: function for function in facts.functions}
    return all(
        name in found and found[name].callable and not _differences(found[name], wanted)
        for wanted in expected.functions().values()
        if (name := wanted.name) in expected.RENDERER
    ) and not any(_is_unknown(function) for function in facts.functions)


def state_of(enabled: str) -> tuple[str, str]:
    """Code and words for the state of a trigger that is not ALWAYS."""
    return "trigger-disabled" if enabled == "D" else "trigger-downgraded", _STATES[enabled]


def _functions(facts: Facts, guards: AbstractSet[int]) -> Iterator[Finding]:
    found = {function.signature: function for function in facts.functions}
    for signature, wanted in expected.functions().items():
        function = found.get(signature)
        if function is None:
            yield Finding(
                "error", "function-missing", f"{signature} is gone", REINSTALL, subject=signature
            )
        elif differences := _differences(function, wanted):
            yield Finding(
                "error", "function-changed",
                f"{signature} is not what this package installs: {', '.join(differences)}",
                REINSTALL, subject=signature,
            )  # fmt: skip
    for function in facts.functions:
        if _is_unknown(function) and function.oid not in guards:
            yield Finding(
                "error", "function-unknown",
                f"{function.signature} is none of this package's, and may be called in place of "
                "one that is",
                f"DROP FUNCTION {function.signature}", subject=function.signature,
            )  # fmt: skip
        elif _is_guard(function) and function.oid not in guards:
            yield Finding(
                "warning",
                "function-orphaned",
                f"{function.signature} guards no table: it was dropped, or its triggers were",
                f"fence the table again if it is still there; DROP FUNCTION {function.signature}",
                subject=function.signature,
            )
        if function.owner != facts.owner and not _is_unknown(function):
            yield Finding(
                "error", "function-owner",
                f"{function.signature} belongs to {function.owner}, who can change it, and not to "
                f"{facts.owner}, the owner of schema fencing",
                f"ALTER FUNCTION {function.signature} OWNER TO {facts.owner}",
                subject=function.signature,
            )  # fmt: skip


def _differences(function: Function, wanted: Function) -> list[str]:
    return [
        what
        for attribute, what in (
            ("body", "its body"),
            ("definer", "whose rights it runs with"),
            ("settings", "its settings"),
            ("language", "its language"),
            ("volatility", "its volatility"),
            ("strict", "what it does with NULL"),
        )
        if getattr(function, attribute) != getattr(wanted, attribute)
    ]


def _is_unknown(function: Function) -> bool:
    return not _is_guard(function) and function.signature not in expected.functions()


def _is_guard(function: Function) -> bool:
    return function.name.startswith("guard_") and function.result == "trigger"


def _tables(facts: Facts) -> Iterator[Finding]:
    found = {table.name: table for table in facts.tables}
    for name in [*expected.PERSISTENCE, *expected.VIEWS]:
        table, full = found.get(name), f"fencing.{name}"
        if table is None:
            yield Finding("error", "table-missing", f"{full} is gone", REINSTALL, table=full)
            continue
        for change, remedy in _changes(facts, table):
            yield Finding("error", "table-changed", f"{full} {change}", remedy, table=full)
    if facts.floors is not None and facts.floors < expected.FLOORS:
        yield Finding(
            "error", "floor-incomplete",
            f"fencing.floor has {facts.floors} rows of {expected.FLOORS}, so new resources cannot "
            "be admitted, and of pruned ones older tokens might be; was it restored without data?",
            "restore its rows; where no fence was ever pruned: INSERT INTO fencing.floor (bucket) "
            "SELECT generate_series(0, 1023) ON CONFLICT DO NOTHING",
            table="fencing.floor",
        )  # fmt: skip


def _changes(facts: Facts, table: OwnTable) -> Iterator[tuple[str, str]]:
    full = f"fencing.{table.name}"
    if table.owner != facts.owner:
        yield (
            f"belongs to {table.owner}, and not to {facts.owner}, the owner of schema fencing",
            f"ALTER TABLE {full} OWNER TO {facts.owner}",
        )
    if table.name in expected.VIEWS:
        if table.columns != expected.VIEWS[table.name]:
            yield "has other columns than this package's", REINSTALL
        return
    if table.persistence != expected.PERSISTENCE[table.name]:
        yield (
            ("is UNLOGGED: a crash empties it", f"ALTER TABLE {full} SET LOGGED")
            if table.persistence == "u"
            else ("keeps its rows over a crash, and must not", f"ALTER TABLE {full} SET UNLOGGED")
        )
    yield from _details(table)
    if table.row_security:
        yield (
            "has row security, which may hide rows from the guards",
            f"ALTER TABLE {full} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY",
        )
    if table.has_rules:
        yield "has rules, which rewrite what is written to it", "drop its rules"
    if table.has_children:
        yield (
            "has inheritance children, whose rows are taken for its own",
            f"ALTER TABLE (each child) NO INHERIT {full}",
        )


def _details(table: OwnTable) -> Iterator[tuple[str, str]]:
    full, defaults = f"fencing.{table.name}", expected.DEFAULTS[table.name]
    for column in sorted({*defaults} ^ {*table.defaults}):
        name, _, default = column.partition(" ")
        if column in defaults:
            yield (
                f"has another default than {default} for {name}",
                f"ALTER TABLE {full} ALTER {name} SET DEFAULT {default}",
            )
        elif all(not each.startswith(f"{name} ") for each in defaults):
            yield (
                f"has a default for {name}, {default}",
                f"ALTER TABLE {full} ALTER {name} DROP DEFAULT",
            )
    for index in expected.INDEXES.get(table.name, ()):
        if index not in table.indexes:
            yield "has lost an index, without which waiting is slow", index


def _constraints(facts: Facts) -> Iterator[Finding]:
    found = {(each.table_name, each.name): each for each in facts.constraints}
    for (table, name), definition in expected.CONSTRAINTS.items():
        if all(each.name != table for each in facts.tables):
            continue
        constraint, full = found.get((table, name)), f"fencing.{table}"
        if constraint is None:
            code, what = "constraint-missing", "is gone"
            remedy = f"ALTER TABLE {full} ADD CONSTRAINT {name} {definition}"
        elif not constraint.enforced:
            code, what = "constraint-not-enforced", "is NOT ENFORCED"
            remedy = f"ALTER TABLE {full} ALTER CONSTRAINT {name} ENFORCED"
        elif not constraint.validated:
            code, what = "constraint-not-validated", "is NOT VALID: older rows may violate it"
            remedy = f"ALTER TABLE {full} VALIDATE CONSTRAINT {name}"
        elif constraint.definition != definition:
            code, what = "constraint-changed", f"is {constraint.definition}"
            remedy = (
                f"ALTER TABLE {full} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {definition}"
            )
        else:
            continue
        yield Finding(
            "error", code, f"the constraint {name} of {full} {what}", remedy,
            table=full, subject=name,
        )  # fmt: skip


def _triggers(facts: Facts) -> Iterator[Finding]:
    ours = {r.oid: r.table_name for r in facts.relations if r.schema == "fencing"}
    found = {(ours[t.relation], t.name): t for t in facts.triggers if t.relation in ours}
    for (table, name), (definition, function) in expected.TRIGGERS.items():
        full, trigger = f"fencing.{table}", found.get((table, name))
        if trigger is None:
            if any(each.name == table for each in facts.tables):
                yield Finding(
                    "error", "trigger-missing", f"the trigger {name} of {full} is gone",
                    REINSTALL, table=full, subject=name,
                )  # fmt: skip
        elif not _is_as_installed(trigger, definition, function):
            yield Finding(
                "error", "trigger-changed",
                f"the trigger {name} of {full} is not what this package installs",
                REINSTALL, table=full, subject=name,
            )  # fmt: skip
        elif trigger.enabled != ALWAYS:
            code, what = state_of(trigger.enabled)
            yield Finding(
                "error", code, f"the trigger {name} of {full} is {what}",
                f"ALTER TABLE {full} ENABLE ALWAYS TRIGGER {name}", table=full, subject=name,
            )  # fmt: skip
    for table, name in found.keys() - expected.TRIGGERS.keys():
        yield Finding(
            "error", "trigger-unknown",
            f"the trigger {name} of fencing.{table} is none of this package's, and may change what "
            "is written there",
            f"DROP TRIGGER {name} ON fencing.{table}", table=f"fencing.{table}", subject=name,
        )  # fmt: skip


def _is_as_installed(trigger: Trigger, definition: str, function: str) -> bool:
    kind = "CONSTRAINT TRIGGER" if "DEFERRABLE" in definition else "TRIGGER"
    return trigger.definition == (
        f"CREATE {kind} {trigger.name} {definition} EXECUTE FUNCTION fencing.{function}()"
    )


def _grant(facts: Facts, grant: Grant) -> Iterator[Finding]:
    if grant.kind == "table" and grant.name not in {table.name for table in facts.tables}:
        return
    what = grant.name if grant.kind == "schema" else f"fencing.{grant.name}"
    if (
        (grant.privilege, grant.name) in expected.granted_to_public()
        or (grant.privilege == "SELECT" and grant.name == "fences")
    ):  # fmt: skip
        return
    column = f" ({grant.column_name})" if grant.column_name else ""
    severity, why = _harm(facts, grant)
    yield Finding(
        severity, "privilege",
        f"{grant.grantee} has {grant.privilege}{column} on {grant.kind} {what}{why}",
        f"REVOKE {grant.privilege}{column} ON {grant.kind.upper()} {what} FROM {grant.grantee}",
        table=what if grant.kind == "table" else None, subject=grant.grantee,
    )  # fmt: skip


def _harm(facts: Facts, grant: Grant) -> tuple[Severity, str]:
    """How bad it is that somebody has a right, and why."""
    if grant.kind == "schema":
        return "error", ", and can put a function there that is called in place of ours"
    if grant.kind == "function":
        name = grant.name.partition("(")[0]
        if any(each.name == name and each.definer for each in facts.functions):
            return "error", ", which runs with the rights of the owner"
        return "warning", ", which is for the owner"
    if grant.privilege != "SELECT":
        return "error", ", and can write what the guards rely on"
    if grant.name == "fence" and grant.column_name in (None, "holder", "previous_holder"):
        return "error", ", and can read the holders, each of which is good for writing"
    return "warning", ", which is for the owner"
