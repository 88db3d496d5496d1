"""The adversary keeps no promise: what checkers are to survive really happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from fencing import Guard
from fencing.clock import now
from fencing.errors import FencingError, LeaseLostError, LockNotAcquiredError, LockServiceError
from fencing.request import MAX_TOKEN
from fencing.service import check_service
from fencing.torture.adversary import Adversary, AsyncAdversary

if TYPE_CHECKING:
    from fencing.lease import AsyncLease, Lease

MARK = 50
TTL = 60.0


def grants(locks: Adversary, count: int = 400, floor: int = MARK) -> list[Lease]:
    granted = []
    for _ in range(count):
        try:
            granted.append(locks.acquire("a", ttl=TTL, floor=floor))
        except (LockNotAcquiredError, LockServiceError):
            continue
    return granted


@pytest.fixture(scope="module")
def leases() -> list[Lease]:
    return grants(Adversary(1))


def test_it_grants_at_once_what_others_hold(leases):
    assert len(leases) > 300
    assert all(not lease.lost for lease in leases)


def test_tokens_repeat(leases):
    assert max(Counter(lease.token for lease in leases).values()) > 100


def test_tokens_go_back_also_below_the_floor(leases):
    tokens = [lease.token for lease in leases]
    assert any(later < earlier for earlier, later in pairwise(tokens))
    assert min(tokens) < MARK in tokens


def test_tokens_jump_as_far_as_is_believed_and_farther(leases):
    jumps = [lease.token - MARK for lease in grants(Adversary(2), 4000)]
    assert any(100 < jump <= 2**40 for jump in jumps)
    assert any(jump > 2**40 for jump in jumps)
    assert MAX_TOKEN - MARK in jumps


def test_a_resource_does_not_begin_where_no_token_is_left():
    first = [Adversary(seed).acquire("a").token for seed in range(500) if granted_first(seed)]
    assert max(first) <= 2**40


def granted_first(seed: int) -> bool:
    try:
        Adversary(seed).acquire("a")
    except FencingError:
        return False
    return True


def test_two_workers_have_the_same_token_and_are_not_the_same_holder():
    pairs = list(zip(grants(Adversary(3)), grants(Adversary(4)), strict=False))
    assert sum(one.token == other.token for one, other in pairs) > 50
    assert all(one.holder != other.holder for one, other in pairs)


def test_trust_lasts_longer_than_the_lease(leases):
    lengths = [lease.trusted_until - now() for lease in leases]
    assert max(lengths) > 5 * TTL
    assert min(lengths) < TTL


def test_renewals_succeed_though_the_lock_is_another_s(leases):
    told = Counter(outcome_of(lambda lease=lease: lease.renew()) for lease in leases)
    assert told[None] > 200
    assert told[LeaseLostError] > 5
    assert told[LockServiceError] > 5


def test_a_token_that_was_to_be_raised_may_be_the_same_or_too_small():
    locks = Adversary(5)
    came = Counter()
    for lease in grants(locks, floor=10):
        before = lease.token
        if outcome_of(lambda lease=lease: locks.raise_token(lease, floor=MARK)) is None:
            came[
                "same" if lease.token == before else "above" if lease.token > MARK else "below"
            ] += 1
    assert min(came["same"], came["below"]) > 10
    assert came["above"] > 100


def test_releases_fail_and_are_forgotten():
    leases = grants(Adversary(6))
    told = Counter(outcome_of(lease.release) for lease in leases)
    assert told[LeaseLostError] > 5
    assert told[LockServiceError] > 5
    assert any(not lease.released for lease in leases)


def outcome_of(call) -> type[Exception] | None:
    try:
        call()
    except FencingError as error:
        return type(error)
    return None


def test_what_is_asked_for_together_is_granted_together():
    locks = Adversary(8)
    groups = [group for _ in range(20) if (group := granted_together(locks))]
    assert groups
    assert all([lease.resource for lease in group] == ["a", "b"] for group in groups)


def granted_together(locks: Adversary):
    try:
        return locks.acquire_all(["a", "b"], ttl=1.0)
    except FencingError:
        return None


def test_it_is_asked_as_any_lock_service():
    check_service(Adversary(1), "Guard")
    check_service(AsyncAdversary(1), "AsyncGuard")
    with pytest.raises(ValueError, match="ttl"):
        Adversary(1).acquire("a", ttl=-1)


def test_with_asyncio_it_answers_the_same():
    async def told(seed: int) -> list[object]:
        async with AsyncAdversary(seed) as locks:
            return [await one_of_each_async(locks) for _ in range(200)]

    def plain(seed: int) -> list[object]:
        with Adversary(seed) as locks:
            return [one_of_each(locks) for _ in range(200)]

    assert asyncio.run(told(7)) == plain(7)


def one_of_each(locks: Adversary) -> list[object]:
    answers: list[object] = []
    try:
        lease = locks.acquire("a", floor=3)
        answers.append(lease.token)
        locks.raise_token(lease, floor=MARK)
        answers.append(lease.token)
        lease.renew()
        answers.append(lease.locked())
        group = locks.grant_all([])
        answers += [locks.locked("a"), locks.force_release("a"), group]
        lease.release()
        answers.append(getattr(locks.try_acquire("a"), "token", None))
    except FencingError as error:
        answers.append(type(error))
    return answers


async def one_of_each_async(locks: AsyncAdversary) -> list[object]:
    answers: list[object] = []
    try:
        lease: AsyncLease = await locks.acquire("a", floor=3)
        answers.append(lease.token)
        await locks.raise_token(lease, floor=MARK)
        answers.append(lease.token)
        await lease.renew()
        answers.append(await lease.locked())
        group = await locks.grant_all([])
        answers += [await locks.locked("a"), await locks.force_release("a"), group]
        await lease.release()
        answers.append(getattr(await locks.try_acquire("a"), "token", None))
    except FencingError as error:
        answers.append(type(error))
    return answers


def test_a_lease_that_is_kept_alive_is_renewed_by_it():
    locks = Adversary(9)
    lost = []
    for _ in range(20):
        try:
            leases = locks.acquire("a", ttl=0.05, keepalive=True, on_lost=lost.append)
        except FencingError:
            continue
        assert leases.kept
        leases.note_released()
    locks.close()


def test_a_guard_lives_with_it(fenced_database):
    engine = create_engine(fenced_database)
    admitted = []
    with Adversary(11) as locks, Guard(locks, engine) as guard:
        for _ in range(60):
            with suppress(LockServiceError, LockNotAcquiredError, LeaseLostError):
                with guard.acquire("a", ttl=5.0) as lease:
                    admitted.append(lease.token)
                lease.note_released()  # whatever the adversary said of it
        with engine.connect() as connection:
            mark = connection.execute(text("SELECT fencing.mark('a')")).scalar_one()
    engine.dispose()
    assert len(admitted) > 20
    assert admitted == sorted(set(admitted))
    assert admitted[-1] == mark
