"""What a fault does that may take long: in a thread, so that the run goes on meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import OperationalError

from fencing.tables.refusals import sqlstate
from fencing.torture.faults.missing import MissedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["LOOK", "beside"]

T = TypeVar("T")

_AWAY = "57P"
"""What errors of a server begin with that ends, or begins."""

LOOK = 0.01
"""How often a fault looks whether it is done, in seconds."""


def beside(work: Callable[[], T]) -> Generator[float, None, T]:
    """Do something in a thread; when the fault is ended meanwhile, it is waited for all the same.

    Args:
        work: What; it must end by itself, whatever the servers do.

    Returns:
        What it returns; its error is raised.

    Raises:
        MissedError: The database was away.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="fault") as pool:
        future = pool.submit(work)
        while not future.done():
            yield LOOK
    try:
        return future.result()
    except OperationalError as error:
        code = sqlstate(error)
        if code is None or code.startswith(_AWAY):
            raise MissedError from error
        raise
