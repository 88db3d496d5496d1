"""The lock service over a majority of independent Redis nodes (Redlock): where to find what.

* The service itself: :mod:`~fencing.locks.redlock.service`; what it takes for nodes:
  :mod:`~fencing.locks.redlock.nodes`.
* What to ask the nodes and what their answers mean, without I/O and without a clock:
  :mod:`~fencing.locks.redlock.acquiring`, which also says why tokens grow,
  :mod:`~fencing.locks.redlock.steps`, and :mod:`~fencing.locks.redlock.asking` for what several
  answers come to.
* What performs it, sync and async: :mod:`~fencing.locks.redlock.performing`, and
  :mod:`~fencing.locks.redlock.waiters` for those who wait. Connections and their deadlines are
  those of :mod:`fencing.locks.redis`.
"""

from __future__ import annotations

from fencing.locks.redlock.service import AsyncRedlockService, RedlockService

__all__ = ["AsyncRedlockService", "RedlockService"]
