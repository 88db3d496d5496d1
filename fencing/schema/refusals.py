"""Typed errors out of what PostgreSQL has refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fencing.errors import (
    FencingError,
    FencingUsageError,
    GuardNotInstalledError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
    UnfencedWriteError,
)
from fencing.schema import names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Refusal", "facts_of"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the database, read apart.

    Attributes:
        sqlstate: Its SQLSTATE; empty for a connection that just ended.
        message: Its primary message.
        hint: Its hint.
        facts: The JSON that our own errors carry in DETAIL.
        context: The stack of server-side functions it came from.
    """

    sqlstate: str
    message: str
    hint: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    context: str = ""

    @classmethod
    def read(cls, error: BaseException) -> Self:
        """Read the exception of a driver: psycopg's, or what SQLAlchemy has made of asyncpg's."""
        said = _said(error)
        sqlstate = said.get("sqlstate") or ""
        return cls(
            sqlstate=sqlstate,
            message=said.get("message") or str(error),
            hint=said.get("hint") or "",
            facts=facts_of(said.get("detail")) if sqlstate.startswith("ZF") else {},
            context=said.get("context") or "",
        )

    @property
    def is_ours(self) -> bool:
        """Whether it was raised inside a function of schema fencing."""
        return " fencing." in self.context

    @property
    def text(self) -> str:
        """Message and hint."""
        return f"{self.message}. {self.hint}".rstrip(". ") + "."

    def as_error(self, resource: str = "") -> FencingError | None:
        """The typed error, or ``None`` if this is not about fencing.

        Args:
            resource: What was being asked for, where the error itself does not say.
        """
        build = _BUILDERS.get(self.sqlstate)
        return None if build is None else build(self, self.facts.get("resource") or resource)

    def as_admission_error(self, resource: str) -> FencingError | None:
        """:meth:`as_error` of an admission, which a time-out of the server may have ended, too."""
        if self.sqlstate not in _TIMED_OUT:
            return self.as_error(resource)
        return LockNotAcquiredError(
            f"the admission of the lease on {resource!r} was not over in time: a time-out that its "
            f"role or database has set, or a maintenance of its table ({self.message}); try later",
            resource=resource,
        )

    def as_eviction_error(self, resource: str) -> FencingError | None:
        """:meth:`as_error` of an eviction, which a role may not be allowed."""
        if self.sqlstate != _INSUFFICIENT_PRIVILEGE:
            return self.as_error(resource)
        return FencingUsageError(
            f"evict_after needs the right to end the backends that hold {resource!r} "
            f"({self.message}): connect as the same role, or grant pg_signal_backend and "
            "pg_read_all_stats"
        )


def _said(error: BaseException) -> dict[str, str | None]:
    """What the server has said; nothing if it has said nothing."""
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None:
        return {
            "sqlstate": getattr(error, "sqlstate", None),
            "message": diagnosis.message_primary,
            "detail": diagnosis.message_detail,
            "hint": diagnosis.message_hint,
            "context": diagnosis.context,
        }
    # SQLAlchemy's error was made of asyncpg's, and that one may only say that the connection was
    # lost (class 08), and be made of what the server said before.
    cause: BaseException | None = error
    while cause is not None:
        sqlstate = getattr(cause, "sqlstate", None) or ""
        if hasattr(cause, "message") and sqlstate and not sqlstate.startswith("08"):
            fields = ("sqlstate", "message", "detail", "hint", "context")
            return {name: getattr(cause, name, None) for name in fields}
        cause = cause.__cause__
    return {}


def facts_of(detail: str | None) -> dict[str, Any]:
    """The JSON in the DETAIL of an error or notice; nothing if it holds none."""
    # Anybody may raise any SQLSTATE; what is not ours has no facts.
    try:
        facts = json.loads(detail or "")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _stale(refusal: Refusal, resource: str) -> FencingError:
    return StaleFenceError(
        refusal.text,
        resource=resource,
        token=refusal.facts.get("token"),
        current_token=refusal.facts.get("current_token"),
    )


def _unfenced(refusal: Refusal, resource: str) -> FencingError:
    return UnfencedWriteError(
        refusal.text, table=refusal.facts.get("table"), resource=resource or None
    )


def _implausible(refusal: Refusal, resource: str) -> FencingError:
    return LockServiceError(
        f"{refusal.text} The lock service has answered nonsense; nothing was changed.",
        resource=resource,
    )


def _blocked(refusal: Refusal, resource: str) -> FencingError:
    pids = refusal.facts.get("blocked_by", ())
    backends = f" of PostgreSQL backends {', '.join(map(str, pids))}" if pids else ""
    return LockNotAcquiredError(
        f"{refusal.message}{backends}; wait longer (blocking_timeout), or let them end",
        resource=resource,
        blocked_by=pids,
        blocked_since=refusal.facts.get("waiting_since"),
    )


def _not_installed(refusal: Refusal, _resource: str) -> FencingError | None:
    # What PostgreSQL says of a missing schema or function, whoever is missing it.
    if not _OUR_SCHEMA.search(refusal.message):
        return None
    return GuardNotInstalledError(
        f"schema fencing is not installed in this database, or not in a version that this package "
        f"can use ({refusal.message}); install or upgrade it with op.install_fencing() or "
        "op.upgrade_fencing() in a migration, or with: fencing install URL"
    )


# In whatever language the server speaks: schema "fencing", or function fencing.enter(...).
_OUR_SCHEMA = re.compile(r"(?<![\w.])fencing(?!\w)")

# A role or database may limit its statements more than we do.
_TIMED_OUT = {"57014", "55P03"}

_INSUFFICIENT_PRIVILEGE = "42501"

_BUILDERS: dict[str, Callable[[Refusal, str], FencingError | None]] = {
    names.STALE: _stale,
    names.UNFENCED: _unfenced,
    names.NOT_ADMITTED: _unfenced,
    names.IMPLAUSIBLE_TOKEN: _implausible,
    names.ADMISSION_BLOCKED: _blocked,
    "3F000": _not_installed,
    "42883": _not_installed,
}
