"""An interrupt at any moment of an acquisition leaves nobody behind whom others would wait for."""

from __future__ import annotations

import pytest

from fencing import EtcdLockService
from fencing.locks import lines
from fencing.locks.etcd import performing
from tests.support.interrupting import interrupted_before_line


@pytest.mark.parametrize("fair", [False, True])
def test_an_interrupted_waiter_is_in_nobody_s_way(etcd_url, etcd_namespace, *, fair: bool):
    with EtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        number, interrupted = 0, True
        while interrupted:
            number += 1
            interrupted = False
            with interrupted_before_line(number, performing, lines) as seen:
                try:
                    lease = locks.acquire("r", ttl=60, fair=fair)
                except KeyboardInterrupt:
                    interrupted = True
            for waiting in (locks._etcd._lines, locks._etcd._entrances):
                assert not waiting._lines, seen[-3:]
            assert "r" not in locks._etcd._ranks, seen[-3:]
            if not interrupted:
                lease.release()
            locks.force_release("r")  # of one that came after it was granted
        assert number > 20
