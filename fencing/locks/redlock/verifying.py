"""What weakens the nodes of a Redlock: each as a single Redis, and all of them together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencing.errors import LockServiceError
from fencing.locks.redis.looking import afacts_of, facts_of
from fencing.locks.redis.verifying import judged
from fencing.verification import Finding, by_gravity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis
    import redis.asyncio

    from fencing.locks.redis.server import Facts
    from fencing.locks.redlock.asking import Quorum
    from fencing.verification import ServiceVerification

__all__ = ["averify", "judged_together", "verify"]


def verify(clients: Sequence[redis.Redis], namespace: str, quorum: Quorum) -> ServiceVerification:
    """Verify the nodes of a lock service, one after the other.

    Raises:
        LockServiceError: None of them could be reached.
    """
    outcomes: list[dict[str, Facts] | LockServiceError] = []
    for client in clients:
        try:
            outcomes.append(facts_of(client, namespace))
        except LockServiceError as error:
            outcomes.append(error)
    return judged_together(outcomes, namespace, quorum)


async def averify(
    clients: Sequence[redis.asyncio.Redis], namespace: str, quorum: Quorum
) -> ServiceVerification:
    """:func:`verify` for asyncio, all at once."""

    async def look(client: redis.asyncio.Redis) -> dict[str, Facts] | LockServiceError:
        try:
            return await afacts_of(client, namespace)
        except LockServiceError as error:
            return error

    outcomes = await asyncio.gather(*[look(client) for client in clients])
    return judged_together(outcomes, namespace, quorum)


def judged_together(
    outcomes: Sequence[Mapping[str, Facts] | LockServiceError], namespace: str, quorum: Quorum
) -> ServiceVerification:
    """Judge what the nodes have told, or why they have not.

    Raises:
        LockServiceError: None has told anything.
    """
    facts: dict[str, Facts] = {}
    silent: list[tuple[int, LockServiceError]] = []
    for node, outcome in enumerate(outcomes):
        if isinstance(outcome, LockServiceError):
            silent.append((node, outcome))
        else:
            facts.update(outcome)
    if not facts:
        raise silent[0][1]
    found = judged(facts, namespace=namespace)
    findings = [*found.findings, *_unreachable(silent, quorum), *_twice(facts)]
    return replace(found, findings=by_gravity(findings))


def _unreachable(silent: Sequence[tuple[int, LockServiceError]], quorum: Quorum) -> list[Finding]:
    too_many = len(silent) > quorum.size - quorum.majority
    return [
        Finding(
            "error" if too_many else "warning",
            "node-unreachable",
            f"node {node} could not be reached ({error}), "
            + ("and no majority is left" if too_many else "so another one must not fail"),
            "start it, or see why it cannot be reached from here",
        )
        for node, error in silent
    ]


def _twice(facts: Mapping[str, Facts]) -> list[Finding]:
    """Addresses that lead to one server, whose vote counts more than once."""
    servers: dict[Any, list[str]] = {}
    for address, told in facts.items():
        servers.setdefault(told.info.get("run_id"), []).append(address)
    return [
        Finding(
            "error",
            "node-twice",
            f"{' and '.join(addresses)} are one server, so its vote counts {len(addresses)} times",
            "name nodes that are servers of their own, on machines of their own",
        )
        for server, addresses in servers.items()
        if server and len(addresses) > 1
    ]
