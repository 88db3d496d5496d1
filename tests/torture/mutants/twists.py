"""What is changed of a worker before it works.

Some changes make it a *mutant*: a program with one mistake. Others only let a schedule stop it at
more points, or bring about by hand what the network seldom does; those are in the run without the
mistake as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import redis

from fencing import Lease, RedisLockService, postgres
from fencing.clock import now
from fencing.core import plan as plans
from fencing.locks.redis import scripts
from fencing.locks.redis.asking import Reply
from fencing.locks.redis.direct import Direct
from fencing.locks.redis.performing import Performer, texts_in
from fencing.postgres import databases
from fencing.postgres.inquiring import NewConnections
from fencing.schema.names import OUTCOME_OF
from fencing.torture import units, worker
from fencing.torture.paths import blocking
from fencing.torture.points import COMMITTING, GRANTED, Points
from fencing.torture.rows import SqlRows
from fencing.torture.settings import Plan
from fencing.torture.steps import Trespass
from tests.torture.mutants.texts import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.torture.steps import Acquire

ANSWERED = "after the lock service's answer"
EVICTING = "before an eviction"
EVICTED = "after an eviction"
HAS_READ = "has read"
INQUIRING = "before the question what has become of an open transaction"

_at: list[Points] = []
"""Where the worker of this process comes to points."""


class _Noted(Points):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _at.append(self)


def run(plan: str, twists: Sequence[str]) -> None:
    """Change what is to be changed, and work as planned."""
    worker.Points = _Noted
    worker._announce = _announce
    units.KINDS |= _KINDS
    for twist in twists:
        name, _, argument = twist.partition(" ")
        TWISTS[name](*[argument] if argument else [])
    worker.run(Plan.from_json(plan))


# What schedules need.


def _announce(locks: Any, at: Points) -> None:
    """As the workers' own; and it is written down when the admission begins."""
    acquire = locks.acquire

    def acquire_and_tell(*arguments: Any, **options: Any) -> Lease:
        lease = acquire(*arguments, **options)
        at.reach(GRANTED)
        at._record("admitting")
        return lease

    locks.acquire = acquire_and_tell


def _erase(unit: Any, rows: SqlRows, *_: Any) -> None:
    rows._execute("DELETE FROM torture.element WHERE set_id = :id", {"id": unit.targets[0]})


def _move(source: int) -> Callable[..., None]:
    """A row is moved between set 1 and set 2; the lease is on one of them."""

    def move(_unit: Any, rows: SqlRows, *_: Any) -> None:
        statement = "UPDATE torture.element SET set_id = :target WHERE set_id = :source"
        rows._execute(statement, {"source": source, "target": 3 - source})

    return move


_KINDS = {
    "unfenced append": units.Kind(units.KINDS["append"].work, step=Trespass, said="unfenced"),
    "unfenced erase": units.Kind(_erase, step=Trespass, said="unfenced"),
    "move from 1": units.Kind(_move(1), "set", said="unfenced"),
    "move from 2": units.Kind(_move(2), "set", said="unfenced"),
    "late add": units.Kind(units.KINDS["add"].work, said="unfenced"),
}
"""Attempts that must be refused."""


def stops_at_answers() -> None:
    """A point between the arrival of a granted lock, and its worker's knowing."""
    run = Direct.run

    def run_and_reach(self: Direct, script: Any, *args: Any, **how: Any) -> Any:
        came = run(self, script, *args, **how)
        if script is scripts.ACQUIRE and texts_in(came)[0] == "granted":
            _at[-1].reach(ANSWERED)
        return came

    Direct.run = run_and_reach


def loses_first_answer() -> None:
    """The first answer that grants a lock is lost, when its point was left."""
    stops_at_answers()
    run = Direct.run
    lost = False

    def run_or_lose(self: Direct, script: Any, *args: Any, **how: Any) -> Any:
        nonlocal lost
        came = run(self, script, *args, **how)
        if script is scripts.ACQUIRE and texts_in(came)[0] == "granted" and not lost:
            lost = True
            raise redis.ConnectionError("Connection closed by server.")
        return came

    Direct.run = run_or_lose


def stops_at_evictions() -> None:
    """A point at which it is decided that sessions are to be ended."""
    evict = databases.Database.evict

    def reach_and_evict(self: databases.Database, lease: Any, since: float, until: float) -> Any:
        _at[-1].reach(EVICTING)
        try:
            return evict(self, lease, since, until)
        finally:
            _at[-1].reach(EVICTED)

    databases.Database.evict = reach_and_evict


def loses_its_connection_at_commit() -> None:
    """The network fails while COMMIT's answer is waited for; a point after the first question."""
    connected = blocking.PsycopgPath._connected
    reach, ask = _Noted.reach, NewConnections.ask
    connections: list[Any] = []

    def connected_and_noted(self: blocking.PsycopgPath) -> Any:
        connections.append(connected(self))
        return connections[-1]

    def reach_and_fail(self: _Noted, point: str) -> None:
        reach(self, point)
        if point == COMMITTING:
            with socket.socket(fileno=os.dup(connections[-1].fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def reach_and_ask(self: NewConnections, statement: str, values: dict[str, object]) -> Any:
        if statement == OUTCOME_OF:
            _at[-1].reach(INQUIRING)
        return ask(self, statement, values)

    blocking.PsycopgPath._connected = connected_and_noted
    _Noted.reach = reach_and_fail
    NewConnections.ask = reach_and_ask


def borrows(lease: str) -> None:
    """One more session of a lease that another worker has: "<token> <holder>"."""
    token, holder = lease.split()

    class Borrowed(RedisLockService):
        def acquire(self, resource: str, *, ttl: float, **_: Any) -> Lease:
            return Lease(
                self, resource=resource, token=int(token), holder=holder, owner="borrower",
                ttl=ttl, asked_at=now(),
            )  # fmt: skip

        def release(self, lease: Lease) -> None:
            """It is not ours."""

    worker.connect = lambda plan: Borrowed.from_url(plan.locks_url)


def of_one_name() -> None:
    """All workers' leases have one label."""
    from fencing import request

    request._here = SimpleNamespace(label="worker")
    request._checked_owner = lambda _owner: "worker"


def reads_before_it_acquires() -> None:
    """A transaction is begun, and reads, before its lease is acquired and presented in it."""
    acquire = blocking.PsycopgPath._acquire
    read = "SELECT part, value FROM torture.register WHERE id = 1"

    class Remembering(SqlRows):
        def register(self, number: int, part: int) -> int:  # noqa: ARG002 - as its base has it
            return known[part]

    known: dict[int, int] = {}

    def read_and_acquire(self: blocking.PsycopgPath, step: Acquire) -> Any:
        known.update(self._connected().execute(read).fetchall())
        _at[-1].reach(HAS_READ)
        return acquire(self, step)

    def transact(self: blocking.PsycopgPath, _isolation: str, body: Any, leases: Any) -> None:
        connection = self._connected()
        with connection, postgres.transaction(connection, *leases):
            body(Remembering(blocking._rows_of(connection)._execute))

    blocking.PsycopgPath._acquire = read_and_acquire
    blocking.PsycopgPath._transact = transact


# What is wrong with mutants.


def trust_from_the_reply() -> None:
    perform = Performer._perform

    def perform_and_date(self: Performer, *args: Any) -> Any:
        reply = perform(self, *args)
        return dataclasses.replace(reply, asked_at=reply.at) if isinstance(reply, Reply) else reply

    Performer._perform = perform_and_date


def enters_begun_transactions() -> None:
    transaction = sys.modules["fencing.postgres.transaction"]  # its name is the function's
    prepare, is_idle = transaction._BaseBlock._prepare, transaction.is_idle

    def prepare_anything(self: Any, connection: Any) -> Any:
        transaction.is_idle = lambda _connection: True
        try:
            return prepare(self, connection)
        finally:
            transaction.is_idle = is_idle

    transaction._BaseBlock._prepare = prepare_anything
    del transaction._BegunByEntry._get_enter_commands  # psycopg's own begins a savepoint


def raises_admitted_tokens() -> None:
    admit = plans._admit

    def admit_as_if_new(database: Any, lease: Any, *arguments: Any) -> Any:
        lease.admitted = False
        return admit(database, lease, *arguments)

    plans._admit = admit_as_if_new


def _lua(*changed: scripts.Script | tuple[str, str]) -> Callable[[], None]:
    """Change the texts of some scripts."""
    named = [each for each in changed if isinstance(each, scripts.Script)]
    replacements = [each for each in changed if isinstance(each, tuple)]

    def change() -> None:
        for script in named:
            text = replaced(script.text, *replacements)
            object.__setattr__(script, "text", text)
            object.__setattr__(script, "sha", hashlib.sha1(text.encode()).hexdigest())

    return change


release_compares_nothing = _lua(
    scripts.RELEASE,
    scripts.RELEASE_UNWANTED,
    ("if string.match(value, '^%d+:(%x+):') ~= holder then", "if false then"),
)
release_compares_the_label = _lua(
    scripts.RELEASE,
    scripts.RELEASE_UNWANTED,
    (
        "if string.match(value, '^%d+:(%x+):') ~= holder then",
        "if string.match(value, '^%d+:%x+:(.*)$') ~= 'worker' then",
    ),
)
acquire_does_not_rearm = _lua(
    scripts.ACQUIRE,
    ("    if left <= tonumber(ttl) then\n      redis.call('PEXPIRE', lock, ttl)\n    end\n", ""),
)
raise_checks_nothing = _lua(
    scripts.RAISE,
    ("if not value then", "value = value or ('0:' .. holder .. ':')\nif false then"),
    ("if current ~= holder then", "if false then"),
)

TWISTS: dict[str, Callable[..., None]] = {
    function.__name__ if hasattr(function, "__name__") else "": function
    for function in (
        stops_at_answers, loses_first_answer, stops_at_evictions, borrows, of_one_name,
        loses_its_connection_at_commit, reads_before_it_acquires, trust_from_the_reply,
        enters_begun_transactions, raises_admitted_tokens,
    )
} | {
    "release_compares_nothing": release_compares_nothing,
    "release_compares_the_label": release_compares_the_label,
    "acquire_does_not_rearm": acquire_does_not_rearm,
    "raise_checks_nothing": raise_checks_nothing,
}  # fmt: skip
