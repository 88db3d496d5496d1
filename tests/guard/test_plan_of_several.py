"""The plan for several leases alone: in which order it asks, what it holds while it waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from fencing import (
    Lease,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
)
from fencing.clock import now
from fencing.core.plan import Admit, GiveBack, Lock, LockTogether, RaiseToken, Renew
from fencing.core.several import acquire_several, requests_for
from fencing.request import MAX_TOKEN, AcquireRequest
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Callable


class Database:
    """A database without a connection, in which nothing was left open."""

    name = "fake"

    @property
    def presentations(self) -> Database:
        return self

    def open_on(self, _resource: str) -> list[Any]:
        return []


class World:
    """A clock that stands still, and a lock service in which others hold what is in ``held``.

    Whoever waits for a resource gets it after ``waits[resource]`` seconds; what ``then`` says for
    it happens meanwhile.
    """

    def __init__(self, *held: str, together: bool = True) -> None:
        self.time = now()
        self.held = set(held)
        self.waits: dict[str, float] = {}
        self.then: dict[str, Callable[[], None]] = {}
        self.together = together
        self.ours: dict[str, Lease] = {}
        self.outcomes: dict[type, list[BaseException | None]] = {}
        self.story: list[str] = []
        self.steps: list[Any] = []

    def acquire(self, *resources: str, databases: Any = (), **options: Any) -> list[Lease]:
        requests = requests_for(AcquireRequest, resources, **{"ttl": 10.0, **options})
        plan = acquire_several(requests, databases, lambda: self.time)
        send, failure = None, None
        while True:
            try:
                step = plan.throw(failure) if failure else plan.send(send)
            except StopIteration as end:
                return end.value
            send, failure = None, None
            self.steps.append(step)
            try:
                send = self.perform(step)
            except BaseException as error:  # noqa: BLE001 - for the plan
                failure = error

    def perform(self, step: Any) -> Any:
        scripted = self.outcomes.get(type(step))
        if scripted and (error := scripted.pop(0)) is not None:
            raise error
        match step:
            case LockTogether(requests):
                return self.all_at_once(requests)
            case Lock(request) if request.blocking:
                return self.wait_for(request)
            case Lock(request):
                self.story.append(f"try {request.resource}")
                return None if request.resource in self.held else self.grant(request)
            case GiveBack(lease):
                self.story.append(f"back {lease.resource}")
                del self.ours[lease.resource]
            case Renew(lease):
                self.story.append(f"renew {lease.resource}")
                lease.trusted_until = self.time + lease.ttl
            case RaiseToken(lease, floor):
                lease.note_token(floor + 1)
            case Admit(_, lease, _):
                self.story.append(f"admit {lease.resource}")
        return None

    def all_at_once(self, requests: Any) -> Any:
        if not self.together:
            return None
        names = [request.resource for request in requests]
        self.story.append(f"all {' '.join(names)}")
        taken = next((name for name in names if name in self.held), None)
        if taken is not None:
            return LockNotAcquiredError(f"{taken} is held", resource=taken)
        return [self.grant(request) for request in requests]

    def wait_for(self, request: AcquireRequest) -> Lease:
        name = request.resource
        self.story.append(f"wait {name}")
        wait = self.waits.get(name, 0.0)
        if request.patience < wait:
            self.time += request.patience
            self.waits[name] = wait - request.patience
            raise LockNotAcquiredError(f"{name} is held", resource=name)
        self.time += wait
        self.held.discard(name)
        self.then.pop(name, lambda: None)()
        return self.grant(request)

    def grant(self, request: AcquireRequest) -> Lease:
        assert request.resource not in self.held
        assert request.resource not in self.ours
        lease = ScriptedLocks(request.floor + 1).acquire(request.resource, ttl=request.ttl)
        lease.trusted_until = self.time + request.ttl
        self.ours[request.resource] = lease
        return lease


class TestOrder:
    def test_all_that_are_free_are_taken_at_once_and_returned_as_asked_for(self) -> None:
        world = World()
        assert [lease.resource for lease in world.acquire("c", "a", "b")] == ["c", "a", "b"]
        assert world.story == ["all a b c"]

    def test_the_order_is_that_of_the_names_bytes(self) -> None:
        world = World()
        world.acquire("é", "Z", "a", "\U0001f600", "｡")
        assert world.story == ["all Z a é ｡ \U0001f600"]

    def test_one_is_waited_for_alone_and_then_the_others_are_taken(self) -> None:
        world = World("b")
        world.acquire("c", "a", "b")
        assert world.story == ["all a b c", "wait b", "all a c"]

    def test_what_comes_after_is_given_back_before_waiting(self) -> None:
        world = World("b")
        world.then["b"] = lambda: world.held.add("a")
        world.acquire("a", "b", "c")
        assert world.story == ["all a b c", "wait b", "all a c", "back b", "wait a", "all b c"]

    def test_what_comes_before_is_kept_while_waiting(self) -> None:
        world = World("a")
        world.then["a"] = lambda: world.held.add("c")
        world.acquire("a", "b", "c")
        assert world.story == ["all a b c", "wait a", "all b c", "wait c", "all b"]

    def test_nothing_more_is_asked_when_all_were_waited_for(self) -> None:
        world = World("a", "b")
        world.acquire("a", "b")
        assert world.story == ["all a b", "wait a", "all b", "wait b"]

    def test_one_by_one_where_there_is_no_other_way(self) -> None:
        world = World("c", together=False)
        world.acquire("a", "b", "c")
        assert world.story == [
            "try a", "try b", "try c", "back b", "back a", "wait c", "try a", "try b",
        ]  # fmt: skip


class TestDeadline:
    def test_who_does_not_wait_is_told_which_is_held(self) -> None:
        world = World("b")
        with pytest.raises(LockNotAcquiredError) as caught:
            world.acquire("a", "b", blocking=False)
        assert caught.value.resource == "b"
        assert world.story == ["all a b"]

    @pytest.mark.parametrize("together", [True, False])
    def test_who_does_not_wait_waits_for_none(self, *, together: bool) -> None:
        world = World("b", together=together)
        with pytest.raises(LockNotAcquiredError, match="b"):
            world.acquire("a", "b", blocking=False)
        assert not any(step.request.blocking for step in world.steps if isinstance(step, Lock))
        assert world.ours == {}

    def test_one_for_all(self) -> None:
        world = World("a", "b")
        world.waits = {"a": 2, "b": 2}
        with pytest.raises(LockNotAcquiredError) as caught:
            world.acquire("a", "b", ttl=60, blocking_timeout=3)
        assert caught.value.resource == "b"
        assert caught.value.waited == pytest.approx(3)
        assert world.ours == {}

    def test_what_is_asked_for_gets_what_is_left(self) -> None:
        world = World("a", "b")
        world.waits = {"a": 2, "b": 0.5}
        world.acquire("a", "b", ttl=60, blocking_timeout=3)
        patience = [step.request.patience for step in world.steps if isinstance(step, Lock)]
        assert patience == pytest.approx([3, 1])

    def test_without_one_it_waits_for_as_long_as_it_takes(self) -> None:
        world = World("a")
        world.acquire("a", "b")
        (wait,) = (step for step in world.steps if isinstance(step, Lock))
        assert wait.request.patience == math.inf


class TestHeldWhileWaiting:
    def test_is_renewed_in_time(self) -> None:
        world = World("a")
        world.then["a"] = lambda: world.held.add("b")
        world.waits["b"] = 12
        leases = world.acquire("a", "b", ttl=10)
        assert world.story == [
            "all a b", "wait a", "all b", "wait b", "renew a", "wait b", "renew a", "wait b",
        ]  # fmt: skip
        assert min(lease.trusted_until for lease in leases) - world.time > 5

    def test_if_lost_is_acquired_again(self) -> None:
        world = World("a")
        world.then["a"] = lambda: world.held.add("b")
        world.waits["b"] = 6
        world.outcomes[Renew] = [LeaseLostError("lost")]
        world.then["b"] = lambda: world.ours.pop("a") and None
        leases = world.acquire("a", "b", ttl=10)
        assert world.story == ["all a b", "wait a", "all b", "wait b", "wait b", "all a"]
        assert list(world.ours.values()) == [leases[1], leases[0]]

    @pytest.mark.parametrize(
        "failure", [LockServiceError("down"), KeyboardInterrupt(), ZeroDivisionError()]
    )
    def test_is_given_back_when_something_fails(self, failure: BaseException) -> None:
        world = World("a", together=False)
        world.outcomes[Lock] = [None, None, failure]
        with pytest.raises(type(failure)):
            # The first is held and waited for; the attempt at the second fails.
            world.acquire("a", "b")
        assert world.story == ["try a", "wait a", "back a"]
        assert world.ours == {}


class TestAdmission:
    def test_each_is_admitted(self) -> None:
        world = World()
        leases = world.acquire("b", "a", databases=[Database()])
        assert world.story == ["all a b", "admit a", "admit b"]
        assert all(lease.admitted for lease in leases)

    def test_a_mark_ahead_raises_the_token_of_that_one(self) -> None:
        world = World()
        stale = StaleFenceError(resource="b", token=1, current_token=7)
        world.outcomes[Admit] = [None, stale]
        leases = world.acquire("a", "b", databases=[Database()])
        assert [lease.token for lease in leases] == [1, 8]

    def test_if_one_is_overtaken_all_are_given_back_and_its_next_token_is_greater(self) -> None:
        world = World()
        stale = StaleFenceError(resource="b", token=1, current_token=7)
        world.outcomes = {Admit: [None, stale], RaiseToken: [LeaseLostError("lost")]}
        leases = world.acquire("a", "b", databases=[Database()])
        assert [lease.token for lease in leases] == [1, 8]
        assert world.story == [
            "all a b", "admit a", "back b", "back a", "all a b", "admit a", "admit b",
        ]  # fmt: skip

    def test_if_there_is_no_token_above_a_mark_all_are_given_back(self) -> None:
        world = World()
        stale = StaleFenceError(resource="b", token=1, current_token=MAX_TOKEN)
        world.outcomes[Admit] = [None, stale]
        with pytest.raises(LockServiceError, match=r"mark of 'b' .* largest token there is"):
            world.acquire("a", "b", databases=[Database()])
        assert world.ours == {}

    def test_one_that_is_blocked_gives_all_back(self) -> None:
        world = World()
        world.outcomes[Admit] = [None, LockNotAcquiredError("blocked", resource="b")]
        with pytest.raises(LockNotAcquiredError, match="blocked"):
            world.acquire("a", "b", databases=[Database()])
        assert world.ours == {}

    def test_little_left_is_renewed_before_they_are_handed_out(self) -> None:
        world = World()

        def slow(step: Any) -> Any:
            if isinstance(step, Admit):
                world.time += 3
            return World.perform(world, step)

        world.perform = slow
        leases = world.acquire("a", "b", "c", ttl=10, databases=[Database()])
        assert world.story == [
            "all a b c", "admit a", "admit b", "renew b", "admit c", "renew c", "renew a",
        ]  # fmt: skip
        assert all(lease.trusted_until - world.time >= 5 for lease in leases)

    def test_a_service_whose_leases_never_last_is_given_up(self) -> None:
        world = World()
        world.outcomes = {
            Admit: [StaleFenceError(resource="a", token=1, current_token=7)] * 20,
            RaiseToken: [LeaseLostError("lost")] * 20,
        }
        with pytest.raises(LockServiceError, match="8 times"):
            world.acquire("a", "b", databases=[Database()])
        assert world.ours == {}
