"""``fencing demo``: an expired lock holder, with and without a guard."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

from fencing.cli.failing import failing_in_one_line

if TYPE_CHECKING:
    from fencing.demo.acts import Act
    from fencing.demo.process import Report
    from fencing.demo.verdict import Outcome

__all__ = ["demo"]

MIN_TTL, MAX_TTL = 0.1, 60.0

_WITHOUT = "where there is none, a server is started"
"""What becomes of an address that nobody gives."""


def check_ttl(_context: click.Context, _parameter: click.Parameter, ttl: float) -> float:
    """Refuse a lease that makes no sense before anything is started."""
    if not MIN_TTL <= ttl <= MAX_TTL:  # nor NaN, which a range of click's lets through
        raise click.BadParameter(f"must be from {MIN_TTL:g} to {MAX_TTL:g} seconds, not {ttl:g}")
    return ttl


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.option(
    "--ttl",
    type=float,
    callback=check_ttl,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of A's lease.",
)
@click.option(
    "--redis-url",
    envvar="FENCING_REDIS_URL",
    metavar="URL",
    help="A Redis; default: FENCING_REDIS_URL, or else an embedded server.",
)
@click.option(
    "--database-url",
    envvar="FENCING_DATABASE_URL",
    metavar="URL",
    help="A PostgreSQL; default: FENCING_DATABASE_URL, or else an embedded server.",
)
def demo(*, as_json: bool, ttl: float, redis_url: str | None, database_url: str | None) -> None:
    """Show what an expired lock holder does to a table, and to a guarded one.

    Two processes withdraw from one account, and one of them is stopped for longer than its lease
    lasts. Ends with status 0 if the table without a guard did lose an update and the guarded one
    did not.

    Works in a database of its own, which it drops again; the user of the database URL must be
    allowed to create one.
    """
    if sys.platform == "win32":
        raise click.ClickException(
            "the demonstration stops a process with SIGSTOP, which Windows does not have; "
            "run it on Linux, on macOS or under WSL"
        )
    from fencing.cli.signals import leaving_on_signals
    from fencing.demo.show import perform
    from fencing.demo.timeline import Timeline
    from fencing.demo.verdict import broken_promises
    from fencing.embedded import EmbeddedServerError

    with leaving_on_signals(), failing_in_one_line(without=_WITHOUT):
        try:
            outcomes = perform(
                Nobody() if as_json else Timeline(),
                ttl=ttl,
                redis_url=redis_url,
                database_url=database_url,
            )
        except EmbeddedServerError as error:
            raise click.ClickException(
                f"{error}; or else pass --redis-url and --database-url"
            ) from error
    broken = broken_promises(outcomes)
    if as_json:
        click.echo(json.dumps({act: dataclasses.asdict(o) for act, o in outcomes.items()}))
    elif not broken:
        click.echo(
            "\nAs promised: the lock alone has lost an update; on the guarded table the expired\n"
            "holder could not write, and what its successor wrote is there."
        )
    for promise in broken:
        click.echo(f"Not as promised: {promise}", err=True)
    sys.exit(1 if broken else 0)


class Nobody:
    """An audience that is told the results only."""

    def note(self, text: str) -> None:
        """Not shown."""

    def begin(self, act: Act, ttl: float) -> None:
        """Not shown."""

    def see(self, report: Report) -> None:
        """Not shown."""

    def end(self, outcome: Outcome) -> None:
        """Not shown."""
