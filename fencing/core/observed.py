"""What guards in observe mode report: a NOTICE for each write that they would have refused.

Every one becomes a log record, which names the line that wrote where that can be told, and is
counted. The notices arrive while the driver executes the statement, so the line is on the stack.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from fencing.schema.names import NOT_ADMITTED, STALE, UNFENCED
from fencing.schema.refusals import facts_of

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Observations"]

_log = logging.getLogger("fencing.observed")

_KINDS = {STALE: "stale", UNFENCED: "unfenced", NOT_ADMITTED: "not admitted"}

# Whose frames are not where a write was asked for.
_PACKAGES = ("fencing", "sqlalchemy", "psycopg", "psycopg_binary", "psycopg_c", "asyncpg")


class Observations:
    """Listens to the notices of connections."""

    def __init__(self) -> None:
        self._listening: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Begin anew, in a forked child: the lock may be held by a thread that is not here."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.RLock()  # a signal handler may write, too

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """How often: by table, and by ``"unfenced"``, ``"stale"`` or ``"not admitted"``."""
        with self._lock:
            return Counter(self._counts)

    def listen_to(self, driver: Any) -> None:  # noqa: ANN401 - psycopg's or asyncpg's
        """Listen to a connection of the driver's; once more changes nothing."""
        if driver in self._listening:
            return
        self._listening.add(driver)
        if hasattr(driver, "add_notice_handler"):  # psycopg
            driver.add_notice_handler(self._psycopg_notice)
        elif hasattr(driver, "add_log_listener"):  # asyncpg
            driver.add_log_listener(self._asyncpg_notice)

    def _psycopg_notice(self, diagnostic: Any) -> None:  # noqa: ANN401 - psycopg's
        if diagnostic.sqlstate in _KINDS:
            self._note(diagnostic.sqlstate, diagnostic.message_primary, diagnostic.message_detail)

    def _asyncpg_notice(self, _connection: object, message: Any) -> None:  # noqa: ANN401 - asyncpg's
        if message.sqlstate in _KINDS:
            self._note(message.sqlstate, message.message, message.detail)

    def _note(self, sqlstate: str, message: str | None, detail: str | None) -> None:
        facts = facts_of(detail)
        table, more = str(facts.get("table", "")), facts.get("more", 0)
        with self._lock:
            self._counts[table, _KINDS[sqlstate]] += 1 + (more if isinstance(more, int) else 0)
        others = f", and {more} more" if more else ""
        _log.warning("observed: %s%s%s", message, others, _written_at(sys._getframe()))  # noqa: SLF001 - Python's, and documented


_all: weakref.WeakSet[Observations] = weakref.WeakSet()


def _forget_in_child() -> None:
    for observations in list(_all):
        observations.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _written_at(frame: FrameType | None) -> str:
    """The innermost line that is of none of the packages between the application and here."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _PACKAGES:
            # Under asyncio the driver runs in the event loop, far from who wrote.
            if package in ("asyncio", "uvloop", "greenlet", "selectors"):
                return ""
            return f" (written at {frame.f_code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
