"""What every lock service must do: subclass, and supply the fixtures ``locks`` and ``backdoor``.

The suite is written once, async; a sync service takes part behind ``ThreadedLocks``. It knows
nothing of Redis, so the next lock service runs the same tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any

import pytest

from fencing.clock import now
from fencing.errors import (
    FencingUsageError,
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
)
from fencing.request import MAX_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

BAD_RESOURCES = [
    pytest.param("", ValueError, id="empty"),
    pytest.param("x" * 513, ValueError, id="513 bytes"),
    pytest.param("ü" * 257, ValueError, id="514 bytes in 257 characters"),
    pytest.param("a\0b", ValueError, id="NUL"),
    pytest.param("a\ud800b", ValueError, id="lone surrogate"),
    pytest.param(None, TypeError, id="None"),
    pytest.param(b"account:42", TypeError, id="bytes"),
    pytest.param(42, TypeError, id="int"),
]

BAD_TTLS = [
    *[
        pytest.param(ttl, ValueError, id=f"ttl {ttl}")
        for ttl in (0, -1, 0.001, math.nan, math.inf, -math.inf, 86_400.5)
    ],
    pytest.param(10**400, ValueError, id="ttl beyond a float"),
    *[pytest.param(ttl, TypeError, id=f"ttl {ttl!r}") for ttl in (None, "10", True)],
]

BAD_OTHERS = [
    pytest.param({"blocking_timeout": -0.1}, ValueError, id="negative timeout"),
    pytest.param({"blocking_timeout": math.nan}, ValueError, id="timeout NaN"),
    pytest.param({"blocking_timeout": math.inf}, ValueError, id="timeout infinite"),
    pytest.param({"blocking_timeout": 10**400}, ValueError, id="timeout beyond a float"),
    pytest.param({"blocking_timeout": "1"}, TypeError, id="timeout str"),
    pytest.param({"blocking": False, "blocking_timeout": 1}, ValueError, id="both"),
    pytest.param({"blocking": False, "blocking_timeout": 0}, ValueError, id="both, zero"),
    pytest.param({"blocking": 1}, TypeError, id="blocking int"),
    pytest.param({"floor": -1}, ValueError, id="floor negative"),
    pytest.param({"floor": MAX_TOKEN}, ValueError, id="floor too high"),
    pytest.param({"floor": 1.0}, TypeError, id="floor float"),
    pytest.param({"floor": True}, TypeError, id="floor bool"),
    pytest.param({"owner": 7}, TypeError, id="owner int"),
    pytest.param({"owner": "a\0b"}, ValueError, id="owner NUL"),
    pytest.param({"owner": "\ud800"}, ValueError, id="owner surrogate"),
]


class LockServiceContract:
    """How leases are granted, kept, healed, given back and lost.

    Fixtures, from the subclass or its module:
        locks: An async lock service, or a sync one behind ``ThreadedLocks``.
        backdoor: ``drop(resource)``: the service forgets the lock; ``asked()``: how many requests
            have been sent so far.

    Attributes:
        lingers: How long a lock may be kept beyond its ttl if it is not released, in seconds.
        knows_last_tokens: Whether the last token is known of a resource that nobody holds.
    """

    lingers = 0.0
    knows_last_tokens = True

    # Granting

    async def test_a_lease_says_what_was_granted(self, locks: Any) -> None:
        before = now()
        lease = await locks.acquire("account:42", ttl=10, owner="me")
        assert (lease.resource, lease.owner, lease.ttl) == ("account:42", "me", 10)
        assert lease.token >= 1
        assert len(lease.holder) == 32
        assert not lease.lost
        assert not lease.expired
        assert before + 9 < lease.trusted_until < now() + 10
        await lease.release()

    async def test_tokens_strictly_increase_and_holders_are_new(self, locks: Any) -> None:
        tokens, holders = [], set()
        for _ in range(20):
            async with locks.acquire("r", ttl=10) as lease:
                tokens.append(lease.token)
                holders.add(lease.holder)
        assert all(earlier < later for earlier, later in itertools.pairwise(tokens))
        assert len(holders) == 20

    @pytest.mark.parametrize(
        "name",
        [
            "r",
            "x" * 512,
            "a{b}c",
            "}{",
            "%7B",
            "%",
            "sp ace\n\r\t",
            "ключ",
            "a:b:c",
            "{}",
            "{",
            "}",
        ],
    )
    async def test_any_name_is_a_resource(self, locks: Any, name: str) -> None:
        async with locks.acquire(name, ttl=10) as lease:
            assert lease.resource == name
            assert await locks.try_acquire(name) is None

    async def test_resources_that_look_alike_are_different(self, locks: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name in ("{", "%7B", "%257B", "}", "%7D", "%", "%25", "a", "A", " a"):
                await stack.enter_async_context(locks.acquire(name, ttl=10, blocking=False))

    # Excluding

    async def test_a_held_lock_is_not_granted(self, locks: Any) -> None:
        async with locks.acquire("r", ttl=10, owner="the holder"):
            assert await locks.try_acquire("r") is None
            for patience in ({"blocking": False}, {"blocking_timeout": 0}):
                with pytest.raises(LockNotAcquiredError, match="the holder") as caught:
                    await locks.acquire("r", **patience)
                assert caught.value.resource == "r"
                assert caught.value.waited >= 0
                assert isinstance(caught.value, TimeoutError)

    async def test_a_released_lock_is_granted(self, locks: Any) -> None:
        first = await locks.acquire("r", ttl=10)
        await first.release()
        second = await locks.try_acquire("r", ttl=10)
        assert second is not None
        assert second.token > first.token
        await second.release()

    async def test_a_waiter_is_granted_what_is_released(self, locks: Any) -> None:
        first = await locks.acquire("r", ttl=30)
        waiter = asyncio.ensure_future(locks.acquire("r", ttl=30)._begin())
        await asyncio.sleep(0)
        assert not waiter.done()
        await first.release()
        second = await waiter
        assert second.token > first.token
        await second.release()

    async def test_a_lock_whose_holder_is_gone_is_granted_after_its_ttl(self, locks: Any) -> None:
        gone = await locks.acquire("r", ttl=0.3)
        async with locks.acquire("r", ttl=10) as lease:
            assert lease.token > gone.token
            assert gone.expired

    async def test_one_at_a_time(self, locks: Any) -> None:
        inside, tokens = 0, []

        async def enter() -> None:
            nonlocal inside
            async with locks.acquire("r", ttl=30) as lease:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                assert inside == 1
                inside -= 1
                tokens.append(lease.token)

        await asyncio.gather(*[enter() for _ in range(12)])
        assert tokens == sorted(set(tokens))

    # Floors

    async def test_a_floor_lifts_the_token_and_stays(self, locks: Any) -> None:
        async with locks.acquire("r", ttl=10) as lowest:
            floor = lowest.token + 1000
        async with locks.acquire("r", ttl=10, floor=floor) as lease:
            assert lease.token > floor
        async with locks.acquire("r", ttl=10, floor=5) as later:
            assert later.token > lease.token

    async def test_tokens_are_exact_where_floats_are_written_in_powers(self, locks: Any) -> None:
        async with locks.acquire("r", ttl=10, floor=10**14 - 1) as lease:
            assert lease.token >= 10**14
        async with locks.acquire("r", ttl=10) as later:
            assert later.token > lease.token

    # Releasing

    async def test_releasing_twice_does_nothing(self, locks: Any, backdoor: Any) -> None:
        lease = await locks.acquire("r", ttl=10)
        await lease.release()
        asked = backdoor.asked()
        await lease.release()
        assert backdoor.asked() == asked
        assert lease.released
        assert not lease.lost

    async def test_releasing_twice_at_once_is_releasing_once(
        self, locks: Any, backdoor: Any
    ) -> None:
        lost: list[Any] = []
        asked = []
        for times in (1, 5):
            lease = await locks.acquire("r", ttl=10, on_lost=lost.append)
            before = backdoor.asked()
            await asyncio.gather(*[lease.release() for _ in range(times)])
            asked.append(backdoor.asked() - before)
            assert not lease.lost
        assert asked[0] == asked[1]
        assert not lost

    async def test_what_is_gone_while_trusted_counts_as_released(
        self, locks: Any, backdoor: Any
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        backdoor.drop("r")
        await lease.release()
        assert lease.released

    async def test_what_is_gone_after_trust_was_lost(self, locks: Any) -> None:
        lease = await locks.acquire("r", ttl=0.2)
        await lease.wait_lost()
        async with locks.acquire("r", ttl=10):
            pass  # in between it was another's
        with pytest.raises(LeaseLostError):
            await lease.release()
        assert lease.lost

    async def test_who_waits_for_a_loss_is_told_of_one_that_comes_earlier(self, locks: Any) -> None:
        lease = await locks.acquire("r", ttl=3600)
        waiting = asyncio.ensure_future(lease.wait_lost())
        await asyncio.sleep(0)  # it waits, at the latest when the answer comes
        await lease.renew(1)
        assert await asyncio.wait_for(waiting, 20) is True

    async def test_anothers_lock_is_not_released(self, locks: Any, backdoor: Any) -> None:
        lease = await locks.acquire("r", ttl=10)
        backdoor.drop("r")
        async with locks.acquire("r", ttl=10):
            with pytest.raises(LeaseLostError) as caught:
                await lease.release()
            assert (caught.value.resource, caught.value.token) == ("r", lease.token)
            assert lease.lost
            assert await locks.try_acquire("r") is None

    async def test_a_block_that_raises_releases_and_its_exception_wins(
        self, locks: Any, backdoor: Any
    ) -> None:
        with pytest.raises(ZeroDivisionError):
            async with locks.acquire("r", ttl=10):
                raise ZeroDivisionError
        async with locks.acquire("r", ttl=10, blocking=False) as free_again:
            assert free_again.token
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 - the block is the point
            async with locks.acquire("r", ttl=10):
                backdoor.drop("r")
                thief = await locks.try_acquire("r", ttl=10)
                raise ZeroDivisionError
        assert "not ours any more" in caught.value.__notes__[0]
        await thief.release()

    async def test_a_block_whose_lease_was_lost_says_so(self, locks: Any, backdoor: Any) -> None:
        with pytest.raises(LeaseLostError):  # noqa: PT012 - the block is the point
            async with locks.acquire("r", ttl=10):
                backdoor.drop("r")
                thief = await locks.try_acquire("r", ttl=10)
        await thief.release()

    # Renewing

    async def test_renewing_extends_from_now(self, locks: Any) -> None:
        lease = await locks.acquire("r", ttl=20)
        await lease.renew(60)
        assert lease.ttl == 60
        assert 50 < lease.remaining < 60
        await lease.renew()
        assert lease.ttl == 60
        await lease.release()

    async def test_a_renewed_lock_outlives_its_first_ttl(self, locks: Any) -> None:
        ttl, lease = await self.renewed(locks, 30)
        with pytest.raises(LockNotAcquiredError):
            await locks.acquire("r", blocking_timeout=ttl + 0.1 + self.lingers)
        await lease.release()

    async def renewed(self, locks: Any, ttl: float) -> tuple[float, Any]:
        """A short ttl, and a lease of it that was renewed for longer."""
        for first_ttl in (0.2, 1.0, 5.0):
            lease = await locks.acquire("r", ttl=first_ttl)
            with contextlib.suppress(LeaseExpiredError):  # a busy machine was late
                await lease.renew(ttl)
                return first_ttl, lease
        raise AssertionError("no lease could be renewed in time")

    async def test_renewing_revives_nothing(self, locks: Any, backdoor: Any) -> None:
        lease = await locks.acquire("r", ttl=10)
        backdoor.drop("r")
        with pytest.raises(LeaseLostError):
            await lease.renew()
        assert lease.lost
        async with locks.acquire("r", ttl=10, blocking=False) as other:
            assert other.token > lease.token

    async def test_renewing_does_not_touch_anothers(self, locks: Any, backdoor: Any) -> None:
        lease = await locks.acquire("r", ttl=10)
        backdoor.drop("r")
        async with locks.acquire("r", ttl=10) as other:
            with pytest.raises(LeaseLostError):
                await locks.renew(lease, 20)
            assert not other.lost

    async def test_an_expired_lease_is_not_even_asked_about(
        self, locks: Any, backdoor: Any
    ) -> None:
        lease = await locks.acquire("r", ttl=0.2)
        await lease.wait_lost()
        asked = backdoor.asked()
        for work in (lease.renew(), locks.renew(lease, 10), locks.raise_token(lease, floor=9)):
            with pytest.raises(LeaseExpiredError):
                await work
        assert backdoor.asked() == asked

    # Healing

    async def test_a_raised_token_is_above_the_floor_and_so_are_later_ones(
        self, locks: Any
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        trusted_until, floor = lease.trusted_until, lease.token + 500
        await locks.raise_token(lease, floor=floor)
        assert lease.token > floor
        assert lease.trusted_until == trusted_until
        await lease.renew()
        assert await locks.try_acquire("r") is None
        await lease.release()
        async with locks.acquire("r", ttl=10) as later:
            assert later.token > lease.token

    async def test_a_token_above_the_floor_stays(self, locks: Any) -> None:
        async with locks.acquire("r", ttl=10, floor=500) as lease:
            token = lease.token
            await locks.raise_token(lease, floor=token - 1)
            assert lease.token == token

    async def test_an_admitted_lease_gets_no_other_token(self, locks: Any, backdoor: Any) -> None:
        async with locks.acquire("r", ttl=10) as lease:
            lease.note_admitted()
            token, asked = lease.token, backdoor.asked()
            with pytest.raises(FencingUsageError):
                await locks.raise_token(lease, floor=500)
            assert lease.token == token
            assert backdoor.asked() == asked

    @pytest.mark.parametrize("taken", [False, True], ids=["absent", "another's"])
    async def test_a_lost_lock_is_not_healed(
        self, locks: Any, backdoor: Any, *, taken: bool
    ) -> None:
        lease = await locks.acquire("r", ttl=10)
        token = lease.token
        backdoor.drop("r")
        thief = await locks.try_acquire("r", ttl=10) if taken else None
        with pytest.raises(LeaseLostError):
            await locks.raise_token(lease, floor=token + 500)
        assert lease.lost
        assert lease.token == token
        if thief is not None:
            await thief.release()
        async with locks.acquire("r", ttl=10) as next_one:
            assert next_one.token < token + 500

    async def test_a_released_lease_is_not_healed(self, locks: Any, backdoor: Any) -> None:
        lease = await locks.acquire("r", ttl=10)
        await lease.release()
        asked = backdoor.asked()
        with pytest.raises(LeaseLostError):
            await locks.raise_token(lease, floor=500)
        assert backdoor.asked() == asked

    # Several resources

    async def test_all_are_granted_in_the_order_asked_for(self, locks: Any) -> None:
        names = ["c", "a", "b{}", "é"]
        group = await locks.acquire_all(names, ttl=20, owner="me")
        assert [lease.resource for lease in group] == names
        assert len({lease.holder for lease in group}) == 4
        assert all(lease.token >= 1 and lease.owner == "me" for lease in group)
        assert 10 < group.remaining < 20
        assert not group.lost
        for name in names:
            assert await locks.try_acquire(name) is None
        await group.release()
        assert all(lease.released for lease in group)
        for name in names:
            assert not await locks.locked(name)

    async def test_a_block_releases_all_of_them(self, locks: Any) -> None:
        async with locks.acquire_all(["a", "b"], ttl=10) as group:
            assert [await lease.owned() for lease in group] == [True, True]
        assert [await locks.locked(name) for name in "ab"] == [False, False]
        with pytest.raises(ZeroDivisionError):
            async with locks.acquire_all(["a", "b"], ttl=10):
                raise ZeroDivisionError
        assert [await locks.locked(name) for name in "ab"] == [False, False]

    async def test_tokens_of_a_group_increase_too(self, locks: Any) -> None:
        async with locks.acquire("a", ttl=10, floor=500) as single:
            pass
        async with locks.acquire_all(["b", "a"], ttl=10) as group:
            assert group[1].token > single.token
        async with locks.acquire_all(["a", "b"], ttl=10) as later:
            assert later[0].token > group[1].token
            assert later[1].token > group[0].token

    @pytest.mark.parametrize("held", ["a", "b", "c"])
    async def test_one_that_is_held_leaves_the_others_free(self, locks: Any, held: str) -> None:
        async with locks.acquire(held, ttl=60):
            for patience in ({"blocking": False}, {"blocking_timeout": 0.2}):
                with pytest.raises(LockNotAcquiredError) as caught:
                    await locks.acquire_all(["c", "a", "b"], ttl=10, **patience)
                assert caught.value.resource == held
                assert caught.value.waited >= 0
            assert [await locks.locked(name) for name in "abc"] == [name == held for name in "abc"]

    async def test_who_waits_for_one_holds_nothing_that_comes_after_it(self, locks: Any) -> None:
        lease = await locks.acquire("b", ttl=60)
        waiter = asyncio.ensure_future(locks.acquire_all(["c", "b", "a"], ttl=60)._begin())
        await asyncio.sleep(0.2)
        assert not waiter.done()
        for name in "ac":
            await (await locks.acquire(name, ttl=60, blocking_timeout=10)).release()
        await lease.release()
        group = await waiter
        assert [lease.resource for lease in group] == ["c", "b", "a"]
        await group.release()

    async def test_one_deadline_for_all(self, locks: Any) -> None:
        held = await locks.acquire_all(["a", "b"], ttl=60)
        waiter = asyncio.ensure_future(
            locks.acquire_all(["a", "b"], ttl=60, blocking_timeout=1)._begin()
        )
        await held[0].release()
        with pytest.raises(LockNotAcquiredError) as caught:
            await waiter
        assert caught.value.resource == "b"
        assert caught.value.waited > 0.9
        assert not await locks.locked("a")
        await held.release()

    async def test_opposite_orders_do_not_wait_for_each_other(self, locks: Any) -> None:
        async def work(names: list[str]) -> None:
            for _ in range(5):
                async with locks.acquire_all(names, ttl=60, blocking_timeout=60):
                    await asyncio.sleep(0)

        await asyncio.gather(*[work(names) for names in (["a", "b"], ["b", "a"]) * 3])

    async def test_a_group_renews_all(self, locks: Any) -> None:
        async with locks.acquire_all(["a", "b"], ttl=15) as group:
            await group.renew(30)
            assert group.remaining > 20
            assert [lease.ttl for lease in group] == [30, 30]

    async def test_the_loss_of_one_is_the_group_s_and_the_others_are_released(
        self, locks: Any
    ) -> None:
        with pytest.raises(LeaseLostError) as caught:  # noqa: PT012 - the block is the point
            async with locks.acquire_all(["a", "b", "c"], ttl=60) as group:
                assert await locks.force_release("b")
                thief = await locks.acquire("b", ttl=60, blocking=False)
                assert not await group[1].owned()
                assert group.lost
                assert group.remaining == 0
        assert caught.value.resource == "b"
        assert [await locks.locked(name) for name in "abc"] == [False, True, False]
        await thief.release()

    async def test_the_exception_of_the_block_wins_over_lost_leases(self, locks: Any) -> None:
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 - the block is the point
            async with locks.acquire_all(["a", "b"], ttl=60):
                for name in "ab":
                    await locks.force_release(name)
                    await locks.acquire(name, ttl=60, blocking=False)
                raise ZeroDivisionError
        assert len(caught.value.__notes__) == 2

    # Looking on, and taking away

    async def test_a_state_tells_who_holds_a_resource(self, locks: Any) -> None:
        free = await locks.inspect("r")
        assert (free.resource, free.held, free.owner, free.token, free.holder) == (
            "r", False, "", None, None,
        )  # fmt: skip
        assert (free.remaining, free.waiters) == (0, 0)
        assert free.counter == (0 if self.knows_last_tokens else None)
        async with locks.acquire("r", ttl=20, owner="me: ключ") as lease:
            state = await locks.inspect("r")
            assert (state.held, state.owner) == (True, "me: ключ")
            assert (state.token, state.holder) == (lease.token, lease.holder)
            assert state.counter == lease.token
            assert 10 < state.remaining <= 20
            assert lease.holder not in repr(state)
        free = await locks.inspect("r")
        assert (free.held, free.token, free.remaining) == (False, None, 0)
        assert free.counter == (lease.token if self.knows_last_tokens else None)

    async def test_locked_and_owned_ask(self, locks: Any, backdoor: Any) -> None:
        assert await locks.locked("r") is False
        lease = await locks.acquire("r", ttl=10)
        assert await locks.locked("r") is True
        assert await lease.locked() is True
        assert await lease.owned() is True
        backdoor.drop("r")
        assert await lease.locked() is False
        other = await locks.acquire("r", ttl=10)
        assert await lease.locked() is True
        assert not lease.lost
        assert await lease.owned() is False
        assert lease.lost
        assert await other.owned() is True
        await other.release()
        asked = backdoor.asked()
        assert [await lease.owned(), await other.owned()] == [False, False]
        assert backdoor.asked() == asked

    async def test_force_release_takes_a_lock_from_its_holder(self, locks: Any) -> None:
        assert await locks.force_release("r") is False
        lease = await locks.acquire("r", ttl=10)
        bystander = await locks.acquire("another", ttl=10)
        assert await locks.force_release("r") is True
        assert await locks.locked("r") is False
        async with locks.acquire("r", ttl=10, blocking=False) as successor:
            assert successor.token > lease.token
            with pytest.raises(LeaseLostError):
                await lease.renew()
            assert lease.lost
            assert await successor.owned()
        assert await bystander.owned()
        await bystander.release()

    async def test_force_release_serves_who_waits(self, locks: Any) -> None:
        lease = await locks.acquire("r", ttl=60)
        waiter = asyncio.ensure_future(locks.acquire("r", ttl=10)._begin())
        await asyncio.sleep(0)
        assert await locks.force_release("r") is True
        successor = await waiter
        assert successor.token > lease.token
        await successor.release()

    async def test_a_lock_of_any_name_can_be_looked_at_and_taken_away(self, locks: Any) -> None:
        for name in ("{", "%7B", "}", "%", "*", "a?[b]c\\", "ключ", "x" * 512):
            lease = await locks.acquire(name, ttl=10)
            assert (await locks.inspect(name)).holder == lease.holder
            assert await locks.force_release(name) is True


class BadInputContract:
    """Bad input is refused before anything is sent; fixtures as in ``LockServiceContract``."""

    async def refuses(self, backdoor: Any, error: type, *calls: Callable[[], Any]) -> None:
        for call in calls:
            asked = backdoor.asked()
            with pytest.raises(error):
                await call()
            assert backdoor.asked() == asked

    @pytest.mark.parametrize(("resource", "error"), BAD_RESOURCES)
    async def test_a_bad_resource(
        self, locks: Any, backdoor: Any, resource: Any, error: type
    ) -> None:
        await self.refuses(
            backdoor,
            error,
            lambda: locks.acquire(resource),
            lambda: locks.try_acquire(resource),
            lambda: locks.acquire_all(["a", resource]),
            lambda: locks.inspect(resource),
            lambda: locks.locked(resource),
            lambda: locks.force_release(resource),
        )

    @pytest.mark.parametrize(("ttl", "error"), BAD_TTLS)
    async def test_a_bad_ttl(self, locks: Any, backdoor: Any, ttl: Any, error: type) -> None:
        async with locks.acquire("held", ttl=10) as lease:
            await self.refuses(
                backdoor,
                error,
                lambda: locks.acquire("r", ttl=ttl),
                lambda: locks.try_acquire("r", ttl=ttl),
                lambda: locks.renew(lease, ttl),
            )

    @pytest.mark.parametrize(("arguments", "error"), BAD_OTHERS)
    async def test_another_bad_argument(
        self, locks: Any, backdoor: Any, arguments: dict[str, Any], error: type
    ) -> None:
        await self.refuses(backdoor, error, lambda: locks.acquire("r", **arguments))
        if "floor" not in arguments:
            await self.refuses(backdoor, error, lambda: locks.acquire_all(["r"], **arguments))

    @pytest.mark.parametrize(
        ("resources", "error"),
        [
            pytest.param([], ValueError, id="none"),
            pytest.param(["a", "b", "a"], ValueError, id="twice"),
            pytest.param([f"r{number}" for number in range(1001)], ValueError, id="too many"),
            pytest.param("account:42", TypeError, id="one str"),
            pytest.param(b"account:42", TypeError, id="bytes"),
            pytest.param(None, TypeError, id="None"),
        ],
    )
    async def test_a_bad_list_of_resources(
        self, locks: Any, backdoor: Any, resources: Any, error: type
    ) -> None:
        await self.refuses(backdoor, error, lambda: locks.acquire_all(resources))

    @pytest.mark.parametrize(
        ("floor", "error"),
        [(-1, ValueError), (MAX_TOKEN, ValueError), (1.0, TypeError), ("1", TypeError)],
    )
    async def test_a_bad_floor_for_healing(
        self, locks: Any, backdoor: Any, floor: Any, error: type
    ) -> None:
        async with locks.acquire("r", ttl=10) as lease:
            await self.refuses(backdoor, error, lambda: locks.raise_token(lease, floor=floor))
