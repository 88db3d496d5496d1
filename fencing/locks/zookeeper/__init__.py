"""The lock service in ZooKeeper: where to find what.

* The service itself: :mod:`~fencing.locks.zookeeper.service`; its address:
  :mod:`~fencing.locks.zookeeper.address`.
* What to ask ZooKeeper and what its answers mean, without I/O and without a clock:
  :mod:`~fencing.locks.zookeeper.acquiring`, :mod:`~fencing.locks.zookeeper.steps` and
  :mod:`~fencing.locks.zookeeper.asking`; :mod:`~fencing.locks.zookeeper.judging` for holders whose
  time is over, :mod:`~fencing.locks.zookeeper.tokens` for tokens,
  :mod:`~fencing.locks.zookeeper.inspecting` for others' locks,
  :mod:`~fencing.locks.zookeeper.trouble` for errors.
* The nodes: :mod:`~fencing.locks.zookeeper.names`.
* What performs it, sync and async: :mod:`~fencing.locks.zookeeper.performing`, by
  :mod:`~fencing.locks.zookeeper.batches` in a :mod:`~fencing.locks.zookeeper.session` of kazoo's,
  as its :mod:`~fencing.locks.zookeeper.requests`;
  :mod:`~fencing.locks.zookeeper.containers` is what kazoo has not.
"""

from __future__ import annotations

from fencing.locks.zookeeper.service import AsyncZooKeeperLockService, ZooKeeperLockService

__all__ = ["AsyncZooKeeperLockService", "ZooKeeperLockService"]
