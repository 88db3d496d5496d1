"""The vocabulary of directed schedules: who does what, and where he stops meanwhile.

::

    first = play.start(unit("add", transactions=2), stop_at=[(BEGINNING, 2)])
    first.stops()
    play.lose_locks()
    play.start(unit("add")).ends()
    first.goes_on()
    first.ends()

Workers are real processes, on a real lock service and a real database. Nothing is waited for but
events: that a worker has stopped, or ended, that a session waits for a lock. Leases last long
unless their end is what a schedule is about.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fencing.clock import now
from fencing.torture.history import Fault, Harm
from fencing.torture.loading import load
from fencing.torture.recording import read_records
from fencing.torture.settings import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import redis

    from fencing.torture.history import History
    from fencing.torture.processes import WorkerProcess
    from fencing.torture.stage import Stage

__all__ = ["Actor", "Play", "unit"]

_PATIENCE = 60.0
"""How long an event may take, in seconds: it comes, or the schedule is wrong."""
_LONG = 120.0
"""Of leases whose end does not matter, in seconds."""


def unit(kind: str, *targets: int, **facts: Any) -> Mapping[str, Any]:
    """Something to do, as :class:`fencing.torture.units.Unit` takes it; on number 1 by default."""
    return {
        "kind": kind, "targets": targets or (1,), "part": 0, "isolation": "READ COMMITTED",
        "ttl": _LONG, "patience": _PATIENCE / 2, **facts,
    }  # fmt: skip


class Actor:
    """A worker in a schedule."""

    def __init__(self, process: WorkerProcess, play: Play) -> None:
        self.process = process
        self._play = play

    def stops(self) -> None:
        """Wait until he has stopped where he was told to."""
        self.process.await_stop(_PATIENCE)

    def goes_on(self) -> None:
        """Let him go on from where he stopped; does not wait."""
        self.process.resume()

    def ends(self) -> None:
        """Wait until he has done everything."""
        status = self.process.await_end(_PATIENCE)
        assert status == 0, f"{self.process.name} ended with {status}{self.process.last_words()}"

    def dies(self) -> None:
        """He is killed, whatever he does."""
        self.process.kill()
        self.process.await_end(_PATIENCE)

    @property
    def has_stopped(self) -> bool:
        """Whether he has stopped where he was told to."""
        self.process.look()
        return self.process.stopped

    @property
    def has_ended(self) -> bool:
        """Whether he has done everything."""
        self.process.look()
        return self.process.status is not None

    @property
    def lease(self) -> str:
        """Token and holder of the lease he was granted first: "<token> <holder>"."""
        for record in read_records(self._play.stage.records / f"{self.process.name}.jsonl"):
            if record["event"] == "granted":
                return "{token} {holder}".format(**record["leases"][0])
        raise AssertionError(f"{self.process.name} was granted nothing")


class Play:
    """What a schedule directs.

    Args:
        stage: A stage that was entered.
        locks: A client of the lock service.
        twists: What is changed of every worker; see :mod:`tests.torture.mutants.twists`.
        launch: Given the twists of the workers that are started next.
    """

    def __init__(
        self,
        stage: Stage,
        locks: redis.Redis,
        twists: Iterable[str],
        launch: Callable[[tuple[str, ...]], None],
    ) -> None:
        self.stage = stage
        self.locks = locks
        self._twists = tuple(twists)
        self._launch = launch
        self._faults: list[Fault] = []
        self._keeps_order = True

    def start(
        self,
        *units: Mapping[str, Any],
        stop_at: Iterable[tuple[str, int]] = (),
        twists: Iterable[str] = (),
        **plan: Any,
    ) -> Actor:
        """Start a worker that does one unit after the other.

        Args:
            units: What he does.
            stop_at: Where he stops: a point, and at the how manieth arrival there.
            twists: What is changed of him beforehand.
            plan: Further fields of his :class:`~fencing.torture.settings.Plan`.
        """
        self._launch((*self._twists, *twists))
        facts: dict[str, Any] = {"path": "psycopg", "evict_after": None, "script": units, **plan}
        facts["orders"] = tuple(
            Order(point=point, action="stop", nth=nth) for point, nth in stop_at
        )
        self.stage.start_worker(len(self.stage.workers), stops=False, deaths=False, **facts)
        return Actor(self.stage.workers[-1], self)

    # Faults.

    def forget_locks(self) -> None:
        """The lock service loses everything."""
        self._strike("emptied", Harm.LOCK_SERVICE)
        self._keeps_order = False
        self.locks.flushall()

    def lose_locks(self) -> None:
        """The lock service loses who holds what, and keeps its counters."""
        self._strike("locks lost", Harm.LOCK_SERVICE)
        self._keeps_order = False
        self.locks.delete(*self.locks.keys("fencing:*:lock"))

    def remember_locks(self) -> dict[bytes, tuple[bytes, int]]:
        """What the lock service has now."""
        return {
            key: (self.locks.dump(key), max(0, self.locks.pttl(key)))
            for key in self.locks.scan_iter("fencing:*")
        }

    def restore_locks(self, remembered: Mapping[bytes, tuple[bytes, int]]) -> None:
        """The lock service is as it was."""
        self._strike("restored", Harm.LOCK_SERVICE)
        self._keeps_order = False
        self.locks.flushall()
        for key, (value, left) in remembered.items():
            self.locks.restore(key, left, value)

    def crash_database(self) -> None:
        """PostgreSQL ends at once, all of it, without writing anything; and comes back."""
        self._strike("crashed", Harm.DATABASE, Harm.SESSIONS)
        server = self.stage.postgres
        others = self.administer("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        # Its first process first: it would end the others in order, and start them again.
        os.kill(server.pid, signal.SIGKILL)
        for (pid,) in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.kill()
        server.start()

    def _strike(self, kind: str, *harms: Harm) -> None:
        self._faults.append(Fault(kind, "", now(), now(), frozenset(harms)))

    # What the owner of the database does.

    def administer(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Execute something as the database's owner, in a transaction of its own."""
        with self.stage.owner.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def attempt(self, statement: str) -> None:
        """The same for what the database refuses, or should."""
        with suppress(DBAPIError):
            self.administer(statement)

    # Events.

    def sessions_that_wait(self) -> int:
        """How many sessions wait for a lock."""
        return self.administer(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )[0][0]

    def lock_left(self, resource: str = "register:1") -> float | None:
        """For how long a lock is held, in seconds; 0: by nobody; None: for ever."""
        left = self.locks.pttl(f"fencing:{{{resource}}}:lock")
        return None if left == -1 else max(0, left) / 1000

    def somebody_is_queueing(self, resource: str = "register:1") -> bool:
        """Whether somebody waits for a lock."""
        return self.locks.zcard(f"fencing:{{{resource}}}:queue") > 0

    def until(self, happens: Callable[[], Any]) -> None:
        """Wait for an event."""
        deadline = time.monotonic() + _PATIENCE
        while not happens():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.005)

    def finish(self, *actors: Actor) -> None:
        """Let everybody go on wherever he stops, until all have ended."""
        while not all(actor.has_ended for actor in actors):
            for actor in actors:
                if actor.has_stopped:
                    actor.goes_on()
            time.sleep(0.005)
        for actor in actors:
            actor.ends()

    @contextmanager
    def fence_locked(self, resource: str = "register:1") -> Iterator[None]:
        """A block during which an admission gets as far as to its fence."""
        with self.stage.owner.begin() as connection:
            connection.execute(
                text("SELECT FROM fencing.fence WHERE resource = :resource FOR SHARE"),
                {"resource": resource},
            )
            yield

    def history(self) -> History:
        """What has happened."""
        return load(
            self.stage.owner,
            sorted(self.stage.records.glob("*.jsonl")),
            self._faults,
            guarded=self.stage.settings.guarded,
            lock_service="redis",
            keeps_order=self._keeps_order,
        )
