"""The hash beside a lock is in the lock's slot, and no other lock's."""

from __future__ import annotations

import itertools

import pytest
from redis.crc import key_slot

from fencing.compat.redis.keys import fence_key, slot_of

PIECES = [b"", b"a", b"{", b"}", b":fencing", b"fencing:redis-py:"]
NAMES = {b"".join(pieces) for pieces in itertools.product(PIECES, repeat=3)}


@pytest.mark.parametrize(
    ("lock", "beside"),
    [
        (b"account:42", b"fencing:redis-py:{account:42}"),
        (b"account:{42}:lock", b"account:{42}:lock:fencing"),
        (b"a}b", b"fencing:redis-py:{20658}:a}b:slot"),
    ],
)
def test_as_documented(lock: bytes, beside: bytes) -> None:
    assert fence_key(lock) == beside


def test_both_are_in_one_slot() -> None:
    assert [n for n in NAMES if not key_slot(fence_key(n)) == slot_of(n) == key_slot(n)] == []


def test_no_two_locks_share_one() -> None:
    assert len({fence_key(name) for name in NAMES}) == len(NAMES)
