"""How much of what a lock service is granted must survive, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fencing.request import MAX_TTL

__all__ = ["COUNTER_SECONDS", "PLAIN", "Durability"]

COUNTER_SECONDS = 30 * 86_400.0
"""How long the counter of a guarded resource is kept that nobody acquires, in seconds."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What a service asks Redis to keep.

    Attributes:
        counter_ttl: How long a counter is kept that nobody uses, in seconds, where a guard can
            reseed it; ``None``: for ever.
        guarded: Whether a guard uses the service.
    """

    counter_ttl: float | None = COUNTER_SECONDS
    guarded: bool = False

    def __post_init__(self) -> None:
        ttl = self.counter_ttl
        if ttl is None:
            return
        if isinstance(ttl, bool) or not isinstance(ttl, int | float):
            raise TypeError(f"counter_ttl must be a number of seconds or None, not {ttl!r}")
        if not MAX_TTL <= ttl < math.inf:
            raise ValueError(
                f"counter_ttl must be at least {MAX_TTL:.0f} seconds, the longest lease, not {ttl}"
            )

    @property
    def keep(self) -> str:
        """How long to keep a counter, as the scripts take it: in milliseconds, 0 for ever."""
        if not self.guarded or self.counter_ttl is None:
            return "0"
        return str(math.ceil(self.counter_ttl * 1000))


PLAIN = Durability(counter_ttl=None)
"""Nothing is asked for, and counters are kept for ever."""
