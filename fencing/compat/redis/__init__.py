"""redis-py's own lock, with a fencing token.

::

    lock = client.lock("account:42", timeout=10, lock_class=FencedLock)
    with lock:
        guard.admit(lock.lease)                    # lock.lease.token is the fencing token
        with Session(engine) as session, fence(session, lock.lease):
            ...

Key and value in Redis are those of redis-py's own locks, so both kinds exclude each other while a
system migrates. What is added stands in a hash beside the lock's key: the token that was issued
last, and who was the last to acquire and to release. It never expires. A lock of redis-py's own
neither reads nor writes it: who holds one has no token.
"""

from __future__ import annotations

from fencing.compat.redis.locks import AsyncFencedLock, FencedLock

__all__ = ["AsyncFencedLock", "FencedLock"]
