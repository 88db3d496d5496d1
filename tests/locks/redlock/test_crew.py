"""The threads of a node: as many as are needed, gone when they are not, and never in one's way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fencing.locks.redlock import crew as crew_module
from fencing.locks.redlock.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 20


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew("crew-of-a-test")
    yield crew
    crew.close()


def waiting(gate: threading.Event, begun: threading.Semaphore) -> Callable[[], None]:
    def work() -> None:
        begun.release()
        assert gate.wait(SECONDS)

    return work


def test_work_that_hangs_holds_up_no_other(crew: Crew) -> None:
    gate, begun, done = threading.Event(), threading.Semaphore(0), threading.Event()
    for _ in range(5):
        crew.submit(waiting(gate, begun))
        assert begun.acquire(timeout=SECONDS)
    crew.submit(done.set)
    assert done.wait(SECONDS)
    gate.set()


def test_there_is_a_limit_and_everything_is_done(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "THREADS", 3)
    gate, begun = threading.Event(), threading.Semaphore(0)
    jobs = [crew.submit(waiting(gate, begun)) for _ in range(10)]
    for _ in range(3):
        assert begun.acquire(timeout=SECONDS)
    assert len(crew._threads) == 3
    gate.set()
    for job in jobs:
        job.wait()
    assert all(job.is_done for job in jobs)


def test_closing_waits_for_what_is_being_done_and_ends_the_threads(crew: Crew) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)
    job = crew.submit(waiting(gate, begun))
    assert begun.acquire(timeout=SECONDS)
    threads = list(crew._threads)
    closing = threading.Thread(target=crew.close)
    closing.start()
    assert not job.is_done
    gate.set()
    closing.join(SECONDS)
    assert job.is_done
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    done = threading.Event()
    crew.submit(done.set)
    assert done.wait(SECONDS)


def test_idle_threads_end(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "IDLE_SECONDS", 0.05)
    crew.submit(lambda: None).wait()
    for thread in list(crew._threads):
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert not crew._threads
    crew.submit(lambda: None).wait()


def test_without_threads_it_is_done_here(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    here: list[threading.Thread] = []
    job = crew.submit(lambda: here.append(threading.current_thread()))
    assert job.is_done
    assert here == [threading.current_thread()]


def test_after_closing_twice_work_is_done_all_the_same(crew: Crew) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)
    job = crew.submit(waiting(gate, begun))
    assert begun.acquire(timeout=SECONDS)
    (thread,) = crew._threads
    for _ in range(3):  # as if three closed at once
        crew._jobs.put(None)
    gate.set()
    job.wait()
    thread.join(SECONDS)
    assert not thread.is_alive()
    done = threading.Event()
    crew.submit(done.set)
    assert done.wait(SECONDS)
