"""The scripts that run on each node; their headers in ``lua/`` say what they take and answer.

The keys are those of :mod:`fencing.locks.redis.scripts`, but for the queue, which nobody uses: who
waits asks again.
"""

from __future__ import annotations

from fencing.locks.redis.scripts import Script

__all__ = ["ACCEPT", "LOCK", "RELEASE", "RENEW"]

_OURS = "fencing.locks.redlock"

LOCK = Script("lock", _OURS, uses=("given_back",))
ACCEPT = Script("accept", _OURS)
RENEW = Script("renew", _OURS)
RELEASE = Script("release", _OURS, uses=("given_back",))
