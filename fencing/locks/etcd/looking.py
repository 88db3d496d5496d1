"""Verifies the etcd of a lock service: the sync and the async shell, side by side.

Each endpoint of the address is asked, over connections of their own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.asking import Trouble
from fencing.locks.etcd.transport import AsyncTransport, Transport
from fencing.locks.etcd.troubles import HTTP_ERRORS
from fencing.locks.etcd.verifying import Facts, Refusal, gather, judged
from fencing.verification import perform, perform_async

if TYPE_CHECKING:
    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.keys import Keys
    from fencing.locks.etcd.requests import Body
    from fencing.verification import ServiceVerification

__all__ = ["averify", "verify"]

WITHIN_SECONDS = 5.0
"""How long an endpoint may take for each answer, in seconds."""


def verify(address: Address, keys: Keys) -> ServiceVerification:
    """Verify the etcd at an address.

    Raises:
        LockServiceError: None of its endpoints could be reached.
    """
    outcomes: dict[str, Facts | LockServiceError] = {}
    for endpoint in address.endpoints:
        transport = Transport(replace(address, endpoints=(endpoint,)))

        def fetch(request: tuple[str, Body], to: Transport = transport) -> list[Any]:
            try:
                return [to.ask(*request, now() + WITHIN_SECONDS).body]
            except Trouble as trouble:
                return [_refusal(trouble)]

        try:
            outcomes[endpoint] = perform(gather(keys), fetch)
        except LockServiceError as error:
            outcomes[endpoint] = error
        finally:
            transport.close()
    return judged(outcomes, address, keys.namespace)


async def averify(address: Address, keys: Keys) -> ServiceVerification:
    """:func:`verify` for asyncio, all endpoints at once."""

    async def look(endpoint: str) -> Facts | LockServiceError:
        transport = AsyncTransport(replace(address, endpoints=(endpoint,)))

        async def fetch(request: tuple[str, Body]) -> list[Any]:
            try:
                return [(await transport.ask(*request, now() + WITHIN_SECONDS)).body]
            except Trouble as trouble:
                return [_refusal(trouble)]

        try:
            return await perform_async(gather(keys), fetch)
        except LockServiceError as error:
            return error
        finally:
            await transport.aclose()

    told = await asyncio.gather(*[look(endpoint) for endpoint in address.endpoints])
    return judged(dict(zip(address.endpoints, told, strict=True)), address, keys.namespace)


def _refusal(trouble: Trouble) -> Refusal:
    """What etcd has said; raises where it has said nothing."""
    if isinstance(trouble.__cause__, HTTP_ERRORS):
        raise LockServiceError(f"lock service: {trouble.help}") from trouble.__cause__
    return Refusal(trouble.help)
