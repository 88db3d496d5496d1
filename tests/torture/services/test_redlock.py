"""What is done to the nodes of a Redlock is done."""

from __future__ import annotations

import pytest

import fencing
from fencing.embedded.asking import ask
from tests.support.striking import Most, struck

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["redlock", "redlock-3"])
def nodes(request):
    with struck(request.param) as servers:
        yield servers


@pytest.mark.parametrize("name", ["node killed", "node emptied"])
def test_a_node_forgets(nodes, name):
    for node in nodes.servers.nodes:
        ask(node, "SET", "kept", "1")
    nodes.perform(name)
    kept = [ask(node, "EXISTS", "kept") for node in nodes.servers.nodes]
    assert sorted(kept) == [0] + [1] * (nodes.servers.count - 1)


def test_one_that_stands_still_keeps_nobody(nodes):
    with nodes.locks() as locks, nodes.during("node stopped"):
        locks.acquire("a", blocking_timeout=10.0).release()


def test_without_a_majority_nothing_is_granted(nodes):
    with nodes.locks() as locks:
        with nodes.during("majority stopped"), pytest.raises(fencing.FencingError):
            locks.acquire("a", blocking=False)
        locks.acquire("a", blocking_timeout=30.0).release()


@pytest.mark.parametrize("name", ["nodes cut off", "nodes silent"])
def test_some_workers_reach_no_node_and_others_all(nodes, name):
    with nodes.locks("w1.0") as cut_off, nodes.locks("w2.0") as others:
        cut_off.acquire("a", blocking_timeout=30.0).release()
        with nodes.during(name, Most()):
            with pytest.raises(fencing.LockServiceError):
                cut_off.acquire("a", blocking=False)
            others.acquire("b", blocking_timeout=30.0).release()
        cut_off.acquire("c", blocking_timeout=30.0).release()
