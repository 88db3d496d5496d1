"""``fencing locks``: what it lists, and how it takes a lock away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from fencing import LeaseLostError, RedisLockService
from fencing.cli.locks import _place
from fencing.cli.main import main
from fencing.embedded.cluster import ValkeyCluster
from fencing.locks.redis.permissions import acl_rules
from fencing.locks.redis.scripts import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded import ValkeyProcess


def call(*arguments: str, env: dict[str, Any] | None = None) -> Any:
    return CliRunner().invoke(main, ["locks", *arguments], env=env or {"FENCING_REDIS_URL": None})


@pytest.fixture
def service(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as service:
        yield service


@pytest.fixture
def here(redis_url: str, redis_namespace: str) -> tuple[str, ...]:
    return redis_url, "--namespace", redis_namespace


def test_it_lists_what_is_held(service: RedisLockService, here: tuple[str, ...]) -> None:
    service.acquire("account:42", ttl=60, owner="the report")
    lease = service.acquire("account:1\x1b[2J", ttl=60, owner="a\nb", floor=8)
    service.acquire("released").release()
    told = call(*here)
    assert told.exit_code == 0
    first, second, total = told.output.splitlines()
    assert first.startswith(r'"account:1\u001b[2J": token 9, "a\nb", ')
    assert second.startswith('"account:42": token 1, "the report", ')
    assert second.endswith(" s left")
    assert total == "2 held."
    assert lease.holder not in told.output


def test_as_json(service: RedisLockService, here: tuple[str, ...]) -> None:
    lease = service.acquire("account:42", ttl=60, owner="the report")
    service.acquire("another", ttl=60)
    told = call(*here, "--json", "--prefix", "account:")
    [facts] = json.loads(told.output)["locks"]
    assert 30 < facts.pop("remaining") <= 60
    assert facts == {
        "resource": "account:42", "owner": "the report", "token": 1, "counter": 1, "waiters": 0,
    }  # fmt: skip
    assert lease.holder not in told.output


def test_odd_locks_are_listed_too(
    service: RedisLockService, here: tuple[str, ...], redis_client: redis.Redis
) -> None:
    redis_client.set(keys_of(service.namespace, "r")[0], "somebody")
    assert call(*here).output == '"r": by no lock service, without end\n1 held.\n'
    [facts] = json.loads(call(*here, "--json").output)["locks"]
    assert (facts["token"], facts["remaining"]) == (None, None)
    refused = call(*here, "--force-release", "r")
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: lock service, resource 'r': ")
    assert refused.output.count("\n") == 1


def test_it_takes_a_lock_away(service: RedisLockService, here: tuple[str, ...]) -> None:
    lease = service.acquire("r", ttl=60)
    assert call(*here, "--force-release", "r").output == 'Took "r" from its holder.\n'
    with pytest.raises(LeaseLostError):
        lease.renew()
    assert call(*here, "--force-release", "r").output == 'Nobody holds "r".\n'
    assert call(*here, "--force-release", "r", "--json").output == '{"released": false}\n'


def test_a_redis_that_is_none_of_a_cluster_is_told_as_such(
    service: RedisLockService, here: tuple[str, ...]
) -> None:
    service.acquire("r", ttl=60)
    told = call(*here, "--cluster")
    assert told.exit_code == 1
    assert told.output.startswith(
        "Error: lock service: this Redis is none of a cluster: leave out --cluster ("
    )
    assert told.output.count("\n") == 1
    url = here[0].replace("redis://", "redis+cluster://")
    without = "this Redis is none of a cluster: leave +cluster out of its address ("
    assert without in call(url, *here[1:]).output
    both = "leave out --cluster, and +cluster in the address ("
    assert both in call(url, *here[1:], "--cluster").output


def test_a_user_who_may_not_ask_whether_it_is_one_of_a_cluster_is_shown_the_locks(
    own_valkey: ValkeyProcess,
) -> None:
    rules = acl_rules("fencing").split()
    with redis.Redis.from_url(own_valkey.url) as client:
        client.execute_command("ACL", "SETUSER", "who", "on", ">pw", *rules, "+scan")
    told = call(f"redis://who:pw@127.0.0.1:{own_valkey.port}")
    assert (told.exit_code, told.output) == (0, '0 held in the namespace "fencing".\n')


def test_a_redis_that_does_not_know_info_is_taken_at_its_address(
    service: RedisLockService, here: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(_client: redis.Redis, *_sections: str) -> None:
        raise redis.ResponseError("unknown command 'INFO', with args beginning with: 'cluster'")

    service.acquire("r", ttl=60)
    monkeypatch.setattr(redis.Redis, "info", info)
    told = call(*here)
    assert told.exit_code == 0
    assert "1 held" in told.output


def test_a_node_of_a_cluster_is_not_taken_for_all_of_it() -> None:
    with ValkeyCluster(nodes=3) as cluster:
        url = f"redis://127.0.0.1:{cluster.port}"
        for arguments in ((), ("--force-release", "r"), ("--json",)):
            told = call(url, *arguments)
            assert told.exit_code == 1
            assert told.output == (
                "Error: this Redis is a node of a cluster: pass --cluster, so that all of it is "
                "asked\n"
            )
        assert call(url, "--cluster").output == '0 held in the namespace "fencing".\n'


def test_it_asks_all_of_a_cluster() -> None:
    with ValkeyCluster(nodes=3) as cluster:
        url = f"redis://127.0.0.1:{cluster.port}"
        with (
            redis.RedisCluster.from_url(url) as client,
            RedisLockService(client) as service,
        ):
            for number in range(20):
                service.acquire(f"r{number}", ttl=60)
            assert call(url, "--cluster").output.endswith("20 held.\n")
            taken = [call(url, "--cluster", "--force-release", f"r{n}").output for n in range(20)]
            assert taken == [f'Took "r{n}" from its holder.\n' for n in range(20)]
            assert list(service.scan()) == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "pass URL, or set FENCING_LOCKS_URL or FENCING_REDIS_URL"),
        (("nonsense://x",), 1, "Error: "),
        (("redis://127.0.0.1:1",), 1, "Error: lock service: Redis cannot be reached"),
        (("redis://127.0.0.1:1", "--cluster"), 1, "Error: "),
        (("redis://127.0.0.1:1", "--namespace", "{"), 1, "Error: namespace must hold no braces"),
        (("redis://127.0.0.1:1", "--force-release", ""), 1, "Error: a resource must not be empty"),
        (("redis://127.0.0.1:1", "--prefix", "a", "--force-release", "b"), 2, "--prefix selects"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    told = call(*arguments)
    assert told.exit_code == status
    assert message in told.output
    if status == 1:
        assert told.output.count("\n") == 1


def test_the_address_may_come_from_the_environment(
    service: RedisLockService, here: tuple[str, ...]
) -> None:
    service.acquire("r", ttl=60)
    told = call(*here[1:], env={"FENCING_REDIS_URL": here[0]})
    assert told.output.endswith("1 held.\n")
    assert "(FENCING_REDIS_URL):" in told.stderr
    of_any_kind = {"FENCING_LOCKS_URL": here[0], "FENCING_REDIS_URL": "redis://127.0.0.1:1"}
    assert "(FENCING_LOCKS_URL):" in call(*here[1:], env=of_any_kind).stderr


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://user:secret@host:6379/0?client_name=x", "redis://host:6379/0"),
        ("redis://:s?cret@host:6379/0", "redis://..."),
        ("redlock://u:secret@a,u:secret@b,c", "redlock://..."),
        ("redis+sentinel://host/S?sentinel_password=x@secret", "redis+sentinel://..."),
    ],
)
def test_where_it_looked_is_told_without_secrets(url: str, place: str) -> None:
    assert _place(url) == place
