"""Connections of httpx that end with a request's time: the sync and the async way, side by side.

httpx has a time-out for each part of a request, and one for reading an answer counts anew with
every byte that comes. Here each part is given what is left of the time of the whole request.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpx

from fencing.clock import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.locks.etcd.address import Address

__all__ = ["async_client", "client", "ending_at"]

_AT_LEAST = 0.001  # seconds: a time-out of zero would be none

_end: ContextVar[float] = ContextVar("_end")
"""When the request that runs here is to be over."""


@contextmanager
def ending_at(end: float) -> Iterator[dict[str, Any]]:
    """Make requests that are over in time; yields the extensions to be given to httpx.

    Args:
        end: When they are to be over (:func:`fencing.clock.now`, seconds).
    """
    token = _end.set(end)
    try:
        yield {"timeout": _Left()}
    finally:
        _end.reset(token)


class _Left(dict[str, float]):
    """The time-outs of a request's parts: what is left of the time of all of it."""

    def get(self, key: str, default: Any = None) -> float:  # noqa: ANN401, ARG002 - one answer to every question
        return _left()


def _left() -> float:
    return max(_AT_LEAST, _end.get() - now())


def client(address: Address, **limits: int | None) -> httpx.Client:
    """A client of an etcd.

    Args:
        address: Where it is.
        **limits: Those of :class:`httpx.Limits`.
    """
    transport = httpx.HTTPTransport(**_options(address, limits))
    _bind(transport, _Backend)
    return httpx.Client(transport=transport, trust_env=False)


def async_client(address: Address, **limits: int | None) -> httpx.AsyncClient:
    """:func:`client` for asyncio."""
    transport = httpx.AsyncHTTPTransport(**_options(address, limits))
    _bind(transport, _AsyncBackend)
    return httpx.AsyncClient(transport=transport, trust_env=False)


def _options(address: Address, limits: dict[str, int | None]) -> dict[str, Any]:
    return {
        "verify": address.tls or False,
        # A lock service does not go through whatever proxy a machine has for the rest of the world.
        "trust_env": False,
        "limits": httpx.Limits(keepalive_expiry=30.0, **limits),
    }


def _bind(transport: Any, kind: type) -> None:  # noqa: ANN401 - sync or async
    """Have the connections of httpx made by one of ours."""
    pool = transport._pool  # noqa: SLF001 - httpx takes no backend, as the pool in it does
    pool._network_backend = kind(pool._network_backend)  # noqa: SLF001 - the same


class _Delegate:
    """Does what another one does."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - of httpcore, which httpx hides
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        return getattr(self._inner, name)


class _Backend(_Delegate):
    """Makes connections."""

    def connect_tcp(self, *args: Any, **kwargs: Any) -> _Stream:  # noqa: ANN401 - passed on
        return _Stream(self._inner.connect_tcp(*args, **{**kwargs, "timeout": _left()}))


class _Stream(_Delegate):
    """A connection; every wait for it takes no longer than the request may."""

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002 - httpcore's signature
        return self._inner.read(max_bytes, timeout=_left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the same
        self._inner.write(buffer, timeout=_left())

    def start_tls(self, *args: Any, **kwargs: Any) -> _Stream:  # noqa: ANN401 - passed on
        return _Stream(self._inner.start_tls(*args, **{**kwargs, "timeout": _left()}))


class _AsyncBackend(_Delegate):
    """:class:`_Backend` for asyncio."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> _AsyncStream:  # noqa: ANN401 - passed on
        made = await self._inner.connect_tcp(*args, **{**kwargs, "timeout": _left()})
        return _AsyncStream(made)


class _AsyncStream(_Delegate):
    """:class:`_Stream` for asyncio."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002 - httpcore's signature
        return await self._inner.read(max_bytes, timeout=_left())

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the same
        await self._inner.write(buffer, timeout=_left())

    async def start_tls(self, *args: Any, **kwargs: Any) -> _AsyncStream:  # noqa: ANN401 - passed on
        made = await self._inner.start_tls(*args, **{**kwargs, "timeout": _left()})
        return _AsyncStream(made)
