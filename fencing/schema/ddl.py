"""The DDL: schema ``fencing``, and the guard of one table.

Statements come as a list, because some drivers take one at a time. They can be executed or
written to a file as they are: nothing in them is a parameter. Run a list in one transaction.

What guards a table is rendered by functions in the schema (``sql/rendering.sql``), not here: the
same call makes the guard that fits the schema which is installed, from a migration that is years
old as from the newest.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from fencing.schema.names import STILL_FENCED
from fencing.schema.template import Template, quote_identifier, quote_literal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MODES",
    "OPERATIONS",
    "SCHEMA_VERSION",
    "alter_fence",
    "check_lock_timeout",
    "check_mode",
    "check_operations",
    "drop_unused",
    "fence_table",
    "install",
    "maintain",
    "script",
    "unfence_table",
    "uninstall",
    "upgrade",
]

SCHEMA_VERSION = 2
"""The version of schema ``fencing`` that this package installs, and the newest that it knows."""

OPERATIONS = ("insert", "update", "delete")
"""What a guard can refuse; TRUNCATE goes with "delete"."""

MODES = ("enforce", "observe")
"""What a guard does with a write that is not covered: refuse it, or report it and let it pass."""

# In this order; each says in its header what it is for.
_FILES = (
    "prepare.sql",
    "versions.sql",
    "fence.sql",
    "transaction.sql",
    "refusals.sql",
    "admit.sql",
    "lease.sql",
    "outcomes.sql",
    "enter.sql",
    "require.sql",
    "maintenance.sql",
    "templates.sql",
    "rendering.sql",
    "guards.sql",
    "retention.sql",
    "access.sql",
    "finish.sql",
)


def install() -> list[str]:
    """Statements that create schema ``fencing``."""
    return _script("CREATE SCHEMA fencing")


def upgrade() -> list[str]:
    """Statements that bring schema ``fencing`` to this version, from any older one.

    Running them on a schema of this version changes nothing. Every guard is brought forward with
    it; writes are checked by the old guard until the transaction commits, and by the new one from
    then on.
    """
    return _script()


def uninstall() -> list[str]:
    """Statements that drop schema ``fencing``; they fail while a table is still guarded."""
    return [
        _do(f"""
DECLARE
    v_tables text;
BEGIN
    SELECT pg_catalog.string_agg(DISTINCT CAST(CAST(t.tgrelid AS regclass) AS text), ', ')
        INTO v_tables
        FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND c.relnamespace <> CAST('fencing' AS regnamespace);
    IF v_tables IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = '{STILL_FENCED}',
            MESSAGE = pg_catalog.concat('schema fencing still guards ', v_tables),
            HINT = 'Unfence every table first (op.unfence_table).';
    END IF;
    IF pg_catalog.to_regclass('fencing.maintenance') IS NOT NULL THEN
        SET CONSTRAINTS fencing.maintenance_ends IMMEDIATE; -- of one in this transaction
    END IF;
END
"""),
        "DROP SCHEMA fencing CASCADE",
    ]


def fence_table(
    table: str,
    resource: str,
    *,
    schema: str | None = None,
    operations: Iterable[str] = OPERATIONS,
    mode: str = "enforce",
    lock_timeout: float = 5.0,
) -> list[str]:
    """Statements that guard a table, and with it its partitions and inheritance children.

    Args:
        table: Name of the table, unquoted.
        resource: Its resource template, such as ``"account:{id}"``.
        schema: Schema of the table, unquoted; default: found by the search_path.
        operations: What to guard, of ``"insert"``, ``"update"`` and ``"delete"``.
        mode: ``"enforce"``, or ``"observe"``: report what would be refused and let it pass.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template, the operations, the mode or the time-out make no sense.
    """
    template = Template.parse(resource)
    arguments = [
        _regclass(table, schema),
        quote_literal(template.source),
        _array(check_operations(operations)),
        quote_literal(check_mode(mode)),
        _milliseconds(lock_timeout),
    ]
    return [f"SELECT fencing.fence_table({', '.join(arguments)})"]


def alter_fence(
    table: str,
    *,
    schema: str | None = None,
    resource: str | None = None,
    operations: Iterable[str] | None = None,
    mode: str | None = None,
    lock_timeout: float = 5.0,
) -> list[str]:
    """Statements that change the guard of a table, which is guarded all the while.

    Args:
        table: Name of the table, unquoted.
        schema: Schema of the table, unquoted; default: found by the search_path.
        resource: Its new resource template; ``None`` keeps it.
        operations: What to guard from now on; ``None`` keeps it.
        mode: ``"enforce"`` or ``"observe"``; ``None`` keeps it.
        lock_timeout: Longest wait for transactions that use the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: One makes no sense, or nothing is to be changed.
    """
    if resource is None and operations is None and mode is None:
        raise ValueError("alter_fence changes a resource, operations or a mode: pass one of them")
    arguments = [
        _regclass(table, schema),
        "NULL" if resource is None else quote_literal(Template.parse(resource).source),
        "NULL" if operations is None else _array(check_operations(operations)),
        "NULL" if mode is None else quote_literal(check_mode(mode)),
        _milliseconds(lock_timeout),
    ]
    return [f"SELECT fencing.alter_fence({', '.join(arguments)})"]


def unfence_table(table: str, *, schema: str | None = None, lock_timeout: float = 5.0) -> list[str]:
    """Statements that remove the guard of a table, whatever the table was called when it came.

    Args:
        table: Name of the table, unquoted.
        schema: Schema of the table, unquoted; default: found by the search_path.
        lock_timeout: Longest wait for transactions that use the table, in seconds.
    """
    target = _regclass(table, schema)
    return [f"SELECT fencing.unfence_table({target}, {_milliseconds(lock_timeout)})"]


def drop_unused() -> list[str]:
    """Statements that drop what guards of tables have left behind that were dropped."""
    return ["SELECT fencing.drop_unused()"]


def maintain(table: str, *, schema: str | None = None, lock_timeout: float = 5.0) -> list[str]:
    """Statements that let this transaction write a guarded table without leases, alone.

    They lock the table against other writers until the transaction ends. Every fence whose rows
    are written is raised, so that no lease held meanwhile is still good.

    Args:
        table: Name of the table, unquoted.
        schema: Schema of the table, unquoted; default: found by the search_path.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.
    """
    target = _regclass(table, schema)
    return [f"SELECT fencing.maintain({target}, {_milliseconds(lock_timeout)})"]


def script(statements: Iterable[str]) -> str:
    """Statements as one script for ``psql``."""
    return "".join(f"{statement};\n\n" for statement in statements)


def check_operations(operations: Iterable[str]) -> tuple[str, ...]:
    """``operations`` in their canonical order.

    Raises:
        TypeError: It is a single string.
        ValueError: It is empty or names something that cannot be guarded.
    """
    if isinstance(operations, str):
        raise TypeError(f"operations must be several strings, such as ({operations!r},)")
    wanted = tuple(operations)
    unknown = [operation for operation in wanted if operation not in OPERATIONS]
    if unknown or not wanted:
        raise ValueError(
            f"operations must be some of {', '.join(OPERATIONS)}, not {list(wanted)!r}"
        )
    return tuple(operation for operation in OPERATIONS if operation in wanted)


def check_mode(mode: str) -> str:
    """``mode``, or ``ValueError``."""
    if mode not in MODES:
        raise ValueError(f"the mode of a guard is {' or '.join(map(repr, MODES))}, not {mode!r}")
    return mode


def check_lock_timeout(seconds: float, name: str = "lock_timeout") -> float:
    """A time-out in seconds.

    Args:
        seconds: How long PostgreSQL is to wait for a lock.
        name: What the argument is called where it was given.

    Raises:
        TypeError: It is no number.
        ValueError: It is not positive, or longer than PostgreSQL's longest.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not _MIN_LOCK_TIMEOUT <= seconds <= _MAX_LOCK_TIMEOUT:
        raise ValueError(
            f"{name} is {_MIN_LOCK_TIMEOUT} to {_MAX_LOCK_TIMEOUT} seconds, not {seconds}"
        )
    return seconds


_MIN_LOCK_TIMEOUT, _MAX_LOCK_TIMEOUT = 0.001, 2_000_000


def _script(*create: str) -> list[str]:
    folder = resources.files("fencing.schema").joinpath("sql")
    prepare, *others = (
        [part.strip() for part in folder.joinpath(name).read_text("utf-8").split("\n--;\n")]
        for name in _FILES
    )
    return [part for parts in (prepare, create, *others) for part in parts if part]


def _milliseconds(seconds: float) -> str:
    return str(round(check_lock_timeout(seconds) * 1000))


def _array(strings: Iterable[str]) -> str:
    return f"CAST(ARRAY[{', '.join(quote_literal(each) for each in strings)}] AS text[])"


def _regclass(table: str, schema: str | None) -> str:
    for kind, name in (("table", table), ("schema", schema)):
        if name is None and kind == "schema":
            continue
        if not isinstance(name, str):
            raise TypeError(f"a {kind} must be a str, not {type(name).__name__}")
        if not name or "\0" in name:
            raise ValueError(f"a {kind} must be a name, not {name!r}")
        name.encode()  # a lone surrogate is a ValueError
    if "." in table and schema is None:
        raise ValueError(
            f"{table!r} has a dot in it: pass schema={table.partition('.')[0]!r} and the table "
            f"{table.partition('.')[2]!r}; a table whose own name has a dot needs its schema too"
        )
    quoted = quote_identifier(table)
    qualified = quoted if schema is None else f"{quote_identifier(schema)}.{quoted}"
    return f"CAST({quote_literal(qualified)} AS regclass)"


def _do(block: str) -> str:
    return f"DO $fencing${block}$fencing$"
