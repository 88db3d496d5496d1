"""``fencing locks`` with the address of an etcd."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fencing import EtcdLockService
from fencing.cli.main import main


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["locks", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_locks_are_listed_and_taken_away(etcd_url, etcd_namespace):
    options = (etcd_url, "--namespace", etcd_namespace)
    with (
        EtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks,
        locks.acquire("account:1", ttl=60, owner="me") as lease,
    ):
        other = locks.acquire("other", ttl=60)
        listed = json.loads(run(*options, "--prefix", "account:", "--json"))["locks"]
        assert [(each["resource"], each["owner"], each["token"]) for each in listed] == [
            ("account:1", "me", lease.token)
        ]
        assert "2 held." in run(*options)
        assert "Took" in run(*options, "--force-release", "other")
        assert "1 held." in run(*options)
        assert not other.owned()


def test_a_cluster_is_named_by_its_members(etcd_url):
    done = CliRunner().invoke(main, ["locks", etcd_url, "--cluster"])
    assert done.exit_code == 2
    assert "--cluster is for a Redis" in done.output
