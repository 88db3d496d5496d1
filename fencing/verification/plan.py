"""The verification of one database: which queries, in which order, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.schema.template import quote_literal
from fencing.verification import declarations, guards, roles, schema, settings
from fencing.verification.expected import FLOORS
from fencing.verification.facts import gather
from fencing.verification.findings import Verification, by_gravity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from fencing.verification.declared import Declared
    from fencing.verification.facts import Facts, Queries
    from fencing.verification.guards import Guard

__all__ = ["perform", "perform_async", "verification"]

T = TypeVar("T")
Q = TypeVar("Q")


def verification(declared: Sequence[Declared] | None = None) -> Queries[Verification]:
    """Verify the database that the queries are sent to.

    Args:
        declared: The tables that should be guarded; ``None``: nobody knows.

    Raises:
        FencingUsageError: The queries are not sent in one transaction.
    """
    facts = yield from gather()
    found = guards.guards_of(facts)
    findings = [*schema.check_version(facts)]
    if facts.owner is not None:
        current = schema.is_current(facts)
        if current:
            facts = replace(facts, floors=(yield from _floors(facts)))
            findings += schema.check(facts, {guard.function for guard in found})
        bodies = (yield from _bodies(facts, found)) if current else {}
        findings += guards.check(facts, found, bodies)
    findings += declarations.check(facts, found, declared)
    findings += roles.check(facts, found)
    findings += settings.check(facts, found)
    return Verification(
        database=facts.database,
        schema_version=facts.version,
        tables=tuple(declarations.tables(facts, found, declared)),
        findings=by_gravity(findings),
    )


def perform(queries: Generator[Q, Iterable[Any], T], fetch: Callable[[Q], Iterable[Any]]) -> T:
    """Carry a verification out.

    Args:
        queries: What :func:`verification` returns.
        fetch: Sends a query without parameters, all in one transaction, and returns the first
            column of its rows.
    """
    try:
        query = next(queries)
        while True:
            query = queries.send(list(fetch(query)))
    except StopIteration as done:
        result: T = done.value
        return result


async def perform_async(
    queries: Generator[Q, Iterable[Any], T], fetch: Callable[[Q], Awaitable[Iterable[Any]]]
) -> T:
    """:func:`perform` for asyncio."""
    try:
        query = next(queries)
        while True:
            query = queries.send(list(await fetch(query)))
    except StopIteration as done:
        result: T = done.value
        return result


def _floors(facts: Facts) -> Queries[int]:
    if not any(table.name == "floor" and table.readable for table in facts.tables):
        return FLOORS  # nobody but the owner may count them
    (count,) = yield "SELECT count(*) FROM fencing.floor"
    return int(count)


def _bodies(facts: Facts, found: Sequence[Guard]) -> Queries[dict[int, str] | None]:
    """What the function of each guard should be; ``None`` where it cannot be told.

    The renderer runs only where it has been found to be ours: whoever looks may be a superuser.
    """
    if not schema.may_render(facts):
        return None
    bodies = {}
    for guard in found:
        if guard.resource is not None:
            arguments = [
                quote_literal(guard.resource),
                quote_literal(guard.mode),
                "true" if guard.by_row else "false",
            ]
            (bodies[guard.function],) = yield f"SELECT fencing.render_body({', '.join(arguments)})"
    return bodies
