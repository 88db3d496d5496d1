"""Renewing leases in the background, and noticing their loss.

For each lock service there is one *keeper* for all leases, not one per lease. It knows two moments
of a lease::

    granted ───── a third of the ttl ────────────────────────── trusted_until ─── ttl
                  renew, with what else is due                  lost: told at once

* A **renewal** that fails is repeated until trust ends. Only the lock service's word that the lease
  is not ours any more ends it earlier.
* The **end of trust** is watched apart from the renewals, which may be waiting for an answer: what
  has to be told is told in time, however the lock service is.

The two are kept in an agenda each (:mod:`fencing.keepalive.agenda`); what is due and what an answer
means is decided in :mod:`fencing.keepalive.rules`, without I/O and without a clock.
:mod:`fencing.keepalive.keepers` performs it, in threads or in the event loop.

A keeper holds no lease: one that its user has dropped is no longer renewed. A child process made by
``os.fork`` renews nothing of its parent's.
"""

from __future__ import annotations

from fencing.keepalive.keepers import (
    AsyncKeeper,
    Keeper,
    aclose_keeper,
    close_keeper,
    keeper_of,
    watch,
)

__all__ = ["AsyncKeeper", "Keeper", "aclose_keeper", "close_keeper", "keeper_of", "watch"]
