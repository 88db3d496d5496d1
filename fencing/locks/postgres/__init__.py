"""Locks in PostgreSQL itself, granted by its own clock and admitted as they are granted.

::

    service       what the public classes offer, sync and async side by side
    acquiring     how a lock is acquired and waited for     ┐ decide: no I/O, no clock
    steps         renewing, releasing, looking              ┘
    performing    performs what they yield
    waiters       one who waits, in a thread or a task
    listening     the connection on which they are called
    connections   a few connections, each for one request
    wire          one statement, by a deadline
    trouble       what an error means

The functions that are called are in ``fencing/schema/sql/lease.sql``.
"""

from fencing.locks.postgres.service import AsyncPostgresLockService, PostgresLockService

__all__ = ["AsyncPostgresLockService", "PostgresLockService"]
