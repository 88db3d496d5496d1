"""Renders the DDL: schema ``fencing``, and the guard of one table.

Statements come as a list, because some drivers take one at a time. They can be executed or
written to a file as they are: nothing in them is a parameter.

A DO block runs under the caller's search_path, since that is where an unqualified table is found;
so it names the schema of every function it calls, or one in "public" that fits better would run
with the rights of whoever migrates.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import TYPE_CHECKING

from fencing.schema.names import ALREADY_FENCED, NOT_FENCED, PIN, STILL_FENCED, TRIGGERS
from fencing.schema.template import Template, quote_identifier, quote_literal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "GUARD_VERSION",
    "OPERATIONS",
    "check_operations",
    "fence_table",
    "install",
    "script",
    "unfence_table",
    "uninstall",
]

GUARD_VERSION = 1
"""Version of the guard that :func:`fence_table` renders; kept with each guard in the database."""

OPERATIONS = ("insert", "update", "delete")
"""What a guard can refuse; TRUNCATE goes with "delete"."""

_MAX_IDENTIFIER_BYTES = 63

# In this order; each says in its header what it is for.
_FILES = (
    "fence.sql",
    "transaction.sql",
    "refusals.sql",
    "admit.sql",
    "enter.sql",
    "require.sql",
    "guards.sql",
    "access.sql",
)


def install() -> list[str]:
    """Statements that create schema ``fencing``."""
    folder = resources.files("fencing.schema").joinpath("sql")
    source = "".join(folder.joinpath(name).read_text("utf-8") for name in _FILES)
    return [stripped for part in source.split("\n--;\n") if (stripped := part.strip())]


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
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND t.tgrelid <> CAST('fencing.fence' AS regclass);
    IF v_tables IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = '{STILL_FENCED}',
            MESSAGE = 'schema fencing still guards ' || v_tables,
            HINT = 'Unfence every table first (op.unfence_table).';
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
) -> list[str]:
    """Statements that guard a table.

    Args:
        table: Name of the table, unquoted.
        resource: Its resource template, such as ``"account:{id}"``.
        schema: Schema of the table, unquoted; default: found by the search_path.
        operations: What to guard, of ``"insert"``, ``"update"`` and ``"delete"``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template or the operations make no sense.
    """
    template = Template.parse(resource)
    operations = check_operations(operations)
    target = _qualified(table, schema)
    function = f"fencing.{quote_identifier(_function_name(table, schema))}"
    columns = ", ".join(quote_literal(column) for column in template.columns)
    comment = json.dumps(
        {"version": GUARD_VERSION, "resource": resource, "operations": list(operations)},
        ensure_ascii=False,
    )
    statements = [
        (
            f"SELECT fencing.check_template(CAST({quote_literal(target)} AS regclass), "
            f"CAST(ARRAY[{columns}] AS text[]))"
        ),
        _make_way(table, schema, target),
        _guard_function(function, template),
        f"REVOKE ALL ON FUNCTION {function}() FROM PUBLIC",
    ]
    guarded = [*operations, "truncate"] if "delete" in operations else list(operations)
    for operation in guarded:
        trigger = quote_identifier(TRIGGERS[operation])
        statements += [
            _create_trigger(trigger, operation, target, function),
            # ALWAYS: session_replication_role must not switch it off.
            f"ALTER TABLE {target} ENABLE ALWAYS TRIGGER {trigger}",
            f"COMMENT ON TRIGGER {trigger} ON {target} IS {quote_literal(comment)}",
        ]
    return [*statements, *_pin(target, function, template)]


def unfence_table(table: str, *, schema: str | None = None) -> list[str]:
    """Statements that remove the guard of a table, whatever the table was called when it came.

    Args:
        table: Name of the table, unquoted.
        schema: Schema of the table, unquoted; default: found by the search_path.
    """
    target = quote_literal(_qualified(table, schema))
    names = ", ".join(quote_literal(name) for name in [*TRIGGERS.values(), PIN])
    return [
        _do(f"""
DECLARE
    v_table    regclass := CAST({target} AS regclass);
    v_trigger  record;
    v_function regprocedure;
    v_found    regprocedure[] := '{{}}';
BEGIN
    FOR v_trigger IN
        SELECT t.tgname, CAST(t.tgfoid AS regprocedure) AS function
        FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = v_table AND t.tgname IN ({names})
            AND p.pronamespace = CAST('fencing' AS regnamespace)
    LOOP
        EXECUTE pg_catalog.concat(
            'DROP TRIGGER ', pg_catalog.quote_ident(v_trigger.tgname), ' ON ', v_table);
        v_found := pg_catalog.array_append(v_found, v_trigger.function);
    END LOOP;
    IF pg_catalog.cardinality(v_found) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = '{NOT_FENCED}',
            MESSAGE = pg_catalog.concat(v_table, ' is not fenced');
    END IF;
    FOR v_function IN SELECT DISTINCT pg_catalog.unnest(v_found) LOOP
        EXECUTE pg_catalog.concat('DROP FUNCTION ', v_function);
    END LOOP;
END
""")
    ]


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


def _qualified(table: str, schema: str | None) -> str:
    for kind, name in (("table", table), ("schema", schema)):
        if name is None and kind == "schema":
            continue
        if not isinstance(name, str):
            raise TypeError(f"a {kind} must be a str, not {type(name).__name__}")
        if not name or "\0" in name:
            raise ValueError(f"a {kind} must be a name, not {name!r}")
    if "." in table and schema is None:
        raise ValueError(
            f"{table!r} has a dot in it: pass schema={table.partition('.')[0]!r} and the table "
            f"{table.partition('.')[2]!r}; a table whose own name has a dot needs its schema too"
        )
    quoted = quote_identifier(table)
    return quoted if schema is None else f"{quote_identifier(schema)}.{quoted}"


def _function_name(table: str, schema: str | None) -> str:
    digest = hashlib.sha256(_qualified(table, schema).encode()).hexdigest()[:8]
    room = _MAX_IDENTIFIER_BYTES - len("guard__") - len(digest)
    return f"guard_{table.encode()[:room].decode(errors='ignore')}_{digest}"


def _make_way(table: str, schema: str | None, target: str) -> str:
    """Whatever is in the way of a new guard: one of this table, of a renamed one, of a dropped one.

    A guard moves with its table when that is renamed, so its function is renamed and lives on.
    The function of a table that was dropped guards nothing.
    """
    name = quote_literal(_function_name(table, schema))
    names = ", ".join(quote_literal(trigger) for trigger in TRIGGERS.values())
    return _do(f"""
DECLARE
    v_table    regclass := CAST({quote_literal(target)} AS regclass);
    v_function oid;
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = v_table AND t.tgname IN ({names})
            AND p.pronamespace = CAST('fencing' AS regnamespace))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = '{ALREADY_FENCED}',
            MESSAGE = pg_catalog.concat(v_table, ' is fenced already'),
            HINT = 'Unfence it first (op.unfence_table); both can be done in one transaction.';
    END IF;
    SELECT p.oid INTO v_function FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND p.proname = {name} AND p.pronargs = 0;
    IF EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = v_function) THEN
        EXECUTE pg_catalog.concat(
            'ALTER FUNCTION ', CAST(v_function AS regprocedure),
            ' RENAME TO ', pg_catalog.concat('guard_', v_function));
    ELSIF v_function IS NOT NULL THEN
        EXECUTE pg_catalog.concat('DROP FUNCTION ', CAST(v_function AS regprocedure));
    END IF;
END
""")


def _guard_function(function: str, template: Template) -> str:
    if template.columns:
        truncate = """RAISE EXCEPTION USING
            ERRCODE = 'ZF002',
            MESSAGE = concat('unfenced write: TRUNCATE of ', v_table, ' removes rows of every '
                             'resource, and no lease covers them all'),
            DETAIL = jsonb_build_object('table', v_table, 'resource', NULL),
            HINT = 'DELETE the rows of the resources that are held.';"""
    else:
        truncate = f"v_resources := ARRAY[{template.sql('r')}];"
    body = f"""
DECLARE
    v_table     text := concat(TG_TABLE_SCHEMA, '.', TG_TABLE_NAME);
    v_resources text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(DISTINCT {template.sql("r")}) INTO v_resources FROM new_rows AS r;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(DISTINCT {template.sql("r")}) INTO v_resources FROM old_rows AS r;
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT array_agg(u.resource) INTO v_resources FROM (
            SELECT {template.sql("r")} AS resource FROM new_rows AS r
            UNION
            SELECT {template.sql("r")} FROM old_rows AS r) AS u;
    ELSE
        {truncate}
    END IF;
    IF v_resources IS NOT NULL THEN
        PERFORM fencing.require(v_table, v_resources);
    END IF;
    RETURN NULL;
END
"""
    return (
        f"CREATE FUNCTION {function}() RETURNS trigger\n"
        "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp\n"
        f"AS {_dollar_quoted(body)}"
    )


def _do(block: str) -> str:
    return f"DO {_dollar_quoted(block)}"


def _dollar_quoted(body: str) -> str:
    """``body`` between dollar tags that it does not contain: a name in it may look like one."""
    tag = "$fencing$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{body}{tag}"


def _pin(target: str, function: str, template: Template) -> list[str]:
    """A trigger that never fires, for what PostgreSQL forbids while it is there.

    A row trigger with a transition table keeps the table from becoming a partition or an
    inheritance child, whose parent's writes would pass the guard by; its condition keeps the
    columns of the template from being dropped or given a type whose text is not always the same.
    """
    pin = quote_identifier(PIN)
    columns = "".join(f" AND NEW.{quote_identifier(column)} IS NULL" for column in template.columns)
    return [
        (
            f"CREATE TRIGGER {pin} AFTER INSERT ON {target} REFERENCING NEW TABLE AS new_rows "
            f"FOR EACH ROW WHEN (false{columns}) EXECUTE FUNCTION {function}()"
        ),
        (
            f"COMMENT ON TRIGGER {pin} ON {target} IS "
            "'Never fires; keeps the guard from being undone by a change of the table'"
        ),
    ]


def _create_trigger(trigger: str, operation: str, target: str, function: str) -> str:
    if operation == "truncate":
        return (
            f"CREATE TRIGGER {trigger} BEFORE TRUNCATE ON {target} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        )
    tables = {
        "insert": "NEW TABLE AS new_rows",
        "update": "OLD TABLE AS old_rows NEW TABLE AS new_rows",
        "delete": "OLD TABLE AS old_rows",
    }[operation]
    return (
        f"CREATE TRIGGER {trigger} AFTER {operation.upper()} ON {target} REFERENCING {tables} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )
