"""Admissions: a lease's token, committed as its resource's high-water mark.

They run on connections apart, in a pool of their own. In the engine's own pool, as many requests as
it has connections could each hold a session and wait for one more to acquire with.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, QueuePool, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from fencing.clock import now
from fencing.core.identity import KnownIdentity
from fencing.core.slots import NoSlotError, Slots
from fencing.schema.names import ADMISSION_ISOLATION, ADMIT, EVICT, IDENTITY, MARK
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from fencing.lease import BaseLease

__all__ = ["INTERNAL", "Admissions"]

INTERNAL = "fencing_internal"
"""Execution option of the package's own connections and statements: hooks leave them alone."""

_ADMIT = text(ADMIT)
_EVICT = text(EVICT)
_MARK = text(MARK)

_OTHER_DEFAULTS = {ADMISSION_ISOLATION, "25006"}

_GRACE = 1.0
"""How long one that does not wait waits for a connection, in seconds: others use it briefly."""

_MAX_MILLISECONDS = 2**31 - 1


class Admissions:
    """The admissions of one database.

    Args:
        engine: The root engine; its pool's settings and listeners, as they are now, are copied.

    Attributes:
        engine: An engine over the pool apart, in AUTOCOMMIT.
    """

    def __init__(self, engine: Engine) -> None:
        # What is sent holds the holder's nonce, which belongs in no message.
        self._root = Engine(
            engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True
        )
        # One statement in AUTOCOMMIT is one transaction, and one round trip.
        self.engine: Engine = self._root.execution_options(
            isolation_level="AUTOCOMMIT", **{INTERNAL: True}
        )
        self._begun: Engine = self._root.execution_options(
            isolation_level="READ COMMITTED", postgresql_readonly=False, **{INTERNAL: True}
        )
        self._autocommit_suffices = True
        self._slots = Slots(_capacity(self._root))
        self._known = KnownIdentity()

    def admit(self, lease: BaseLease, until: float) -> None:
        """See :meth:`fencing.core.performing.PlannedAdmissions.admit`.

        A connection that had died in the pool is no reason to fail: asking again for a lease that
        has been admitted changes nothing.
        """
        try:
            with self._slots.slot(max(until, now() + _GRACE)):
                self._admit(lease, until)
        except NoSlotError as error:
            raise error.as_error(lease.resource) from error

    async def aadmit(self, lease: BaseLease, until: float) -> None:
        """:meth:`admit` for an async engine."""
        try:
            async with self._slots.aslot(max(until, now() + _GRACE)):
                await greenlet_spawn(self._admit, lease, until)
        except NoSlotError as error:
            raise error.as_error(lease.resource) from error

    def evict(self, lease: BaseLease, since: float, until: float) -> list[int]:
        """See :meth:`fencing.core.performing.PlannedAdmissions.evict`."""
        try:
            with self._slots.slot(max(until, now() + _GRACE)):
                return self._evict(lease, since)
        except NoSlotError as error:
            raise error.as_error(lease.resource) from error

    async def aevict(self, lease: BaseLease, since: float, until: float) -> list[int]:
        """:meth:`evict` for an async engine."""
        try:
            async with self._slots.aslot(max(until, now() + _GRACE)):
                return await greenlet_spawn(self._evict, lease, since)
        except NoSlotError as error:
            raise error.as_error(lease.resource) from error

    def mark(self, resource: str) -> int | None:
        """See :meth:`fencing.core.performing.PlannedAdmissions.mark`."""
        try:
            with self._slots.slot(now() + _GRACE):
                return self._mark(resource)
        except NoSlotError as error:
            raise error.as_error(resource) from error

    async def amark(self, resource: str) -> int | None:
        """:meth:`mark` for an async engine."""
        try:
            async with self._slots.aslot(now() + _GRACE):
                return await greenlet_spawn(self._mark, resource)
        except NoSlotError as error:
            raise error.as_error(resource) from error

    def identity(self, expected: str) -> str:
        """Which database this is; see :class:`fencing.core.performing.PlannedAdmissions`."""
        if not self._known.answers(expected):
            row = self.ask(IDENTITY, {})
            if row is None:
                return ""
            self._known.note(str(row[0]), expected)
        return self._known.told

    async def aidentity(self, expected: str) -> str:
        """:meth:`identity` for an async engine."""
        if not self._known.answers(expected):
            row = await self.aask(IDENTITY, {})
            if row is None:
                return ""
            self._known.note(str(row[0]), expected)
        return self._known.told

    def mark_at_once(self, resource: str) -> int | None:
        """The mark, if it can be asked for without waiting for a connection; else ``None``.

        For an error handler, which has nothing better to tell than what it knows. Runs in the
        greenlet of an async engine as well.
        """
        try:
            with self._slots.slot(now()):
                return self._mark(resource)
        except _unavailable():
            return None

    def ask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """One row, asked for in a transaction of its own; ``None`` where it was not to be had."""
        try:
            with self._slots.slot(now() + _GRACE):
                return self._ask(statement, values)
        except _unavailable():
            return None

    async def aask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """:meth:`ask` for an async engine."""
        try:
            async with self._slots.aslot(now() + _GRACE):
                return await greenlet_spawn(self._ask, statement, values)
        except _unavailable():
            return None

    def close(self) -> None:
        """Close the idle connections."""
        self._root.dispose()

    async def aclose(self) -> None:
        """:meth:`close` for an async engine."""
        await AsyncEngine(self._root).dispose()

    def forget(self) -> None:
        """Leave the connections to the parent process, in a forked child."""
        self._root.dispose(close=False)
        self._slots = Slots(self._slots.capacity)

    def _admit(self, lease: BaseLease, until: float) -> None:
        try:
            try:
                self._send(lease, until)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                self._send(lease, until)
        except DBAPIError as error:
            typed = Refusal.read(error.orig or error).as_admission_error(lease.resource)
            if typed is None:
                raise
            raise typed from error

    def _send(self, lease: BaseLease, until: float) -> None:
        if self._autocommit_suffices:
            try:
                self._send_on(self.engine, lease, until)
            except DBAPIError as error:
                # This role or database has another default_transaction_isolation, or is read-only
                # by default, and a single statement cannot choose for itself.
                if Refusal.read(error.orig or error).sqlstate not in _OTHER_DEFAULTS:
                    raise
                self._autocommit_suffices = False
            else:
                return
        self._send_on(self._begun, lease, until)

    @staticmethod
    def _send_on(engine: Engine, lease: BaseLease, until: float) -> None:
        with engine.begin() as connection:
            wait = max(0, int((until - now()) * 1000))
            connection.execute(
                _ADMIT,
                {
                    "resource": lease.resource,
                    "token": lease.token,
                    "holder": lease.holder,
                    "owner": lease.owner,
                    "wait_ms": min(wait, _MAX_MILLISECONDS),
                },
            )

    def _evict(self, lease: BaseLease, since: float) -> list[int]:
        try:
            with self.engine.connect() as connection:
                ended: list[int] = connection.execute(
                    _EVICT, {"resource": lease.resource, "token": lease.token, "since": since}
                ).scalar_one()
        except DBAPIError as error:
            typed = Refusal.read(error.orig or error).as_eviction_error(lease.resource)
            if typed is None:
                raise
            raise typed from error
        return ended

    def _ask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        try:
            return self._ask_once(statement, values)
        except DBAPIError as error:
            # Whatever has ended the connection that is asked about has often ended this one, too.
            if not error.connection_invalidated:
                raise
            return self._ask_once(statement, values)

    def _ask_once(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        with self._begun.begin() as connection:
            row = connection.execute(text(statement), values).one_or_none()
            return None if row is None else tuple(row)

    def _mark(self, resource: str) -> int | None:
        with self.engine.connect() as connection:
            mark: int | None = connection.execute(_MARK, {"resource": resource}).scalar_one()
            return mark


def _unavailable() -> tuple[type[BaseException], ...]:
    """What says that a database, or the way to it, does not answer as it should."""
    asyncpg = sys.modules.get("asyncpg")  # whose failures to connect come as they are
    bare = () if asyncpg is None else (asyncpg.PostgresError, asyncpg.InterfaceError)
    return NoSlotError, DBAPIError, PoolTimeoutError, OSError, *bare


def _capacity(engine: Engine) -> float:
    pool = engine.pool
    if not isinstance(pool, QueuePool) or pool._max_overflow < 0:  # noqa: SLF001 - has no public name
        return math.inf
    return pool.size() + pool._max_overflow  # noqa: SLF001 - as above
