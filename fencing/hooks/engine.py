"""Presents leases in the transactions of one engine.

::

    begin            gather the leases in force; check their deadlines; present them: entry
    before execute   check their deadlines again; refuse early what is declared and unfenced
    commit           check them once more: what has outlived its trust is not sent
    error            see :mod:`fencing.hooks.translation`

Listeners run, and execute SQL, in the same way under an async engine (SQLAlchemy runs them in a
greenlet), so there is one set of them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from fencing.core.observed import Observations
from fencing.errors import FencingError, FencingUsageError
from fencing.hooks.admission import INTERNAL
from fencing.hooks.ambient import is_suspended, nothing_is_ambient, presented_leases
from fencing.hooks.driver import (
    adapted,
    backend_pid,
    driver_of,
    forgets_idleness,
    had_ended,
    has_ended,
    has_failed,
    is_autocommit,
    is_idle,
    is_read_only,
    restart_idle_limit,
)
from fencing.hooks.early import GuardLook, declared_writes, unfenced
from fencing.hooks.entry import enter
from fencing.hooks.transaction import Presentation, Presentations
from fencing.hooks.translation import Translation
from fencing.interrupts import begins_in_its_try

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import ExecutionContext
    from sqlalchemy.pool import ConnectionPoolEntry

    from fencing.hooks.admission import Admissions
    from fencing.hooks.ahead import Driver, EntryAhead
    from fencing.hooks.ambient import Fence

__all__ = ["EXPLICIT", "Hooks"]

EXPLICIT = "fencing_explicit"
"""Execution option that carries the explicit fences of a connection or session."""

# A connection that streams its results would only declare a cursor for our statements.
_OURS = {INTERNAL: True, "stream_results": False, "yield_per": None}


class Hooks:
    """The listeners of one engine.

    Args:
        database: Identity of the database, as ambient scopes name it.
        admissions: The database's connections apart: asked for marks and outcomes.

    Attributes:
        presentations: What the transactions of the engine have presented.
        observations: What guards in observe mode have reported to this process.
        keeps_receipts: Whether transactions under leases leave receipts.
    """

    def __init__(self, database: object, admissions: Admissions) -> None:
        self.presentations = Presentations()
        self.observations = Observations()
        self.keeps_receipts = False
        self._database = database
        self._translation = Translation(database, self.presentations, admissions)
        self._engine: weakref.ref[Engine] | None = None
        self._knows_server = False
        self._guards = GuardLook(_OURS)
        self._given_up: weakref.WeakSet[Connection] | None = None

    def listen(self, engine: Engine) -> None:
        """Install the listeners on a root engine."""
        self._engine = weakref.ref(engine)
        event.listen(engine, "connect", self.connect)
        event.listen(engine, "begin", self.begin)
        event.listen(engine, "begin_twophase", self.begin_twophase)
        event.listen(engine, "before_cursor_execute", self.before_cursor_execute)
        event.listen(engine, "commit", self.commit)
        event.listen(engine, "rollback", self.rollback)
        event.listen(engine, "rollback_savepoint", self.rollback_savepoint)
        event.listen(engine, "handle_error", self._translation.handle_error)
        event.listen(engine, "checkin", self.checkin)

    def connect(self, _dbapi: object, record: ConnectionPoolEntry) -> None:
        """Hear what guards in observe mode report."""
        self.observations.listen_to(record.driver_connection)

    @begins_in_its_try
    def begin(self, connection: Connection) -> None:
        """Present the leases in force; the transaction's first statement, if there are any."""
        try:
            if not connection.get_execution_options().get(INTERNAL):
                self._present(connection)
        except BaseException:
            # SQLAlchemy sets this flag before it calls us and clears it only after its own
            # BEGIN. Left set, the next statement would begin no transaction, and a later
            # commit() would silently commit nothing.
            connection._Connection__in_begin = False  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name
            # Nor does it know of a transaction that entry has begun before we were interrupted.
            if not connection.invalidated and not is_idle(driver_of(connection)):
                self._give_up(connection)
            raise

    def _present(self, connection: Connection) -> None:
        if self._given_up is not None and connection in self._given_up:
            # SQLAlchemy has connected it anew, and gives a connection its options only once.
            self._given_up.discard(connection)
            connection.dialect.set_connection_execution_options(
                connection, connection.get_execution_options()
            )
        dbapi_connection = adapted(connection)
        driver: Any = connection.dialect.get_driver_connection(dbapi_connection)
        self.observations.listen_to(driver)  # it may be older than the guard
        explicit: tuple[Fence, ...] = connection.get_execution_options().get(EXPLICIT, ())
        if not explicit and nothing_is_ambient():
            self.presentations.drop(connection)
            return
        leases = presented_leases(self._database, explicit)
        why_not = ""
        if not leases:
            if is_suspended(self._database):
                why_not = "this block is suspended: nothing is presented in it"
        elif why_not := _cannot_present(dbapi_connection):
            leases = ()
        pid = backend_pid(driver) if leases else 0
        presentation = Presentation(
            connection, leases, why_not=why_not, backend_pid=pid, with_receipt=self.keeps_receipts
        )
        self.presentations.put(connection, presentation)
        if leases:
            for lease in leases:
                lease.raise_if_over()
            self._enter(connection, driver, presentation)
            if not self._knows_server:
                self._look_at_server(connection)

    def _enter(self, connection: Connection, driver: Driver, presentation: Presentation) -> None:
        # Whoever listens after us may run statements. Were the entry refused by the first of them,
        # we would not hear of it, and SQLAlchemy would believe for ever that it is in its BEGIN.
        *_, last = connection.dispatch.begin
        refused = self._translation.refused
        typed = None
        if last == self.begin:
            of = weakref.ref(presentation)

            def typed(error: Exception) -> FencingError | None:
                presentation = of()
                return None if presentation is None else refused(error, presentation)

        enter(connection, driver, presentation, _OURS, typed)

    def _look_at_server(self, connection: Connection) -> None:
        engine = self._engine and self._engine()
        if engine is not None and forgets_idleness(connection):
            event.listen(engine, "after_cursor_execute", self.after_cursor_execute)
        self._knows_server = True

    def begin_twophase(self, connection: Connection, xid: object) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        """Refuse two-phase transactions under a lease: a prepared one outlives every limit."""
        explicit: tuple[Fence, ...] = connection.get_execution_options().get(EXPLICIT, ())
        leases = presented_leases(self._database, explicit)
        if leases:
            raise FencingUsageError(
                f"a two-phase transaction cannot be fenced, and a lease on {leases[0].resource!r} "
                "is in force: a prepared transaction has no holder and ends at no limit; use an "
                "ordinary one, or guard.suspended() if it writes nothing guarded"
            )
        # Nothing of what the connection's transaction before has presented.
        self.presentations.put(connection, Presentation(connection))

    def before_cursor_execute(
        self,
        connection: Connection,
        cursor: object,  # noqa: ARG002 - SQLAlchemy's signature
        statement: str,  # noqa: ARG002 - likewise
        parameters: object,  # noqa: ARG002 - likewise
        context: ExecutionContext | None,
        executemany: bool,  # noqa: ARG002, FBT001 - likewise
    ) -> None:
        """Check deadlines; refuse a declared write early where it would be refused anyway."""
        if context is None or context.execution_options.get(INTERNAL):
            return
        # A listener of somebody else's may run statements before our own begin has been called;
        # what we know is of the transaction before, then.
        begun = connection.in_transaction()
        presentation = self.presentations.get(connection) if begun else None
        if presentation is not None and presentation.leases:
            if presentation.ahead is not None:
                presentation.ahead.settle(connection)
            self._check_deadlines(connection, presentation)
        for table, operation, declaration in declared_writes(context):
            self._guards.require(context, table, operation, declaration)
            if (presentation is None or not presentation.leases) and not self._guards.may_let_pass(
                context, table
            ):
                raise unfenced(
                    table, operation, declaration, self._translation.why(presentation, None)
                )

    def after_cursor_execute(
        self,
        connection: Connection,
        cursor: object,  # noqa: ARG002 - SQLAlchemy's signature
        statement: str,  # noqa: ARG002 - likewise
        parameters: object,  # noqa: ARG002 - likewise
        context: ExecutionContext | None,  # noqa: ARG002 - likewise
        executemany: bool,  # noqa: FBT001 - likewise
    ) -> None:
        """See that an idle transaction is limited after an ``executemany()`` as well.

        Listened to only where it would not be: every statement would pay for it.
        """
        if executemany and connection.in_transaction():
            presentation = self.presentations.get(connection)
            if presentation is not None and presentation.leases:
                restart_idle_limit(connection)

    def commit(self, connection: Connection) -> None:
        """Check deadlines: a transaction that has outlived its trust is not committed."""
        presentation = self.presentations.get(connection)
        if presentation is None:
            return
        if presentation.ahead is not None and not connection.invalidated:
            self._settle_before_commit(connection, presentation.ahead)
        try:
            self._check_deadlines(connection, presentation)
            if presentation.refusal is not None and has_failed(connection):
                # PostgreSQL answers COMMIT with a ROLLBACK here, and the driver with success.
                raise presentation.refusal
        except FencingError as error:
            # SQLAlchemy takes a commit that raises for one that was sent: it would send no
            # ROLLBACK, and the next user of the pooled connection would commit our transaction.
            self._give_up(connection)
            error.add_note("fencing: COMMIT was not sent; nothing of this transaction is committed")
            raise
        # If the server has ended the session before COMMIT is sent, nothing is committed.
        if presentation.leases:
            presentation.note_commit(ended=has_ended(driver_of(connection)))

    def _settle_before_commit(self, connection: Connection, ahead: EntryAhead) -> None:
        try:
            ahead.settle(connection)
        except BaseException:
            self._give_up(connection)  # as for a deadline
            raise

    def _drop(self, connection: Connection, ahead: EntryAhead) -> None:
        fit = False
        try:
            fit = ahead.drop()
        finally:
            if not fit:
                self._give_up(connection)

    def rollback(self, connection: Connection) -> None:
        """See that a ROLLBACK cannot fail: its error would replace the one that led to it."""
        presentation = self.presentations.get(connection)
        if presentation is not None:
            presentation.committing = False
            if presentation.ahead is not None and not connection.invalidated:
                self._drop(connection, presentation.ahead)
            presentation.ahead = None
            if presentation.may_have_ended and not connection.invalidated:
                # SQLAlchemy's own, which follows, then finds nothing to do.
                try:
                    connection.dialect.do_rollback(connection.connection)
                except Exception as error:
                    # Older versions of SQLAlchemy pass some of asyncpg's on as they are.
                    if not (
                        isinstance(error, connection.dialect.loaded_dbapi.Error) or had_ended(error)
                    ):
                        raise
                    self._give_up(connection)

    def rollback_savepoint(self, connection: Connection, name: str, context: None) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        """The same for ROLLBACK TO SAVEPOINT, which is a statement like any other."""
        presentation = self.presentations.get(connection)
        if presentation is not None and (presentation.lease_over or presentation.may_have_ended):
            self._give_up(connection)

    @staticmethod
    def checkin(_dbapi: object, record: ConnectionPoolEntry) -> None:
        """Let no open transaction into the pool, whatever its ``reset_on_return`` is.

        A claim is good for its transaction; the next user would write under it.
        """
        driver: Any = record.driver_connection
        if driver is not None and not is_idle(driver):
            record.invalidate()

    def _give_up(self, connection: Connection) -> None:
        """Close the connection, so that the server rolls back whatever is open on it."""
        if connection.invalidated:
            return
        pooled = connection.connection
        detached, dbapi = pooled.is_detached, pooled.dbapi_connection
        connection.invalidate()
        if detached and dbapi is not None:
            connection.dialect.do_terminate(dbapi)
        if self._given_up is None:
            self._given_up = weakref.WeakSet()
        self._given_up.add(connection)

    def _check_deadlines(self, connection: Connection, presentation: Presentation) -> None:
        lease = presentation.lease_over
        if lease is None:
            return
        if lease.expired:
            # The server may have ended the session at its limit: the ROLLBACK that follows would
            # fail on it and hide our error. It also frees a successor that waits for the session.
            self._give_up(connection)
        lease.raise_if_over()


def _cannot_present(dbapi_connection: Any) -> str:  # noqa: ANN401 - as the dialect has it
    if is_autocommit(dbapi_connection):
        return "the connection is in AUTOCOMMIT mode, in which no lease can be presented"
    if is_read_only(dbapi_connection):
        return "the transaction is READ ONLY, in which no lease is presented"
    return ""
