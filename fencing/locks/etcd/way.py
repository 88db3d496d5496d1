"""The way to one etcd, and what a request to it is made of; without I/O."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx

from fencing.clock import now
from fencing.locks.asking import Trouble
from fencing.locks.etcd.answers import reply_to
from fencing.locks.etcd.troubles import trouble_of

if TYPE_CHECKING:
    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.requests import Body

__all__ = ["Way"]

_HEADERS = {"Content-Type": "application/json"}


class Way:
    """The way to one etcd: which of its members is asked, and as whom.

    Attributes:
        address: Where it is.
        answered: How many requests were, so far; threads may have missed some in counting.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.answered = 0
        self._at = 0
        self._token = ""

    def url(self, path: str) -> str:
        """Where to ask; the path is the part behind ``/v3/``."""
        endpoints = self.address.endpoints
        return f"{endpoints[self._at % len(endpoints)]}/v3/{path}"

    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        return {**_HEADERS, "Authorization": self._token} if self._token else _HEADERS

    def content(self, body: Body) -> bytes:
        """A request as it is sent."""
        return json.dumps(body, separators=(",", ":")).encode()

    @property
    def credentials(self) -> bytes:
        """The request by which one says who one is."""
        return self.content({"name": self.address.user, "password": self.address.password})

    @property
    def must_authenticate(self) -> bool:
        """Whether that is to be said before anything is asked."""
        return bool(self.address.user) and not self._token

    def note_token(self, status: int, content: bytes) -> None:
        """We have said who we are; keep the token that was given to us, or raise."""
        at = now()
        reply = reply_to(status, content, asked_at=at, at=at)
        token = reply.body.get("token")
        if not isinstance(token, str) or not token:
            raise Trouble("etcd was told who asks, and gave no token", passing=False, at=at)
        self._token = token

    def trouble(self, error: Exception, answered: int) -> Trouble:
        """What an error of httpx means; noted if it is the member's.

        Args:
            error: One of `HTTP_ERRORS`.
            answered: How many requests had been answered when this one was made.
        """
        if not isinstance(error, httpx.PoolTimeout):
            self.note_trouble()
        return trouble_of(error, at=now(), busy=self.answered != answered)

    def note_trouble(self) -> None:
        """This member has not answered as it should; the next one is asked from now on."""
        self._at += 1
