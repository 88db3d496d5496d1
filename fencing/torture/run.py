"""A run: workers work, faults strike, and what has happened is read at the end."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.torture.faults import MissedError, available
from fencing.torture.faults.kinds import WORKER_KILLED, WORKER_STOPPED
from fencing.torture.history import Fault, Harm
from fencing.torture.loading import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.torture.faults import FaultKind
    from fencing.torture.history import History
    from fencing.torture.processes import WorkerProcess
    from fencing.torture.stage import Stage

__all__ = ["RunError", "run"]

_TICK = 0.01
"""How often workers are looked at, in seconds."""
_BEGINNING = 120.0
"""How long the workers' beginnings may take, in seconds: a loaded machine imports slowly."""
_DIED = "worker died"
_GRACE = 30.0
"""How long a worker may take to end what it has begun, in seconds; then it is killed."""
_INTERRUPTED_GRACE = 3.0
"""The same when whoever runs it does not want to wait."""
_SAME_SIGNAL = 1.0
"""Signals that come within so many seconds are one."""


class RunError(RuntimeError):
    """A run could not be made as it was meant; what was seen till then is of no use."""


class _Striking:
    """One fault, while it lasts."""

    def __init__(self, kind: FaultKind, stage: Stage, chance: Random) -> None:
        self.kind = kind
        self.since = now()
        self.target = ""
        self._steps = kind.strike(stage, chance)
        self._next = 0.0

    def go_on(self) -> bool:
        """Take its next step, if it is due; whether it is over.

        Raises:
            MissedError: There is nothing to strike now.
        """
        if now() < self._next:
            return False
        try:
            told = next(self._steps)
        except StopIteration:
            return True
        if isinstance(told, str):
            self.target = told
        else:
            self._next = now() + told
        return False

    def end(self) -> None:
        """Undo it now."""
        self._steps.close()

    def noted(self) -> Fault:
        """It, as it is over now."""
        return Fault(self.kind.name, self.target, self.since, now(), self.kind.harms)


class _Conductor:
    def __init__(self, stage: Stage, progress: Callable[[float], None]) -> None:
        self._stage = stage
        self._progress = progress
        self._settings = stage.settings
        self._chance = Random(f"faults {stage.settings.seed}")  # noqa: S311 - to be repeated
        self._kinds = available(stage, stage.settings.faults)
        self._striking: list[_Striking] = []
        self._resume_at: dict[WorkerProcess, float] = {}
        self._next_fault = 0.0
        self.interrupted = False
        self.faults: list[Fault] = []
        self.seconds = 0.0

    def conduct(self) -> None:
        """Let workers work until the time is up, and then end."""
        for number in range(self._settings.workers):
            self._start(number)
        deadline = now() + _BEGINNING
        while not self.interrupted and not all(worker.begun for worker in self._stage.workers):
            self._progress(0.0)
            self._look_after_workers()
            if now() > deadline:
                raise RunError(f"the workers have not begun to work in {_BEGINNING:g} s")
            time.sleep(_TICK)
        began = now()
        self._next_fault = began + self._pause()
        try:
            while not self.interrupted and (passed := now() - began) < self._settings.seconds:
                self._progress(passed)
                self._look_after_workers()
                self._look_after_faults()
                time.sleep(_TICK)
        finally:
            self.seconds = now() - began
            self._end_faults()
        self._dismiss()
        self._stage.await_database()

    def interrupt(self) -> None:
        """End soon."""
        self.interrupted = True

    def _start(self, number: int) -> None:
        wanted = {kind.name for kind in self._kinds}
        self._stage.start_worker(
            number, stops=WORKER_STOPPED in wanted, deaths=WORKER_KILLED in wanted
        )

    def _look_after_workers(self, *, replace: bool = True) -> None:
        for worker in list(self._stage.workers):
            worker.look()
            if worker.status is not None:
                self._bury(worker, replace=replace)
            elif worker.stopped and not worker.held:
                self._wake(worker)

    def _bury(self, worker: WorkerProcess, *, replace: bool) -> None:
        if worker.status not in (0, -signal.SIGKILL, -signal.SIGTERM):  # the last: it had not begun
            message = f"worker {worker.name} ended with status {worker.status}{worker.last_words()}"
            raise RunError(message)
        self._resume_at.pop(worker, None)
        self._stage.forget(worker)
        if worker.status == -signal.SIGKILL:
            self.faults.append(Fault(_DIED, worker.name, now(), now(), frozenset({Harm.WORKER})))
            if replace:
                self._start(int(worker.name.removeprefix("w").partition(".")[0]))

    def _wake(self, worker: WorkerProcess) -> None:
        """A worker that has stopped itself goes on some time later."""
        if worker not in self._resume_at:
            pause = self._settings.ttl * self._chance.uniform(0.1, 4.0)
            self._resume_at[worker] = now() + pause
            harms = frozenset({Harm.WORKER})
            self.faults.append(Fault(WORKER_STOPPED, worker.name, now(), now() + pause, harms))
        elif now() >= self._resume_at[worker]:
            del self._resume_at[worker]
            worker.resume()

    def _look_after_faults(self) -> None:
        for fault in list(self._striking):
            try:
                over = fault.go_on()
            except MissedError:
                self._striking.remove(fault)
                continue
            if over:
                self._striking.remove(fault)
                self.faults.append(fault.noted())
        if self._kinds and now() >= self._next_fault:
            self._next_fault = now() + self._pause()
            kind = self._chance.choices(self._kinds, [kind.weight for kind in self._kinds])[0]
            if not any(self._excludes(fault.kind, kind) for fault in self._striking):
                self._striking.append(_Striking(kind, self._stage, self._chance))

    @staticmethod
    def _excludes(one: FaultKind, other: FaultKind) -> bool:
        return one is other or (one.group != "" and one.group == other.group)

    def _end_faults(self) -> None:
        with ExitStack() as all_of_them:  # even if one cannot be ended
            for fault in self._striking:
                all_of_them.callback(fault.end)
        self.faults += [fault.noted() for fault in self._striking]
        self._striking.clear()

    def _pause(self) -> float:
        return self._settings.ttl * self._settings.calm * self._chance.expovariate(1.0)

    def _dismiss(self) -> None:
        for worker in self._stage.workers:
            worker.resume()
            worker.dismiss()
        deadline = now() + (_INTERRUPTED_GRACE if self.interrupted else _GRACE)
        while self._stage.workers:
            self._look_after_workers(replace=False)
            if now() > deadline:
                for worker in self._stage.workers:
                    worker.kill()
            time.sleep(_TICK)


@contextmanager
def _on_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call instead of ending at the first SIGINT or SIGTERM; a second is as it was.

    Between two statements anything could be half done; so the first is only noted. What comes in
    the same second is the same: some send a signal to a process and then to its group.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    noted_at: float | None = None

    def note(number: int, _frame: object) -> None:
        nonlocal noted_at
        if noted_at is None:
            noted_at = now()
            interrupt()
        elif now() - noted_at > _SAME_SIGNAL:
            restore()
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        restore()


def run(stage: Stage, progress: Callable[[float], None] = lambda _: None) -> History:
    """Let the workers of a stage work under its faults; what happened.

    SIGINT and SIGTERM end the work early, where it is the main thread that runs it; what was done
    until then is read all the same.

    Args:
        stage: A stage that was entered.
        progress: Called often, with the seconds that have passed.

    Raises:
        RunError: A worker failed in a way that is none of the faults.
    """
    conductor = _Conductor(stage, progress)
    began = now()
    with _on_interrupt(conductor.interrupt):
        conductor.conduct()
    if not stage.locks.keeps_order:
        # It may refuse, forget and not answer at any time: nobody else is to blame then.
        lies = Fault("lock service lies", "", began, now(), frozenset({Harm.LOCK_SERVICE}))
        conductor.faults.append(lies)
    struck = {fault.kind for fault in conductor.faults}
    known = available(stage, stage.settings.faults)
    history = load(
        stage.owner,
        sorted(stage.records.glob("*.jsonl")),
        conductor.faults,
        guarded=stage.settings.guarded,
        lock_service=stage.locks.name,
        keeps_order=stage.locks.keeps_order
        and not any(kind.breaks_order for kind in known if kind.name in struck),
        loses_acknowledged=any(kind.loses_acknowledged for kind in known if kind.name in struck),
        seconds=conductor.seconds,
        interrupted=conductor.interrupted,
    )
    return dataclasses.replace(history, lingers=stage.locks.lingers)
