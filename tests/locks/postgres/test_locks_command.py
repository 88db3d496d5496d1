"""``fencing locks`` with the address of a database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from fencing.cli.main import main

if TYPE_CHECKING:
    from fencing import PostgresLockService
    from tests.support.bank import Bank


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["locks", *arguments])


def test_it_lists_what_is_held_and_takes_it_away(
    locks: PostgresLockService, bank: Bank, resource: str
) -> None:
    lease = locks.acquire(resource, ttl=60, owner="me")
    listed = call(bank.url, "--prefix", resource)
    assert listed.exit_code == 0, listed.output
    assert listed.output.startswith(f'"{resource}": token {lease.token}, "me", ')
    assert lease.holder not in call(bank.url, "--json").output
    taken = call(bank.url, "--force-release", resource, "--json")
    assert json.loads(taken.output) == {"released": True}
    assert not lease.owned()


def test_what_it_has_not_is_refused(bank: Bank) -> None:
    refusals = {
        ("--cluster",): "--cluster is for a Redis",
        ("--namespace", "other"): "no namespaces in PostgreSQL",
    }
    for option, said in refusals.items():
        refused = call(bank.url, *option)
        assert refused.exit_code == 2
        assert said in refused.output


def test_a_database_without_the_schema_is_told_in_one_line(database: str) -> None:
    failed = call(database)
    assert failed.exit_code == 1
    assert "fencing install" in failed.output
    assert "Traceback" not in failed.output
