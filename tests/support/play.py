"""Plays the shell of a lock service to what it decides: no server, no clock and no waiting."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from fencing.errors import FencingError
from fencing.locks.asking import Pause, Trouble
from fencing.locks.redis.acquiring import Acquiring
from fencing.locks.redis.asking import Ask, Line, Listen, Reply, Signal, Wait
from fencing.locks.redis.durability import PLAIN, Durability
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.locks.performing import Prompt

__all__ = ["HOLDER", "Play", "play_acquire"]

HOLDER = "0123456789abcdef0123456789abcdef"


class Play:
    """Plays the shell: performs steps in no time at all, on a clock that the test moves.

    Args:
        call: What decides: a generator, or a `Prompt`.
        at: The time.
        nonce: Of the channel that is listened to, if it is asked for; empty: that fails.
        listens: Whether it is listened to.
    """

    def __init__(
        self,
        call: Generator[Any, Any, Any] | Prompt[Any],
        at: float = 0.0,
        *,
        nonce: str = "",
        listens: bool = False,
    ) -> None:
        self.call: Any = call
        self.at = at
        self.nonce = nonce
        self.listens = listens
        self.result: Any = None
        self.step: Any = None
        self._begins = not isinstance(call, Generator)
        if isinstance(call, Generator):
            self._go(lambda: next(call))
        else:
            self.step = call.begin()

    def ask(self) -> Ask:
        """What is asked now."""
        assert isinstance(self.step, Ask), self.step
        return self.step

    def answer(
        self,
        status: str,
        *facts: object,
        after: float = 0.001,
        echo: str = "",
        acknowledged: int = 0,
    ) -> Play:
        """Let Redis answer."""
        asked_at, holder = self.at, self.ask().arguments[0]
        self.at += after
        answer = [status, echo or holder, *map(str, facts)]
        return self._send(Reply(answer, asked_at, self.at, acknowledged))

    def fail(
        self,
        *,
        passing: bool = True,
        after: float = 0.001,
        brief: bool = False,
        busy: bool = False,
    ) -> Play:
        """Let the request fail."""
        self.ask()
        self.at += after
        trouble = Trouble("out of order", passing=passing, at=self.at, brief=brief, busy=busy)
        trouble.__cause__ = ConnectionResetError("gone")
        return self.throw(trouble)

    def throw(self, error: BaseException) -> Play:
        """Interrupt the step."""
        return self._go_on(error) if self._begins else self._go(lambda: self.call.throw(error))

    def wait(self) -> float:
        """Let the time pass for which it waits; return how long that is, in seconds."""
        assert isinstance(self.step, Pause | Wait), self.step
        seconds = self.step.seconds
        self.at += seconds
        ends: Any = self.at if isinstance(self.step, Pause) else Signal(self.at)
        self._go(lambda: self.call.send(ends))
        return seconds

    def tell(self, token: int = 0, *, after: float = 0.0) -> Play:
        """Tell the waiter something."""
        assert isinstance(self.step, Wait), self.step
        self.at += after
        return self._go(lambda: self.call.send(Signal(self.at, token=token)))

    def _send(self, reply: Reply) -> Play:
        if not self._begins:
            return self._go(lambda: self.call.send(reply))
        try:
            self.result = self.call.settle(reply)
        except FencingError as error:
            return self._go_on(error)
        if self.result is None:
            return self._go_on(reply)
        self.step = None
        return self

    def _go_on(self, came: Reply | BaseException) -> Play:
        self.call, self._begins = self.call.go_on(came), False
        return self._go(lambda: next(self.call))

    def _go(self, go: Callable[[], Any]) -> Play:
        self.step = None
        try:
            self.step = go()
            while isinstance(self.step, Line | Listen):
                self.listens = self.listens or isinstance(self.step, Listen)
                nonce = self.nonce if self.listens else ""
                self.step = self.call.send(Signal(self.at, nonce=nonce))
        except StopIteration as end:
            self.result = end.value
        return self


def play_acquire(
    at: float = 0.0,
    *,
    nonce: str = "",
    listens: bool = False,
    durability: Durability = PLAIN,
    **wishes: Any,
) -> Play:
    """An acquisition, up to its first request."""
    request = AcquireRequest(resource="r", **{"ttl": 10, **wishes})
    call = Acquiring(
        request,
        holder=HOLDER,
        started_at=at,
        durability=durability,
        nonce=nonce if listens else "",
    )
    return Play(call, at, nonce=nonce, listens=listens)
