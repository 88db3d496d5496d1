"""What a verification finds on the etcd, the ZooKeeper or the Redlock of a lock service."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fencing import LockServiceError, connect, connect_async
from fencing.cli.main import main
from fencing.embedded.asking import until
from fencing.embedded.etcd import EtcdProcess, ask_etcd
from fencing.embedded.zookeeper import Ensemble, ZooKeeperProcess
from fencing.locks.etcd import verifying as etcd_verifying
from fencing.locks.etcd.address import Address
from fencing.locks.zookeeper import verifying as zookeeper_verifying

if TYPE_CHECKING:
    from fencing.verification import Finding, ServiceVerification

NOBODY = "127.0.0.1:1"


async def verified(kind: str, url: str, **settings: Any) -> ServiceVerification:
    found: ServiceVerification
    if kind == "sync":
        locks: Any = connect(url, **settings)
        with locks:
            found = locks.verify()
    else:
        locks = connect_async(url, **settings)
        async with locks:
            found = await locks.verify()
    return found


def codes(found: ServiceVerification) -> dict[str, str]:
    return {finding.code: finding.severity for finding in found.findings}


@pytest.fixture
def etcd_with_users(own_etcd: EtcdProcess) -> EtcdProcess:
    """``locks`` may do what is the namespace's, ``reader`` reads it, ``none`` may do nothing."""

    def call(path: str, **body: Any) -> None:
        ask_etcd(own_etcd.endpoint, f"v3/auth/{path}", body)

    start, end = (base64.b64encode(key).decode() for key in (b"fencing/", b"fencing0"))
    call("role/add", name="root")
    for role, kind in (("locks", "READWRITE"), ("reader", "READ")):
        call("role/add", name=role)
        permission = {"permType": kind, "key": start, "range_end": end}
        call("role/grant", name=role, perm=permission)
    for user, role in (("root", "root"), ("locks", "locks"), ("reader", "reader"), ("none", "")):
        call("user/add", name=user, password="secret")
        if role:
            call("user/grant", user=user, role=role)
    call("enable")
    return own_etcd


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestEtcd:
    async def test_a_single_member_without_users(self, kind: str, own_etcd: EtcdProcess) -> None:
        found = await verified(kind, own_etcd.url)
        assert found.service.startswith("etcd 3.")
        assert found.nodes == (own_etcd.endpoint,)
        assert codes(found) == {"members-few": "warning", "auth-off": "info"}

    async def test_a_store_that_is_full(self, kind: str) -> None:
        with EtcdProcess("--quota-backend-bytes", "100000") as etcd:
            value = base64.b64encode(bytes(20000)).decode()
            with contextlib.suppress(OSError):  # by which it says that it is full
                for _ in range(100):
                    ask_etcd(etcd.endpoint, "v3/kv/put", {"key": "YQ==", "value": value})
            found = await verified(kind, etcd.url)
        [alarm] = [each for each in found.findings if each.severity == "error"]
        assert (alarm.code, alarm.subject) == ("alarm", "NOSPACE")

    @pytest.mark.parametrize(
        ("user", "error", "said"),
        [
            ("locks:secret@", "", ""),
            ("reader:secret@", "permission-missing", "may not write keys"),
            ("none:secret@", "permission-missing", "may not read nor write keys"),
            ("locks:wrong@", "access-refused", "user and a password"),
            ("", "access-refused", "user and a password"),
        ],
    )
    async def test_what_a_user_may_not(
        self, kind: str, etcd_with_users: EtcdProcess, user: str, error: str, said: str
    ) -> None:
        url = etcd_with_users.url.replace("://", f"://{user}")
        found = await verified(kind, url)
        errors = [each for each in found.findings if each.severity == "error"]
        assert [each.code for each in errors] == ([error] if error else [])
        assert all(said in each.message for each in errors)
        assert "auth-off" not in codes(found)
        assert "secret" not in str(found)

    async def test_a_member_that_is_gone(self, kind: str, own_etcd: EtcdProcess) -> None:
        url = f"{own_etcd.url.rstrip('/')},{NOBODY}/"
        found = await verified(kind, url)
        assert codes(found)["node-unreachable"] == "warning"
        with pytest.raises(LockServiceError, match=NOBODY):
            await verified(kind, f"etcd://{NOBODY}/")


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestZooKeeper:
    async def test_one_server_for_everybody(self, kind: str, zookeeper_url: str) -> None:
        found = await verified(kind, zookeeper_url)
        assert found.service.startswith("zookeeper 3.")
        assert codes(found) == {"members-few": "warning", "auth-off": "info"}

    async def test_a_user_s_nodes_are_not_for_everybody(
        self, kind: str, zookeeper_url: str
    ) -> None:
        found = await verified(kind, zookeeper_url.replace("://", "://me:secret@"))
        assert "auth-off" not in codes(found)
        assert "secret" not in str(found)

    @pytest.mark.parametrize(
        ("seconds", "severity", "bound"),
        [(0.1, "warning", "minSessionTimeout"), (600, "info", "maxSessionTimeout")],
    )
    async def test_servers_bound_sessions(
        self, kind: str, zookeeper_url: str, seconds: float, severity: str, bound: str
    ) -> None:
        found = await verified(kind, zookeeper_url, session_timeout=seconds)
        [finding] = [each for each in found.findings if each.code == "session-bounded"]
        assert (finding.severity, finding.subject) == (severity, bound)

    async def test_a_chroot_that_is_not_there(
        self, kind: str, zookeeper_url: str, zookeeper_namespace: str
    ) -> None:
        found = await verified(kind, f"{zookeeper_url}{zookeeper_namespace}/none")
        [missing] = [each for each in found.findings if each.severity == "error"]
        assert missing.code == "chroot-missing"
        assert missing.subject == f"/{zookeeper_namespace}/none"

    async def test_nobody_there(self, kind: str) -> None:
        with pytest.raises(LockServiceError, match=NOBODY):
            await verified(kind, f"zookeeper://{NOBODY}/")

    async def test_settings_that_a_server_tells(self, kind: str) -> None:
        with ZooKeeperProcess(settings="4lw.commands.whitelist=*\n") as server:
            found = await verified(kind, server.url, session_timeout=600)
        [finding] = [each for each in found.findings if each.code == "session-bounded"]
        assert "(maxSessionTimeout=60000)" in finding.message


async def test_an_ensemble_and_what_is_left_of_it_without_a_quorum() -> None:
    with Ensemble() as ensemble:
        found = await verified("sync", ensemble.url)
        assert codes(found) == {"auth-off": "info"}
        assert len(found.nodes) == 3
        one = await verified("async", ensemble.servers[0].url)
        assert codes(one) == {"auth-off": "info", "endpoint-single": "info"}
        for server in ensemble.servers[:2]:
            server.kill()
        survivor = ensemble.servers[2]
        until(lambda: b"not currently serving" in survivor.says(b"srvr"), "it has not noticed")
        left = await verified("sync", ensemble.url)
        assert codes(left) == {
            "node-closed": "error",
            "node-unreachable": "warning",
            "auth-off": "info",
        }


class TestJudged:
    """What a server of these tests does not tell."""

    def of_etcd(self, **facts: Any) -> list[Finding]:
        address = Address(("http://a:2379", "http://b:2379"), "me", "secret")
        told = etcd_verifying.Facts(**facts)
        return list(etcd_verifying.judged({"http://a:2379": told}, address, "n").findings)

    @pytest.mark.parametrize(
        ("facts", "code"),
        [
            ({"status": {"version": "3.3.27", "leader": "1"}}, "version-old"),
            ({"status": {"version": "3.5.1", "leader": "0"}}, "leader-missing"),
            ({"status": {"leader": "1", "dbSize": "1900000000"}}, "quota-nearly-full"),
            (
                {"status": {"leader": "1", "dbSize": "900", "dbSizeQuota": "1000"}},
                "quota-nearly-full",
            ),
            (
                {"status": {"leader": "1", "header": {"revision": "100001"}}, "compacted": False},
                "compaction-never",
            ),
            ({"members": [{}] * 4}, "members-even"),
            ({"refused": (("cluster/member/list", "no"),)}, "not-looked-at"),
        ],
    )
    def test_of_etcd(self, facts: dict[str, Any], code: str) -> None:
        assert [each.code for each in self.of_etcd(**facts)] == [code]

    @pytest.mark.parametrize(
        "facts",
        [
            {"status": {"leader": "1", "dbSize": "1000000000"}, "members": [{}] * 3},
            {"status": {"leader": "1", "header": {"revision": "100001"}}, "compacted": True},
            {"status": {"leader": "1", "header": {"revision": "9"}}, "compacted": False},
        ],
    )
    def test_what_is_as_it_should_be(self, facts: dict[str, Any]) -> None:
        assert self.of_etcd(**facts) == []

    def test_of_zookeeper(self) -> None:
        asked = zookeeper_verifying.Asked(10.0, user=True, namespace="n", chroot="/")
        old = zookeeper_verifying.Server(
            "", "Zookeeper version: 3.4.14-x\nMode: follower", "", session_timeout=10.0
        )
        silent = zookeeper_verifying.Server("", "", "", session_timeout=10.0)
        found = zookeeper_verifying.judged(
            {"a:1": old, "b:1": silent}, asked, members=4, chroot_is_there=None
        )
        assert codes(found) == {
            "version-old": "error",
            "members-even": "info",
            "not-looked-at": "info",
        }

    def test_observers_have_no_vote(self) -> None:
        config = "server.1=a:1:2:participant\nserver.2=b:1:2:observer;c\nversion=0"
        assert zookeeper_verifying.members_in(config) == 1


class TestCommand:
    @pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
    def test_it_takes_the_address(self, scheme: str, request: pytest.FixtureRequest) -> None:
        url = request.getfixturevalue(f"{scheme}_url")
        done = CliRunner().invoke(main, ["verify", url, "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        assert told["service"].startswith(scheme)
        assert {each["code"] for each in told["findings"]} == {"members-few", "auth-off"}
        assert CliRunner().invoke(main, ["verify", url, "--strict"]).exit_code == 1

    def test_of_a_redlock_each_node_is_looked_at(self, redis_url: str) -> None:
        place = redis_url.removeprefix("redis://").partition("/")[0]
        done = CliRunner().invoke(main, ["verify", f"redlock://{place},{NOBODY},127.0.0.1:2"])
        assert done.exit_code == 1
        assert "node-unreachable" in done.output
        assert "persistence" in done.output

    @pytest.mark.parametrize("url", [f"etcd://{NOBODY}", f"zookeeper://{NOBODY}"])
    def test_what_cannot_be_looked_at_is_status_2_in_one_line(self, url: str) -> None:
        done = CliRunner().invoke(main, ["verify", url])
        assert done.exit_code == 2
        assert done.output.startswith("Error: ")
        assert done.output.count("\n") == 1
        listed = CliRunner().invoke(main, ["locks", url])
        assert "see that it runs and its address is right" in done.output
        assert "see that it runs and its address is right" in listed.output

    @pytest.mark.parametrize("command", ["verify", "locks"])
    def test_a_port_that_is_none_is_told_without_what_it_is(self, command: str) -> None:
        done = CliRunner().invoke(main, [command, "etcd://127.0.0.1:secret"])
        assert done.exit_code != 0
        assert done.output.startswith("Error: the port of an etcd must be a number")
        assert "secret" not in done.output
