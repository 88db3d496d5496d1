"""Giving several leases back at once, as far as their lock services can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.errors import FencingError
    from fencing.lease.base import BaseLease
    from fencing.lease.leases import AsyncLease, Lease

__all__ = ["Failure", "free_together", "free_together_async", "raise_all"]

Failure = Exception | None
"""What went wrong with a release."""


def free_together(leases: Sequence[Lease]) -> list[Failure]:
    """Give leases back; each is tried, whatever becomes of the others.

    Returns:
        For each what went wrong, if anything did.
    """
    were_lost = [lease.was_found_lost for lease in leases]
    failures: dict[str, Failure] = {}
    for service, group in _by_service(leases):
        many: Callable[..., list[FencingError | None]] | None
        many = getattr(service, "release_many", None) if len(group) > 1 else None
        outcomes = [_freed(lease) for lease in group] if many is None else many(group)
        failures |= {lease.holder: each for lease, each in zip(group, outcomes, strict=True)}
    return _with_losses(leases, failures, were_lost)


async def free_together_async(leases: Sequence[AsyncLease]) -> list[Failure]:
    """:func:`free_together` for asyncio."""
    were_lost = [lease.was_found_lost for lease in leases]
    failures: dict[str, Failure] = {}
    for service, group in _by_service(leases):
        many = getattr(service, "release_many", None) if len(group) > 1 else None
        if many is None:
            outcomes = [await _freed_async(lease) for lease in group]
        else:
            outcomes = await many(group)
        failures |= {lease.holder: each for lease, each in zip(group, outcomes, strict=True)}
    return _with_losses(leases, failures, were_lost)


def raise_all(failures: Sequence[Failure]) -> None:
    """Raise the last of several failures, if there are any, each in the context of the ones before.

    As an ``ExitStack`` does with those of its callbacks.
    """
    failure: Failure = None
    for each in failures:
        if each is not None:
            if failure is not None and each.__context__ is None:
                each.__context__ = failure
            failure = each
    if failure is not None:
        raise failure


def _by_service(leases: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    groups: dict[int, tuple[Any, list[Any]]] = {}
    for lease in leases:
        groups.setdefault(id(lease.service), (lease.service, []))[1].append(lease)
    return list(groups.values())


def _freed(lease: Lease) -> Failure:
    try:
        lease.service.release(lease)
    except Exception as error:  # noqa: BLE001 - raised when the others have been tried
        return error
    return None


async def _freed_async(lease: AsyncLease) -> Failure:
    try:
        await lease.service.release(lease)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _with_losses(
    leases: Sequence[BaseLease], failures: dict[str, Failure], were_lost: list[bool]
) -> list[Failure]:
    return [
        failures[lease.holder] or (lease.was_lost() if lost else None)
        for lease, lost in zip(leases, were_lost, strict=True)
    ]
