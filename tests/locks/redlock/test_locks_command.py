"""``fencing locks`` with the address of a Redlock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from fencing import RedlockService
from fencing.cli.main import main
from tests.contract.redlocks import url_of

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["locks", *arguments])


def test_it_lists_what_a_majority_has_granted_and_takes_it_away(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    here = url_of(own_nodes), "--namespace", namespace
    with RedlockService.from_url(here[0], namespace=namespace) as locks:
        lease = locks.acquire("account:42", ttl=60, owner="the report", floor=4)
        locks.acquire("released").release()
        [line, total] = call(*here).output.splitlines()
        assert line.startswith('"account:42": token 5, "the report", ')
        assert total == "1 held."
        taken = call(*here, "--json", "--force-release", "account:42")
        assert json.loads(taken.output) == {"released": True}
        assert not lease.owned()
        assert call(*here, "--force-release", "account:42").output.startswith("Nobody holds")


def test_what_makes_no_sense_is_told_in_one_line(own_nodes: list[ValkeyProcess]) -> None:
    url = url_of(own_nodes)
    assert call(url, "--cluster").exit_code == 2
    two = call(url_of(own_nodes[:2]))
    assert two.exit_code == 1
    assert "odd number of nodes" in two.output
    assert "Traceback" not in two.output


def test_too_few_nodes_are_an_error() -> None:
    dead = call("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    assert dead.exit_code == 1
    assert "2 of 3 nodes could not be asked" in dead.output


def test_how_many_nodes_are_out_of_reach_is_told(own_nodes: list[ValkeyProcess]) -> None:
    place = url_of(own_nodes[:1]).removeprefix("redlock://").partition("/")[0]
    one = call(f"redlock://{place},127.0.0.1:1,127.0.0.1:2")
    assert one.exit_code == 1
    assert "2 of 3 nodes could not be asked" in one.output
    assert "node 1: Redis cannot be reached" in one.output
    assert "node 2: Redis cannot be reached" in one.output
    assert "1 of 1" not in one.output
