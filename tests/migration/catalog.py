"""What a database's catalog says, in a form that two databases can be compared by."""

from __future__ import annotations

import psycopg

from tests.support.databases import plain_url

MINE = "n.nspname !~ '^(pg_|information_schema$)'"

QUERIES = {
    "schemas": f"""
        SELECT nspname, nspowner::regrole::text, nspacl::text, obj_description(oid, 'pg_namespace')
        FROM pg_namespace AS n WHERE {MINE}""",
    "relations": f"""
        SELECT n.nspname, relname, relkind::text, relpersistence::text, reloptions::text,
            relacl::text, relowner::regrole::text, obj_description(c.oid, 'pg_class'),
            CASE relkind WHEN 'i' THEN pg_get_indexdef(c.oid) END
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE {MINE}""",
    "columns": f"""
        SELECT n.nspname, relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull,
            attcollation::regcollation::text, pg_get_expr(adbin, adrelid), attacl::text
        FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid
            JOIN pg_namespace AS n ON n.oid = relnamespace
            LEFT JOIN pg_attrdef AS d ON adrelid = attrelid AND adnum = attnum
        WHERE {MINE} AND attnum > 0""",
    "constraints": f"""
        SELECT n.nspname, conrelid::regclass::text, conname, pg_get_constraintdef(t.oid),
            convalidated
        FROM pg_constraint AS t JOIN pg_namespace AS n ON n.oid = connamespace WHERE {MINE}""",
    "functions": f"""
        SELECT n.nspname, proname, pg_get_functiondef(p.oid), prosecdef, proconfig::text,
            proacl::text, proowner::regrole::text
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
        WHERE {MINE} AND prokind = 'f'""",
    "triggers": f"""
        SELECT n.nspname, relname, tgname, pg_get_triggerdef(t.oid), tgenabled::text,
            obj_description(t.oid, 'pg_trigger')
        FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid
            JOIN pg_namespace AS n ON n.oid = relnamespace
        WHERE NOT tgisinternal AND {MINE}""",
}

Catalog = dict[str, list[tuple[object, ...]]]


def catalog(url: str, *, without: tuple[str, ...] = ()) -> Catalog:
    """Everything of the users' own in a database.

    Args:
        url: Its SQLAlchemy address.
        without: Relations to leave out, with all that belongs to them.
    """
    with psycopg.connect(plain_url(url)) as connection:
        # Otherwise what pg_get_* prints depends on it.
        connection.execute("SET search_path = pg_catalog")
        found = {name: connection.execute(query).fetchall() for name, query in QUERIES.items()}
    return {
        name: sorted(
            (
                row
                for row in rows
                if not any(str(value).startswith(left_out) for value in row for left_out in without)
            ),
            key=repr,
        )
        for name, rows in found.items()
    }
