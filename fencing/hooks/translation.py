"""Typed errors for what the database refuses, and for sessions that did not end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.core.outcome import Inquiry
from fencing.errors import FencingError, StaleFenceError, UnfencedWriteError, WriteRefusedError
from fencing.hooks.admission import INTERNAL
from fencing.hooks.ambient import ambient_fences
from fencing.hooks.driver import had_ended, is_broken
from fencing.hooks.transaction import Presentation
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from sqlalchemy.engine import ExceptionContext

    from fencing.hooks.admission import Admissions
    from fencing.hooks.transaction import Presentations

__all__ = ["Translation"]

_LIMITS = {"25P03", "25P04"}
_ACTIVE_TRANSACTION = "25001"


class Translation:
    """The errors of one engine.

    Args:
        database: Identity of the database, as ambient scopes name it.
        presentations: What the transactions of the engine have presented.
        admissions: The database's connections apart: asked for marks and outcomes.
    """

    def __init__(
        self, database: object, presentations: Presentations, admissions: Admissions
    ) -> None:
        self._database = database
        self._presentations = presentations
        self._admissions = admissions

    def handle_error(self, context: ExceptionContext) -> BaseException | None:
        """Translate what the database has refused; ``None`` leaves an error as it is."""
        connection = context.connection
        if connection is None or connection.get_execution_options().get(INTERNAL):
            return None
        error_of_driver = connection.dialect.loaded_dbapi.Error
        # Older versions of SQLAlchemy pass asyncpg's own errors of this kind on as they are.
        if not (
            isinstance(context.original_exception, error_of_driver)
            or had_ended(context.original_exception)
        ):
            return None  # a cancellation, an interrupt: theirs, whatever has become of the lease
        if context.sqlalchemy_exception is not None and "fencing.enter(" in str(context.statement):
            context.sqlalchemy_exception.hide_parameters = True  # a holder's nonce is in them
        presentation = self._presentations.get(connection)
        if presentation is not None and presentation.committing and not connection.in_transaction():
            # It has been committed: this is of a listener that runs before ours at the next begin.
            presentation = None
        refusal = Refusal.read(context.original_exception)
        _note_disconnect(context, refusal, presentation)
        error = self._typed(refusal, presentation)
        if isinstance(error, WriteRefusedError) and connection.in_transaction():
            if presentation is None:
                presentation = Presentation(connection)
                self._presentations.put(connection, presentation)
            presentation.refusal = error
        if error is not None or presentation is None or not presentation.leases:
            return error
        return self._ended(context, refusal, presentation)

    def _ended(
        self, context: ExceptionContext, refusal: Refusal, presentation: Presentation
    ) -> BaseException | None:
        """An error that is about no fence, in a transaction under leases."""
        if refusal.sqlstate == _ACTIVE_TRANSACTION and context.sqlalchemy_exception is not None:
            context.sqlalchemy_exception.add_note(
                "fencing: this transaction has presented its lease in its first statement, so SET "
                "TRANSACTION comes too late; choose the isolation level with "
                "execution_options(isolation_level=...) on the connection or engine"
            )
        if context.is_disconnect:
            unknown = presentation.outcome_unknown(
                refusal, Inquiry(self._admissions, presentation.stamp, presentation.receipt)
            )
            if unknown is not None:
                return unknown
        if not presentation.may_be_overtaken(refusal, disconnected=context.is_disconnect):
            return None
        return self._overtaken(presentation, refusal)

    def refused(self, error: Exception, presentation: Presentation) -> FencingError | None:
        """The typed error of a transaction's entry that was refused, if that is what it is."""
        typed = self._typed(Refusal.read(error), presentation)
        if isinstance(typed, WriteRefusedError):
            presentation.refusal = typed
        return typed

    def _typed(self, refusal: Refusal, presentation: Presentation | None) -> FencingError | None:
        """The typed error of a refusal, with what this process can add to it."""
        error = refusal.as_error()
        if isinstance(error, StaleFenceError):
            lease = presentation and presentation.lease_on(error.resource)
            if lease:
                lease.note_lost()
        elif isinstance(error, UnfencedWriteError) and error.table and error.resource is not None:
            why = self.why(presentation, error.resource)
            error = UnfencedWriteError(
                f"{refusal.message}: {why}", table=error.table, resource=error.resource
            )
        return error

    def _overtaken(self, presentation: Presentation, refusal: Refusal) -> BaseException | None:
        """What a transaction that did not end by itself has come to."""
        for lease in presentation.leases:
            error = presentation.overtaken(
                lease, self._admissions.mark_at_once(lease.resource), refusal
            )
            if error is not None:
                return error
        return presentation.expired(refusal)

    def why(self, presentation: Presentation | None, resource: str | None) -> str:
        """Why a write was unfenced, as far as this process can tell."""
        if presentation is not None and presentation.why_not:
            return presentation.why_not
        presented = () if presentation is None else presentation.leases
        held = {lease.resource for f in ambient_fences(self._database) for lease in f.leases}
        held -= {lease.resource for lease in presented}
        if resource in held or (resource is None and held and not presented):
            return (
                "the transaction began before the lease was acquired, so it was not covered; "
                "commit or roll back and begin another one under the lease"
            )
        if any(resource == lease.resource for lease in presented):
            return (
                "the transaction that has presented it is over, ended by a COMMIT or ROLLBACK that "
                "was sent as SQL; end transactions through SQLAlchemy"
            )
        if presented:
            names = ", ".join(repr(lease.resource) for lease in presented)
            return (
                f"the transaction has presented leases on {names} only; acquire {resource!r} as "
                "well, before it begins"
            )
        return (
            "no lease was in force in this thread or task when the transaction began; begin it "
            "inside the lease's with block, or name the lease with fence(session, lease)"
        )


def _note_disconnect(
    context: ExceptionContext, refusal: Refusal, presentation: Presentation | None
) -> None:
    """Tell SQLAlchemy of a session that has ended: one, not the pool's others with it."""
    ended = had_ended(context.original_exception)
    if ended and presentation is not None:
        presentation.note_commit(ended=True)
    if ended or (
        not context.is_disconnect
        and context.connection is not None
        and is_broken(context.connection)
    ):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False
    if refusal.sqlstate in _LIMITS:
        context.invalidate_pool_on_disconnect = False
