"""The guard for psycopg connections, without SQLAlchemy; Django and others join here.

::

    from fencing import RedisLockService, postgres

    guard = postgres.PsycopgGuard(RedisLockService(client), "postgresql://localhost/bank")

    with guard.acquire("account:42", ttl=10) as lease:          # lock, token, admission
        with postgres.transaction(connection, lease):           # BEGIN and entry in one message
            connection.execute("UPDATE accounts SET balance = balance - 100 WHERE id = 42")

Nothing is ambient here: psycopg tells nobody when a transaction begins, so each one names its
leases. Everything serves psycopg's ``Connection`` and ``AsyncConnection``; on the latter it is
awaited. What the database refuses comes as the errors of :mod:`fencing.errors`, with psycopg's own
as their ``__cause__``.
"""

from fencing.postgres.admission import admit
from fencing.postgres.entry import enter
from fencing.postgres.guard import AsyncPsycopgGuard, PsycopgGuard
from fencing.postgres.transaction import errors_translated, transaction
from fencing.postgres.verifying import verify

__all__ = [
    "AsyncPsycopgGuard",
    "PsycopgGuard",
    "admit",
    "enter",
    "errors_translated",
    "transaction",
    "verify",
]
