"""Does the same for many at a time, by threads that end with it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["done_for_each"]

ThingT = TypeVar("ThingT")
OutcomeT = TypeVar("OutcomeT")

AT_A_TIME = 16
"""How many threads share the work at most: half as many as there are connections."""


def done_for_each(work: Callable[[ThingT], OutcomeT], things: Sequence[ThingT]) -> list[OutcomeT]:
    """Do something for each of many; return what came of each, in their order.

    The caller's thread takes its share of them, and all of them where no other can be started.

    Raises:
        BaseException: The first that the work raised; what had been begun was finished before.
    """
    outcomes: dict[int, OutcomeT] = {}
    errors: list[BaseException] = []
    left = iter(range(len(things)))
    lock = threading.Lock()

    def work_off() -> None:
        try:
            while not errors:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                outcomes[number] = work(things[number])
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    helpers = []
    for _ in range(min(AT_A_TIME, len(things)) - 1):
        helper = threading.Thread(target=work_off, name="fencing-renewing", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            break
        helpers.append(helper)
    work_off()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return [outcomes[number] for number in range(len(things))]
