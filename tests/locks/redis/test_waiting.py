"""Waiting for a lock on a real server: woken at once, and over at the deadline."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.errors import LockNotAcquiredError, LockServiceError
from fencing.locks.redis import waiting
from fencing.locks.redis.permissions import acl_rules
from fencing.locks.redis.scripts import keys_of
from tests.locks.redis.waiting import Server, begun, service, until

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess
    from fencing.embedded.proxy import TcpProxy

MESSAGE = b"\r\nmessage\r\n"


class TestBeingWoken:
    async def test_a_release_wakes_the_waiter(
        self,
        locks: Any,
        others: Any,
        server: Server,
        proxy: TcpProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(waiting, "REFRESH_SECONDS", 600)  # it does not ask by itself
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)  # from now on nothing but the message can tell
        await held.release()
        await until(proxy.kept_back.is_set)
        assert not task.done()
        proxy.deliver()
        lease = await task
        assert lease.token == held.token + 1
        await until(lambda: lease.remaining > 25)  # made to last its ttl in the background
        await lease.release()
        assert server.leftovers() == []

    async def test_what_was_handed_over_is_made_to_last(
        self, locks: Any, others: Any, server: Server, redis_client: redis.Redis
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await held.release()
        async with await task as lease:
            await until(lambda: redis_client.pttl(keys_of(server.namespace, "r")[0]) > 25_000)
            await until(lambda: lease.remaining > 25)
        assert not lease.lost

    async def test_a_guarded_service_makes_it_last_before_it_returns(
        self, redis_url: str, others: Any, server: Server
    ) -> None:
        for kind in ("sync", "async"):
            async with service(kind, redis_url, server.namespace) as locks:
                (locks.locks if kind == "sync" else locks).note_guarded()
                held = await others.acquire("r", ttl=30)
                task = begun(locks)
                await server.queued()
                await held.release()
                async with await task as lease:
                    assert lease.remaining > 25

    async def test_a_lost_message_costs_a_moment(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        lease = await task
        assert proxy.kept_back.is_set()
        # It was given what it had been handed, before that had run out after two seconds.
        assert lease.token == held.token + 1
        proxy.deliver(times=0)
        await lease.release()

    async def test_a_late_message_and_its_double_do_no_harm(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy, lock_value: Any
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task, second = begun(locks, fair=True), begun(locks, "s")
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        async with await task as lease:
            proxy.deliver(times=2)
            await (await second).release()
            assert lock_value("r").startswith(f"{lease.token}:{lease.holder}:")
            await lease.renew()

    async def test_a_waiter_is_told_twice_in_a_row(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        await until(proxy.kept_back.is_set)
        proxy.deliver(times=3)
        async with await task as lease:
            assert lease.token == held.token + 1
        assert server.leftovers() == []

    async def test_who_asks_once_does_not_listen(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        async with others.acquire("r", ttl=30):
            assert await locks.try_acquire("r") is None
            for patience in ({"blocking": False}, {"blocking_timeout": 0}):
                with pytest.raises(LockNotAcquiredError):
                    await locks.acquire("r", **patience)
            assert server.waiting() == server.listeners() == 0

    async def test_nobody_listens_for_an_uncontended_lock(
        self, locks: Any, server: Server, proxy: TcpProxy
    ) -> None:
        async with locks.acquire("r", ttl=30):
            assert server.listeners() == 0
        assert proxy.connections == 0


class TestDeadlines:
    async def test_who_gives_up_leaves_the_queue(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        async with others.acquire("r", ttl=30):
            with pytest.raises(LockNotAcquiredError) as caught:
                await locks.acquire("r", blocking_timeout=0.2)
            assert caught.value.waited >= 0.2
            assert server.waiting() == 0

    async def test_there_is_a_last_attempt(self, locks: Any, others: Any, server: Server) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks, blocking_timeout=0.5)  # less than the time between two requests
        await server.queued()
        server.client.delete(*keys_of(server.namespace, "r"))  # wakes nobody
        async with await task as lease:
            assert lease.token == 1
        assert held.token == 1

    async def test_who_stands_in_line_has_one_as_well(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        held = await others.acquire("r", ttl=30)
        first = begun(locks)
        await server.queued()
        task = begun(locks, blocking_timeout=0.3)
        with pytest.raises(LockNotAcquiredError):
            await task
        assert server.waiting() == 1
        await held.release()
        await (await first).release()

    async def test_an_expired_lock_is_taken_over(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        gone = await others.acquire("r", ttl=0.5)
        async with await begun(locks, blocking_timeout=20) as lease:
            assert gone.expired
            assert lease.token > gone.token
        assert server.leftovers() == []

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
    async def test_are_kept_when_redis_is_gone(
        self, kind: str, own_valkey: ValkeyProcess, how: signal.Signals
    ) -> None:
        async with service(kind, own_valkey.url, "n", socket_timeout=None) as locks:
            await locks.acquire("r", ttl=60)
            task = begun(locks, blocking_timeout=1.5)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
            assert own_valkey.pid is not None
            os.kill(own_valkey.pid, how)
            try:
                with pytest.raises(LockServiceError):
                    await task
            finally:
                if how is signal.SIGSTOP:
                    os.kill(own_valkey.pid, signal.SIGCONT)


class TestPermissions:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_without_them_waiting_asks_now_and_then(
        self, kind: str, own_valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        with redis.Redis.from_url(own_valkey.url) as client:
            rules = acl_rules("n").replace("&n:wake:*", "resetchannels")
            client.execute_command("ACL SETUSER", "u", "on", ">p", "+hello", *rules.split())
        url = f"redis://u:p@127.0.0.1:{own_valkey.port}"
        with caplog.at_level(logging.WARNING, "fencing"):
            async with service(kind, url, "n") as locks:
                for _ in range(2):
                    held = await locks.acquire("r", ttl=30)
                    task = begun(locks)
                    await asyncio.sleep(0.05)
                    assert not task.done()
                    await held.release()
                    await (await task).release()
        (record,) = caplog.records
        assert "&n:wake:*" in record.getMessage()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_those_that_are_listed_suffice(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        with redis.Redis.from_url(own_valkey.url) as client:
            client.execute_command("ACL SETUSER", "u", "on", ">p", *acl_rules("n").split())
            async with service(kind, f"redis://u:p@127.0.0.1:{own_valkey.port}", "n") as locks:
                held = await locks.acquire("r", ttl=30)
                task = begun(locks)
                await Server(client, "n").queued()
                await held.release()
                await (await task).release()
