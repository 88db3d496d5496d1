"""The queue of a resource, as the scripts keep it: who is handed the lock, and when nobody is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from fencing.locks.redis.performing import texts_in
from fencing.locks.redis.scripts import ACQUIRE, RELEASE, keys_of
from fencing.request import MAX_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

A, B, C, D = (letter * 32 for letter in "abcd")
TTL = 60_000
ALL = b"that was all"


class Resource:
    """One resource, asked for through the bare scripts."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.lock, self.counter, self.queue, _ = self.keys = keys_of(namespace, "r")
        self.subscriptions: list[Any] = []
        self._acquire, self._release = map(client.register_script, (ACQUIRE.text, RELEASE.text))

    def channel(self, nonce: str) -> str:
        return f"{self.namespace}:wake:{nonce}"

    def listen(self, nonce: str) -> Any:
        subscription = self.client.pubsub()
        self.subscriptions.append(subscription)
        subscription.subscribe(self.channel(nonce))
        assert subscription.get_message(timeout=10)["type"] == "subscribe"
        return subscription

    def told(self, subscription: Any) -> str | None:
        """What was said to who listens, if anything, since he was last asked."""
        (channel,) = subscription.channels
        self.client.publish(channel, ALL)  # what was said before comes before it
        said = []
        while (message := subscription.get_message(timeout=20))["data"] != ALL:
            said.append(message["data"].decode())
        assert len(said) <= 1
        return said[0] if said else None

    def record(self, holder: str, nonce: str, ttl: int = TTL, floor: int = 0) -> str:
        return f"{holder}:{ttl}:{floor}:{nonce}:me: and\n{holder[0]}"

    def ask(
        self, holder: str, record: str = "", *, last: bool = False, ttl: int = TTL, place: str = ""
    ) -> list[Any]:
        arguments = [holder, ttl, 0, "me", "0", record, "last" if last else "", place]
        return self._texts(self._acquire(self.keys, arguments))

    def release(self, holder: str, *record: str) -> list[Any]:
        return self._texts(self._release(self.keys, [holder, "", *record]))

    def waiting(self) -> list[str]:
        return self._texts(self.client.zrange(self.queue, 0, -1))

    def holder(self) -> str | None:
        value: Any = self.client.get(self.lock)
        return value and value.decode().split(":")[1]

    def _texts(self, answer: Any) -> list[Any]:
        if isinstance(answer, bytes):
            return texts_in(answer)
        return [fact.decode() if isinstance(fact, bytes) else fact for fact in answer]


@pytest.fixture
def resource(redis_client: redis.Redis, redis_namespace: str) -> Iterator[Resource]:
    resource = Resource(redis_client, redis_namespace)
    yield resource
    for subscription in resource.subscriptions:
        subscription.close()


def test_a_release_hands_the_lock_to_the_longest_waiter(resource: Resource) -> None:
    subscription = resource.listen("1")
    assert resource.ask(A) == ["granted", A, "1"]
    b, c = resource.record(B, "1"), resource.record(C, "1")
    assert resource.ask(B, b)[0] == resource.ask(C, c)[0] == "held"
    assert resource.ask(B, b)[0] == "held"  # asking again, nobody loses his place
    assert resource.waiting() == [b, c]
    assert resource.release(A) == ["released", A, "", "handed"]
    assert resource.client.get(resource.lock) == f"2:{B}:me: and\nb".encode()
    assert resource.told(subscription) == f"{B} 2"
    assert resource.waiting() == [c]
    assert resource.release(B) == ["released", B, "", "handed"]
    assert resource.told(subscription) == f"{C} 3"
    assert resource.release(C) == ["released", C]
    assert resource.holder() is None


def test_what_is_handed_over_lasts_two_seconds_until_it_is_asked_for(resource: Resource) -> None:
    resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "1"))
    resource.release(A)
    assert 1000 < resource.client.pttl(resource.lock) <= 2000
    assert resource.ask(B, resource.record(B, "1")) == ["granted", B, "2"]
    assert resource.client.pttl(resource.lock) > 50_000
    assert resource.waiting() == []


def test_nor_longer_than_the_waiter_s_own_ttl(resource: Resource) -> None:
    resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "1", ttl=500), ttl=500)
    resource.release(A)
    assert 0 < resource.client.pttl(resource.lock) <= 500


def test_a_waiter_s_floor_is_kept(resource: Resource) -> None:
    subscription = resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "1", floor=41))
    resource.release(A)
    assert resource.told(subscription) == f"{B} 42"


def test_waiters_of_a_dead_process_are_passed_over(resource: Resource) -> None:
    subscription = resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "2"))
    resource.ask(C, resource.record(C, "2"))
    resource.ask(D, resource.record(D, "1"))
    resource.release(A)
    assert resource.told(subscription) == f"{D} 2"
    assert resource.waiting() == []


def test_who_has_lost_his_place_while_nobody_listened_has_it_again(resource: Resource) -> None:
    subscription = resource.listen("1")
    b, c, d = (resource.record(holder, "1") for holder in (B, C, D))
    resource.ask(A)
    lost = resource.record(B, "2")  # whose channel nobody listens to just now
    place = resource.ask(B, lost)[-1]
    assert resource.ask(C, c)[-1] > place
    resource.ask(D, d)
    resource.release(A)
    assert resource.told(subscription) == f"{C} 2"
    assert resource.waiting() == [d]
    assert resource.ask(B, b, place=place) == ["held", B, ANY, "2", "me: and\nc", place]
    assert resource.waiting() == [b, d]


def test_a_pattern_that_fits_the_channel_is_no_listener(resource: Resource) -> None:
    subscription = resource.client.pubsub()
    resource.subscriptions.append(subscription)
    subscription.psubscribe(f"{resource.namespace}:*")
    assert subscription.get_message(timeout=10)["type"] == "psubscribe"
    resource.ask(A)
    resource.ask(B, resource.record(B, "1"))
    resource.release(A)
    assert resource.holder() is None


def test_an_expired_lock_is_the_longest_waiter_s_whoever_asks(resource: Resource) -> None:
    subscription = resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "1"))
    resource.client.delete(resource.lock)
    assert resource.ask(C)[:2] == ["held", C]
    assert resource.holder() == B
    assert resource.told(subscription) == f"{B} 2"


def test_an_expired_lock_is_granted_to_the_longest_waiter_who_asks(resource: Resource) -> None:
    subscription = resource.listen("1")
    b, c = resource.record(B, "1"), resource.record(C, "1")
    resource.ask(A)
    resource.ask(B, b)
    resource.ask(C, c)
    resource.client.delete(resource.lock)
    assert resource.ask(B, b) == ["granted", B, "2"]
    assert resource.client.pttl(resource.lock) > 50_000
    assert resource.told(subscription) is None
    assert resource.waiting() == [c]


def test_who_gives_up_leaves_the_queue(resource: Resource) -> None:
    resource.listen("1")
    b, c = resource.record(B, "1"), resource.record(C, "1")
    resource.ask(A)
    resource.ask(B, b)
    resource.ask(C, c)
    assert resource.ask(B, b, last=True)[0] == "held"
    assert resource.waiting() == [c]
    assert resource.release(C, c) == ["other", C]
    assert resource.waiting() == []


def test_who_gives_up_what_he_was_handed_hands_it_on(resource: Resource) -> None:
    resource.listen("1")
    b, c = resource.record(B, "1"), resource.record(C, "1")
    resource.ask(A)
    resource.ask(B, b)
    resource.ask(C, c)
    resource.release(A)
    assert resource.release(B, b) == ["released", B, "", "handed"]
    assert resource.holder() == C


def test_who_does_not_wait_leaves_no_trace(resource: Resource) -> None:
    resource.ask(A)
    assert resource.ask(B)[0] == "held"
    assert resource.ask(B, resource.record(B, "1"), last=True)[0] == "held"
    assert resource.client.exists(resource.queue) == 0


def test_a_forgotten_queue_goes_away(resource: Resource) -> None:
    resource.ask(A)
    resource.ask(B, resource.record(B, "1"))
    assert 20_000 < resource.client.pttl(resource.queue) <= 30_000


@pytest.mark.parametrize("counter", [b"x", str(MAX_TOKEN).encode()])
def test_without_a_token_nobody_is_handed_the_lock(resource: Resource, counter: bytes) -> None:
    resource.listen("1")
    resource.ask(A)
    b = resource.record(B, "1")
    resource.ask(B, b)
    resource.client.set(resource.counter, counter)
    assert resource.release(A) == ["released", A]
    assert resource.holder() is None
    assert resource.waiting() == [b]
    assert resource.ask(C)[0] in {"garbled", "exhausted"}


@pytest.mark.parametrize("which", ["counter", "queue"])
def test_a_key_of_another_type_does_not_keep_a_lock_from_being_released(
    resource: Resource, which: str
) -> None:
    resource.listen("1")
    resource.ask(A)
    resource.ask(B, resource.record(B, "1"))
    key = getattr(resource, which)
    resource.client.delete(key)
    resource.client.rpush(key, "x")
    assert resource.release(A) == ["released", A]
    assert resource.holder() is None


def test_what_is_no_record_is_passed_over(resource: Resource) -> None:
    subscription = resource.listen("1")
    resource.ask(A)
    resource.client.zadd(resource.queue, {"nonsense": 0})
    resource.ask(B, resource.record(B, "1"))
    resource.release(A)
    assert resource.told(subscription) == f"{B} 2"


@pytest.mark.parametrize(
    ("rights", "successor"),
    [
        (["&*", "+publish"], B),  # may not ask who listens, so that B counts as alive
        (["&*", "+pubsub"], None),  # may not tell B
        (["+publish", "+pubsub"], None),
    ],
)
def test_a_user_without_the_rights_for_it_still_releases(
    resource: Resource, rights: list[str], successor: str | None
) -> None:
    user = resource.namespace
    resource.client.execute_command(
        "ACL SETUSER", user, "on", ">p", "~*", "resetchannels", "+@all", "-@pubsub", *rights
    )  # fmt: skip
    settings = {**resource.client.connection_pool.connection_kwargs, "username": user}
    try:
        resource.listen("1")
        resource.ask(A)
        resource.ask(B, resource.record(B, "1"))
        with type(resource.client)(
            host=settings["host"], port=settings["port"], username=user, password="p"
        ) as client:
            assert Resource(client, resource.namespace).release(A)[:2] == ["released", A]
        assert resource.holder() == successor
    finally:
        resource.client.execute_command("ACL DELUSER", user)
