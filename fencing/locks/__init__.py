"""Lock services: who may try next.

Where to find what, of the lock service in Redis:

* The service itself: :mod:`~fencing.locks.redis`; what needs no lease, such as looking at locks
  and taking them away: :mod:`~fencing.locks.administration`.
* What to ask Redis and what its answers mean, without I/O and without a clock:
  :mod:`~fencing.locks.acquiring`, :mod:`~fencing.locks.steps` and :mod:`~fencing.locks.asking`
  for one lock, :mod:`~fencing.locks.together` for several, :mod:`~fencing.locks.waiting` for
  waiters, :mod:`~fencing.locks.inspecting` for others' locks, :mod:`~fencing.locks.durability`
  for replicas and counters, :mod:`~fencing.locks.trouble` for errors, and for verification
  :mod:`~fencing.locks.server` and :mod:`~fencing.locks.verifying`.
* What performs it, sync and async: :mod:`~fencing.locks.performing`,
  :mod:`~fencing.locks.waiters` with :mod:`~fencing.locks.listening` and
  :mod:`~fencing.locks.subscribing` for those who wait, and
  :mod:`~fencing.locks.looking` for verification.
* The way to Redis: :mod:`~fencing.locks.clients` says how it is talked to. One server
  (:mod:`~fencing.locks.direct`) or a cluster (:mod:`~fencing.locks.clustered`); connections and
  their deadlines (:mod:`~fencing.locks.connections`, :mod:`~fencing.locks.bounded`,
  :mod:`~fencing.locks.stack`); bytes (:mod:`~fencing.locks.wire`, :mod:`~fencing.locks.resp`).
* The scripts and their keys: :mod:`~fencing.locks.scripts` and ``lua/``; what a user of Redis must
  be allowed for them: :mod:`~fencing.locks.permissions`.
"""

from __future__ import annotations

from fencing.locks.redis import AsyncRedisLockService, RedisLockService

__all__ = ["AsyncRedisLockService", "RedisLockService"]
