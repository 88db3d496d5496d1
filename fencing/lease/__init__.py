"""Leases: the right to act on a resource, for a while.

The model, in four sentences. A *lock service* grants a lease: a resource, a fencing token and a
holder (a nonce that is new for every acquisition), for ``ttl`` seconds. From the moment we
*asked*, this process trusts the lease until ::

    trusted_until = asked_at + ttl - margin        margin = 1 % of ttl + 2 ms

which is never later than the lock service's own idea of its end, because the service cannot have
started to count before we asked; the margin covers clocks that run at different speeds. After
``trusted_until`` the process sends nothing more under the lease. None of this is what makes data
safe, since a process can be paused between looking at its clock and sending: that is the
database's part (see :mod:`fencing.guard`). It is what makes a refusal rare.
"""

from __future__ import annotations

from fencing.lease.base import BaseLease, Scope, Watcher
from fencing.lease.leases import AsyncGrantor, AsyncLease, Grantor, Lease
from fencing.lease.trust import margin, new_holder, trust_ends

__all__ = [
    "AsyncGrantor",
    "AsyncLease",
    "BaseLease",
    "Grantor",
    "Lease",
    "Scope",
    "Watcher",
    "margin",
    "new_holder",
    "trust_ends",
]
