"""``fencing prune``: forgets fences that nobody has used for long."""

from __future__ import annotations

import json
import re
import time

import click

from fencing.cli.failing import failing_in_one_line

__all__ = ["prune", "read_age"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def read_age(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """A length of time, such as ``30d``, ``12h`` or ``1d12h``, in seconds."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smhdw])+", text):
        raise click.BadParameter(f"{text!r} is no length of time; it looks like 30d, 12h or 1d12h")
    from fencing.administration.pruning import MAX_AGE

    age = sum(
        float(number) * _UNITS[unit]
        for number, _, unit in re.findall(r"(\d+(\.\d+)?)([smhdw])", text)
    )
    if age > MAX_AGE:
        days = MAX_AGE // _UNITS["d"]
        raise click.BadParameter(f"the largest value is {days}d, a hundred years")
    return age


@click.command()
@click.argument("url", required=False, envvar="FENCING_DATABASE_URL")
@click.option(
    "--older-than",
    callback=read_age,
    required=True,
    metavar="AGE",
    help="How long ago the last admission must be, such as 30d or 12h; 36500d at most.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 5000),
    default=1000,
    show_default=True,
    help="How many fences a transaction examines.",
)
@click.option("--dry-run", is_flag=True, help="Say how many are that old, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def prune(url: str | None, *, older_than: float, batch: int, dry_run: bool, as_json: bool) -> None:
    """Remove fences that nobody has used for long from the database at URL.

    AGE must exceed the life of every lease, and be an hour at least. What a fence kept, the floor
    of its bucket keeps: an older token is refused as before. Runs beside the application; those in
    use are skipped. Stopped, it can be run again, and goes on. Receipts of transactions that old
    are forgotten as well, and what is left of leases in the database itself that ended then.

    URL looks like postgresql://owner:password@host:5432/database; default: FENCING_DATABASE_URL.
    """
    from fencing import administration
    from fencing.cli.signals import leaving_on_signals

    if not url:
        raise click.UsageError("pass URL, or set FENCING_DATABASE_URL")
    with failing_in_one_line():
        if dry_run:
            old, total = administration.prunable(url, older_than)
            if as_json:
                click.echo(json.dumps({"old": old, "total": total}))
            else:
                click.echo(f"{old} of {total} fences are that old; nothing was changed.")
            return
        pruned = busy = 0
        told = started = time.monotonic()
        with leaving_on_signals():
            try:
                for so_far in administration.prune(url, older_than, batch=batch):
                    pruned, busy = so_far.pruned, so_far.busy
                    if time.monotonic() - told > 1 and not as_json:
                        told = time.monotonic()
                        click.echo(f"{pruned} pruned so far", err=True)
            except (KeyboardInterrupt, SystemExit):
                click.echo(
                    f"Stopped: {pruned} fences were pruned; run it again to go on.", err=True
                )
                raise
        seconds = time.monotonic() - started
        receipts = administration.forget_receipts(url, older_than)
        leases = administration.forget_leases(url, older_than)
        _, kept = administration.prunable(url, older_than)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "pruned": pruned,
                    "busy": busy,
                    "kept": kept,
                    "receipts": receipts,
                    "leases": leases,
                    "seconds": round(seconds, 3),
                }
            )
        )
    else:
        click.echo(
            f"{pruned} fences pruned in {seconds:.1f} s; {busy} are in use and stay; "
            f"{kept} are left."
            + (f" {receipts} receipts were forgotten." if receipts else "")
            + (f" {leases} leases were forgotten." if leases else "")
        )
