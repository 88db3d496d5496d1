"""The lock service in etcd: where to find what.

* The service itself: :mod:`~fencing.locks.etcd.service`.
* What to ask etcd and what its answers mean, without I/O and without a clock:
  :mod:`~fencing.locks.etcd.acquiring`, which also tells how a lock is kept and how one waits;
  :mod:`~fencing.locks.etcd.steps` and :mod:`~fencing.locks.etcd.raising` for leases that were
  granted, :mod:`~fencing.locks.etcd.inspecting` for others' locks,
  :mod:`~fencing.locks.etcd.asking` for what every call has in common, and
  :mod:`~fencing.locks.etcd.answers` for answers and errors.
* What performs it, sync and async: :mod:`~fencing.locks.etcd.performing`, and
  :mod:`~fencing.locks.etcd.ranks` for its fair waiters, :mod:`~fencing.locks.etcd.many` for
  many renewals at a time.
* The way to etcd: :mod:`~fencing.locks.etcd.address` says where it is,
  :mod:`~fencing.locks.etcd.way` what a request to it is made of,
  :mod:`~fencing.locks.etcd.transport` talks to it by HTTP, over connections of
  :mod:`~fencing.locks.etcd.bounded`; :mod:`~fencing.locks.etcd.troubles` says what errors mean.
* Keys and the requests about them: :mod:`~fencing.locks.etcd.keys`,
  :mod:`~fencing.locks.etcd.requests`.
"""

from __future__ import annotations

from fencing.locks.etcd.service import AsyncEtcdLockService, EtcdLockService

__all__ = ["AsyncEtcdLockService", "EtcdLockService"]
