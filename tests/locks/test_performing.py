"""A call that is nearly always over with what comes of its first step."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from fencing.locks.performing import (
    go_through_async,
    perform_promptly,
    perform_promptly_async,
)
from fencing.locks.redis.acquiring import Acquiring
from fencing.locks.redis.steps import Releasing
from fencing.request import AcquireRequest
from tests.support.play import HOLDER
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

KINDS = ["sync", "async"]


class Call:
    """Settled by "yes"; after anything else it asks once more, and returns all that came."""

    outcome = "settled"

    def __init__(self) -> None:
        self.came: list[Any] = []

    def begin(self) -> str:
        return "first"

    def settle(self, came: Any) -> str | None:
        if came == "nonsense":
            raise ValueError(came)
        return self.outcome if came == "yes" else None

    def go_on(self, came: Any) -> Generator[str, Any, list[Any]]:
        self.came = [came]
        if isinstance(came, KeyboardInterrupt):
            raise came
        self.came.append((yield "second"))
        return self.came


@pytest.fixture(params=KINDS)
def perform(request) -> Callable[[Any, Callable[[Any], Any]], Any]:
    if request.param == "sync":
        return perform_promptly

    def perform_in_loop(call: Any, act: Callable[[Any], Any]) -> Any:
        async def act_async(step: Any) -> Any:
            return act(step)

        return asyncio.run(perform_promptly_async(call, act_async))

    return perform_in_loop


def test_what_settles_it_is_all(perform):
    call = Call()
    assert perform(call, {"first": "yes"}.__getitem__) == "settled"
    assert call.came == []


def test_an_outcome_may_be_empty(perform):
    call = Call()
    call.outcome = ""
    assert perform(call, {"first": "yes"}.__getitem__) == ""


def test_otherwise_it_goes_on_with_that(perform):
    assert perform(Call(), {"first": "no", "second": 2}.__getitem__) == ["no", 2]


def test_what_goes_wrong_is_what_came(perform):
    first, second = perform(Call(), {"second": 2}.__getitem__)
    assert isinstance(first, KeyError)
    assert second == 2


def test_what_settling_raises_is_what_came(perform):
    first, second = perform(Call(), {"first": "nonsense", "second": 2}.__getitem__)
    assert isinstance(first, ValueError)
    assert second == 2


def test_what_it_raises_is_raised(perform):
    def interrupt(step: str) -> None:
        raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt, match="first"):
        perform(Call(), interrupt)


def acquiring() -> Acquiring:
    return Acquiring(AcquireRequest(resource="r"), holder=HOLDER, started_at=0.0)


def releasing() -> Releasing:
    return Releasing(ScriptedLocks().acquire("r"), started_at=0.0)


@pytest.mark.parametrize("call", [acquiring, releasing])
def test_an_error_does_not_outlive_the_call(call):
    """A traceback that holds itself would keep all that is in its frames."""
    errors: list[weakref.ref[BaseException]] = []

    class GoneError(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    def fail(step: Any) -> None:
        raise GoneError

    gc.disable()
    try:
        with contextlib.suppress(GoneError):
            perform_promptly(call(), fail)
        assert errors
        assert {error() for error in errors} == {None}
    finally:
        gc.enable()


class Step:
    see_through = True


class Calmly:
    """Cleans up in two steps, after whatever comes of its first; then may ask for something else.

    Attributes:
        came: What has come of each.
        ends: What it does at the end: "return", "raise" or "ask".
    """

    def __init__(self, ends: str) -> None:
        self.came: list[Any] = []
        self.ends = ends

    def go(self) -> Generator[Any, Any, str]:
        for _ in range(2):
            try:
                self.came.append((yield Step()))
            except LookupError as error:
                self.came.append(error)
        if self.ends == "raise":
            raise ArithmeticError
        if self.ends == "ask":
            try:
                yield "something else"
            except BaseException as error:
                self.came.append(error)
                raise
        return "done"


@pytest.mark.parametrize("end", ["return", "raise", "ask"])
async def test_a_cancellation_is_told_after_what_must_be_done(end):
    calmly = Calmly(end)
    begun, failed = asyncio.Event(), LookupError()
    asked = []

    async def perform(step: Any) -> str:
        asked.append(step)
        if len(asked) == 1:
            begun.set()
            await asyncio.sleep(0)
            raise failed
        return "answer"

    task = asyncio.ensure_future(go_through_async(calmly.go(), perform))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # What has come of the first is not lost, and something else is not begun any more.
    assert calmly.came[:2] == [failed, "answer"]
    assert [type(each) for each in calmly.came[2:]] == [asyncio.CancelledError] * (end == "ask")
    assert len(asked) == 2


async def test_its_error_does_not_outlive_the_call_either():
    errors: list[weakref.ref[BaseException]] = []

    class GoneError(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    async def perform(step: Any) -> str:
        raise GoneError

    def call() -> Generator[Any, Any, None]:
        yield Step()

    gc.disable()
    try:
        with contextlib.suppress(GoneError):
            await go_through_async(call(), perform)
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()
