"""Where the Python and the SQL of this package meet.

``sql/*.sql`` and :mod:`fencing.schema.ddl` spell these names; the rest of the Python code only
ever imports them from here. A test compares the two.
"""

from __future__ import annotations

import hashlib

SCHEMA = "fencing"
FENCE_TABLE = "fencing.fence"

# SQLSTATEs. Class ZF: the SQL standard leaves classes that begin with I to Z to implementations,
# and PostgreSQL uses none in Z.
STALE = "ZF001"
UNFENCED = "ZF002"
NOT_ADMITTED = "ZF003"
IMPLAUSIBLE_TOKEN = "ZF004"  # noqa: S105 -- a number that counts holders
ADMISSION_BLOCKED = "ZF005"
ADMISSION_ISOLATION = "ZF006"
FENCE_KEPT = "ZF007"
UNFIT_TEMPLATE = "ZF008"
NOT_FENCED = "ZF009"
STILL_FENCED = "ZF010"
ALREADY_FENCED = "ZF011"
TABLE_BUSY = "ZF012"
UNFIT_USE = "ZF013"
NEWER_SCHEMA = "ZF014"

CLAIM_SETTING = "fencing.claim"

# Constraint of the fence that no UPDATE can pass backwards.
NEVER_DECREASES = "fence_token_never_decreases"

# Triggers of a guarded table, by the operation they guard. A partition's and an inheritance child's
# are named alike.
TRIGGERS = {
    "insert": "fencing_insert",
    "update": "fencing_update",
    "delete": "fencing_delete",
    "truncate": "fencing_truncate",
}

# Never fires; keeps the table from being changed in ways that would undo the guard.
PIN = "fencing_pin"

# Sees, on a partitioned table, an UPDATE that moves a row to another partition.
MOVE = "~fencing_move"

# Statements, with named parameters as SQLAlchemy's ``text()`` reads them.
ADMIT = (
    "SELECT fencing.admit(CAST(:resource AS text), CAST(:token AS bigint), "
    "CAST(:holder AS text), CAST(:owner AS text), CAST(:wait_ms AS integer))"
)
ENTER = (
    "SELECT fencing.enter(CAST(:leases AS text), CAST(:limit_ms AS integer), "
    "CAST(:receipt AS uuid))"
)
MARK = "SELECT fencing.mark(CAST(:resource AS text))"
EVICT = (
    "SELECT fencing.evict(CAST(:resource AS text), CAST(:token AS bigint), "
    "to_timestamp(CAST(:since AS double precision)))"
)
OUTCOME = (
    "SELECT fencing.outcome(CAST(:receipt AS uuid), CAST(:stamp AS text), "
    "CAST(:wait_ms AS integer))"
)
IN_FLIGHT = "SELECT xid, incarnation FROM fencing.in_flight(CAST(:stamp AS text))"
OUTCOME_OF = "SELECT fencing.outcome_of(CAST(:xid AS text), CAST(:incarnation AS text))"
# PostgreSQL as the lock service.
LEASE_TABLE = "fencing.lease"
WAITER_TABLE = "fencing.waiter"
ACQUIRE = (
    "SELECT state, token, left_ms, owner FROM fencing.acquire(CAST(:resource AS text), "
    "CAST(:holder AS text), CAST(:owner AS text), CAST(:ttl_ms AS bigint), "
    "CAST(:floor AS bigint), CAST(:wait_ms AS integer), CAST(:queue_ms AS integer))"
)
ACQUIRE_ALL = (
    "SELECT resource, state, token, left_ms, owner, pids FROM fencing.acquire_all("
    "CAST(:wanted AS text), CAST(:owner AS text), CAST(:ttl_ms AS bigint), "
    "CAST(:wait_ms AS integer))"
)
RENEW = "SELECT place, state FROM fencing.renew(CAST(:wanted AS text), CAST(:wait_ms AS integer))"
RELEASE = (
    "SELECT fencing.release(CAST(:resource AS text), CAST(:holder AS text), "
    "CAST(:wait_ms AS integer), CAST(:give_up AS boolean))"
)
RAISE_TOKEN = (
    "SELECT state, token FROM fencing.raise_token(CAST(:resource AS text), "  # noqa: S105 -- as above
    "CAST(:holder AS text), CAST(:floor AS bigint), CAST(:admitted AS boolean), "
    "CAST(:wait_ms AS integer))"
)
LOOK = (
    "SELECT held, owner, token, holder, left_ms, counter, waiters "
    "FROM fencing.look(CAST(:resource AS text))"
)
SCAN = (
    "SELECT resource FROM fencing.scan(CAST(:prefix AS text), CAST(:after AS text), "
    "CAST(:limit AS integer))"
)
FORCE_RELEASE = (
    "SELECT fencing.force_release(CAST(:resource AS text), CAST(:named AS text), "
    "CAST(:wait_ms AS integer))"
)
IDENTITY = "SELECT fencing.identity()"
CHANNEL = "fencing"
"""On which waiters are called, by what :func:`holder_name` makes of their holders."""

VERSIONS = "SELECT schema_version, oldest_client FROM fencing.versions()"


def holder_name(holder: str) -> str:
    """What others are told of a holder, as ``fencing.name_of_holder`` makes it."""
    return hashlib.sha256(holder.encode()).hexdigest()


def claim_item(resource: str, token: int, holder: str) -> str:
    """One lease as ``fencing.enter`` reads it: no character in it ever needs quoting."""
    return f"{resource.encode().hex()}={token}.{holder}"
