"""What every lock service must do when things go wrong: subclass, and supply the fixtures.

As in :mod:`tests.contract.suite`, each test is written once, async. How a fault is brought about is
the service's own matter, behind :class:`Faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from fencing import clock
from fencing.clock import now
from fencing.errors import LeaseExpiredError, LeaseLostError, LockNotAcquiredError, LockServiceError
from tests.support.hurrying import hurried
from tests.support.waiting import happened

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

__all__ = ["FaultContract", "Faults"]

SECONDS = 20
"""Longest wait for something to happen."""


class Faults(Protocol):
    """Faults between a lock service and its server."""

    happened: threading.Event
    """Set when a fault that was armed has come about."""

    def lose_reply(self) -> None:
        """The server does what it is asked next; its answer is lost, and the connection with it."""

    def withhold_request(self) -> None:
        """The next request does not reach the server, and its connection is lost."""

    def deliver_withheld(self) -> None:
        """Let the server have what was withheld, now."""

    def drop_withheld(self) -> None:
        """Forget what was withheld."""

    def hold_replies(self) -> None:
        """From now on the server does what it is asked, and no answer arrives."""

    def deliver_replies(self) -> None:
        """Let the answers through again, those that were held as well."""

    def delay_replies(self, seconds: float) -> None:
        """Answers take so much longer; 0 ends it."""

    def cut(self) -> None:
        """All connections are lost; new ones can be made."""

    def refuse(self) -> None:
        """There is no server any more."""

    def accept(self) -> None:
        """It is there again, with all it had."""


class FaultContract:
    """Lost answers, silence, outages and clocks that jump.

    Fixtures, from the subclass or its module:
        locks: As in ``LockServiceContract``; its requests meet the faults.
        others: Another service on the same locks, whose requests do not.
        faults: `Faults`.

    Attributes:
        refuses_late_requests: Whether a request to acquire that arrives when its caller has the
            lock no more, or has given up, takes nothing.
        counts_from_one: Whether the tokens of each resource are counted from 1.
        ends_silence: Whether its client ends a connection that is silent for less than a second;
            calls then have their usual time, which tells the silence from that end.
    """

    refuses_late_requests = False
    counts_from_one = True
    ends_silence = False

    @pytest.fixture
    def late(self) -> None:
        if not self.refuses_late_requests:
            pytest.skip("a request that arrives late may leave a lock for its ttl")

    @pytest.fixture
    def jump(self) -> Iterator[Callable[[float], None]]:
        """Sets the clock that leases are trusted by forward, as a suspended machine finds it."""
        real: Any = clock.now  # a partial, which everybody has by this name
        ahead = 0.0
        _, _, state = real.__reduce__()

        def ahead_of_time(which: int) -> float:
            return time.clock_gettime(which) + ahead

        def jump(seconds: float) -> None:
            nonlocal ahead
            ahead += seconds

        real.__setstate__((ahead_of_time, *state[1:]))
        yield jump
        real.__setstate__(state)

    # The answer is lost, or the request

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_acquire_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        getattr(faults, fault)()
        lease = await locks.acquire("r", ttl=30)
        assert faults.happened.is_set()
        faults.drop_withheld()
        state = await others.inspect("r")
        # What it was given first is its own: no token was skipped, and nothing waits for a ttl.
        assert (state.holder, state.token) == (lease.holder, lease.token)
        assert not self.counts_from_one or lease.token == 1
        await lease.release()
        assert not await others.locked("r")

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_acquire_all_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        getattr(faults, fault)()
        group = await locks.acquire_all(["a", "b"], ttl=30)
        assert faults.happened.is_set()
        faults.drop_withheld()
        for lease in group:
            state = await others.inspect(lease.resource)
            assert (state.holder, state.token) == (lease.holder, lease.token)
            assert not self.counts_from_one or lease.token == 1
        await group.release()
        assert [await others.locked(name) for name in "ab"] == [False, False]

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_renew_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        getattr(faults, fault)()
        await lease.renew(40)
        assert faults.happened.is_set()
        faults.drop_withheld()
        assert lease.remaining > 30
        assert (await others.inspect("r")).remaining > 30
        await lease.release()

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_release_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        lease = await locks.acquire("r", ttl=30)
        getattr(faults, fault)()
        await lease.release()
        assert faults.happened.is_set()
        faults.drop_withheld()
        assert lease.released
        assert not lease.lost
        assert not await others.locked("r")

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_healing_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        getattr(faults, fault)()
        floor = lease.token + 40
        await locks.raise_token(lease, floor=floor)
        assert faults.happened.is_set()
        faults.drop_withheld()
        assert lease.token == floor + 1
        state = await others.inspect("r")
        assert (state.token, state.counter) == (floor + 1, floor + 1)
        await lease.renew()
        await lease.release()

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_looking_tries_again(
        self, locks: Any, others: Any, faults: Faults, fault: str
    ) -> None:
        async with others.acquire("r", ttl=30) as lease:
            getattr(faults, fault)()
            assert (await locks.inspect("r")).holder == lease.holder
            assert faults.happened.is_set()
            faults.drop_withheld()

    async def test_a_release_whose_answer_was_lost_is_no_loss_when_another_has_it(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=30)
        faults.hold_replies()
        releasing = asyncio.ensure_future(lease.release())
        await happened(faults.happened)
        successor = await others.acquire("r", ttl=30, blocking=False)
        faults.cut()  # it asks once more
        faults.deliver_replies()
        await releasing
        assert lease.released
        assert not lease.lost
        assert await successor.owned()
        await successor.release()

    async def test_a_release_that_arrives_late_takes_nothing_from_another(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=30)
        faults.withhold_request()
        await lease.release()  # the second attempt has released it
        async with others.acquire("r", ttl=30, blocking=False) as successor:
            faults.deliver_withheld()
            await locks.inspect("r")
            assert await successor.owned()

    async def test_a_renewal_that_arrives_late_gives_nothing_back(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=30)
        faults.withhold_request()
        await lease.renew()
        await lease.release()
        faults.deliver_withheld()
        await locks.inspect("r")
        assert not await others.locked("r")

    @pytest.mark.usefixtures("late")
    async def test_an_acquire_that_arrives_after_the_release_takes_nothing(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        faults.withhold_request()
        lease = await locks.acquire("r", ttl=60)  # the second attempt
        await lease.release()
        faults.deliver_withheld()
        await locks.inspect("r")
        assert not await others.locked("r")
        await (await locks.acquire("r", ttl=60, blocking=False)).release()

    @pytest.mark.usefixtures("late")
    async def test_an_acquire_all_that_arrives_after_the_release_takes_nothing(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        faults.withhold_request()
        group = await locks.acquire_all(["a", "b"], ttl=60)
        await group.release()
        faults.deliver_withheld()
        await locks.inspect("a")
        assert [await others.locked(name) for name in "ab"] == [False, False]
        await (await locks.acquire_all(["a", "b"], ttl=60, blocking=False)).release()

    @pytest.mark.usefixtures("late")
    @pytest.mark.parametrize("patience", [{"blocking": False}, {"blocking_timeout": 0.6}])
    async def test_an_acquire_that_arrives_when_its_caller_has_given_up_takes_nothing(
        self, locks: Any, others: Any, faults: Faults, patience: dict[str, Any]
    ) -> None:
        for ask in (
            lambda: locks.acquire("r", **patience),
            lambda: locks.acquire_all(["r"], **patience),
        ):
            holding = await others.acquire("r", ttl=60)
            faults.withhold_request()
            with pytest.raises(LockNotAcquiredError):
                await ask()
            await holding.release()
            faults.deliver_withheld()
            await locks.inspect("r")
            assert not await others.locked("r")

    @pytest.mark.usefixtures("late")
    async def test_an_acquire_that_is_delivered_while_it_waits_leaves_no_place_behind(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        async with others.acquire("r", ttl=60):
            faults.withhold_request()
            with pytest.raises(LockNotAcquiredError):
                await locks.acquire("r", blocking_timeout=0.6)
            faults.deliver_withheld()
            await locks.inspect("r")
            assert not (await others.inspect("r")).waiters

    async def test_healing_that_stays_unknown_can_still_be_released(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        faults.lose_reply()
        floor = lease.token + 40
        lease.trusted_until = now() + 0.2  # leaves time for one attempt
        with pytest.raises(LockServiceError):
            await locks.raise_token(lease, floor=floor)
        assert (await others.inspect("r")).token == floor + 1
        await lease.release()
        assert not await others.locked("r")

    # Nothing is heard

    @pytest.mark.parametrize("patience", [{"blocking": False}, {"blocking_timeout": 0.6}])
    async def test_silence_is_no_lock_that_is_held(
        self, locks: Any, faults: Faults, patience: dict[str, Any]
    ) -> None:
        faults.hold_replies()
        for acquisition in (locks.acquire("r", **patience), locks.acquire_all(["r"], **patience)):
            with (
                contextlib.nullcontext() if self.ends_silence else hurried(),
                pytest.raises(LockServiceError, match="did not answer") as caught,
            ):
                await acquisition
            assert caught.value.resource == "r"
            assert not isinstance(caught.value, LockNotAcquiredError)

    async def test_release_gives_up_and_nothing_can_be_done_under_the_lease(
        self, locks: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        faults.hold_replies()
        with hurried(), pytest.raises(LockServiceError):
            await lease.release()
        assert lease.released
        assert lease.remaining == 0

    async def test_renew_gives_up_and_leaves_the_lease_as_it_is(
        self, locks: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        faults.hold_replies()
        lease.trusted_until = trusted_until = now() + 1  # when it begins, however long that took
        with pytest.raises(LockServiceError):
            await lease.renew(60)
        assert lease.trusted_until == trusted_until

    async def test_trust_ends_in_time_whatever_is_heard(self, locks: Any, faults: Faults) -> None:
        lease = await locks.acquire("r", ttl=0.5)
        faults.hold_replies()
        assert lease.trusted_until <= now() + 0.5
        assert await lease.wait_lost(SECONDS) is True
        with pytest.raises(LeaseExpiredError):
            await lease.renew()

    async def test_an_answer_that_takes_longer_than_the_ttl_is_not_believed(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        faults.delay_replies(0.15)
        for acquisition in (
            locks.acquire("r", ttl=0.1, blocking=False),
            locks.acquire_all(["r", "s"], ttl=0.1, blocking=False),
        ):
            with pytest.raises(LockServiceError, match="longer ttl"):
                await acquisition
        assert [await others.locked(name) for name in "rs"] == [False, False]

    async def test_a_renewal_whose_answer_takes_longer_than_its_ttl_is_not_believed(
        self, locks: Any, faults: Faults
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        faults.delay_replies(0.3)
        with pytest.raises(LeaseExpiredError):
            await lease.renew(0.1)
        assert lease.expired

    # Nobody is there

    async def test_nobody_there_is_told(self, locks: Any, faults: Faults) -> None:
        lease = await locks.acquire("held", ttl=60)
        faults.refuse()
        for work in (
            locks.acquire("r", blocking=False),
            locks.try_acquire("r"),
            locks.acquire_all(["r"], blocking=False),
            locks.inspect("r"),
            locks.locked("r"),
            locks.force_release("r"),
        ):
            with hurried(), pytest.raises(LockServiceError) as caught:
                await work
            assert caught.value.resource == "r"
            assert "'r'" in str(caught.value)
            assert caught.value.__cause__ is not None
        assert not lease.lost

    async def test_connections_that_were_lost_while_idle_are_no_trouble(
        self, locks: Any, faults: Faults
    ) -> None:
        faults.cut()
        async with locks.acquire("r", ttl=10, blocking=False) as lease:
            faults.cut()
            await lease.renew()
            faults.cut()
            assert await lease.owned()
            faults.cut()
        assert not await locks.locked("r")

    async def test_a_server_that_is_back_is_found_again(self, locks: Any, faults: Faults) -> None:
        lease = await locks.acquire("r", ttl=60)
        faults.refuse()
        with hurried(), pytest.raises(LockServiceError):
            await lease.owned()
        faults.accept()
        assert await lease.owned()
        await lease.release()

    async def test_a_block_whose_release_fails_is_only_logged(
        self, locks: Any, faults: Faults, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "fencing"), contextlib.ExitStack() as stack:
            async with locks.acquire("r", ttl=60) as lease:
                faults.refuse()
                stack.enter_context(hurried())
        assert lease.released
        assert [record for record in caplog.records if "could not release" in record.message]

    async def test_the_exception_of_the_block_wins_over_a_release_that_fails(
        self, locks: Any, faults: Faults
    ) -> None:
        for block in (locks.acquire("r", ttl=60), locks.acquire_all(["a", "b"], ttl=60)):
            faults.accept()
            with (  # noqa: PT012 - the block is the point
                contextlib.ExitStack() as stack,
                pytest.raises(ZeroDivisionError) as caught,
            ):
                async with block:
                    faults.refuse()
                    stack.enter_context(hurried())
                    raise ZeroDivisionError
            assert caught.value.__notes__

    # The clock jumps

    async def test_a_clock_that_jumps_past_the_ttl_ends_the_lease_before_anything_is_sent(
        self, locks: Any, faults: Faults, jump: Callable[[float], None]
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        jump(61)
        assert lease.lost
        assert lease.remaining == 0
        faults.refuse()  # would be an error of another kind
        for work in (lease.renew(), locks.raise_token(lease, floor=9)):
            with pytest.raises(LeaseExpiredError):
                await work
        assert await lease.owned() is False
        assert await lease.wait_lost(SECONDS) is True

    async def test_a_clock_that_jumps_while_the_answer_is_under_way_is_noticed(
        self, locks: Any, others: Any, faults: Faults, jump: Callable[[float], None]
    ) -> None:
        faults.hold_replies()
        asking = asyncio.ensure_future(locks.acquire("r", ttl=60, blocking=False)._begin())
        await happened(faults.happened)
        jump(61)
        faults.deliver_replies()
        with pytest.raises(LockServiceError):
            await asking
        assert not await others.locked("r")

    async def test_the_time_of_day_does_not_matter(
        self, locks: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        for jump in (86_400, -86_400):
            wrong = time.time() + jump
            monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
            assert not lease.lost
            await lease.renew()
            assert 50 < lease.remaining < 60
        await lease.release()

    async def test_a_lost_lease_is_not_released_for_another(
        self, locks: Any, others: Any, jump: Callable[[float], None]
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        await others.force_release("r")
        async with others.acquire("r", ttl=60, blocking=False) as successor:
            jump(61)
            with pytest.raises(LeaseLostError):
                await lease.release()
            assert (await others.inspect("r")).holder == successor.holder
            jump(-61)
