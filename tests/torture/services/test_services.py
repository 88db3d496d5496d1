"""Every lock service of the torture: it grants, and it does so again after each of its faults."""

from __future__ import annotations

import pytest

from fencing.torture.services import SERVICES, lock_servers
from tests.support.striking import struck

SERVED = sorted(set(SERVICES) - {"adversary"})
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_there_is_no_other():
    with pytest.raises(ValueError, match="no lock service 'zebra'; there are: adversary, cluster"):
        lock_servers("zebra")


@pytest.mark.parametrize("name", SERVED)
def test_it_grants_and_its_faults_pass(name, fenced_database):
    with struck(name, fenced_database) as servers, servers.locks() as locks:
        token = servers.await_grants(locks)
        assert servers.await_grants(locks) > token
        assert servers.kinds
        for fault in servers.kinds:
            servers.perform(fault)
            assert servers.await_grants(locks) > 0


@pytest.mark.parametrize("name", SERVED)
def test_faults_that_end_early_leave_servers_that_can_be_used(name, fenced_database):
    with struck(name, fenced_database) as servers, servers.locks() as locks:
        for fault in servers.kinds:
            with servers.during(fault):
                pass
            assert servers.await_grants(locks) > 0
