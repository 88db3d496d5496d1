"""What the lock service of an adversary answers: anything, and never with a look at who holds what.

It only decides; :mod:`fencing.torture.adversary` says it. What it knows it knows from what it is
told: a floor is a mark that somebody has seen, so tokens are most treacherous around the highest of
them. Processes do not know of each other, and so agree often: on the number after a mark.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from random import Random

from fencing.request import MAX_TOKEN

__all__ = ["Answer", "Grant", "Lies"]

_LARGEST_JUMP = 40
"""Of a token that a database still believes, in bits; what is beyond it is refused."""
_TRUSTED_FOR = 10.0
"""The most that a lease is trusted for, in leases."""


class Answer(enum.Enum):
    """To whatever is asked."""

    YES = "done, it says"
    """Whether or not it is."""
    LOST = "the lease is another's, it says"
    UNREACHABLE = "no answer"
    FORGOTTEN = "the lease is not told that it was given back"


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that it grants, whoever has one already.

    Attributes:
        token: Its token.
        ahead: By how much too late the lease is said to have been asked for, in leases: it is
            trusted for so much longer than it should be.
    """

    token: int
    ahead: float


class Lies:
    """Answers of a lock service that cannot be relied upon.

    Args:
        seed: Of what it answers.
    """

    def __init__(self, seed: int) -> None:
        self._chance = Random(f"adversary {seed}")  # noqa: S311 - to be repeated
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._granted: defaultdict[str, list[int]] = defaultdict(lambda: [1])

    def grant(self, resource: str, floor: int) -> Grant | Answer:
        """What becomes of somebody who asks for a resource: mostly it is granted."""
        if self._chance.random() < 0.04:  # noqa: PLR2004 - it is there most of the time
            return self._chance.choice((Answer.LOST, Answer.UNREACHABLE))
        ahead = self._chance.choice((0.0, 0.0, self._chance.uniform(0.0, _TRUSTED_FOR)))
        return Grant(self._token(resource, floor), ahead)

    def raise_token(self, resource: str, floor: int, token: int) -> int | Answer:
        """The new token of a lease, which should be above the floor; or none."""
        drawn = self._chance.random()
        if drawn < 0.1:  # noqa: PLR2004 - in one of ten cases each
            return token
        if drawn < 0.2:  # noqa: PLR2004 - as above
            return self._chance.choice((Answer.LOST, Answer.UNREACHABLE))
        return self._token(resource, floor)

    def renew(self) -> Answer:
        """Whether a lease was renewed; it does not know whether it is anybody's."""
        return self._chance.choices(
            (Answer.YES, Answer.LOST, Answer.UNREACHABLE), weights=(18, 1, 1)
        )[0]

    def release(self) -> Answer:
        """What becomes of a lease that is given back."""
        return self._chance.choices(
            (Answer.YES, Answer.LOST, Answer.UNREACHABLE, Answer.FORGOTTEN), weights=(12, 1, 1, 1)
        )[0]

    def look(self) -> bool:
        """Whether something is so."""
        return self._chance.random() < 0.5  # noqa: PLR2004 - as good as any other

    def ahead(self) -> float:
        """By how much too late a renewal is said to have been asked for, in leases."""
        return self._chance.uniform(0.0, _TRUSTED_FOR)

    def _token(self, resource: str, floor: int) -> int:
        top = self._seen[resource] = max(self._seen[resource], floor)
        granted = self._granted[resource]
        draw = self._chance.choices(
            ("next", "near", "mark", "reversed", "repeated", "small", "jump", "absurd"),
            weights=(50, 10, 8, 10, 10, 5, 1, 1 if top else 0),
        )[0]
        match draw:
            case "next":
                token = top + 1
            case "near":
                token = top + self._chance.randint(1, 4)
            case "mark":
                token = top
            case "reversed":
                token = self._chance.randint(1, top + 1)
            case "repeated":
                token = self._chance.choice(granted[-20:])
            case "small":
                token = self._chance.randint(1, 5)
            case "jump":
                token = top + 2 ** self._chance.randint(3, _LARGEST_JUMP)
            case _:
                # Never as the first of a resource, of which any is believed: nothing is above it.
                token = self._chance.choice(
                    (top + 2**_LARGEST_JUMP + 1, top + 2 ** (_LARGEST_JUMP + 5), MAX_TOKEN)
                )
        token = min(max(token, 1), MAX_TOKEN)
        granted.append(token)
        return token
