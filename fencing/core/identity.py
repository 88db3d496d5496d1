"""Which database it is, asked once."""

from __future__ import annotations

__all__ = ["KnownIdentity"]

_MANY = 100
"""So many others are remembered."""


class KnownIdentity:
    """What a database has told of itself.

    After a failover its address may lead to another one; so it is asked again when it is expected
    to be one that it was never asked about.
    """

    def __init__(self) -> None:
        self._identity = ""
        self._asked_about: set[str] = set()

    def answers(self, expected: str) -> bool:
        """Whether it need not be asked."""
        return self._identity == expected or expected in self._asked_about

    def note(self, identity: str, expected: str) -> None:
        """It was asked, and has told."""
        if len(self._asked_about) >= _MANY:
            self._asked_about.clear()
        self._asked_about.add(expected)
        self._identity = identity

    @property
    def told(self) -> str:
        """What it has told last; empty: nothing."""
        return self._identity
