"""Performs the steps of a call: the sync and the async way, for every lock service.

A call is a generator that yields what is to be done, and decides what its outcome means. It does no
I/O and reads no clock, so it is written once. What goes wrong while a step is performed is thrown
back in, so that it is the call that decides about clean-up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

__all__ = [
    "Prompt", "go_through", "go_through_async", "perform_promptly", "perform_promptly_async",
    "see_through",
]  # fmt: skip

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
StepT = TypeVar("StepT")


class Prompt(Protocol[T_co]):
    """A call that is nearly always over with what comes of its first step.

    A generator, that would be thrown away at once, takes longer than all that it would decide.
    A shell performs any step of its lock service and sends back what belongs to that one, as for a
    generator; so here, too, there is no one type for them.
    """

    def begin(self) -> Any:  # noqa: ANN401 - see above
        """The first step."""

    def settle(self, came: Any) -> T_co | None:  # noqa: ANN401 - see above
        """What the call returns; ``None`` where there is more to it.

        What it raises is taken for what came of the first step.
        """

    def go_on(self, came: Any) -> Generator[Any, Any, T_co]:  # noqa: ANN401 - see above
        """All else, after what has come of the first step."""


def go_through(call: Generator[StepT, Any, T], perform: Callable[[StepT], object]) -> T:
    """Perform the steps of a call; return or raise what it does."""
    try:
        step = call.send(None)
        while True:
            try:
                sent = perform(step)
            except BaseException as error:  # noqa: BLE001 - the call decides about every one
                step = call.throw(error)
            else:
                step = call.send(sent)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration has no type for it


async def go_through_async(
    call: Generator[StepT, Any, T], perform: Callable[[StepT], Awaitable[object]]
) -> T:
    """:func:`go_through` for asyncio.

    While steps are performed that must be done even while the caller is being cancelled, the call
    is not told that he is: it learns so at the next step that is none, or its caller at its end.
    """
    late: list[asyncio.CancelledError] = []
    try:
        step = call.send(None)
        while True:
            must_be_done = getattr(step, "see_through", False)
            if late and not must_be_done:
                step = call.throw(late.pop())
                continue
            try:
                sent = await (_done(perform(step), late) if must_be_done else perform(step))
            except BaseException as error:  # noqa: BLE001 - as above
                step = call.throw(error)
            else:
                step = call.send(sent)
    except StopIteration as end:
        if late:
            raise late.pop() from None
        return end.value  # type: ignore[no-any-return]  # as above
    except Exception as error:
        if late:
            raise late.pop() from error
        raise


def perform_promptly(call: Prompt[T], perform: Callable[[Any], object]) -> T:
    """Perform a call; return or raise what it does."""
    try:
        came = perform(call.begin())
        if (outcome := call.settle(came)) is not None:
            return outcome
    except BaseException as error:  # noqa: BLE001 - as above
        return go_through(call.go_on(error), perform)
    return go_through(call.go_on(came), perform)


async def perform_promptly_async(call: Prompt[T], perform: Callable[[Any], Awaitable[object]]) -> T:
    """:func:`perform_promptly` for asyncio."""
    try:
        came = await perform(call.begin())
        if (outcome := call.settle(came)) is not None:
            return outcome
    except BaseException as error:  # noqa: BLE001 - as above
        return await go_through_async(call.go_on(error), perform)
    return await go_through_async(call.go_on(came), perform)


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Await work that a cancellation must not stop; pass the cancellation on afterwards."""
    late: list[asyncio.CancelledError] = []
    try:
        outcome = await _done(work, late)
    except Exception as error:
        if late:
            raise late.pop() from error
        raise
    if late:
        raise late.pop()
    return outcome


async def _done(work: Awaitable[T], late: list[asyncio.CancelledError]) -> T:
    """Await work that a cancellation must not stop; the last one that came is left in a list."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            late[:] = [error]
    try:
        return task.result()
    finally:
        del task  # the traceback of its error would hold what holds that
