"""The program of a worker process.

::

    python -m fencing.torture.worker PLAN

``PLAN`` is a :class:`~fencing.torture.settings.Plan` as JSON. It works until it has done its
script, or, without one, until SIGTERM; then it ends what it has begun, and itself. It ends at once
if its standard input does, since whoever runs it is gone then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fencing.service import Acquisition
from fencing.torture import points
from fencing.torture.locks import connect, connect_async
from fencing.torture.paths import ASYNC_PATHS, open_async, open_sync
from fencing.torture.points import Points
from fencing.torture.recording import Record
from fencing.torture.settings import Plan
from fencing.torture.units import Unit, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.torture.paths.blocking import SyncPath
    from fencing.torture.paths.nonblocking import AsyncPath

__all__ = ["main"]

_BREATH = 0.02
"""Between units, in seconds: so that a server that is down is not asked all the time."""


class _Ending:
    """Whether the worker was told to end."""

    def __init__(self) -> None:
        self.told = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.told = True


def run(plan: Plan) -> None:
    """Work as planned."""
    record = Record(plan.record)
    at = Points(plan, record)
    worker = Worker(plan, record, at)
    units = _units(plan, worker, _Ending())

    def waits_for_answer() -> None:
        if worker.committing:
            worker.committing = False
            at.reach(points.COMMITTING)

    record("started", path=plan.path)
    if plan.path in ASYNC_PATHS:

        async def work() -> None:
            locks = connect_async(plan)
            _announce_async(locks, at)
            async with locks, open_async(plan, locks, waits_for_answer) as path:
                for unit in units:
                    await _perform_async(worker, unit, path)
                    await asyncio.sleep(0 if plan.script else _BREATH)

        asyncio.run(work())
    else:
        locks = connect(plan)
        _announce(locks, at)
        with locks, open_sync(plan, locks, waits_for_answer) as path:
            for unit in units:
                _perform(worker, unit, path)
                time.sleep(0 if plan.script else _BREATH)
    record("ended")
    record.close()


def _units(plan: Plan, worker: Worker, ending: _Ending) -> Iterator[Unit]:
    if plan.script is not None:
        for facts in plan.script:
            # JSON has lists.
            lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
            yield Unit(**{**facts, **lists})
        return
    while not ending.told:
        yield worker.choose()


def _perform(worker: Worker, unit: Unit, path: SyncPath) -> None:
    steps = worker.work(unit)
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration:
            return
        answer, failure = None, None
        try:
            answer = path.perform(step)
        except Exception as error:  # noqa: BLE001 - the unit decides
            failure = error


async def _perform_async(worker: Worker, unit: Unit, path: AsyncPath) -> None:
    steps = worker.work(unit)
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = steps.throw(failure) if failure is not None else steps.send(answer)
        except StopIteration:
            return
        answer, failure = None, None
        try:
            answer = await path.perform(step)
        except Exception as error:  # noqa: BLE001 - the unit decides
            failure = error


def _announce(locks: Any, at: Points) -> None:  # noqa: ANN401 - any lock service
    """Come to a point when the lock service has granted, before the database has admitted."""
    acquire = locks.acquire

    def acquire_and_tell(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        lease = acquire(*arguments, **options)
        at.reach(points.GRANTED)
        return lease

    locks.acquire = acquire_and_tell


def _announce_async(locks: Any, at: Points) -> None:  # noqa: ANN401 - any lock service
    """:func:`_announce` for asyncio."""
    acquire = locks.acquire

    def acquire_and_tell(*arguments: Any, **options: Any) -> Acquisition[Any]:  # noqa: ANN401 - passed on
        async def begin() -> Any:  # noqa: ANN401 - a lease
            lease = await acquire(*arguments, **options)
            at.reach(points.GRANTED)
            return lease

        return Acquisition(begin)

    locks.acquire = acquire_and_tell


def _end_with_parent() -> None:
    while os.read(0, 1):  # not through sys.stdin, whose lock the end of the interpreter needs
        pass
    os._exit(1)


def main() -> None:
    """Run the plan on the command line."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    run(Plan.from_json(sys.argv[1]))


if __name__ == "__main__":
    main()
