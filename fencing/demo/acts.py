"""The three acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fencing.clock import now
from fencing.demo.process import DemonstrationError, Report
from fencing.demo.verdict import outcome_of

if TYPE_CHECKING:
    from fencing.demo.process import Worker
    from fencing.demo.stage import Stage
    from fencing.demo.verdict import Outcome
    from fencing.demo.worker import Place

__all__ = ["ACTS", "Act", "Audience", "TooSlowError", "play"]

PATIENCE = 20.0
"""Longest wait for anything that needs no waiting, in seconds."""

LONG_TTL = 60.0
"""Length of B's lease, in seconds: nobody waits for its end."""


@dataclass(frozen=True, slots=True)
class Act:
    """One way it can go.

    Attributes:
        key: Its name in the results.
        title: Its title.
        premise: What it is about.
        guarded: Whether A and B use a ``Guard``, or the lock alone.
        stop_at: Where A is stopped.
        intruder: Whether somebody without a lease tries to write at the end.
    """

    key: str
    title: str
    premise: str
    guarded: bool
    stop_at: Place
    intruder: bool = False


ACTS = (
    Act(
        "unguarded",
        "the lock alone",
        "Nothing tells the table who holds the lock. A comes back and goes on.",
        guarded=False,
        stop_at="read",
    ),
    Act(
        "expired",
        "a guarded table; A's own clock speaks first",
        "A comes back, and before it sends anything its deadline is checked.",
        guarded=True,
        stop_at="read",
    ),
    Act(
        "guarded",
        "a guarded table; A is stopped after the check",
        "No client can exclude this: its deadline is checked, it is about to send, and it is "
        "stopped just then. Only the database can refuse.",
        guarded=True,
        stop_at="entry",
        intruder=True,
    ),
)


class Audience(Protocol):
    """Who is shown what happens."""

    def note(self, text: str) -> None:
        """Something is to be told besides."""

    def begin(self, act: Act, ttl: float) -> None:
        """An act begins; ``ttl`` is the length of A's lease in seconds."""

    def see(self, report: Report) -> None:
        """Something has happened."""

    def end(self, outcome: Outcome) -> None:
        """The act is over."""


class TooSlowError(DemonstrationError):
    """A's lease ran out before A came to the place where it was to be stopped."""


class _Scene:
    """Listens to the processes for as long as an act takes."""

    def __init__(self, audience: Audience) -> None:
        self.reports: list[Report] = []
        self._audience = audience

    def see(self, report: Report) -> None:
        self.reports.append(report)
        self._audience.see(report)

    def until(self, worker: Worker, *events: str, timeout: float = PATIENCE) -> str:
        while True:
            report = worker.next_report(timeout)
            if report.event == "failed":
                error, message = report.facts["error"], report.facts["message"]
                raise DemonstrationError(f"process {report.who} got {error}: {message}")
            self.see(report)
            if report.event in events:
                return report.event


def play(
    act: Act,
    stage: Stage,
    workers: tuple[Worker, Worker],
    *,
    account: int,
    ttl: float,
    audience: Audience,
) -> Outcome:
    """Play an act.

    Args:
        act: The act.
        stage: Where; its table is guarded if the act needs it.
        workers: A and B.
        account: An account that nobody has touched.
        ttl: Length of A's lease, in seconds.
        audience: Who is shown what happens.

    Raises:
        TooSlowError: A's lease ran out too early; play it again with a longer one.
        DemonstrationError: Something else went wrong.
    """
    a, b = workers
    scene = _Scene(audience)
    audience.begin(act, ttl)

    a.send(stage.order(
        "A", account, guarded=act.guarded, ttl=ttl, patience=PATIENCE, stop_at=act.stop_at
    ))  # fmt: skip
    came_to = scene.until(a, "stopping", "refused", "done")
    if came_to == "refused":
        scene.until(a, "done")
        raise TooSlowError(
            f"A's lease of {ttl:g} s ran out before A could be stopped: choose a longer --ttl"
        )
    if came_to == "done":
        raise DemonstrationError(
            f"A never came to the place where it was to be stopped ({act.key})"
        )
    a.await_stop(PATIENCE)
    scene.see(Report("A", "stopped", now()))

    # B's acquisition returns when A's lease is over, and not before: nobody has to measure time.
    patience = ttl + PATIENCE
    b.send(stage.order("B", account, guarded=act.guarded, ttl=LONG_TTL, patience=patience))
    scene.until(b, "done", timeout=patience + PATIENCE)

    scene.see(Report("A", "resumed", now()))
    a.resume()
    scene.until(a, "done")

    outcome = outcome_of(
        scene.reports,
        actual=stage.balance(account),
        unfenced_write=_try_without_lease(stage, account, audience) if act.intruder else None,
    )
    audience.end(outcome)
    return outcome


def _try_without_lease(stage: Stage, account: int, audience: Audience) -> str | None:
    refusal = stage.write_without_lease(account)
    if refusal is None:
        audience.note("A plain UPDATE without a lease: accepted.")
        return None
    sqlstate, message = refusal
    audience.note(f"A plain UPDATE without a lease: {message} ({sqlstate}).")
    return sqlstate
