"""The command group, whose commands are imported only when they are asked for."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click

from fencing.cli.signals import ending_on_interrupt

__all__ = ["main"]


class Entry(NamedTuple):
    """Where a command is, and what ``fencing --help`` says of it.

    Attributes:
        module: The module to import.
        attribute: The command's name in it.
        summary: One line, so that the list of commands needs no import.
    """

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "demo": Entry("fencing.cli.demo", "demo", "Show an expired holder, with and without fencing."),
    "dev": Entry("fencing.cli.dev", "dev", "Run a command with real servers beside it."),
    "install": Entry("fencing.cli.schema", "install", "Install schema fencing in a database."),
    "locks": Entry("fencing.cli.locks", "locks", "List who holds what, or take a lock away."),
    "prune": Entry("fencing.cli.prune", "prune", "Forget fences that nobody has used for long."),
    "raise": Entry("fencing.cli.raise_fence", "raise_fence", "Set a fence forward by hand."),
    "sql": Entry("fencing.cli.schema", "sql", "Print the DDL of schema fencing."),
    "torture": Entry("fencing.cli.torture", "torture", "Let everything go wrong, and check."),
    "verify": Entry("fencing.cli.verify", "verify", "Say what is missing from guards, or weak."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and summary; imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        if not isinstance(command, click.Command):
            message = f"{entry.module}.{entry.attribute} is no command"
            raise TypeError(message)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Import a command and run it; an interrupt of either ends the process."""
        with ending_on_interrupt():
            return super().invoke(ctx)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """The list in ``--help``, from the summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup)
@click.version_option(package_name="fencing")
def main() -> None:
    """Locks whose stale holders cannot write."""


if __name__ == "__main__":
    main()
