"""Finds the guards of a database by their triggers, and checks each.

Its triggers, its function, and whether it covers every part of its table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.schema.ddl import OPERATIONS
from fencing.schema.names import MOVE, PIN, TRIGGERS
from fencing.schema.template import Template, quote_identifier
from fencing.verification.findings import Finding
from fencing.verification.schema import ALWAYS, is_current, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from fencing.verification.facts import Facts, Function, Relation, Trigger

__all__ = ["Guard", "check", "guards_of"]

REFRESH = "SELECT fencing.refresh_guards()"

# Bits of pg_trigger.tgtype.
_ROW, _BEFORE, _TRUNCATE = 1, 2, 32
_EVENTS = {"insert": 4, "delete": 8, "update": 16}


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard, as the triggers tell it that call its function.

    Attributes:
        function: The oid of its function.
        root: The table that it was made for.
        resource: The resource template; ``None`` where no comment tells it.
        operations: What it guards.
        mode: ``"enforce"`` or ``"observe"``.
        version: The version of the schema that has rendered it.
        triggers: All its triggers, by table and name.
    """

    function: int
    root: Relation
    resource: str | None
    operations: tuple[str, ...]
    mode: str
    version: int
    triggers: Mapping[tuple[int, str], Trigger]

    @property
    def by_row(self) -> bool:
        """Whether row triggers guard it, which PostgreSQL clones to every partition."""
        return self.root.kind == "p"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A trigger that a guard needs."""

    relation: int
    name: str
    type: int
    new_table: str = ""
    old_table: str = ""
    is_clone: bool = False


def guards_of(facts: Facts) -> list[Guard]:
    """Every guard, by the name of its table."""
    by_function: dict[int, list[Trigger]] = {}
    for trigger in facts.triggers:
        relation = facts.by_oid.get(trigger.relation)
        if trigger.calls_ours and relation is not None and relation.schema != "fencing":
            by_function.setdefault(trigger.function, []).append(trigger)
    guards = [_guard(facts, function, triggers) for function, triggers in by_function.items()]
    return sorted(guards, key=lambda guard: guard.root.name)


def check(
    facts: Facts, guards: Sequence[Guard], bodies: Mapping[int, str] | None
) -> Iterator[Finding]:
    """Check every guard.

    Args:
        facts: The database.
        guards: Its guards.
        bodies: What their functions should be; ``None`` where that cannot be told.
    """
    functions = {function.oid: function for function in facts.functions}
    for guard in guards:
        if guard.resource is None:
            yield Finding(
                "error", "guard-unreadable",
                "no comment of its triggers tells what its guard was made from, so it can be "
                "neither compared nor altered",
                f"op.unfence_table and op.fence_table, in one migration: {guard.root.name}",
                table=guard.root.name,
            )  # fmt: skip
            continue
        if not is_current(facts):
            yield from _states(facts, guard, {(guard.root.oid, name) for name in _names(guard)})
            continue
        yield from _coverage(facts, guard)
        yield from _columns(guard, guard.resource)
        if bodies is not None:
            yield from _function(guard, functions[guard.function], bodies)
        if guard.mode == "observe":
            yield Finding(
                "warning", "guard-observes",
                "its guard only observes: writes without a lease pass, and are reported",
                f'op.alter_fence({guard.root.as_arguments}, mode="enforce"), when no writer is '
                "reported any more",
                table=guard.root.name,
            )  # fmt: skip
    if guards and bodies is None and is_current(facts):
        yield Finding(
            "info", "guards-not-compared",
            f"the functions of the guards were not compared, since {facts.who} may not call "
            "fencing.render_body and fencing.parse_template, or they are not ours",
            "verify as the owner of schema fencing, or grant EXECUTE on both",
        )  # fmt: skip


def _guard(facts: Facts, function: int, triggers: list[Trigger]) -> Guard:
    told = [(t, comment) for t in triggers if (comment := _read(t.comment)) is not None]
    by_oid = facts.by_oid
    if told:
        root, comment = by_oid[told[0][0].relation], told[0][1]
    else:
        # The one that is no part of another.
        parts = {part for t in triggers for part in facts.descendants(t.relation)}
        oids = [t.relation for t in triggers]
        root, comment = by_oid[next((o for o in oids if o not in parts), oids[0])], {}
    operations = comment.get("operations", ())
    return Guard(
        function=function,
        root=root,
        resource=comment.get("resource"),
        operations=tuple(each for each in OPERATIONS if each in operations),
        mode=str(comment.get("mode", "enforce")),
        version=comment.get("version", 0),
        triggers={(t.relation, t.name): t for t in triggers},
    )


def _read(comment: str | None) -> dict[str, Any] | None:
    try:
        facts = json.loads(comment or "")
        Template.parse(facts["resource"])
    except (ValueError, TypeError, KeyError):
        return None
    return facts if isinstance(facts.get("operations"), list) else None


def _wanted(guard: Guard, family: Sequence[int]) -> Iterator[Wanted]:
    """What ``fencing.wanted_triggers`` makes, and the clones that PostgreSQL makes of it."""
    root, by_row = guard.root.oid, guard.by_row
    for relation in family:
        is_clone = by_row and relation != root
        if "delete" in guard.operations:
            yield Wanted(relation, TRIGGERS["truncate"], _BEFORE | _TRUNCATE)
        for operation in guard.operations:
            yield Wanted(
                relation,
                TRIGGERS[operation],
                _EVENTS[operation] | (_ROW if by_row else 0),
                "new_rows" if not by_row and operation != "delete" else "",
                "old_rows" if not by_row and operation != "insert" else "",
                is_clone,
            )
        pinned = "" if by_row or relation != root else "new_rows"
        yield Wanted(relation, PIN, _EVENTS["insert"] | _ROW, pinned, "", is_clone)
        if by_row and "update" in guard.operations and len(guard.operations) < len(OPERATIONS):
            yield Wanted(relation, MOVE, _EVENTS["update"] | _ROW | _BEFORE, is_clone=is_clone)


def _names(guard: Guard) -> Iterator[str]:
    """The triggers of any version that refuse."""
    for operation in guard.operations:
        yield TRIGGERS[operation]
    if "delete" in guard.operations:
        yield TRIGGERS["truncate"]


def _coverage(facts: Facts, guard: Guard) -> Iterator[Finding]:
    root, by_oid = guard.root, facts.by_oid
    family = (root.oid, *facts.descendants(root.oid))
    wanted: dict[int, dict[str, Wanted]] = {}
    for each in _wanted(guard, family):
        wanted.setdefault(each.relation, {})[each.name] = each
    for part in (by_oid[oid] for oid in family if oid in by_oid):
        missing = [
            each.name
            for each in wanted[part.oid].values()
            if (part.oid, each.name) not in guard.triggers and _can_have(facts, guard, part, each)
        ]
        if part == root:
            yield from _missing(guard, missing)
        else:
            yield from _part(guard, part, missing)
        names = {(part.oid, name) for name in wanted[part.oid]}
        yield from _states(facts, guard, names, wanted[part.oid])
    yield from _families(facts, guard, set(family))
    for relation in {relation for relation, _ in guard.triggers} - set(family):
        yield Finding(
            "warning", "part-detached",
            f"has triggers of the guard of {root.name}, and is no part of it any more",
            f"op.unfence_table({by_oid[relation].as_arguments}), or op.fence_table where it "
            "should be guarded by itself",
            table=by_oid[relation].name,
        )  # fmt: skip


def _can_have(facts: Facts, guard: Guard, part: Relation, wanted: Wanted) -> bool:
    """Whether it is this part's own fault that it lacks a trigger."""
    if wanted.is_clone and (guard.root.oid, wanted.name) not in guard.triggers:
        return False  # a clone goes with what it is a clone of, and comes back with it
    return not (part.kind == "f" and wanted.type & _TRUNCATE and facts.server < _FOREIGN_TRUNCATE)


def _part(guard: Guard, part: Relation, missing: Sequence[str]) -> Iterator[Finding]:
    if part.kind == "f":
        yield Finding(
            "error", "part-foreign",
            f"is a part of {guard.root.name} and a foreign table: who writes its rows where they "
            "are is not refused",
            f"detach it from {guard.root.name}, or make it a table of this database",
            table=part.name,
        )  # fmt: skip
    if missing:
        yield Finding(
            "error", "part-uncovered",
            f"is a part of {guard.root.name} that its guard does not cover: it lacks "
            f"{', '.join(sorted(missing))}",
            REFRESH, table=part.name,
        )  # fmt: skip


# From this version on, foreign tables can have triggers for TRUNCATE.
_FOREIGN_TRUNCATE = 160000


def _missing(guard: Guard, missing: Sequence[str]) -> Iterator[Finding]:
    for name in missing:
        if name == PIN:
            yield Finding(
                "warning", "pin-missing",
                f"the trigger {PIN} is gone, so a change of the table can undo its guard unseen",
                REFRESH, table=guard.root.name, subject=name,
            )  # fmt: skip
        else:
            yield Finding(
                "error", "trigger-missing", f"the trigger {name} of its guard is gone", REFRESH,
                table=guard.root.name, subject=name,
            )  # fmt: skip


def _states(
    facts: Facts,
    guard: Guard,
    names: AbstractSet[tuple[int, str]],
    wanted: Mapping[str, Wanted] | None = None,
) -> Iterator[Finding]:
    for relation, name in sorted(names):
        trigger = guard.triggers.get((relation, name))
        if trigger is None or relation not in facts.by_oid:
            continue
        table = facts.by_oid[relation].name
        if wanted is not None and _differs(trigger, wanted[name]):
            yield Finding(
                "error", "trigger-changed",
                f"the trigger {name} is not what a guard has: {trigger.definition}",
                f"DROP TRIGGER {quote_identifier(name)} ON {table}; {REFRESH}; in one transaction",
                table=table, subject=name,
            )  # fmt: skip
        elif trigger.enabled != ALWAYS and name != PIN:
            code, what = state_of(trigger.enabled)
            yield Finding(
                "error", code, f"the trigger {name} is {what}",
                f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {quote_identifier(name)}",
                table=table, subject=name,
            )  # fmt: skip


def _differs(trigger: Trigger, wanted: Wanted) -> bool:
    return (
        trigger.type != wanted.type
        or trigger.new_table != wanted.new_table
        or trigger.old_table != wanted.old_table
        or trigger.is_clone != wanted.is_clone
        # Only what never fires has a condition.
        or (trigger.is_narrowed and trigger.name != PIN)
    )


def _families(facts: Facts, guard: Guard, family: AbstractSet[int]) -> Iterator[Finding]:
    """Parents outside: what is written through them fires no trigger of a statement."""
    for child, parent in facts.inherits:
        if child in family and parent not in family and parent in facts.by_oid:
            yield Finding(
                "error", "parent-uncovered",
                f"is a part of {facts.by_oid[parent].name} as well, and writes to that pass the "
                f"guard of {guard.root.name} by",
                f"ALTER TABLE {facts.by_oid[child].name} NO INHERIT {facts.by_oid[parent].name}, "
                "or fence the parent instead",
                table=facts.by_oid[child].name, subject=facts.by_oid[parent].name,
            )  # fmt: skip


def _columns(guard: Guard, resource: str) -> Iterator[Finding]:
    """The pin depends on the template's columns themselves, the function goes by their names."""
    pin = guard.triggers.get((guard.root.oid, PIN))
    named = tuple(sorted(Template.parse(resource).columns))
    if pin is None or pin.columns == named:
        return
    yield Finding(
        "error", "template-renamed",
        f"its template names the columns {', '.join(named)}, and what was guarded is called "
        f"{', '.join(pin.columns)} now: writes fail, or are checked by other columns",
        f"op.alter_fence({guard.root.as_arguments}, resource=...) with the new names",
        table=guard.root.name, subject=resource,
    )  # fmt: skip


def _function(guard: Guard, function: Function, bodies: Mapping[int, str]) -> Iterator[Finding]:
    differences = [
        what
        for is_wrong, what in (
            (function.body != bodies[guard.function], "its body"),
            (not function.definer, "whose rights it runs with"),
            (function.settings != ("search_path=pg_catalog, pg_temp",), "its settings"),
            (function.language != "plpgsql", "its language"),
        )
        if is_wrong
    ]
    if differences:
        yield Finding(
            "error", "function-changed",
            f"{function.signature}, the function of its guard, is not what this package renders: "
            f"{', '.join(differences)}",
            f"find out who has changed it and why; then {REFRESH}",
            table=guard.root.name, subject=function.signature,
        )  # fmt: skip
