"""The acts as a table in 80 columns, printed while they are played."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from fencing.demo.bank import OPENING_BALANCE, WITHDRAWALS
from fencing.demo.verdict import lost_updates

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.demo.acts import Act
    from fencing.demo.process import Report
    from fencing.demo.verdict import Outcome

__all__ = ["Timeline"]

WIDTH = 80
TIME_WIDTH = 9
LANE_WIDTH = 35
COLOURS = {"A": "yellow", "B": "cyan"}

PROLOGUE = (
    f"Two processes withdraw from an account with a balance of {OPENING_BALANCE}: "
    f"A {WITHDRAWALS['A']}, B {WITHDRAWALS['B']}. Each takes a lease, reads the balance in one "
    "transaction, and writes what is left in another. In between A is stopped, until its lease "
    "has run out and B has taken over."
)

STOPPED = "|"
"""Stands in A's lane while it is stopped."""


class Timeline:
    """An audience that reads; see :class:`fencing.demo.acts.Audience`.

    Args:
        echo: Prints a line, or several; styles are removed where they cannot be shown.
    """

    def __init__(self, echo: Callable[[str], None] = click.echo) -> None:
        self._echo = echo
        self._number = 0
        self._began_at: float | None = None
        self._stopped = False
        self._acknowledged: list[str] = []
        self.note(PROLOGUE)

    def note(self, text: str) -> None:
        """A paragraph; lines that are given are kept."""
        self._echo("")
        for line in text.splitlines():
            self._echo(textwrap.fill(line, WIDTH))

    def begin(self, act: Act, ttl: float) -> None:
        """The head of an act's table."""
        self._number += 1
        self._began_at = None
        self._stopped = False
        self._acknowledged = []
        title = f"Act {self._number}: {act.title}"
        lease = f"lease of A: {ttl:g} s"
        self._echo("\n" + click.style(f"{title}{lease:>{WIDTH - len(title)}}", bold=True))
        self._echo("-" * WIDTH)
        self._echo(textwrap.fill(act.premise, WIDTH) + "\n")
        self._row("", "A", "B")

    def see(self, report: Report) -> None:
        """A row of the table."""
        phrase = PHRASES.get(report.event)
        text = "" if phrase is None else phrase(report)
        if report.event == "wrote":
            self._acknowledged.append(report.who)
        if text:
            if self._began_at is None:
                self._began_at = report.at
            time = f"{report.at - self._began_at:.3f} s"
            if report.who == "A":
                self._row(time, text, "")
            else:
                over = self._stopped and report.event == "acquired"
                beside = f"{STOPPED} its lease is over" if over else STOPPED
                self._row(time, beside if self._stopped else "", text)
        if report.event in ("stopped", "resumed"):
            self._stopped = report.event == "stopped"
        if report.event == "refused":
            answer = report.facts["answer"]
            speaker = "PostgreSQL to A" if answer else "fencing to A"
            self._paragraph(f"{speaker}: {answer or report.facts['message']}")

    def end(self, outcome: Outcome) -> None:
        """What came of the act."""
        accepted = " and ".join(f"{who}'s {WITHDRAWALS[who]}" for who in sorted(self._acknowledged))
        lost = lost_updates(self._acknowledged, outcome.actual)
        told = f"Acknowledged: {accepted or 'nothing'}. Expected {outcome.expected}, "
        self._echo("")
        if lost:
            whose = " and ".join(f"{who}'s" for who in lost)
            self._echo(
                click.style(f"{told}found {outcome.actual}: {whose} update is LOST.", fg="red")
            )
        else:
            self._echo(click.style(f"{told}found {outcome.actual}: nothing is lost.", fg="green"))

    def _row(self, time: str, a: str, b: str) -> None:
        lanes = [textwrap.wrap(text, LANE_WIDTH) for text in (a, b)]
        for index in range(max(len(lane) for lane in lanes)):
            first, second = (lane[index] if index < len(lane) else "" for lane in lanes)
            padding = " " * (LANE_WIDTH + 1 - len(first)) if second else ""
            self._echo(
                f"{time if index == 0 else '':>{TIME_WIDTH - 1}} "
                + click.style(first, fg=COLOURS["A"])
                + padding
                + click.style(second, fg=COLOURS["B"])
            )

    def _paragraph(self, text: str) -> None:
        indent = " " * TIME_WIDTH
        self._echo(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent))


def _asks(report: Report) -> str:
    return "asks for the lease" + (", and has to wait" if report.who == "B" else "")


def _stopping(report: Report) -> str:
    remaining = report.facts.get("remaining")
    if remaining is None:
        return ""
    return f"checks its deadline: {remaining:.2f} s left, so it is going to send"


def _wrote(report: Report) -> str:
    return "writes {before} - {amount} = {after}, commits".format(**report.facts)


def _released(report: Report) -> str:
    error = report.facts.get("error")
    return "gives the lease back" + (f": {error}, but the write is done" if error else "")


PHRASES: dict[str, Callable[[Report], str]] = {
    "asks": _asks,
    "acquired": lambda report: f"takes the lease, token {report.facts['token']}",
    "read": lambda report: f"reads {report.facts['balance']}, ends the transaction",
    "stopping": _stopping,
    "stopped": lambda _: "is stopped (SIGSTOP)",
    "resumed": lambda _: "is continued (SIGCONT)",
    "wrote": _wrote,
    "refused": lambda report: f"wants to write: {report.facts['error']}",
    "released": _released,
}
