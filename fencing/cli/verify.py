"""``fencing verify``: what a database has of fencing, held against what it should have."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import click

__all__ = ["verify"]

FOUND, COULD_NOT_LOOK = 1, 2


@click.command()
@click.argument("url", required=False, envvar="FENCING_DATABASE_URL")
@click.option(
    "--models",
    multiple=True,
    metavar="MODULE:NAME",
    help="A declarative base class or a MetaData whose tables should be guarded as declared.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
def verify(url: str | None, *, models: tuple[str, ...], as_json: bool, strict: bool) -> None:
    """Verify the guards of the PostgreSQL database at URL.

    Lists every guard, and says what is missing, switched off, changed by hand or left open, and
    what to do about it. Reads catalogs only; connect as the role that the application uses.

    URL looks like postgresql://user:password@host:5432/database; default: FENCING_DATABASE_URL.

    Ends with status 0 if there is no error, 1 if there is one (with --strict: or a warning), and 2
    if it could not look.
    """
    if not url:
        raise click.UsageError("pass URL, or set FENCING_DATABASE_URL")
    from fencing.administration import verify_url
    from fencing.migration import place
    from fencing.tables.refusals import describe
    from fencing.verification import declared_in
    from fencing.verification.report import as_json as to_json
    from fencing.verification.report import as_text

    try:
        declared = declared_in(*map(load, models)) if models else None
        verification = verify_url(url, declared)
        where = place(url)
    except click.ClickException:
        raise
    except Exception as error:
        line = describe(error)
        if line is None:
            raise
        click.echo(f"Error: {line}", err=True)
        sys.exit(COULD_NOT_LOOK)
    if as_json:
        click.echo(json.dumps(to_json(verification)))
    else:
        click.echo(as_text(verification, where))
    if not verification.passes(strict=strict):
        sys.exit(FOUND)


def load(name: str) -> Any:  # noqa: ANN401 -- whatever the module has
    """What ``package.module:name`` means.

    Raises:
        click.UsageError: Nothing.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise click.UsageError(f"--models takes package.module:name, not {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look where it is called
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise click.UsageError(f"--models {name}: {error}") from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise click.UsageError(f"--models {name}: {module_name} has no {path}")
        found = getattr(found, attribute)
    return found
