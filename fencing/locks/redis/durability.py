"""How much of what a lock service is granted must survive, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fencing.request import MAX_TTL

__all__ = ["COUNTER_SECONDS", "PLAIN", "REPLICA_SECONDS", "Durability"]

COUNTER_SECONDS = 30 * 86_400.0
"""How long the counter of a guarded resource is kept that nobody acquires, in seconds."""

REPLICA_SECONDS = 0.5
"""How long replicas are waited for, in seconds."""

REPLICAS_PART = 0.8
"""Which part of the time for an answer may be spent on waiting for them."""

MIN_REPLICA_SECONDS, MAX_REPLICA_SECONDS = 0.001, 4.0
"""The shortest and the longest time that they may be waited for, in seconds."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What a service asks Redis to keep.

    Attributes:
        counter_ttl: How long a counter is kept that nobody uses, in seconds, where a guard can
            reseed it; ``None``: for ever.
        guarded: Whether a guard uses the service.
        replicas: How many replicas must have a lock before it counts as granted, or renewed.
        replica_timeout: How long they are waited for, in seconds.
        keep: How long to keep a counter, as the scripts take it: in milliseconds, 0 for ever.
    """

    counter_ttl: float | None = COUNTER_SECONDS
    guarded: bool = False
    replicas: int = 0
    replica_timeout: float = REPLICA_SECONDS
    keep: str = field(init=False)

    def __post_init__(self) -> None:
        if self.counter_ttl is not None:
            _check_seconds("counter_ttl", self.counter_ttl)
            if not MAX_TTL <= self.counter_ttl < math.inf:
                raise ValueError(
                    f"counter_ttl must be at least {MAX_TTL:.0f} seconds, the longest lease, not "
                    f"{self.counter_ttl}"
                )
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise TypeError(f"replicas must be a number of replicas, not {self.replicas!r}")
        if self.replicas < 0:
            raise ValueError(f"replicas must not be negative, but is {self.replicas}")
        _check_seconds("replica_timeout", self.replica_timeout)
        if not MIN_REPLICA_SECONDS <= self.replica_timeout <= MAX_REPLICA_SECONDS:
            raise ValueError(
                f"replica_timeout must be {MIN_REPLICA_SECONDS} to {MAX_REPLICA_SECONDS:g} "
                f"seconds, not {self.replica_timeout}"
            )
        keep = "0"
        if self.guarded and self.counter_ttl is not None:
            keep = str(math.ceil(self.counter_ttl * 1000))
        object.__setattr__(self, "keep", keep)

    def wait_within(self, seconds: float) -> tuple[int, float] | None:
        """How many replicas to wait for and how long, in seconds; ``None`` for none.

        Args:
            seconds: How long the answer may take. Redis must stop waiting for replicas before we
                stop waiting for Redis.
        """
        if not self.replicas:
            return None
        return self.replicas, min(self.replica_timeout, seconds * REPLICAS_PART)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")


PLAIN = Durability(counter_ttl=None)
"""Nothing is asked for, and counters are kept for ever."""
