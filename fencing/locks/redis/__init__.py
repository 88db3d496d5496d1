"""The lock service in Redis: where to find what.

* The service itself: :mod:`~fencing.locks.redis.service`; what needs no lease, such as looking at
  locks and taking them away: :mod:`~fencing.locks.redis.administration`.
* What to ask Redis and what its answers mean, without I/O and without a clock:
  :mod:`~fencing.locks.redis.acquiring`, :mod:`~fencing.locks.redis.steps` and
  :mod:`~fencing.locks.redis.asking` for one lock, :mod:`~fencing.locks.redis.together` for several,
  :mod:`~fencing.locks.redis.waiting` for waiters, :mod:`~fencing.locks.redis.inspecting` for
  others' locks, :mod:`~fencing.locks.redis.durability` for replicas and counters,
  :mod:`~fencing.locks.redis.trouble` for errors, and for verification
  :mod:`~fencing.locks.redis.server` and :mod:`~fencing.locks.redis.verifying`.
* What performs it, sync and async: :mod:`~fencing.locks.redis.performing`,
  :mod:`~fencing.locks.redis.waiters` with :mod:`~fencing.locks.redis.listening`,
  :mod:`~fencing.locks.redis.subscribing` and :mod:`~fencing.locks.redis.reading` for those who
  wait, and :mod:`~fencing.locks.redis.looking` for verification.
* The way to Redis: :mod:`~fencing.locks.redis.clients` says how it is talked to. One server
  (:mod:`~fencing.locks.redis.direct`) or a cluster (:mod:`~fencing.locks.redis.clustered`);
  connections and their deadlines (:mod:`~fencing.locks.redis.connections`,
  :mod:`~fencing.locks.redis.bounded`, with :mod:`~fencing.locks.redis.sockets` and in asyncio
  :mod:`~fencing.locks.redis.conversing`, and :mod:`~fencing.locks.redis.stack`); bytes
  (:mod:`~fencing.locks.redis.wire`, :mod:`~fencing.locks.redis.resp`).
* The scripts and their keys: :mod:`~fencing.locks.redis.scripts` and ``lua/``; what a user of Redis
  must be allowed for them: :mod:`~fencing.locks.redis.permissions`.
"""

from __future__ import annotations

from fencing.locks.redis.service import AsyncRedisLockService, RedisLockService

__all__ = ["AsyncRedisLockService", "RedisLockService"]
