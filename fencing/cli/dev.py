"""``fencing dev``: real servers for as long as a command, or a terminal, needs them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from fencing.cli.signals import DIED_OF_SIGNAL, leaving_on_signals
from fencing.embedded import EmbeddedServerError, start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["dev"]

COMMAND_NOT_FOUND = 127  # as a shell says it
NOT_EXECUTABLE = 126


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def dev(command: tuple[str, ...]) -> None:
    """Start PostgreSQL and Valkey with schema fencing installed.

    With a COMMAND: run it with FENCING_DATABASE_URL and FENCING_REDIS_URL set, and end with its
    exit status (128 + n if it died of signal n). Put -- before a command that has options.

    Without: print both addresses and wait until Ctrl-C.

    The servers and their data are gone afterwards.
    """
    if command and command[0].startswith("-"):
        raise click.UsageError(f"no such option: {command[0]}")
    try:
        with leaving_on_signals(), start() as servers:
            install_schema(servers.database_url)
            urls = {
                "FENCING_DATABASE_URL": servers.database_url,
                "FENCING_REDIS_URL": servers.redis_url,
            }
            if command:
                sys.exit(run(command, {**os.environ, **urls}))
            for name, url in urls.items():
                click.echo(f"{name}={shlex.quote(url)}")
            click.echo("Both servers run; Ctrl-C stops them and removes their data.", err=True)
            servers.wait()
    except EmbeddedServerError as error:
        raise click.ClickException(str(error)) from error


def install_schema(database_url: str) -> None:
    """Install schema ``fencing``."""
    from fencing.migration import install

    install(database_url)


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command to its end, passing on the signals that are meant for it.

    At a terminal the command shares our process group: Ctrl-C and Ctrl-Z reach it from the
    keyboard, and passing on a SIGINT would make two of one. Elsewhere it has a group of its own: a
    signal to us, or to our group, gets through to it exactly once.

    Args:
        command: The program and its arguments.
        environment: All its environment variables.

    Returns:
        Its exit status; 128 + n if it died of signal n.
    """
    from_keyboard = {signal.SIGINT, signal.SIGQUIT} if at_terminal() else set()
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in from_keyboard:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # Handlers in Python, since a command would inherit SIG_IGN.
    for ours in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ours, pass_on)
    try:
        child = subprocess.Popen(
            command, env=environment, process_group=None if from_keyboard else 0
        )
    except OSError as error:
        click.echo(f"{command[0]}: {error.strerror}", err=True)
        return COMMAND_NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    for number in early:
        child.send_signal(number)
    status = child.wait()
    return status if status >= 0 else DIED_OF_SIGNAL - status


def at_terminal() -> bool:
    """Whether a terminal sends what is typed on it to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
