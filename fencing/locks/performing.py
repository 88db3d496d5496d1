"""Performs the steps of a call: the sync and the async way, for every lock service.

A call is a generator that yields what is to be done, and decides what its outcome means. It does no
I/O and reads no clock, so it is written once. What goes wrong while a step is performed is thrown
back in, so that it is the call that decides about clean-up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

__all__ = ["go_through", "go_through_async", "see_through"]

T = TypeVar("T")
StepT = TypeVar("StepT")


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
    """:func:`go_through` for asyncio."""
    sent: object = None
    failure: BaseException | None = None
    while True:
        try:
            step = call.send(sent) if failure is None else call.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as above
        finally:
            sent = failure = None  # a traceback that holds itself would outlive the call
        try:
            sent = await perform(step)
        except BaseException as error:  # noqa: BLE001 - the call decides about every one
            failure = error


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Await work that a cancellation must not stop; pass the cancellation on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that nobody complains that nobody did
        raise cancelled
    return task.result()
