"""``fencing install`` and ``fencing sql``: schema and guards, without an Alembic environment."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fencing.schema import ddl

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["install", "sql"]


@click.command()
@click.argument("url", required=False, envvar="FENCING_DATABASE_URL")
@click.option(
    "--sql", "as_script", is_flag=True, help="Print what would be run, for an empty database."
)
def install(url: str | None, *, as_script: bool) -> None:
    """Install schema fencing in the PostgreSQL database at URL, or upgrade it.

    URL looks like postgresql://user:password@host:5432/database; default: FENCING_DATABASE_URL.
    Running it again changes nothing. The revision is recorded in the table fencing_version.
    """
    from fencing import migration

    with failing_in_one_line():
        if as_script:
            print_script(migration.install_script())
            return
        if not url:
            raise click.UsageError("pass URL, or set FENCING_DATABASE_URL")
        applied = migration.install(url)
        where = migration.place(url)
    if applied:
        click.echo(f"Installed schema fencing in {where} ({', '.join(applied)}).")
    else:
        click.echo(f"Schema fencing in {where} is up to date.")


@click.command()
@click.option("--table", metavar="NAME", help="Print the guard of this table.")
@click.option("--resource", metavar="TEMPLATE", help="Its resource, such as 'account:{id}'.")
@click.option(
    "--operations",
    metavar="LIST",
    help="What to guard, separated by commas; default: insert,update,delete.",
)
@click.option("--unfence", metavar="NAME", help="Print what removes the guard of this table.")
@click.option("--schema", metavar="NAME", help="Schema of the table; default: the search_path's.")
@click.option("--uninstall", is_flag=True, help="Print what removes schema fencing.")
def sql(
    *,
    table: str | None,
    resource: str | None,
    operations: str | None,
    unfence: str | None,
    schema: str | None,
    uninstall: bool,
) -> None:
    """Print DDL: of schema fencing, or with --table of the guard of one table.

    Run it in one transaction: fencing sql | psql -1 -v ON_ERROR_STOP=1
    """
    if sum([table is not None, unfence is not None, uninstall]) > 1:
        raise click.UsageError("--table, --unfence and --uninstall exclude each other")
    if (table is None) != (resource is None):
        raise click.UsageError("--table and --resource go together")
    if operations is not None and table is None:
        raise click.UsageError("--operations goes with --table")
    if schema is not None and table is None and unfence is None:
        raise click.UsageError("--schema goes with --table or --unfence")
    with failing_in_one_line():
        if table is not None and resource is not None:
            wanted = ddl.OPERATIONS if operations is None else operations.split(",")
            statements = ddl.fence_table(table, resource, schema=schema, operations=wanted)
        elif unfence is not None:
            statements = ddl.unfence_table(unfence, schema=schema)
        elif uninstall:
            statements = ddl.uninstall()
        else:
            statements = ddl.install()
        print_script(ddl.script(statements))


def print_script(script: str) -> None:
    """Print a script in UTF-8, whatever the terminal's encoding: it is meant for ``psql``."""
    if not script.isascii():
        script = f"SET client_encoding = 'UTF8';\n\n{script}"
    click.echo(script.encode(), nl=False)


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Leave with status 1 and one line where the cause is a database, an argument or a set-up."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        from fencing.migration import describe

        line = describe(error)
        if line is None:
            raise
        raise click.ClickException(line) from error
