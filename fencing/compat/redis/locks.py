"""``FencedLock`` and ``AsyncFencedLock``, side by side.

What is asked and what an answer means is decided in :mod:`fencing.compat.redis.steps`; when to ask
and how long to wait is redis-py's own code, which these classes inherit.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockError

from fencing.clock import now
from fencing.compat.redis import steps
from fencing.compat.redis.keys import fence_key
from fencing.compat.redis.leases import AsyncLockGrantor, LockGrantor
from fencing.compat.redis.model import Held, Memory
from fencing.compat.redis.performing import AsyncPerformer, Performer
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks.redis.clients import AnyAsyncClient, AnyClient
from fencing.request import MAX_TTL, AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.compat.redis.model import Grant
    from fencing.lease import BaseLease

__all__ = ["AsyncFencedLock", "FencedLock"]


class _ThreadMemory(Memory, threading.local):
    """`Memory` of which every thread has its own."""


class _Fenced:
    """What both kinds of lock have in common; see `FencedLock`."""

    redis: Any
    name: Any
    timeout: Any
    local: Any
    thread_local: bool
    _performer: Any
    _other: ClassVar[tuple[Any, str]]
    """Clients of the other kind, and the class that goes with them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - redis-py's
        client = args[0] if args else kwargs.get("redis")
        clients, lock_class = self._other
        if isinstance(client, clients):
            raise TypeError(
                f"{type(self).__name__} cannot talk through a {type(client).__module__}."
                f"{type(client).__qualname__}; with that client use lock_class={lock_class}"
            )
        super().__init__(*args, **kwargs)
        # redis-py gives a token to the thread that made the object only, so that in any other
        # its methods stop at an AttributeError.
        self.local = _ThreadMemory() if self.thread_local else Memory()

    @property
    def resource(self) -> str:
        """What the lease is for: the lock's name.

        It is what a guarded table names its rows by. Where locks are named otherwise, override it
        in a class of your own::

            class AccountLock(FencedLock):
                @property
                def resource(self) -> str:
                    return super().resource.removeprefix("lock:")
        """
        return self.name if isinstance(self.name, str) else self._keys[0].decode()

    @cached_property
    def _keys(self) -> tuple[bytes, bytes]:
        lock = bytes(self.redis.get_encoder().encode(self.name))
        return lock, fence_key(lock)

    def _held(self, token: Any) -> Held:  # noqa: ANN401 - whatever was encoded
        """What is known of the lock that was acquired with a token of redis-py's."""
        held: Held | None = self.local.held
        # Who takes over a lock of another object sets ``local.token`` by hand; then only the value
        # is known.
        return held if held is not None and held.value == bytes(token) else Held(bytes(token))

    def _leased(self) -> Held:
        if self.local.token is None:
            raise LockError("An unlocked lock has no lease", lock_name=self.name)
        held = self._held(self.local.token)
        if held.lease is None:
            raise LockError(
                f"The lock {self.name!r} has no lease: {held.without}", lock_name=self.name
            )
        return held

    def _leasing(self) -> AcquireRequest | str:
        """What a lease is to be made of; or why there can be none."""
        if not self.timeout:
            return "it was acquired without a timeout, and a lease has to end by itself"
        try:
            return AcquireRequest(resource=self.resource)
        except ValueError as error:
            return str(error)

    def _note(
        self,
        grant: Grant,
        leasing: AcquireRequest | str,
        make: Callable[..., BaseLease],
        grantor: type,
    ) -> None:
        """Remember a lock that was acquired, and its lease if it can have one."""
        if isinstance(leasing, str) or grant.ttl is None:
            self.local.held = grant.held(without=str(leasing))
            return
        lease = make(
            grantor(self.name, self._performer, self.local, grant),
            resource=leasing.resource,
            token=grant.token,
            holder=grant.holder,
            owner=leasing.owner_label,
            ttl=min(grant.ttl, MAX_TTL),
            asked_at=grant.asked_at,
        )
        self.local.held = grant.held(lease)


class FencedLock(_Fenced, redis.lock.Lock):
    """redis-py's ``Lock`` with a fencing token: ``client.lock(..., lock_class=FencedLock)``.

    It is used as redis-py's own, raises what that raises, and excludes it: key and value are the
    same. Besides,

    * a lock with a ``timeout`` has a :attr:`lease` while it is held, for guards in PostgreSQL;
    * a request that is repeated because its answer was lost acquires the lock it has acquired,
      and one that is given up (an error, an interruption) leaves no lock behind;
    * a lock that had run out before the answer came counts as not acquired.

    Args:
        *args: As ``redis.lock.Lock`` takes them.
        **kwargs: As ``redis.lock.Lock`` takes them. ``timeout`` is the length of the lock in
            seconds; a lease lasts for 24 hours at the longest.

    Raises:
        TypeError: The client is one of ``redis.asyncio``.
    """

    _other = AnyAsyncClient, "AsyncFencedLock"

    @property
    def lease(self) -> Lease:
        """The lease of the lock that this thread has acquired.

        A new one for each acquisition. ``lease.renew()`` and ``lease.release()`` do to the lock
        what they do to any lease, in any thread, with the errors of this package.

        Raises:
            LockError: The lock is not held; or it has no lease, since it does not expire, was
                acquired elsewhere, or has a name that cannot be a resource's.
        """
        return self._leased().lease  # type: ignore[return-value]  # made in do_acquire

    def raise_token(self, floor: int) -> None:
        """Give the lease a new token, greater than ``floor``, before it is admitted.

        For a database whose mark is ahead of Redis, because Redis has lost the tokens it has
        issued: ``floor`` is then the ``current_token`` of the ``StaleFenceError``.

        Args:
            floor: From 0 to 2**53 - 2.

        Raises:
            LockNotOwnedError: The lock is not ours any more: acquire it again.
            LockError: There is no lease, or no token that high.
            FencingUsageError: The lease has been admitted, so its token is final.
        """
        self._performer.perform(steps.raise_token(self.name, self._leased(), floor))

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    # What redis-py's own methods call.

    def do_acquire(self, token: Any) -> bool:  # noqa: ANN401 - whatever was encoded
        """Try to acquire the lock once."""
        leasing = self._leasing()
        grant = self._performer.perform(
            steps.acquire(self.name, self.local, bytes(token), new_holder(), self.timeout)
        )
        if grant is not None:
            self._note(grant, leasing, Lease, LockGrantor)
        return grant is not None

    def do_release(self, expected_token: Any) -> None:  # noqa: ANN401 - whatever was encoded
        """Release the lock."""
        self._performer.perform(steps.release(self.name, self.local, self._held(expected_token)))

    def do_extend(
        self,
        additional_time: float,
        replace_ttl: bool,  # noqa: FBT001 - redis-py's
    ) -> Literal[True]:
        """Give the lock another time to live."""
        self._extend(additional_time, "set" if replace_ttl else "add")
        return True

    def do_reacquire(self) -> Literal[True]:
        """Give the lock its timeout anew."""
        self._extend(self.timeout, "set")
        return True

    def _extend(self, seconds: float, how: str) -> None:
        held = self._held(self.local.token)
        self._performer.perform(steps.extend(self.name, held, seconds, how, started_at=now()))

    @cached_property
    def _performer(self) -> Performer:
        return Performer(self.redis, self._keys)


class AsyncFencedLock(_Fenced, redis.asyncio.lock.Lock):
    """:class:`FencedLock` for ``redis.asyncio``.

    Tasks of one thread share what an object has acquired, as with redis-py's own: give each task
    an object of its own.
    """

    _other = AnyClient, "FencedLock"

    @property
    def lease(self) -> AsyncLease:
        """See :attr:`FencedLock.lease`."""
        return self._leased().lease  # type: ignore[return-value]  # made in do_acquire

    async def raise_token(self, floor: int) -> None:
        """See :meth:`FencedLock.raise_token`."""
        await self._performer.perform(steps.raise_token(self.name, self._leased(), floor))

    if TYPE_CHECKING:

        async def __aenter__(self) -> Self: ...

    # What redis-py's own methods call.

    async def do_acquire(self, token: Any) -> bool:  # noqa: ANN401 - whatever was encoded
        """Try to acquire the lock once."""
        leasing = self._leasing()
        grant = await self._performer.perform(
            steps.acquire(self.name, self.local, bytes(token), new_holder(), self.timeout)
        )
        if grant is not None:
            self._note(grant, leasing, AsyncLease, AsyncLockGrantor)
        return grant is not None

    async def do_release(self, expected_token: Any) -> None:  # noqa: ANN401 - whatever was encoded
        """Release the lock."""
        await self._performer.perform(
            steps.release(self.name, self.local, self._held(expected_token))
        )

    async def do_extend(
        self,
        additional_time: float,
        replace_ttl: bool,  # noqa: FBT001 - redis-py's
    ) -> Literal[True]:
        """Give the lock another time to live."""
        await self._extend(additional_time, "set" if replace_ttl else "add")
        return True

    async def do_reacquire(self) -> Literal[True]:
        """Give the lock its timeout anew."""
        await self._extend(self.timeout, "set")
        return True

    async def _extend(self, seconds: float, how: str) -> None:
        held = self._held(self.local.token)
        await self._performer.perform(steps.extend(self.name, held, seconds, how, started_at=now()))

    @cached_property
    def _performer(self) -> AsyncPerformer:
        return AsyncPerformer(self.redis, self._keys)
