"""Lock services that say what a test tells them to: adversaries, or plain ones without a server.

::

    locks = ScriptedLocks(7, 3)             # the next two acquisitions get the tokens 7 and 3
    with Guard(locks, engine).acquire("x"): ...

They exclude nobody, so that two holders can believe in one lock at once; the database has to cope.
What they were asked is in ``calls``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fencing import AsyncLease, Lease, LeaseLostError
from fencing.clock import now
from fencing.core.acquiring_all import AsyncSeveralLocks, SeveralLocks
from fencing.lease import new_holder
from fencing.service import Acquisition
from fencing.state import LockState

if TYPE_CHECKING:
    from fencing.lease import BaseLease

__all__ = ["AsyncScriptedLocks", "ScriptedLocks", "expire"]


class _Script:
    """What both say.

    Args:
        tokens: What the next acquisitions are given: a token, a token and a holder, ``None`` for
            a lock that is held, or an exception to raise. Afterwards tokens count upwards.
    """

    def __init__(self, *tokens: int | tuple[int, str] | BaseException | None) -> None:
        self.tokens = deque(tokens)
        self.raised: deque[int | BaseException] = deque()
        self.releases: deque[BaseException | None] = deque()
        self.renewals: deque[BaseException | None] = deque()
        self.ttl_left: float | None = None
        self.counter = 0
        self.calls: list[tuple[Any, ...]] = []
        self.wishes: list[dict[str, Any]] = []

    def facts(
        self,
        resource: str,
        *,
        ttl: float,
        floor: int,
        owner: str | None,
        wishes: dict[str, Any],
    ) -> dict[str, Any] | None:
        self.calls.append(("acquire", resource, floor))
        self.wishes.append(wishes)
        answer = self.tokens.popleft() if self.tokens else max(self.counter, floor) + 1
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            return None
        token, holder = answer if isinstance(answer, tuple) else (answer, new_holder())
        self.counter = token
        # A lease may come with little of its trust left, as after a slow answer.
        asked_at = now() if self.ttl_left is None else now() - ttl + self.ttl_left
        return {
            "resource": resource, "token": token, "holder": holder,
            "owner": owner or "scripted", "ttl": ttl, "asked_at": asked_at,
        }  # fmt: skip

    def say_raised(self, lease: BaseLease, floor: int) -> None:
        self.calls.append(("raise", lease.resource, floor))
        answer = self.raised.popleft() if self.raised else floor + 1
        if isinstance(answer, BaseException):
            raise answer
        self.counter = max(self.counter, answer)
        lease.note_token(answer)

    def say_renewed(self, lease: BaseLease, ttl: float) -> None:
        self.calls.append(("renew", lease.resource))
        answer = self.renewals.popleft() if self.renewals else None
        if answer is not None:
            raise answer
        lease.note_renewed(asked_at=now(), ttl=ttl)

    def say_released(self, lease: BaseLease) -> None:
        self.calls.append(("release", lease.resource))
        answer = self.releases.popleft() if self.releases else None
        if isinstance(answer, LeaseLostError):
            lease.note_lost()
            raise answer
        lease.note_released()
        if answer is not None:
            raise answer

    def say_state(self, resource: str) -> LockState:
        self.calls.append(("inspect", resource))
        return LockState(resource=resource, counter=self.counter)

    def count(self, what: str) -> int:
        """How often something was asked."""
        return sum(1 for call in self.calls if call[0] == what)


class ScriptedLocks(_Script, SeveralLocks):
    """The synchronous one."""

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,  # noqa: ARG002 - the protocol's
        blocking_timeout: float | None = None,  # noqa: ARG002 - likewise
        owner: str | None = None,
        floor: int = 0,
        **wishes: object,
    ) -> Lease:
        """Grant what the script says."""
        facts = self.facts(resource, ttl=ttl, floor=floor, owner=owner, wishes=wishes)
        assert facts is not None
        return Lease(self, **facts)

    def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        floor: int = 0,
        **wishes: object,
    ) -> Lease | None:
        """Grant what the script says."""
        facts = self.facts(resource, ttl=ttl, floor=floor, owner=owner, wishes=wishes)
        return None if facts is None else Lease(self, **facts)

    def renew(self, lease: Lease, ttl: float) -> None:
        """Renew, or raise what the script says."""
        self.say_renewed(lease, ttl)

    def release(self, lease: Lease) -> None:
        """Release, or raise what the script says."""
        self.say_released(lease)

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Raise the token to one above the floor, or to what the script says."""
        self.say_raised(lease, floor)

    def inspect(self, resource: str) -> LockState:
        """Nobody is kept out, so nothing is held."""
        return self.say_state(resource)

    def locked(self, resource: str) -> bool:
        """See :meth:`inspect`."""
        return self.say_state(resource).held

    def force_release(self, resource: str) -> bool:
        """See :meth:`inspect`."""
        return self.say_state(resource).held

    def close(self) -> None:
        """Nothing to close."""


class AsyncScriptedLocks(_Script, AsyncSeveralLocks):
    """The asynchronous one."""

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,  # noqa: ARG002 - the protocol's
        blocking_timeout: float | None = None,  # noqa: ARG002 - likewise
        owner: str | None = None,
        floor: int = 0,
        **wishes: object,
    ) -> Acquisition:
        """Grant what the script says."""

        async def begin() -> AsyncLease:
            facts = self.facts(resource, ttl=ttl, floor=floor, owner=owner, wishes=wishes)
            assert facts is not None
            return AsyncLease(self, **facts)

        return Acquisition(begin)

    async def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        floor: int = 0,
        **wishes: object,
    ) -> AsyncLease | None:
        """Grant what the script says."""
        facts = self.facts(resource, ttl=ttl, floor=floor, owner=owner, wishes=wishes)
        return None if facts is None else AsyncLease(self, **facts)

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """Renew, or raise what the script says."""
        self.say_renewed(lease, ttl)

    async def release(self, lease: AsyncLease) -> None:
        """Release, or raise what the script says."""
        self.say_released(lease)

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """Raise the token to one above the floor, or to what the script says."""
        self.say_raised(lease, floor)

    async def inspect(self, resource: str) -> LockState:
        """Nobody is kept out, so nothing is held."""
        return self.say_state(resource)

    async def locked(self, resource: str) -> bool:
        """See :meth:`inspect`."""
        return self.say_state(resource).held

    async def force_release(self, resource: str) -> bool:
        """See :meth:`inspect`."""
        return self.say_state(resource).held

    async def aclose(self) -> None:
        """Nothing to close."""


def expire(lease: BaseLease) -> None:
    """End the trust in a lease now, as if its holder had been paused."""
    lease.trusted_until = now() - 0.001
