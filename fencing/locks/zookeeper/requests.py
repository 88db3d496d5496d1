"""Operations as kazoo's requests, and what its answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import RolledBackError, RuntimeInconsistency

from fencing.clock import now
from fencing.locks.zookeeper.asking import (
    Check,
    Create,
    Delete,
    Get,
    Multi,
    Refused,
    Set,
    Sync,
)
from fencing.locks.zookeeper.containers import create_container
from fencing.locks.zookeeper.trouble import refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.locks.zookeeper.asking import Operation

__all__ = ["outcome_of", "sent"]


def sent(client: Any, operation: Operation, watch: Callable[[Any], object] | None) -> Any:  # noqa: ANN401 - kazoo has no types
    """Send what an operation asks; return kazoo's ``IAsyncResult``."""
    result: Any
    match operation:
        case Create(path, data, container=True):
            result = create_container(client, path, data)
        case Create(path, data, sequence, ephemeral):
            result = client.create_async(
                path, data, sequence=sequence, ephemeral=ephemeral, include_data=True
            )
        case Delete(path, version):
            result = client.delete_async(path, version)
        case Set(path, data, version):
            result = client.set_async(path, data(now()) if callable(data) else data, version)
        case Get(path, watched):
            result = client.get_async(path, watch if watched else None)
        case Sync(path):
            result = client.sync_async(path)
        case Multi(operations):
            result = _transaction(client, operations).commit_async()
        case _:
            result = client.get_children_async(operation.path, include_data=operation.stat)
    return result


def _transaction(client: Any, operations: Sequence[Create | Delete | Set | Check]) -> Any:  # noqa: ANN401 - kazoo has no types
    transaction = client.transaction()
    for operation in operations:
        match operation:
            case Create(path, data, _, ephemeral):
                transaction.create(path, data, ephemeral=ephemeral)
            case Delete(path, version):
                transaction.delete(path, version)
            case Set(path, data, version):
                transaction.set_data(path, data, version)
            case Check(path):
                transaction.check(path, -1)
    return transaction


def outcome_of(operation: Operation, result: Any) -> Any:  # noqa: ANN401 - as the operation has it
    """What came of an operation: a value, `Refused`, or an exception."""
    error = result.exception
    if error is not None:
        return refusal_of(error) or error
    if not isinstance(operation, Multi):
        return result.value
    for number, each in enumerate(result.value):
        if isinstance(each, Exception) and not isinstance(
            each, RolledBackError | RuntimeInconsistency
        ):
            refused = refusal_of(each)
            return each if refused is None else Refused(refused.why, at=number)
    return True
