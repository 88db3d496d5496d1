"""Named points in a worker's work, where it can be stopped or killed exactly.

A signal from outside comes a little earlier or later than meant. A worker therefore stops itself,
and whoever runs it sees that it has stopped and lets it go on.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencing.torture.recording import Record
    from fencing.torture.settings import Plan

__all__ = [
    "ADMITTED",
    "ASKING",
    "BEGINNING",
    "COMMITTING",
    "DONE",
    "GRANTED",
    "MID_RESULT",
    "POINTS",
    "READ",
    "WRITTEN",
    "Points",
]

ASKING = "before acquiring"
GRANTED = "after the grant"
"""The lock service has granted; the database has not admitted yet."""
ADMITTED = "after admission"
BEGINNING = "before a transaction"
READ = "after the read"
MID_RESULT = "in the middle of a result"
WRITTEN = "before COMMIT"
COMMITTING = "waiting for COMMIT's answer"
DONE = "before the release"

POINTS = (ASKING, GRANTED, ADMITTED, BEGINNING, READ, MID_RESULT, WRITTEN, COMMITTING, DONE)


class Points:
    """What a worker does at the points it comes to.

    Args:
        plan: Says so, exactly (``orders``) or by chance.
        record: Where it is written down beforehand.
    """

    def __init__(self, plan: Plan, record: Record) -> None:
        self._orders = {(order.point, order.nth): order.action for order in plan.orders}
        self._stops, self._deaths = plan.stops, plan.deaths
        self._chance = random.Random(f"points {plan.seed}")  # noqa: S311 - to be repeated
        self._record = record
        self._times: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        """Be at a point: go on at once, or much later, or never."""
        self._times[point] += 1
        action = self._orders.get((point, self._times[point])) or self._by_chance()
        if action is None:
            return
        self._record("reached", point=point, nth=self._times[point], action=action)
        os.kill(os.getpid(), signal.SIGKILL if action == "die" else signal.SIGSTOP)
        self._record("continued", point=point)

    def _by_chance(self) -> str | None:
        drawn = self._chance.random()
        if drawn < self._deaths:
            return "die"
        return "stop" if drawn < self._deaths + self._stops else None
