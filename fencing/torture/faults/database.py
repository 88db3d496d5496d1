"""PostgreSQL and its processes: ended, restarted, stopped."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from fencing.torture.faults.beside import beside
from fencing.torture.faults.missing import MissedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fencing.embedded import PostgresProcess
    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = [
    "can_suspend",
    "children_of",
    "crash",
    "end_sessions",
    "kill_a_backend",
    "restart",
    "suspend",
]

_PIDS = text("SELECT pid FROM pg_stat_activity WHERE usename = :role ORDER BY pid")
_END = text("SELECT pg_terminate_backend(:pid)")
_WAIT = text("SELECT pg_sleep(10)")


def kill_a_backend(stage: Stage, chance: Random) -> Steps:
    """SIGKILL of a worker's server process: PostgreSQL ends all others, and recovers."""
    pids = yield from beside(lambda: _pids(stage))
    chance.shuffle(pids)
    yield from beside(lambda: _kill_one(stage, pids))
    yield from beside(stage.await_database)


def _kill_one(stage: Stage, pids: list[int]) -> None:
    """Until PostgreSQL has noticed: before, it goes on serving, and then ends who was served."""
    with stage.owner.connect() as witness:
        for pid in pids:
            with suppress(ProcessLookupError):  # its worker may have gone since, and it with him
                os.kill(pid, signal.SIGKILL)
                break
        else:
            raise MissedError
        try:
            witness.execute(_WAIT)
        except OperationalError:
            witness.invalidate()
        else:
            raise MissedError  # it had ended, and was only not waited for


def end_sessions(stage: Stage, chance: Random) -> Steps:
    """End one to three sessions of workers, as an administrator would."""
    pids = yield from beside(lambda: _pids(stage))
    ended = chance.sample(pids, min(len(pids), chance.randint(1, 3)))

    def end() -> None:
        with stage.owner.connect() as connection:
            for pid in ended:
                connection.execute(_END, {"pid": pid})

    yield from beside(end)


def crash(stage: Stage, chance: Random) -> Steps:
    """Restart it after an immediate stop: it recovers from its log."""
    yield from _restarted(stage, chance, lambda server: server.crash())


def restart(stage: Stage, chance: Random) -> Steps:
    """Restart it in order: its sessions are ended, nothing has to be recovered."""
    yield from _restarted(stage, chance, lambda server: server.stop())


def _restarted(stage: Stage, chance: Random, end: Callable[[PostgresProcess], object]) -> Steps:
    server = stage.postgres
    try:
        yield from beside(lambda: end(server))
        yield stage.settings.ttl * chance.uniform(0.0, 0.5)
        yield from beside(server.start)
    finally:
        if server.pid is None:
            server.start()


def can_suspend() -> bool:
    """Whether the system tells a process's children: Linux does."""
    return _children_file(os.getpid()).exists()


def suspend(stage: Stage, chance: Random) -> Steps:
    """SIGSTOP of all its processes, for up to several leases."""
    server = stage.postgres
    server.suspend()  # first, so that no child is born meanwhile
    children = children_of(server.pid)
    try:
        _signal(children, signal.SIGSTOP)
        yield stage.settings.ttl * chance.uniform(0.2, 3.0)
    finally:
        _signal(children, signal.SIGCONT)
        server.resume()


def children_of(pid: int | None) -> list[int]:
    """The processes that a process has begun and that it has not yet waited for."""
    return [] if pid is None else [int(word) for word in _children_file(pid).read_text().split()]


def _children_file(pid: int) -> Path:
    return Path(f"/proc/{pid}/task/{pid}/children")


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        # Its parent is stopped and waits for nobody, so an id that was seen stays its own.
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _pids(stage: Stage) -> list[int]:
    with stage.owner.connect() as connection:
        return list(connection.execute(_PIDS, {"role": stage.role}).scalars())
