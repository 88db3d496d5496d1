"""What is asked of etcd and when it is believed, step by step, without an etcd."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from fencing.errors import LeaseExpiredError, LeaseLostError, LockServiceError
from fencing.lease import Lease
from fencing.locks.asking import CLEAN_UP_SECONDS, Pause, Trouble
from fencing.locks.etcd import acquiring, inspecting, requests, steps
from fencing.locks.etcd.answers import EXISTS, NO_LEASE, Reply, reply_to
from fencing.locks.etcd.asking import Ask, Line, Rank, Signal, Watch
from fencing.locks.etcd.keys import WAITING, Keys, lease_id, ttl_and_label, value_of
from fencing.locks.etcd.ranks import Ranks
from fencing.locks.lines import TURN
from fencing.locks.outcome import Grant, Held
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Generator

KEYS = Keys("ns")
HOLDER = "ab" * 16
OTHER = "cd" * 16
PLACE = KEYS.place("r", HOLDER)

Answer = Any


class Play:
    """An etcd that answers as it is told to, a second after it was asked.

    Attributes:
        asked: The steps that were to be performed.
        at: The time.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.at = 100.0

    def go(self, call: Generator[Any, Any, Any]) -> Any:
        sent: Any = None
        trouble: Trouble | None = None
        try:
            while True:
                step = call.send(sent) if trouble is None else call.throw(trouble)
                trouble = None
                if isinstance(step, Pause):
                    sent = self.at = self.at + step.seconds
                    continue
                self.asked.append(step)
                asked_at, self.at = self.at, self.at + 1
                answer = self.answers.pop(0)
                if isinstance(answer, Trouble):
                    answer.at = self.at = min(self.at, asked_at + step.within)
                    trouble = answer
                elif isinstance(answer, Signal):
                    sent = Signal(self.at, answer.failed)
                else:
                    failed, body = (answer, {}) if isinstance(answer, str) else ("", answer)
                    sent = Reply(body, asked_at, self.at, failed)
        except StopIteration as end:
            assert not self.answers
            return end.value

    @property
    def paths(self) -> list[str]:
        return [step.path if isinstance(step, Ask) else type(step).__name__ for step in self.asked]


def lost() -> Trouble:
    return Trouble("nothing was heard", passing=True, at=0.0)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kv(holder: str, created: int, modified: int | None = None, lease: int = 1) -> dict[str, str]:
    return {
        "key": text(KEYS.place("r", holder)),
        "value": text(value_of(30, f"owner {holder[:2]}")),
        "create_revision": str(created),
        "mod_revision": str(modified or created),
        "lease": str(lease),
    }


def offset(number: int, modified: int = 3) -> dict[str, str]:
    return {
        "key": text(KEYS.offset("r")), "value": text(str(number).encode()),
        "create_revision": "2", "mod_revision": str(modified),
    }  # fmt: skip


def done(*found: list[dict[str, str]] | None, revision: int = 10, succeeded: bool = True) -> Answer:
    """The answer to a transaction; ``None`` is that of a put."""
    header = {"revision": str(revision)}
    responses = [
        {"response_put": {"header": header}}
        if kvs is None
        else {"response_range": {"header": header, "kvs": kvs, "count": str(len(kvs))}}
        for kvs in found
    ]
    return {"header": header, "succeeded": succeeded, "responses": responses}


def ranged(*kvs: dict[str, str]) -> Answer:
    return {"header": {"revision": "10"}, "kvs": list(kvs), "count": str(len(kvs))}


def alive(seconds: int = 30) -> Answer:
    return {"ID": "1", "TTL": str(seconds)}


GONE: Answer = {"ID": "1"}
REVOKED: Answer = {"header": {}}


def acquire(play: Play, *, in_line: bool = False, **options: Any) -> Any:
    request = AcquireRequest(resource="r", **{"ttl": 30, **options})
    return play.go(
        acquiring.acquire(KEYS, request, holder=HOLDER, started_at=100.0, in_line=in_line)
    )


def a_lease(ttl: float = 30.0) -> Lease:
    lease = Lease(None, resource="r", token=10, holder=HOLDER, owner="me", ttl=ttl, asked_at=100.0)
    lease.trusted_until = 100.0 + ttl
    return lease


def compared(step: Any) -> list[tuple[str, str, str]]:
    """Target, result and value of each comparison of a transaction."""
    return [
        (
            each["target"],
            each["result"],
            next(each[n] for n in each if n.endswith(("sion", "ease"))),
        )
        for each in step.body["compare"]
    ]


# Acquiring


def test_trust_counts_from_when_the_etcd_lease_was_asked_for():
    play = Play(alive(), done(None, []))
    assert acquire(play) == Grant(10, 100.0)
    assert play.paths == ["lease/grant", "kv/txn"]
    assert compared(play.asked[1]) == [("CREATE", "EQUAL", "0")]


def test_a_token_is_the_revision_and_the_offset():
    assert acquire(Play(alive(), done(None, [offset(32)]))).token == 42


def test_a_lease_that_was_granted_unheard_is_armed_again():
    # asked at 100, 101 and (after a pause) later: it counts from the keepalive.
    play = Play(lost(), EXISTS, alive(), done(None, []), alive())
    grant = acquire(play)
    grants, keepalive = ["lease/grant"] * 2, "lease/keepalive"
    assert play.paths == [*grants, keepalive, "kv/txn", keepalive]
    assert grant.asked_at == play.at - 1


def test_a_place_that_was_made_unheard_is_our_own():
    play = Play(alive(), lost(), done([kv(HOLDER, 9)], [], succeeded=False), alive())
    grant = acquire(play)
    assert grant.token == 9
    assert grant.asked_at == play.at - 1


def test_what_was_granted_too_late_is_armed_again_once():
    play = Play(alive(2), done(None, []), alive(2))
    assert acquire(play, ttl=1.5).asked_at == 102.0
    play = Play(alive(2), done(None, []), alive(2), REVOKED)
    with pytest.raises(LockServiceError, match="longer ttl"):
        acquire(play, ttl=0.5)
    assert play.paths[-1] == "lease/revoke"
    play = Play(alive(2), done(None, []), GONE, REVOKED)
    with pytest.raises(LockServiceError, match="longer ttl"):
        acquire(play, ttl=1.5)


def test_a_lease_that_ran_out_before_the_place_was_made_is_asked_for_again():
    play = Play(alive(), NO_LEASE, alive(), done(None, []))
    assert acquire(play).asked_at == 102.0


def test_who_does_not_wait_leaves_no_lease_behind():
    # At once means two seconds at most, which are over by then.
    left = {"TTL": "20", "grantedTTL": "30"}
    play = Play(alive(), done([kv(OTHER, 7)], [offset(5)], succeeded=False), REVOKED, left)
    held = acquire(play, blocking=False)
    assert held == Held(20.0, "12", "owner cd", pytest.approx(3, abs=1.1))
    assert play.asked[2].body == {"ID": str(lease_id(HOLDER, 30))}


def test_a_waiter_watches_the_one_before_it_from_the_revision_of_its_look():
    play = Play(
        alive(), done([kv(OTHER, 7)], [], succeeded=False),
        alive(6), done(None, revision=12),
        done([kv("ef" * 16, 11)], [kv(OTHER, 7)], [], revision=15),
        Signal(0), alive(6),
        done([], [kv(HOLDER, 12)], [], revision=20),
        alive(), done(None, [offset(1)], revision=21),
    )  # fmt: skip
    grant = acquire(play)
    assert play.asked[5] == Watch(KEYS.place("r", "ef" * 16), 16, acquiring.LOOK_SECONDS)
    assert grant == Grant(13, 108.0)
    waiting, holding = str(lease_id(HOLDER, WAITING)), str(lease_id(HOLDER, 30))
    assert play.asked[2].body == {"ID": waiting, "TTL": str(acquiring.WAIT_SECONDS)}
    assert play.asked[6].body == {"ID": waiting}
    assert play.asked[8].body == {"ID": holding, "TTL": "30"}
    # Only what nobody has touched since: a late request must not undo a renewal's exchange.
    assert compared(play.asked[9]) == [("MOD", "EQUAL", "12")]


def test_a_waiter_takes_another_place_when_it_has_lost_its_own():
    play = Play(
        alive(), done([kv(OTHER, 7)], [], succeeded=False),
        alive(6), done(None, revision=12),
        done([kv(OTHER, 7)], [kv(OTHER, 7)], []), Signal(0), GONE,
        alive(6), done(None, revision=30),
        done([], [kv(HOLDER, 30)], []), alive(), done(None, [], revision=31),
    )  # fmt: skip
    assert acquire(play).token == 30


def test_at_the_deadline_there_is_a_last_look():
    waiting = [
        alive(), done([kv(OTHER, 7)], [], succeeded=False), alive(6), done(None, revision=12),
        done([kv(OTHER, 7)], [kv(OTHER, 7)], []), Signal(0), alive(6),
    ]  # fmt: skip
    last = done([], [kv(HOLDER, 12)], [])
    play = Play(*waiting, last, alive(), done(None, [], revision=13))
    assert isinstance(acquire(play, blocking_timeout=6.5), Grant)
    last = done([kv(OTHER, 7)], [kv(OTHER, 7)], [])
    play = Play(*waiting, last, REVOKED, REVOKED, {"TTL": "9", "grantedTTL": "30"})
    assert isinstance(acquire(play, blocking_timeout=6.5), Held)
    assert play.paths[-3:] == ["lease/revoke", "lease/revoke", "lease/timetolive"]


def test_of_fair_waiters_only_the_first_looks():
    play = Play(
        Signal(0), alive(6), done(None, revision=12),
        Signal(0, failed=True), alive(6), Signal(0),
        done([], [kv(HOLDER, 12)], []), alive(), done(None, [], revision=13),
    )  # fmt: skip
    assert acquire(play, in_line=True, fair=True).token == 12
    assert [step for step in play.paths if step in ("Line", "Rank", "Watch")] == [
        "Line", "Rank", "Rank",
    ]  # fmt: skip
    assert isinstance(play.asked[0], Line)
    assert play.asked[3] == Rank(12, acquiring.LOOK_SECONDS)


def test_an_acquisition_that_fails_revokes_what_it_may_have():
    for answers, revoked in (
        ([alive(), *[lost()] * 5, REVOKED], [30]),
        (
            [alive(), done([kv(OTHER, 7)], [], succeeded=False), *[lost()] * 5, REVOKED, REVOKED],
            [WAITING, 30],
        ),
    ):
        play = Play(*answers)
        with pytest.raises(LockServiceError, match="nothing was heard"):
            acquire(play)
        cleaned = [step for step in play.asked if step.path == "lease/revoke"]
        assert [step.body for step in cleaned] == [
            {"ID": str(lease_id(HOLDER, purpose))} for purpose in revoked
        ]
        assert all(step.see_through for step in cleaned)
        assert sum(step.within for step in cleaned) <= CLEAN_UP_SECONDS


# Renewing


def test_a_renewal_counts_from_its_keepalive_and_touches_the_place():
    lease = a_lease()
    play = Play(alive(), done(None))
    play.go(steps.renew(KEYS, lease, 30, started_at=100.0))
    assert lease.trusted_until == pytest.approx(100.0 + 30 - 0.302)
    number = str(lease_id(HOLDER, 30))
    assert play.asked[0].body == {"ID": number}
    assert compared(play.asked[1]) == [("LEASE", "EQUAL", number)]


def test_a_renewal_for_longer_exchanges_leases_unless_something_was_done_meanwhile():
    lease = a_lease()
    play = Play(
        ranged(kv(HOLDER, 7, 8, lease=5)), alive(30), alive(90), done(succeeded=False),
        ranged(kv(HOLDER, 7, 9, lease=5)), alive(30), EXISTS, alive(90), done(None),
    )  # fmt: skip
    play.go(steps.renew(KEYS, lease, 90, started_at=100.0))
    assert compared(play.asked[3]) == [("MOD", "EQUAL", "8")]
    assert compared(play.asked[-1]) == [("MOD", "EQUAL", "9")]
    assert lease.trusted_until == pytest.approx(107.0 + 90 - 0.902)


def test_a_lease_is_never_exchanged_for_a_shorter_one():
    lease = a_lease()
    lease.ttl = 5  # renewed for less, before; etcd still has the longer one
    play = Play(GONE, ranged(kv(HOLDER, 7, 8, lease=77)), alive(60), done(None))
    play.go(steps.renew(KEYS, lease, 5, started_at=100.0))
    assert play.asked[-1].body["success"] == [requests.put(PLACE, value_of(5, "me"), 77)]


def test_a_renewal_of_what_is_gone_is_a_loss():
    for first, says in (([], "nobody holds"), ([kv(OTHER, 9)], "another holder")):
        lease = a_lease()
        play = Play(GONE, ranged(), done(first))
        with pytest.raises(LeaseLostError, match=says):
            play.go(steps.renew(KEYS, lease, 30, started_at=100.0))
        assert lease.lost


def test_a_renewal_that_is_answered_too_late_is_not_believed():
    lease = a_lease()
    with pytest.raises(LeaseExpiredError):
        Play(alive(), done(None)).go(steps.renew(KEYS, lease, 1.5, started_at=100.0))


# Raising


def test_an_offset_is_raised_only_by_who_has_the_place_and_only_as_it_was_seen():
    lease = a_lease()
    play = Play(ranged(kv(HOLDER, 7)), ranged(offset(3, modified=6)), done(None))
    play.go(steps.raise_token(KEYS, lease, 99, started_at=100.0))
    assert lease.token == 100
    assert compared(play.asked[2]) == [("CREATE", "EQUAL", "7"), ("MOD", "EQUAL", "6")]
    assert play.asked[2].body["success"] == [requests.put(KEYS.offset("r"), b"93")]


def test_an_offset_that_was_raised_meanwhile_is_looked_at_again():
    lease = a_lease()
    play = Play(
        ranged(kv(HOLDER, 7)), ranged(), done(succeeded=False),
        ranged(kv(HOLDER, 7)), ranged(offset(500)),
    )  # fmt: skip
    play.go(steps.raise_token(KEYS, lease, 99, started_at=100.0))
    assert lease.token == 507


@pytest.mark.parametrize("value", [b"", b"-1", b"many", b"9" * 20, b"9" * 5000])
def test_an_offset_that_makes_no_sense(value):
    garbled = {**offset(0), "value": text(value)}
    with pytest.raises(LockServiceError, match="token"):
        acquire(Play(alive(), done(None, [garbled]), REVOKED))


# Others' locks


def test_taking_a_lock_away_again_takes_it_from_nobody_else():
    found = done([kv(OTHER, 7, lease=5)])
    play = Play(found, done([kv(OTHER, 7)]), REVOKED)
    assert play.go(inspecting.end_anyones(KEYS, "r", started_at=100.0)) is True
    assert compared(play.asked[1]) == [("CREATE", "EQUAL", "7")]
    assert play.asked[2].body == {"ID": "5"}
    play = Play(found, done(succeeded=False))
    assert play.go(inspecting.end_anyones(KEYS, "r", started_at=100.0)) is False
    play = Play(found, lost(), done(succeeded=False))
    assert play.go(inspecting.end_anyones(KEYS, "r", started_at=100.0)) is True


# Fair waiters of one process


def test_the_first_place_of_a_process_is_told_its_turn():
    ranks: Ranks[list[Any]] = Ranks()

    class Box(list[Any]):
        put = list.append

    first, second, third = Box(), Box(), Box()
    assert ranks.take("r", 20, second)
    assert ranks.take("r", 10, first)
    assert not ranks.take("r", 20, second)
    assert not ranks.take("r", 30, third)
    assert ranks.take("s", 30, Box())
    ranks.leave("r", first)
    assert (second, third) == ([TURN], [])
    assert ranks.take("r", 20, second)
    assert not ranks.take("r", 40, second)  # it has lost its place, and has another one
    assert third == [TURN]
    ranks.leave("r", third)
    ranks.leave("r", second)
    ranks.leave("r", second)
    assert "r" not in ranks
    assert "s" in ranks


# Answers


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"header": {}},
        {"header": {"revision": "x"}, "succeeded": True},
        {"header": {"revision": "1"}, "succeeded": True},
        {"header": {"revision": "1"}, "succeeded": True, "responses": [{}, {}]},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": [{}]}}] * 2},
        {"header": {"revision": "1"}, "responses": [{"response_range": {}}] * 2},
        done(None),
    ],
)
def test_an_answer_that_etcd_does_not_give(answer):
    with pytest.raises(LockServiceError, match="etcd answered"):
        acquire(Play(alive(), answer, REVOKED))


@pytest.mark.parametrize("answer", [{}, {"TTL": "x"}, {"TTL": "29"}, {"TTL": None}])
def test_a_lease_that_is_none(answer):
    with pytest.raises(LockServiceError, match="etcd answered"):
        acquire(Play(answer, REVOKED))


def judged(status: int, content: bytes) -> Reply:
    return reply_to(status, content, asked_at=1.0, at=2.0)


@pytest.mark.parametrize(
    ("status", "content", "says", "passing"),
    [
        (200, b"", "gateway", False),
        (200, b"[]", "gateway", False),
        (404, b"Not Found", "gateway", False),
        (502, b"<html>", "gateway", True),
        (503, b'{"message":"etcdserver: no leader","code":14}', "no leader", True),
        (503, b'{"message":"something new","code":14}', "refused", True),
        (400, b'{"message":"something else","code":3}', "refused", False),
        (403, b'{"error":"etcdserver: permission denied","code":7}', "permission", False),
        (200, b'{"error":{"grpc_code":8,"message":"database space exceeded"}}', "NOSPACE", False),
    ],
)
def test_what_errors_mean(status, content, says, passing):
    with pytest.raises(Trouble, match=says) as caught:
        judged(status, content)
    assert caught.value.passing is passing


def test_errors_that_are_answers():
    assert judged(412, b'{"message":"etcdserver: lease already exists"}').failed == EXISTS
    assert judged(404, b'{"message":"etcdserver: requested lease not found"}').failed == NO_LEASE
    assert judged(200, b'{"result":{"ID":"1","TTL":"2"}}').body == {"ID": "1", "TTL": "2"}


# Keys


def test_no_place_is_in_the_range_of_another_resource():
    for one, other in (("a", "a/b"), ("a", "a\x01"), ("a", "ab"), ("a/lock/b", "b")):
        first, last = KEYS.places(one)
        assert first <= KEYS.place(one, HOLDER) < last
        assert not first <= KEYS.place(other, HOLDER) < last
    assert KEYS.of_place(KEYS.place("a/b\n", HOLDER)) == ("a/b\n", HOLDER)
    for key in (KEYS.offset("r"), b"ns/lock/r", b"ns/lock/\0x", b"ns/lock/\xff\0x", b"other"):
        assert KEYS.of_place(key) is None


def test_values_are_read_as_they_were_written():
    assert ttl_and_label(value_of(0.0101, "a:b")) == (0.011, "a:b")
    for value in (b"", b"1", b"x:y", b"99999999999:y", b"\xff:y"):
        with pytest.raises(ValueError, match=r"place|decode"):
            ttl_and_label(value)


def test_what_somebody_else_has_written_is_told():
    foreign = {**kv(OTHER, 7), "value": text(b"mine")}
    with pytest.raises(LockServiceError, match="delete it"):
        acquire(Play(alive(), done([foreign], [], succeeded=False), REVOKED))
    state = Play(done([foreign], [])).go(inspecting.ask_state(KEYS, "r", started_at=100.0))
    assert (state.held, state.token, state.holder) == (True, None, None)


def test_a_scan_goes_on_behind_the_last_key_of_a_page() -> None:
    page = {**ranged(kv(OTHER, 7), kv(HOLDER, 8)), "more": True}

    def ask(after: bytes) -> Any:
        return inspecting.next_page(KEYS, "r", after, started_at=100.0)

    after, names = Play(page).go(ask(b""))
    assert (after, names) == (PLACE, ["r"])
    play = Play(ranged())
    assert play.go(ask(after)) == (None, [])
    assert play.asked[0].body["key"] == text(PLACE + b"\0")
