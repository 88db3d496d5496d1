"""Locks in ZooKeeper that issue fencing tokens: the sync and the async service, side by side.

::

    locks = ZooKeeperLockService("zk1:2181,zk2:2181,zk3:2181")
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

What is asked, and what an answer means, is decided in :mod:`fencing.locks.zookeeper.acquiring` and
:mod:`fencing.locks.zookeeper.steps`; :mod:`fencing.locks.zookeeper.performing` performs it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from fencing.clock import now
from fencing.locks.base import AsyncBaseLockService, BaseLockService
from fencing.locks.extras import needing
from fencing.locks.zookeeper import acquiring, inspecting, steps
from fencing.locks.zookeeper.address import Address, check_hosts, chroot_in
from fencing.locks.zookeeper.judging import Sightings
from fencing.locks.zookeeper.names import Space, check_namespace
from fencing.locks.zookeeper.verifying import Asked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from types import ModuleType

    from fencing.errors import FencingError
    from fencing.lease import AsyncLease, Lease
    from fencing.locks.outcome import Outcome
    from fencing.locks.zookeeper.asking import Steps
    from fencing.locks.zookeeper.performing import AsyncPerformer, Performer
    from fencing.locks.zookeeper.session import Session
    from fencing.request import AcquireRequest
    from fencing.state import LockState
    from fencing.verification import ServiceVerification

__all__ = ["AsyncZooKeeperLockService", "ZooKeeperLockService"]

SESSION_SECONDS = 10.0
"""How long ZooKeeper keeps the place in the queue of a process it hears nothing of, in seconds."""

MIN_SESSION_SECONDS = 0.1


class ZooKeeperLockService(BaseLockService):
    """A lock service over a ZooKeeper ensemble, version 3.5.3 or newer.

    All calls share one session, which is begun by the first of them, however many wait. Threads may
    share a service; a forked child may use its copy, which begins a session of its own.

    Args:
        hosts: The servers, as ``host:port,host:port/chroot``; the chroot, if any, must be there.
        namespace: The node, under the chroot, under which all others are made; default:
            ``"fencing"``. Services with different namespaces know nothing of each other.
        session_timeout: How long a waiter that has died or was stopped can keep those behind it
            waiting, in seconds, at least 0.1; default: 10. The servers bound it (``tickTime``).
            Leases do not depend on it.
        user: With whom to authenticate (scheme ``digest``); the nodes that are made are then for
            this user only. Default: nobody, and nodes for everybody.
        password: This user's password.
        **kwargs: For ``kazoo.client.KazooClient``, ``use_ssl`` and ``ca`` for instance.

    Raises:
        ModuleNotFoundError: kazoo is not installed (``fencing[zookeeper]``).
        TypeError: An argument is of the wrong type.
        ValueError: The hosts are no ``host:port``, the namespace or chroot cannot name a node, a
            number is out of its range, or only one of user and password is given.
    """

    def __init__(
        self,
        hosts: str,
        *,
        namespace: str = "fencing",
        session_timeout: float = SESSION_SECONDS,
        user: str | None = None,
        password: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - kazoo's
    ) -> None:
        super().__init__()
        name = check_namespace(namespace)
        self._session = _session(hosts, session_timeout, user, password, kwargs)
        self._space = Space(name, chroot_in(hosts))
        self._zookeeper: Performer = _performing().Performer(self._session)
        self._sightings = Sightings()
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        session_timeout: float = SESSION_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - kazoo's
    ) -> Self:
        """A service for the ensemble at an address.

        Args:
            url: As in ``zookeeper://user:password@host:2181,host:2181/chroot``, where user,
                password and chroot may be left out; ``zk://`` means the same.
            namespace: As for the service.
            session_timeout: As for the service.
            **kwargs: For ``kazoo.client.KazooClient``.
        """
        address = Address.parse(url)
        return cls(
            address.hosts,
            namespace=namespace,
            session_timeout=session_timeout,
            user=address.user,
            password=address.password,
            **kwargs,
        )

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - of a callback
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                space=self._space,
                sightings=self._sightings,
                in_line=in_line,
            )

        if request.patience > 0 and not request.fair:
            return self._zookeeper.perform_in_line(call, request.resource)
        return self._zookeeper.perform(call())

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        self._zookeeper.perform(
            acquiring.give_up(request, holder, started_at=now(), space=self._space)
        )

    def _renew(self, lease: Lease, ttl: float) -> None:
        self._zookeeper.perform(steps.renew(lease, ttl, started_at=now(), space=self._space))

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases together, all asked before the first answer, once; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long all of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """
        came = self._zookeeper.ask_together(
            [steps.renewal_of(lease, ttl) for lease, ttl in leases], within
        )
        return [
            steps.judge_renewal(lease, ttl, each, self._space)
            for (lease, ttl), each in zip(leases, came, strict=True)
        ]

    def verify(self) -> ServiceVerification:
        """Look what weakens this service: size and state of the ensemble, and its sessions.

        Reads only, over connections and a session of its own.

        Raises:
            LockServiceError: None of its servers could be reached.
        """
        found: ServiceVerification = _looking().verify(
            self._session, _asked(self._session, self._space)
        )
        return found

    def release(self, lease: Lease) -> None:
        """See :meth:`BaseLockService.release`."""
        self._zookeeper.perform(steps.release(lease, started_at=now(), space=self._space))

    def _raise_token(self, lease: Lease, floor: int) -> None:
        self._zookeeper.perform(
            steps.raise_token(lease, floor, started_at=now(), space=self._space)
        )

    def _inspect(self, resource: str) -> LockState:
        return self._states([resource])[0]

    def _force_release(self, resource: str) -> bool:
        return self._zookeeper.perform(
            inspecting.end_anyones(resource, started_at=now(), space=self._space)
        )

    def _scan(self, prefix: str) -> Iterator[LockState]:
        names = self._zookeeper.perform(
            inspecting.ask_names(prefix, started_at=now(), space=self._space)
        )
        for page in _pages(names):
            yield from [state for state in self._states(page) if state.held]

    def _states(self, resources: Sequence[str]) -> list[LockState]:
        return self._zookeeper.perform(
            inspecting.ask_states(resources, started_at=now(), space=self._space)
        )

    def _close(self) -> None:
        self._session.close()


class AsyncZooKeeperLockService(AsyncBaseLockService):
    """:class:`ZooKeeperLockService` for asyncio.

    Its session belongs to no event loop; end it with :meth:`aclose`, or use the service in
    ``async with``.
    """

    def __init__(
        self,
        hosts: str,
        *,
        namespace: str = "fencing",
        session_timeout: float = SESSION_SECONDS,
        user: str | None = None,
        password: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - kazoo's
    ) -> None:
        super().__init__()
        name = check_namespace(namespace)
        self._session = _session(hosts, session_timeout, user, password, kwargs)
        self._space = Space(name, chroot_in(hosts))
        self._zookeeper: AsyncPerformer = _performing().AsyncPerformer(self._session)
        self._sightings = Sightings()
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        session_timeout: float = SESSION_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - kazoo's
    ) -> Self:
        """See :meth:`ZooKeeperLockService.from_url`."""
        address = Address.parse(url)
        return cls(
            address.hosts,
            namespace=namespace,
            session_timeout=session_timeout,
            user=address.user,
            password=address.password,
            **kwargs,
        )

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()
        parent = self._space.parent(request.resource)

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - of a callback
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                space=self._space,
                sightings=self._sightings,
                in_line=in_line,
            )

        if request.patience > 0 and not request.fair:
            return await self._zookeeper.acquire_in_line(call, request.resource, parent, holder)
        return await self._zookeeper.acquire(call(), parent, holder)

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        await self._zookeeper.perform(
            acquiring.give_up(request, holder, started_at=now(), space=self._space)
        )

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        await self._zookeeper.perform(steps.renew(lease, ttl, started_at=now(), space=self._space))

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`ZooKeeperLockService.renew_many`."""
        came = await self._zookeeper.ask_together(
            [steps.renewal_of(lease, ttl) for lease, ttl in leases], within
        )
        return [
            steps.judge_renewal(lease, ttl, each, self._space)
            for (lease, ttl), each in zip(leases, came, strict=True)
        ]

    async def verify(self) -> ServiceVerification:
        """See :meth:`ZooKeeperLockService.verify`; in a thread."""
        asked = _asked(self._session, self._space)
        return await asyncio.to_thread(_looking().verify, self._session, asked)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`ZooKeeperLockService.release`."""
        await self._zookeeper.perform(steps.release(lease, started_at=now(), space=self._space))

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        await self._zookeeper.perform(
            steps.raise_token(lease, floor, started_at=now(), space=self._space)
        )

    async def _inspect(self, resource: str) -> LockState:
        return (await self._states([resource]))[0]

    async def _force_release(self, resource: str) -> bool:
        return await self._zookeeper.perform(
            inspecting.end_anyones(resource, started_at=now(), space=self._space)
        )

    async def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        names = await self._zookeeper.perform(
            inspecting.ask_names(prefix, started_at=now(), space=self._space)
        )
        for page in _pages(names):
            for state in [state for state in await self._states(page) if state.held]:
                yield state

    async def _states(self, resources: Sequence[str]) -> list[LockState]:
        return await self._zookeeper.perform(
            inspecting.ask_states(resources, started_at=now(), space=self._space)
        )

    async def _close(self) -> None:
        # kazoo joins its threads.
        await asyncio.get_running_loop().run_in_executor(None, self._session.close)


def _performing() -> ModuleType:
    return needing(
        "kazoo",
        "fencing.locks.zookeeper.performing",
        extra="zookeeper",
        service="ZooKeeperLockService",
    )


def _looking() -> ModuleType:
    return needing(
        "kazoo", "fencing.locks.zookeeper.looking", extra="zookeeper",
        service="ZooKeeperLockService",
    )  # fmt: skip


def _asked(session: Session, space: Space) -> Asked:
    options = session.options
    return Asked(options["timeout"], "auth_data" in options, space.namespace, space.chroot)


def _session(
    hosts: str,
    session_timeout: float,
    user: str | None,
    password: str | None,
    options: dict[str, Any],
) -> Session:
    _performing()
    if not isinstance(hosts, str):
        raise TypeError(
            f"hosts must be a str such as 'zk1:2181,zk2:2181', not {type(hosts).__name__}"
        )
    if not hosts.strip():
        raise ValueError("hosts must name a server: 'zk1:2181,zk2:2181'")
    check_hosts(hosts)
    if isinstance(session_timeout, bool) or not isinstance(session_timeout, int | float):
        raise TypeError(
            f"session_timeout must be a number of seconds, not {type(session_timeout).__name__}"
        )
    if not MIN_SESSION_SECONDS <= session_timeout <= 24 * 60 * 60:
        raise ValueError(
            f"session_timeout must be from {MIN_SESSION_SECONDS} seconds to 24 hours, not "
            f"{session_timeout!r}"
        )
    if (user is None) != (password is None):
        raise ValueError("user and password are given together, or neither of them")
    from fencing.locks.zookeeper import session  # noqa: PLC0415 - which needs kazoo

    return session.Session(hosts, session.options_of(session_timeout, user, password, options))


def _pages(names: list[str]) -> list[list[str]]:
    size = inspecting.PAGE_RESOURCES
    return [names[at : at + size] for at in range(0, len(names), size)]
