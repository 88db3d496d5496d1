"""``fencing install`` and ``fencing sql``: schema and guards, without an Alembic environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fencing.cli.failing import failing_in_one_line
from fencing.schema import ddl

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["install", "sql"]


@click.command()
@click.argument("url", required=False, envvar="FENCING_DATABASE_URL")
@click.option(
    "--sql", "as_script", is_flag=True, help="Print what would be run, for an empty database."
)
def install(url: str | None, *, as_script: bool) -> None:
    """Install schema fencing in the PostgreSQL database at URL, or upgrade it.

    URL looks like postgresql://user:password@host:5432/database; default: FENCING_DATABASE_URL.
    Running it again changes nothing. The revision is recorded in the table fencing_version; where
    the schema was installed another way, it is only brought forward.
    """
    from fencing import migration
    from fencing.migration.environment import bring_forward

    with failing_in_one_line():
        if as_script:
            print_script(migration.install_script())
            return
        if not url:
            raise click.UsageError("pass URL, or set FENCING_DATABASE_URL")
        brought = bring_forward(url)
        where = migration.place(url)
    if brought.applied:
        done = "Installed" if "fencing_0001" in brought.applied else "Upgraded"
        told = f"{done} schema fencing in {where} ({', '.join(brought.applied)})"
    elif brought.recorded:
        told = f"Schema fencing in {where} is up to date"
    else:
        version = f"of version {ddl.SCHEMA_VERSION}, so there is nothing to do"
        told = f"Schema fencing in {where} is {version}"
    click.echo(f"{told}{'.' if brought.recorded else _BY_OTHERS}")


_BY_OTHERS = "; it was installed another way: by create_all(), a migration or a script."


def read_operations(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    """What to guard, as a list with commas; ``None`` where the option was not given."""
    if text is None:
        return None
    try:
        return ddl.check_operations(text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"it must be some of {','.join(ddl.OPERATIONS)}, separated by commas, without "
            f"blanks, not {text!r}"
        ) from None


@click.command()
@click.option("--table", metavar="NAME", help="Print the guard of this table.")
@click.option("--alter", metavar="NAME", help="Print what changes the guard of this table.")
@click.option("--unfence", metavar="NAME", help="Print what removes the guard of this table.")
@click.option("--resource", metavar="TEMPLATE", help="Its resource, such as 'account:{id}'.")
@click.option(
    "--operations",
    callback=read_operations,
    metavar="LIST",
    help="What to guard, separated by commas; default: insert,update,delete.",
)
@click.option(
    "--mode",
    type=click.Choice(ddl.MODES),
    metavar="MODE",
    help="enforce, or observe: report what would be refused, and let it pass.",
)
@click.option("--schema", metavar="NAME", help="Schema of the table; default: the search_path's.")
@click.option("--upgrade", is_flag=True, help="Print what upgrades schema fencing.")
@click.option("--uninstall", is_flag=True, help="Print what removes schema fencing.")
def sql(
    *,
    table: str | None,
    alter: str | None,
    unfence: str | None,
    resource: str | None,
    operations: tuple[str, ...] | None,
    mode: str | None,
    schema: str | None,
    upgrade: bool,
    uninstall: bool,
) -> None:
    """Print DDL: of schema fencing, or with --table of the guard of one table.

    Run it in one transaction: fencing sql | psql -1 -v ON_ERROR_STOP=1
    """
    _check_options(
        {"--table": table, "--alter": alter, "--unfence": unfence, "--schema": schema}
        | {"--resource": resource, "--operations": operations, "--mode": mode}
        | {"--upgrade": upgrade or None, "--uninstall": uninstall or None}
    )
    try:
        if table is not None and resource is not None:
            statements = ddl.fence_table(
                table,
                resource,
                schema=schema,
                operations=ddl.OPERATIONS if operations is None else operations,
                mode="enforce" if mode is None else mode,
            )
        elif alter is not None:
            statements = ddl.alter_fence(
                alter, schema=schema, resource=resource, operations=operations, mode=mode
            )
        elif unfence is not None:
            statements = ddl.unfence_table(unfence, schema=schema)
        elif upgrade:
            statements = ddl.upgrade()
        elif uninstall:
            statements = ddl.uninstall()
        else:
            statements = ddl.install()
    except ValueError as error:  # nothing was asked but how a text can be read
        raise click.UsageError(str(error)) from None
    print_script(ddl.script(statements))


_GUARDS = ("--table", "--alter", "--unfence")
# What goes with which.
_PARTNERS = {
    "--resource": ("--table", "--alter"),
    "--operations": ("--table", "--alter"),
    "--mode": ("--table", "--alter"),
    "--schema": _GUARDS,
}


def _check_options(options: Mapping[str, object]) -> None:
    """Refuse options that do not fit together; one that was not given is ``None``."""
    given = [name for name, value in options.items() if value is not None]
    if len({*_GUARDS, "--upgrade", "--uninstall"} & set(given)) > 1:
        raise click.UsageError(
            "--table, --alter, --unfence, --upgrade and --uninstall exclude each other"
        )
    for name, partners in _PARTNERS.items():
        if name in given and not set(partners) & set(given):
            raise click.UsageError(f"{name} goes with {' or '.join(partners)}")
    if "--table" in given and "--resource" not in given:
        raise click.UsageError("--table needs --resource")
    if "--alter" in given and not {"--resource", "--operations", "--mode"} & set(given):
        raise click.UsageError("--alter needs --resource, --operations or --mode")


def print_script(script: str) -> None:
    """Print a script in UTF-8, whatever the terminal's encoding: it is meant for ``psql``."""
    if not script.isascii():
        script = f"SET client_encoding = 'UTF8';\n\n{script}"
    click.echo(script.encode(), nl=False)
