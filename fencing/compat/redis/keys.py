"""Where the fencing tokens of a lock stand in Redis: in a hash beside the lock's own key.

A script may touch both only if Redis Cluster keeps them in one slot, and the name of the lock is
given. Redis hashes what stands between a key's first ``{`` and the first ``}`` after it, or the
whole key where there is nothing such. So the hash of a lock is named ::

    account:42          fencing:redis-py:{account:42}     the whole name is the tag
    account:{42}:lock   account:{42}:lock:fencing         the name keeps its tag
    a}b                 fencing:redis-py:{20658}:a}b:slot  a number that hashes to the name's slot,
                                                          for a name that can be no tag itself

No two locks share one: the endings differ, and what is before them is the whole name.
"""

from __future__ import annotations

import binascii
from functools import lru_cache

__all__ = ["fence_key", "slot_of"]

_SLOTS = 16384


def fence_key(lock: bytes) -> bytes:
    """The key of the hash beside a lock's key, in the same slot of a cluster."""
    if _tag(lock) != lock:
        return lock + b":fencing"
    if lock and b"}" not in lock:
        return b"fencing:redis-py:{%b}" % lock
    return b"fencing:redis-py:{%d}:%b:slot" % (_number_in(slot_of(lock)), lock)


def slot_of(key: bytes) -> int:
    """The slot that Redis Cluster keeps a key in."""
    return binascii.crc_hqx(_tag(key), 0) % _SLOTS


def _tag(key: bytes) -> bytes:
    """What of a key is hashed."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return key[start:end] if end > start else key


@lru_cache(maxsize=256)
def _number_in(slot: int) -> int:
    number = 0
    while slot_of(b"%d" % number) != slot:
        number += 1
    return number
