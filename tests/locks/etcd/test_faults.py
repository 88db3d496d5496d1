"""An etcd that is paused, restarted, full, restored or asked by the wrong people."""

from __future__ import annotations

import asyncio
import base64
import gc
import http.server
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import trustme

from fencing import (
    AsyncEtcdLockService,
    EtcdLockService,
    LeaseExpiredError,
    LeaseLostError,
    LockServiceError,
)
from fencing.embedded.etcd import EtcdProcess, ask_etcd
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.child import Parent


# Holders


def holds(parent: Parent, url: str, namespace: str, ttl: float) -> None:
    with EtcdLockService.from_url(url, namespace=namespace) as locks:
        lease = locks.acquire("r", ttl=ttl)
        parent.report("holds", token=lease.token)
        parent.wait_for("go on")
        try:
            lease.renew()
        except LeaseExpiredError:
            parent.report("expired")


async def test_a_killed_holder_is_succeeded(others, etcd_url, etcd_namespace):
    with ChildProcess(holds, etcd_url, etcd_namespace, 1) as child:
        token = child.wait_for("holds")["token"]
        child.kill()
        async with others.acquire("r", ttl=10, blocking_timeout=20) as lease:
            assert lease.token > token


async def test_a_stopped_holder_knows_that_it_is_over(others, etcd_url, etcd_namespace):
    with ChildProcess(holds, etcd_url, etcd_namespace, 1) as child:
        child.wait_for("holds")
        child.suspend()
        async with others.acquire("r", ttl=10, blocking_timeout=20):
            child.resume()
            child.tell("go on")
            child.wait_for("expired")


async def test_two_processes_take_turns(others, etcd_url, etcd_namespace, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    with (
        ChildProcess(counts, etcd_url, etcd_namespace, str(counter)) as one,
        ChildProcess(counts, etcd_url, etcd_namespace, str(counter)) as other,
    ):
        tokens = [child.wait_for("counted")["tokens"] for child in (one, other)]
    assert counter.read_text() == "80"
    assert len({*tokens[0], *tokens[1]}) == 80
    assert all(each == sorted(each) for each in tokens)


def counts(parent: Parent, url: str, namespace: str, counter: str) -> None:
    tokens = []
    with EtcdLockService.from_url(url, namespace=namespace) as locks:
        for _ in range(40):
            with locks.acquire("r", ttl=30) as lease, Path(counter).open("r+") as file:
                value = int(file.read())
                file.seek(0)
                file.write(str(value + 1))
                tokens.append(lease.token)
    parent.report("counted", tokens=tokens)


async def test_a_lease_is_kept_alive_and_its_loss_noticed(others):
    lost = asyncio.Event()
    # Two seconds, as a busy machine may do nothing for one.
    lease = await others.acquire("r", ttl=2, keepalive=True, on_lost=lambda _: lost.set())
    await asyncio.sleep(4)  # longer than etcd keeps it by itself
    assert await lease.owned()
    await others.force_release("r")
    async with asyncio.timeout(10):
        await lost.wait()
    assert lease.lost


async def test_a_renewal_for_longer_exchanges_the_etcd_lease(others):
    lease = await others.acquire("r", ttl=5)
    await lease.renew(60)
    await lease.renew(5)  # shortens our trust alone
    assert (await others.inspect("r")).holder == lease.holder
    await asyncio.sleep(0.5)
    await lease.renew(10)
    await lease.renew(90)
    assert (await others.inspect("r")).remaining > 80
    await lease.release()
    assert not await others.locked("r")


async def test_a_renewal_in_the_background_cuts_nothing_short(etcd_url, etcd_namespace):
    """Its user may have renewed the lease for longer while it was on its way."""
    with EtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        lease = locks.acquire("r", ttl=60)
        assert locks.renew_many([(lease, 5), (lease, 5)], within=5) == [None, None]
        assert lease.remaining > 50
        lease.release()
        [error] = locks.renew_many([(lease, 5)], within=5)
        assert isinstance(error, LeaseLostError)
    async with AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        lease = await locks.acquire("r", ttl=60)
        assert await locks.renew_many([(lease, 5), (lease, 5)], within=5) == [None, None]
        assert lease.remaining > 50
        await lease.release()
        [error] = await locks.renew_many([(lease, 5)], within=5)
        assert isinstance(error, LeaseLostError)


async def test_an_exchange_of_leases_that_arrives_late_undoes_nothing(locks, others, proxy):
    lease = await locks.acquire("r", ttl=2)
    proxy.withhold_request(b"/v3/kv/txn")
    await lease.renew(5)  # by a second request
    assert proxy.withheld.is_set()
    await lease.renew(90)
    proxy.pass_withheld_on()
    await locks.inspect("r")
    assert (await others.inspect("r")).remaining > 80
    await lease.release()


@pytest.mark.parametrize("ttl", [0.01, 24 * 60 * 60.0])
async def test_the_shortest_and_the_longest_ttl(others, ttl):
    for _ in range(5):
        try:
            lease = await others.acquire("r", ttl=ttl, blocking=False)
        except LockServiceError as error:
            assert "longer ttl" in str(error)  # noqa: PT017 - a busy machine takes longer than that
        else:
            assert 0.7 * ttl < lease.trusted_until - lease._asked_at < ttl
            try:
                await lease.release()
            except LeaseLostError:
                assert ttl == 0.01
        assert not await others.locked("r")


# Servers


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, own_etcd: EtcdProcess) -> Iterator[Any]:
    """Calls a method of a service of either kind, over an etcd of one's own."""
    if request.param == "sync":
        with EtcdLockService(own_etcd.endpoint) as locks:
            yield lambda name, *args, **kwargs: getattr(locks, name)(*args, **kwargs)
    else:
        with asyncio.Runner() as runner:
            locks = AsyncEtcdLockService(own_etcd.endpoint)

            async def call(name: str, *args: Any, **kwargs: Any) -> Any:
                return await getattr(locks, name)(*args, **kwargs)

            yield lambda *args, **kwargs: runner.run(call(*args, **kwargs))
            runner.run(locks.aclose())


def test_a_paused_etcd_is_trouble_and_nothing_is_lost(ask, own_etcd):
    lease = ask("acquire", "r", ttl=60)
    own_etcd.suspend()
    while psutil.Process(own_etcd.pid).status() != psutil.STATUS_STOPPED:
        pass  # the signal is on its way
    with pytest.raises(LockServiceError, match="did not answer"):
        ask("acquire", "s", blocking=False)
    own_etcd.resume()
    assert ask("inspect", "r").holder == lease.holder
    assert not ask("locked", "s")
    ask("release", lease)


def test_a_restart_loses_nothing(ask, own_etcd):
    lease = ask("acquire", "r", ttl=60)
    own_etcd.kill()
    with pytest.raises(LockServiceError, match="cannot be reached"):
        ask("acquire", "s", blocking=False)
    own_etcd.start()
    ask("renew", lease, 60)
    assert ask("try_acquire", "r") is None
    ask("release", lease)
    assert ask("acquire", "r", ttl=60).token > lease.token


def test_a_restart_while_one_waits(own_etcd):
    acquired = threading.Event()
    with EtcdLockService(own_etcd.endpoint) as locks:
        lease = locks.acquire("r", ttl=60)

        def wait() -> None:
            with locks.acquire("r", ttl=60, blocking_timeout=60):
                acquired.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not locks.inspect("r").waiters:
            pass
        own_etcd.kill()
        own_etcd.start()
        assert not acquired.is_set()
        lease.release()
        waiting.join(30)
    assert acquired.is_set()


def test_a_full_etcd_says_what_to_do(ask, own_etcd):
    lease = ask("acquire", "r", ttl=60)
    alarm = {"action": "ACTIVATE", "memberID": 0, "alarm": "NOSPACE"}
    ask_etcd(own_etcd.endpoint, "v3/maintenance/alarm", alarm)
    with pytest.raises(LockServiceError, match=r"quota.*NOSPACE"):
        ask("acquire", "s", blocking=False)
    ask("release", lease)  # which takes no space


def test_what_is_no_etcd_is_told(ask, own_etcd):
    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        with (
            EtcdLockService(f"http://127.0.0.1:{server.server_port}") as locks,
            pytest.raises(LockServiceError, match=r"not etcd's JSON gateway.*hello"),
        ):
            locks.acquire("r", blocking=False)
        server.shutdown()
        serving.join()


def test_the_proxy_settings_of_a_machine_do_not_matter(etcd_url, etcd_namespace, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    with EtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        assert not locks.locked("r")


def test_the_next_endpoint_is_asked(own_etcd):
    with EtcdLockService(["http://127.0.0.1:1", own_etcd.endpoint]) as locks:
        with locks.acquire("r", ttl=10) as lease:
            lease.renew()
        assert not locks.locked("r")


# Users


@pytest.fixture
def guarded_etcd() -> Iterator[EtcdProcess]:
    """An etcd with users: ``root``, and ``app`` who may do what is the namespace's."""
    with EtcdProcess("--bcrypt-cost", "4") as etcd:

        def call(path: str, **body: object) -> None:
            ask_etcd(etcd.endpoint, f"v3/auth/{path}", body)

        start, end = (base64.b64encode(key).decode() for key in (b"fencing/", b"fencing0"))
        call("role/add", name="root")
        call("role/add", name="locks")
        permission = {"permType": "READWRITE", "key": start, "range_end": end}
        call("role/grant", name="locks", perm=permission)
        for user, role in (("root", "root"), ("app", "locks")):
            call("user/add", name=user, password=f"{user}:p@ss")
            call("user/grant", user=user, role=role)
        call("enable")
        yield etcd


def test_users_and_their_rights(guarded_etcd):
    host = f"127.0.0.1:{guarded_etcd.port}"
    with EtcdLockService.from_url(f"etcd://app:app%3Ap%40ss@{host}") as locks:
        with locks.acquire("r", ttl=10) as lease:
            lease.renew()
            locks.raise_token(lease, floor=lease.token + 5)
            # etcd forgets the token it has given us: after five minutes, or a restart.
            guarded_etcd.kill()
            guarded_etcd.start()
            assert locks.locked("r")
            locks._etcd._transport._token = "never.heard.of"
            assert locks.locked("r")
            assert [state.resource for state in locks.scan()] == ["r"]
        lease = locks.acquire("r", ttl=10)
        waiting = threading.Thread(target=lambda: locks.acquire("r", ttl=10).release())
        waiting.start()
        while not locks.inspect("r").waiters:
            pass
        lease.release()
        waiting.join()
    for address, says in (
        (f"etcd://{host}", "user and a password"),
        (f"etcd://app:wrong@{host}", "user and a password"),
    ):
        with (
            EtcdLockService.from_url(address) as locks,
            pytest.raises(LockServiceError, match=says),
        ):
            locks.acquire("r", blocking=False)
    with (
        EtcdLockService.from_url(f"etcd://app:app%3Ap%40ss@{host}", namespace="other") as locks,
        pytest.raises(LockServiceError, match="lacks a permission"),
    ):
        locks.acquire("r", blocking=False)


def test_a_user_where_there_are_none(own_etcd):
    with (
        EtcdLockService(own_etcd.endpoint, user="me", password="secret") as locks,
        pytest.raises(LockServiceError, match="knows no users") as caught,
    ):
        locks.acquire("r", blocking=False)
    assert "secret" not in str(caught.value)


def test_certificates_of_both_sides(tmp_path):
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    for name, who in (("server", "127.0.0.1"), ("client", "app@example.org")):
        issued = authority.issue_cert(who)
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    # fmt: off
    arguments = (
        "--cert-file", str(tmp_path / "server.pem"), "--key-file", str(tmp_path / "server.key"),
        "--client-cert-auth", "--trusted-ca-file", str(ca),
    )
    # fmt: on
    with EtcdProcess(*arguments, scheme="https") as etcd:
        with (
            EtcdLockService.from_url(
                etcd.url, ca=ca, certificate=tmp_path / "client.pem", key=tmp_path / "client.key"
            ) as locks,
            locks.acquire("r", ttl=10) as lease,
        ):
            assert lease.token
        for options in ({}, {"ca": ca}):
            with (
                EtcdLockService.from_url(etcd.url, **options) as locks,
                pytest.raises(LockServiceError, match=r"by TLS|cannot be reached"),
            ):
                locks.acquire("r", blocking=False)


# Loops and processes


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # as the loop's end leaves them
@pytest.mark.parametrize("closed", [True, False])
def test_a_service_outlives_its_event_loop(etcd_url, etcd_namespace, *, closed: bool):
    def use_in_three_loops() -> list[int]:
        locks = AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace)

        async def once() -> int:
            async with locks.acquire("r", ttl=10) as lease:
                token: int = lease.token
            if closed:
                await locks.aclose()
            return token

        return [asyncio.run(once()) for _ in range(3)]

    tokens = use_in_three_loops()
    assert tokens == sorted(set(tokens))
    gc.collect()  # now, and not while another test runs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_uses_connections_of_its_own(proxy, etcd_namespace):
    with (
        EtcdLockService.from_url(proxy.url, namespace=etcd_namespace) as locks,
        locks.acquire("r", ttl=30) as lease,
    ):
        before = proxy.connections
        child = os.fork()
        if child == 0:
            code = 1
            try:
                locks.acquire("s", ttl=30).release()
                code = 0 if locks.inspect("r").holder == lease.holder and lease.lost else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert proxy.connections > before
        assert lease.owned()
