"""Locks in etcd that issue fencing tokens: the sync and the async service, side by side.

::

    locks = EtcdLockService("http://127.0.0.1:2379")
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

How a lock is kept and how one waits is told in :mod:`fencing.locks.etcd.acquiring`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from fencing.clock import now
from fencing.errors import FencingError
from fencing.locks.base import AsyncBaseLockService, BaseLockService
from fencing.locks.etcd import acquiring, inspecting, steps
from fencing.locks.etcd.address import Address, address_in, tls_context
from fencing.locks.etcd.keys import Keys, check_namespace
from fencing.locks.etcd.many import done_for_each
from fencing.locks.extras import needing

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator, Sequence
    from os import PathLike
    from types import ModuleType

    from fencing.lease import AsyncLease, Lease
    from fencing.locks.etcd.asking import Steps
    from fencing.locks.etcd.performing import AsyncPerformer, Performer
    from fencing.locks.outcome import Outcome
    from fencing.request import AcquireRequest
    from fencing.state import LockState
    from fencing.verification import ServiceVerification

__all__ = ["AsyncEtcdLockService", "EtcdLockService"]


class EtcdLockService(BaseLockService):
    """A lock service over an etcd 3.4 or newer, by its JSON gateway.

    Tokens are revisions of etcd's store, which grow with every change of anything in it. etcd
    counts leases in whole seconds: what is asked for is rounded up, to at least etcd's own minimum
    (2 s by default), and after a holder who did not release his lock, the next one waits until
    that is over. The holder himself trusts his lease for his ttl and no longer.

    Threads may share a service; a forked child may use its copy.

    Args:
        endpoints: Its members, as ``http://127.0.0.1:2379`` or ``https://…``, one or several; the
            next one is asked when one does not answer.
        namespace: What the keys in etcd begin with; default: ``"fencing"``. Services with
            different namespaces know nothing of each other.
        user: Who asks; default: nobody in particular.
        password: His password.
        tls: How to verify etcd's certificate, and what to show; default, with ``https://``: as the
            system does, and nothing.

    Raises:
        ModuleNotFoundError: httpx is not installed (``fencing[etcd]``).
        TypeError: An argument is of the wrong type.
        ValueError: The namespace or an endpoint makes no sense.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "http://127.0.0.1:2379",
        *,
        namespace: str = "fencing",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        self._keys = Keys(self.namespace)
        self._address = Address.of(endpoints, user, password, tls)
        self._etcd: Performer = _performing().Performer(self._address)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        ca: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
    ) -> Self:
        """A service for the etcd at an address; nothing is sent yet.

        Args:
            url: As in ``etcd://user:password@host:2379,host2:2379/``; ``etcds://`` over TLS.
            namespace: As for the service.
            ca: A file with the certificates of those who may vouch for etcd; default: the system's.
            certificate: A file with a certificate of our own to show, and perhaps its key.
            key: A file with its key.

        Raises:
            OSError: A file cannot be read, or holds no certificate.
            TypeError: The address is not a ``str``.
            ValueError: It makes no sense.
        """
        endpoints, user, password = address_in(url)
        return cls(
            endpoints,
            namespace=namespace,
            user=user,
            password=password,
            tls=tls_context(ca, certificate, key),
        )

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases, several at a time; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long each of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """

        def renew(lease_and_ttl: tuple[Lease, float]) -> FencingError | None:
            lease, ttl = lease_and_ttl
            at = now()
            call = steps.renew(
                self._keys, lease, ttl, started_at=at, ends=at + within, in_background=True
            )
            try:
                self._etcd.perform(call)
            except FencingError as error:
                return error
            return None

        return done_for_each(renew, leases)

    def verify(self) -> ServiceVerification:
        """Look what weakens this service: state, permissions and size of its etcd.

        Changes nothing, over connections of its own.

        Raises:
            LockServiceError: None of its endpoints could be reached.
        """
        found: ServiceVerification = _looking().verify(self._address, self._keys)
        return found

    def release(self, lease: Lease) -> None:
        """See :meth:`BaseLockService.release`."""
        self._etcd.perform(steps.release(self._keys, lease, started_at=now()))

    def _renew(self, lease: Lease, ttl: float) -> None:
        self._etcd.perform(steps.renew(self._keys, lease, ttl, started_at=now()))

    def _raise_token(self, lease: Lease, floor: int) -> None:
        self._etcd.perform(steps.raise_token(self._keys, lease, floor, started_at=now()))

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - a callback
            return acquiring.acquire(
                self._keys, request, holder=holder, started_at=started_at, in_line=in_line
            )

        if request.patience > 0:
            return self._etcd.perform_waiting(call, request.resource, fair=request.fair)
        return self._etcd.perform(call())

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        self._etcd.perform(acquiring.give_up(self._keys, request, holder, started_at=now()))

    def _inspect(self, resource: str) -> LockState:
        return self._etcd.perform(inspecting.ask_state(self._keys, resource, started_at=now()))

    def _force_release(self, resource: str) -> bool:
        return self._etcd.perform(inspecting.end_anyones(self._keys, resource, started_at=now()))

    def _scan(self, prefix: str) -> Iterator[LockState]:
        after: bytes | None = b""
        told = ""
        while after is not None:
            steps_ = inspecting.next_page(self._keys, prefix, after, started_at=now())
            after, names = self._etcd.perform(steps_)
            for name in names:
                if name != told and (state := self._inspect(name)).held:
                    yield state
                told = name  # the last of a page may be the first of the next

    def _close(self) -> None:
        self._etcd.close()


class AsyncEtcdLockService(AsyncBaseLockService):
    """:class:`EtcdLockService` for asyncio.

    Its connections belong to one event loop; close them with :meth:`aclose`, or use the service
    in ``async with``. After that loop has been closed, it begins anew in the next one.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "http://127.0.0.1:2379",
        *,
        namespace: str = "fencing",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.namespace = check_namespace(namespace)
        self._keys = Keys(self.namespace)
        self._address = Address.of(endpoints, user, password, tls)
        self._etcd: AsyncPerformer = _performing().AsyncPerformer(self._address)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        ca: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
    ) -> Self:
        """See :meth:`EtcdLockService.from_url`."""
        endpoints, user, password = address_in(url)
        return cls(
            endpoints,
            namespace=namespace,
            user=user,
            password=password,
            tls=tls_context(ca, certificate, key),
        )

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`EtcdLockService.renew_many`; at once."""

        async def renew(lease: AsyncLease, ttl: float) -> FencingError | None:
            at = now()
            call = steps.renew(
                self._keys, lease, ttl, started_at=at, ends=at + within, in_background=True
            )
            try:
                await self._etcd.perform(call)
            except FencingError as error:
                return error
            return None

        return await asyncio.gather(*[renew(lease, ttl) for lease, ttl in leases])

    async def verify(self) -> ServiceVerification:
        """See :meth:`EtcdLockService.verify`; all endpoints at once."""
        found: ServiceVerification = await _looking().averify(self._address, self._keys)
        return found

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`BaseLockService.release`."""
        await self._etcd.perform(steps.release(self._keys, lease, started_at=now()))

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        await self._etcd.perform(steps.renew(self._keys, lease, ttl, started_at=now()))

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        await self._etcd.perform(steps.raise_token(self._keys, lease, floor, started_at=now()))

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(in_line: bool = False) -> Steps[Outcome]:  # noqa: FBT001, FBT002 - a callback
            return acquiring.acquire(
                self._keys, request, holder=holder, started_at=started_at, in_line=in_line
            )

        if request.patience > 0:
            return await self._etcd.perform_waiting(call, request.resource, fair=request.fair)
        return await self._etcd.perform(call())

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        await self._etcd.perform(acquiring.give_up(self._keys, request, holder, started_at=now()))

    async def _inspect(self, resource: str) -> LockState:
        call = inspecting.ask_state(self._keys, resource, started_at=now())
        return await self._etcd.perform(call)

    async def _force_release(self, resource: str) -> bool:
        call = inspecting.end_anyones(self._keys, resource, started_at=now())
        return await self._etcd.perform(call)

    async def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        after: bytes | None = b""
        told = ""
        while after is not None:
            steps_ = inspecting.next_page(self._keys, prefix, after, started_at=now())
            after, names = await self._etcd.perform(steps_)
            for name in names:
                if name != told and (state := await self._inspect(name)).held:
                    yield state
                told = name

    async def _close(self) -> None:
        await self._etcd.aclose()


def _performing() -> ModuleType:
    return needing(
        "httpx", "fencing.locks.etcd.performing", extra="etcd", service="EtcdLockService"
    )


def _looking() -> ModuleType:
    return needing("httpx", "fencing.locks.etcd.looking", extra="etcd", service="EtcdLockService")
