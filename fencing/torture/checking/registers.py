"""Registers behave as if their transactions were done one at a time, each at one moment."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fencing.torture.checking.linearizability import Model, NotLinearizable, Operation, linearize
from fencing.torture.checking.views import (
    LOOKING,
    acquisitions_by_name,
    by_transaction,
    external_reads,
)
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencing.torture.history import Acquisition, History, Transaction, Write

__all__ = ["registers_are_linearizable"]

_REGISTER = "register:"

_Input = tuple[str, int]
"""``"add"`` or ``"look"``, and what was read."""


def _step(state: int, operation: _Input) -> tuple[bool, int]:
    kind, read = operation
    return read == state, state + 1 if kind == "add" else state


REGISTER: Model[int, _Input] = Model(0, _step, lambda operation: operation[0] == "look")
"""A number that is read, or read and raised by one; at first it is 0."""


def registers_are_linearizable(history: History) -> list[Violation]:
    """I3 and I4 as a caller sees them: the registers are linearizable.

    Only what workers were told is used, and when. These transactions are operations:

    - an ``add`` that was told it is committed. Its read and its write are one operation, since its
      lease keeps all other writers away in between;
    - an ``add`` of which nobody knows (unknown, or cut off), which may take effect at any time or
      never; if it was found to be committed, it must, and if rolled back, it must not;
    - a ``look`` or ``stream`` that was told it is committed while its leases were trusted. It is a
      plain read, of what was committed at its snapshot, which was taken after it had begun.

    A transaction that read or wrote several registers is an operation on each: what is linearizable
    in each part is so as a whole. Left out is what was refused, failed or was rolled back, which
    promises nothing of what it read, and looks after the trust had ended, which may be of a
    database that is none any more; `reads_are_current` is about these.

    Not of a database that has lost what it acknowledged.
    """
    if history.loses_acknowledged:
        return []
    acquisitions = acquisitions_by_name(history)
    writes = by_transaction(history)
    operations: defaultdict[str, list[Operation[_Input]]] = defaultdict(list)
    for transaction in history.transactions:
        fate = _fate(transaction, acquisitions)
        if fate is None:
            continue
        must, answered = fate
        for row, read in _registers(transaction, writes.get(transaction.name, ())).items():
            operations[row].append(
                Operation(
                    transaction.name,
                    ("add" if transaction.kind == "add" else "look", read),
                    transaction.began_at,
                    answered,
                    must,
                )
            )
    violations = []
    for row, of_row in operations.items():
        result = linearize(of_row, REGISTER)
        if result is None:
            continue
        operation = result.operation
        if isinstance(result, NotLinearizable):
            kind, read = operation.input
            message = (
                f"{operation.name} ({kind}, read {read}) has no place in any order: the register "
                f"can only have been {', '.join(map(str, sorted(result.states)))}"
            )
            evidence = (repr(operation), *map(repr, result.open[:20]))
        else:
            message = f"it could not be decided: {result.configurations} possibilities"
            evidence = (repr(operation),)
        violations.append(Violation("registers are linearizable", "I3", row, message, evidence))
    return violations


def _fate(
    transaction: Transaction, acquisitions: Mapping[str, Acquisition]
) -> tuple[bool, float | None] | None:
    """Whether it must have taken effect, and by when; ``None`` if it is no operation."""
    outcome, told = transaction.outcome, transaction.ended_at
    if transaction.kind in LOOKING:
        counts = outcome is Outcome.COMMITTED and _trusted(transaction, acquisitions)
        return (True, told) if counts else None
    if transaction.kind != "add":
        return None
    if outcome is Outcome.COMMITTED:
        return True, told
    unknown = outcome is Outcome.UNKNOWN and transaction.resolved != "rolled back"
    if outcome is Outcome.CUT_OFF or unknown:
        return transaction.resolved == "committed", None
    return None


def _trusted(transaction: Transaction, acquisitions: Mapping[str, Acquisition]) -> bool:
    """Whether its leases were trusted until its end."""
    acquisition = acquisitions.get(transaction.acquisition or "")
    if acquisition is None or transaction.ended_at is None:
        return False
    return all(transaction.ended_at <= lease.until for lease in acquisition.leases.values())


def _registers(transaction: Transaction, writes: Sequence[Write]) -> dict[str, int]:
    """What it read of each register.

    A worker that was killed may not have told what it had read; the database knows what it wrote.
    """
    registers = {
        write.row: write.old
        for write in writes
        if write.old is not None and write.row.startswith(_REGISTER)
    }
    for read in external_reads(transaction):
        if read.row.startswith(_REGISTER):
            registers[read.row] = read.value
    return registers
