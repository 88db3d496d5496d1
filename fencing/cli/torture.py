"""``fencing torture``: everything that can go wrong, on real servers, and whether it does harm."""

from __future__ import annotations

import json
import secrets
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fencing.cli.signals import DIED_OF_SIGNAL, leaving_on_signals

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fencing.torture.report import Report
    from fencing.torture.settings import Settings

__all__ = ["torture"]

FOUND, COULD_NOT_RUN = 1, 2


@click.command()
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long there is work, shared among the lock services; starting servers comes on top.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Which faults come when, and who does what; default: a new one, which is told.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME",
    help="Who grants leases; may be repeated; 'all': one after the other. Default: redis.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME",
    help="A kind of fault; may be repeated; 'none': none. Default: all but 'standby promoted'.",
)
@click.option(
    "--between-faults",
    type=float,
    metavar="SECONDS",
    help="From one fault to the next, on average.  [default: the ttl]",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="NAME",
    help="A way to the database; may be repeated. Default: all whose drivers are there, in turn.",
)
@click.option("--workers", type=int, default=5, show_default=True, help="How many processes work.")
@click.option(
    "--ttl",
    type=float,
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Length of a lease.",
)
@click.option(
    "--without-guard",
    is_flag=True,
    help="Lock alone: updates are lost, or the run proves nothing.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write what happened there, a file for each lock service.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def torture(
    *,
    seconds: float,
    seed: int | None,
    services: tuple[str, ...],
    faults: tuple[str, ...],
    between_faults: float | None,
    paths: tuple[str, ...],
    workers: int,
    ttl: float,
    without_guard: bool,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Let processes work under leases while everything goes wrong, and check what they did.

    Starts servers of its own, with processes that add, append and transfer under leases, in all
    isolation levels and by all ways to the database. Processes are stopped at the worst moments
    and killed, servers crash and forget, packets are lost and delayed, clocks jump. Afterwards the
    history that the database kept is held against what each process was told.

    An interrupt ends the work early; what was done until then is checked all the same. Ends with
    status 0 if nothing was violated (without a guard: if updates were lost), 1 if it was not so, 2
    if it could not run or keep what happened, and 130 if it was interrupted and nothing was
    violated.
    """
    if sys.platform == "win32":
        raise click.ClickException(
            "the torture stops processes with SIGSTOP, which Windows does not have; run it on "
            "Linux, on macOS or under WSL"
        )
    seed = secrets.randbits(32) if seed is None else seed
    wanted = _wanted(
        services, seconds=seconds, seed=seed, workers=workers, ttl=ttl,
        between_faults=between_faults, faults=faults, paths=paths, guarded=not without_guard,
    )  # fmt: skip
    if keep is not None:
        _check_folder(keep)
    reports: list[Report] = []
    with leaving_on_signals():
        for settings in wanted:
            reports.append(_run(settings, keep, quiet=as_json))
            if reports[-1].interrupted:
                break
    expected = all(report.as_expected for report in reports)
    if as_json:
        told = {
            "seed": seed,
            "as_expected": expected,
            "runs": [report.to_dict() for report in reports],
        }
        click.echo(json.dumps(told))
    elif expected and without_guard:
        click.echo("As expected: without a guard, updates were lost.")
    elif expected:
        click.echo(f"Nothing was violated. Repeat it with: {_again(seed)}")
    else:
        click.echo(f"Not as promised; repeat it with: {_again(seed)}", err=True)
    if not expected:
        sys.exit(FOUND)
    sys.exit(DIED_OF_SIGNAL + signal.SIGINT if reports[-1].interrupted else 0)


def _wanted(services: tuple[str, ...], *, seconds: float, **facts: Any) -> list[Settings]:  # noqa: ANN401 - the options'
    """A run for each lock service; ends the program if one cannot be made."""
    from fencing.torture.installed import check_installed
    from fencing.torture.services import SERVICES

    names = tuple(SERVICES) if "all" in services else services or ("redis",)
    try:
        wanted = [
            _settings(seconds=seconds / len(names), lock_service=name, **facts) for name in names
        ]
        for settings in wanted:
            check_installed(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except ModuleNotFoundError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(COULD_NOT_RUN)
    return wanted


def _settings(*, faults: tuple[str, ...], paths: tuple[str, ...], **facts: Any) -> Settings:  # noqa: ANN401 - the options'
    from fencing.torture.installed import installed_paths
    from fencing.torture.settings import Settings

    chosen = None if not faults else tuple(name for name in faults if name != "none")
    return Settings(faults=chosen, paths=paths or installed_paths(), **facts)


def _run(settings: Settings, keep: Path | None, *, quiet: bool) -> Report:
    from fencing.embedded import EmbeddedServerError
    from fencing.torture.keeping import save
    from fencing.torture.report import Report
    from fencing.torture.run import RunError, run
    from fencing.torture.services import lock_servers
    from fencing.torture.stage import Stage

    try:
        locks = lock_servers(settings.lock_service)
        with Stage(settings, locks) as stage, _progress(settings, quiet=quiet) as bar:
            history = run(stage, lambda passed: bar.update(int(passed) - bar.pos))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (EmbeddedServerError, RunError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(COULD_NOT_RUN)
    report = Report.of(history, settings, left_out=stage.left_out)
    if not quiet:
        click.echo("\n".join(report.lines()))
    if keep is not None:
        try:
            save(history, keep / f"{settings.lock_service}-{settings.seed}.json")
        except OSError as error:
            click.echo(f"Error: what happened could not be kept in {keep}: {error}", err=True)
            sys.exit(COULD_NOT_RUN)
    return report


def _check_folder(folder: Path) -> None:
    """See that files can be written there, before anything is done for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        click.echo(
            f"Error: --keep: no files can be written to {folder} ({error}); name a folder of yours",
            err=True,
        )
        sys.exit(COULD_NOT_RUN)


def _again(seed: int) -> str:
    """The command that does the same again: with its seed, and all that was asked for."""
    context = click.get_current_context()
    words = [*context.command_path.split(), "--seed", str(seed)]
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in {"seed", "keep", "as_json"}:
            continue
        value = context.params[name]
        for each in value if isinstance(value, tuple) else (value,):
            words += parameter.opts if each is True else [*parameter.opts, f"{each}"]
    return shlex.join(words)


def _progress(settings: Settings, *, quiet: bool) -> AbstractContextManager[Any]:
    return click.progressbar(
        length=int(settings.seconds),
        label=settings.lock_service,
        file=sys.stderr,
        hidden=quiet or not sys.stderr.isatty(),
    )
