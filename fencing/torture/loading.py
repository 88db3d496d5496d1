"""Reads a history: what the database kept, and what the processes wrote down."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from fencing.torture.history import (
    Acquisition,
    Admission,
    Believed,
    Fault,
    Final,
    History,
    Outcome,
    Read,
    Transaction,
    Write,
)
from fencing.torture.recording import read_records
from fencing.torture.tables import INITIAL_BALANCE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sqlalchemy import Connection, Engine

__all__ = ["load"]

_WRITES = """
    SELECT seq, xid, transaction, resource, "row", change, old, new, gone, amount, token, holder
    FROM torture.write ORDER BY seq
"""
_ADMISSIONS = "SELECT seq, xid, resource, token, holder, pruned FROM torture.admission ORDER BY seq"
_ROWS = """
    SELECT concat('register:', id, '/', part), value FROM torture.register
    UNION ALL SELECT concat('account:', id), version FROM torture.account
    UNION ALL SELECT concat('set:', set_id), max(n) FROM torture.element GROUP BY set_id
"""
_BALANCES = "SELECT concat('account:', id), balance FROM torture.account"
_ELEMENTS = "SELECT concat('set:', set_id), n FROM torture.element"
_MARK = "SELECT fencing.mark(:resource)"


def load(
    engine: Engine,
    records: Iterable[Path],
    faults: Iterable[Fault],
    *,
    guarded: bool,
    lock_service: str,
    keeps_order: bool,
    loses_acknowledged: bool = False,
    seconds: float = 0.0,
    interrupted: bool = False,
) -> History:
    """Read a whole run.

    Args:
        engine: Of the database, as its owner, without a guard.
        records: The workers' files, one each.
        faults: What was done to the run.
        guarded: Whether there was a guard.
        lock_service: See :class:`History`, like the following.
        keeps_order: Likewise.
        loses_acknowledged: Likewise.
        seconds: Likewise.
        interrupted: Likewise.
    """
    acquisitions: list[Acquisition] = []
    transactions: list[Transaction] = []
    for path in records:
        told = _Told(path.stem)
        for record in read_records(path):
            told.hear(record)
        acquisitions += told.acquisitions()
        transactions += told.transactions()
    with engine.connect() as connection:
        writes = [Write(*row) for row in connection.execute(text(_WRITES))]
        admissions = (
            [Admission(*row) for row in connection.execute(text(_ADMISSIONS))] if guarded else []
        )
        final = _final(connection, {admission.resource for admission in admissions})
    return History(
        writes=writes,
        admissions=admissions,
        acquisitions=sorted(acquisitions, key=lambda one: one.asked_at),
        transactions=sorted(transactions, key=lambda one: one.began_at),
        faults=tuple(faults),
        final=final,
        initial_balance=INITIAL_BALANCE,
        lock_service=lock_service,
        keeps_order=keeps_order,
        loses_acknowledged=loses_acknowledged,
        seconds=seconds,
        interrupted=interrupted,
    )


def _final(connection: Connection, admitted: set[str]) -> Final:
    elements: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row, number in connection.execute(text(_ELEMENTS)):
        elements[row][number] += 1
    marks = {}
    for resource in sorted(admitted):
        mark = connection.execute(text(_MARK), {"resource": resource}).scalar()
        if mark is not None:
            marks[resource] = int(mark)
    return Final(
        rows=_pairs(connection, _ROWS),
        balances=_pairs(connection, _BALANCES),
        elements={row: dict(counts) for row, counts in elements.items()},
        marks=marks,
    )


def _pairs(connection: Connection, statement: str) -> dict[str, int]:
    return {row: int(number) for row, number in connection.execute(text(statement))}


class _Told:
    """What one worker wrote down, put together."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._asked: dict[str, dict[str, Any]] = {}
        self._began: dict[str, dict[str, Any]] = {}

    def hear(self, record: dict[str, Any]) -> None:
        """Take one line."""
        match record["event"]:
            case "asked":
                self._asked[record["acquisition"]] = {"asked": record}
            case "admitting":
                # By a worker that notes it; it asks for one lease at a time.
                latest = self._asked[next(reversed(self._asked))]
                latest.setdefault("admitting", []).append(record["at"])
            case "granted" | "not granted" | "releasing" | "released" | "release failed" as event:
                self._asked[record["acquisition"]][event] = record
            case "began":
                self._began[record["transaction"]] = {"began": record}
            case "told" | "resolved" as event:
                self._began[record["transaction"]][event] = record

    def acquisitions(self) -> list[Acquisition]:
        """What it asked for."""
        return [self._acquisition(name, known) for name, known in self._asked.items()]

    def transactions(self) -> list[Transaction]:
        """What it did."""
        return [self._transaction(name, known) for name, known in self._began.items()]

    def _acquisition(self, name: str, known: dict[str, Any]) -> Acquisition:
        asked, refused = known["asked"], known.get("not granted", {})
        granted, releasing = known.get("granted"), known.get("releasing")
        answered = granted or refused or None
        one = len(asked["resources"]) == 1
        admitting: list[float] = known.get("admitting", []) if one else []
        return Acquisition(
            name=name,
            worker=self._worker,
            resources=tuple(asked["resources"]),
            asked_at=asked["at"],
            answered_at=answered["at"] if answered else None,
            leases=_believed(granted, releasing) if granted else {},
            error=refused.get("error"),
            message=refused.get("message", ""),
            blocked_by=tuple(refused.get("blocked_by", ())),
            patience=asked["patience"],
            ttl=asked["ttl"],
            evicts=asked["evicts"],
            admission_began_at=admitting[0] if len(admitting) == 1 else None,
        )

    def _transaction(self, name: str, known: dict[str, Any]) -> Transaction:
        began, told = known["began"], known.get("told")
        leases = {
            resource: (token, holder)
            for resource, (token, holder) in (told or began)["leases"].items()
        }
        return Transaction(
            name=name,
            worker=self._worker,
            acquisition=began["acquisition"],
            kind=began["kind"],
            path=began["path"],
            isolation=began["isolation"],
            began_at=began["at"],
            ended_at=told["at"] if told else None,
            leases=leases,
            reads=tuple(Read(*read) for read in told["reads"]) if told else (),
            outcome=Outcome(told["outcome"]) if told else Outcome.CUT_OFF,
            error=told.get("error") if told else None,
            message=told.get("message", "") if told else "",
            current_token=told.get("current_token") if told else None,
            resolved=known["resolved"]["outcome"] if "resolved" in known else None,
        )


def _believed(granted: dict[str, Any], releasing: dict[str, Any] | None) -> dict[str, Believed]:
    latest = (releasing or granted)["leases"]
    return {
        lease["resource"]: Believed(
            resource=lease["resource"],
            token=lease["token"],
            holder=lease["holder"],
            since=granted["at"],
            until=min(lease["until"], releasing["at"]) if releasing else lease["until"],
            trusted_until=lease["until"],
        )
        for lease in latest
    }
