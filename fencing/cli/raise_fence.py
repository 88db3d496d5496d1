"""``fencing raise``: sets a resource's high-water mark forward by hand."""

from __future__ import annotations

import math

import click

from fencing.cli.failing import failing_in_one_line

__all__ = ["raise_fence"]


def read_token(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """A token; what is none is not repeated, since it may be a URL that is in the wrong place."""
    from fencing.request import count_in

    token = count_in(text)
    if not token:
        raise click.BadParameter(
            "it must be a whole number from 1 to 2^53 - 1, and come last: URL RESOURCE TOKEN"
        )
    return token


def check_number(_context: click.Context, _parameter: click.Parameter, seconds: float) -> float:
    """Refuse NaN, which a range of click's lets through."""
    if math.isnan(seconds):
        raise click.BadParameter("it must be a number of seconds, not nan")
    return seconds


@click.command("raise")
@click.argument("url")
@click.argument("resource")
@click.argument("token", callback=read_token)
@click.option(
    "--timeout",
    type=click.FloatRange(0.001, 86_400),
    callback=check_number,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for a connection, then for open transactions that wrote the resource.",
)
def raise_fence(url: str, resource: str, token: int, *, timeout: float) -> None:
    """Set the mark of RESOURCE forward to TOKEN in the database at URL.

    Whoever holds the resource is overtaken; the next lease has a token above it. For a database
    that was restored from a backup, say, or to shut a holder out. It never moves a mark backwards.

    URL looks like postgresql://owner:password@host:5432/database.
    """
    from fencing import administration
    from fencing.migration import place

    with failing_in_one_line():
        raised = administration.raise_fence(url, resource, token, timeout=timeout)
        where = place(url)
    meaning = (
        "who held it is overtaken."
        if raised.before
        else "no holder of it was ever admitted in this database, so none is overtaken: see that "
        "the name is right."
    )
    click.echo(
        f'Raised the mark of "{resource}" in {where} from {raised.before or "none"} to '
        f"{raised.after}; {meaning}"
    )
