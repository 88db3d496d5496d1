"""Random correct runs pass all checkers; changed anywhere, they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from fencing.torture.checking import check
from fencing.torture.history import Harm, Outcome, Write
from tests.support.broken import changed, without
from tests.support.histories import TTL, World

FATES = [
    {"outcome": Outcome.COMMITTED},
    {"outcome": Outcome.COMMITTED},
    {"outcome": Outcome.COMMITTED},
    {"outcome": Outcome.ROLLED_BACK},
    {"outcome": Outcome.CONFLICT},
    {"outcome": Outcome.FAILED},
    {"outcome": Outcome.CUT_OFF, "happened": False, "reads": ()},
    {"outcome": Outcome.CUT_OFF, "happened": True, "reads": ()},
    {"outcome": Outcome.UNKNOWN, "happened": False},
    {"outcome": Outcome.UNKNOWN, "happened": True},
    {"outcome": Outcome.UNKNOWN, "happened": False, "resolved": "rolled back"},
    {"outcome": Outcome.UNKNOWN, "happened": True, "resolved": "committed"},
    {"outcome": Outcome.UNKNOWN, "happened": True, "resolved": "unknown"},
]

RESOURCES = [
    ("register:0",),
    ("register:1",),
    ("set:0",),
    ("account:0", "account:1"),
    ("account:1", "account:2"),
]

ACTIONS = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from(RESOURCES)),
    st.tuples(st.just("work"), st.sampled_from(FATES)),
    st.tuples(st.just("work"), st.sampled_from(FATES)),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("zombie"), st.integers(0, 100)),
    st.tuples(st.sampled_from(["pause", "release", "prune", "deny", "trespass"]), st.none()),
)


class Play:
    """A world, and who is working in it."""

    def __init__(self) -> None:
        self.world = World(accounts=3)
        self.world.fault("proxy", "database", Harm.DATABASE, Harm.SESSIONS, lasts=1e6)
        self.current = ""
        self.acquire(RESOURCES[0])

    def acquire(self, resources):
        self.current = self.world.acquire(*resources, worker=f"w{len(resources)}.1")

    def work(self, fate, name=None):
        name = name or self.current
        world = self.world
        if world.overtaken(name):
            return
        resources = world.acquisitions[name].resources
        match resources[0].partition(":")[0]:
            case "register":
                world.add(name, f"{resources[0]}/{world.now // 0.005 % 2:.0f}", **fate)
            case "set":
                largest = world.number(resources[0])
                gone = largest - 2 if largest > 2 else None
                world.append(name, resources[0], gone=gone, **fate)
            case "account":
                world.transfer(name, *resources, **fate)

    def look(self, _):
        if not self.world.overtaken(self.current):
            rows = [
                f"{resource}/0" if resource.startswith("register") else resource
                for resource in self.world.acquisitions[self.current].resources
            ]
            self.world.look(self.current, *rows, rows[0])

    def zombie(self, number):
        """Somebody of long ago tries; he is refused if there is somebody newer."""
        world = self.world
        name = list(world.acquisitions)[number % len(world.acquisitions)]
        acquisition = world.acquisitions[name]
        if not acquisition.leases or not world.overtaken(name):
            return
        resource = acquisition.resources[0]
        row = f"{resource}/0" if resource.startswith("register") else resource
        world.look(name, row, outcome=Outcome.REFUSED, error="StaleFenceError") if any(
            world.marks.get(each, (0, ""))[0] > lease.token
            for each, lease in acquisition.leases.items()
        ) else world.look(name, row, outcome=Outcome.REFUSED, error="UnfencedWriteError")

    def pause(self, _):
        self.world.tick(1.5 * TTL)

    def release(self, _):
        if self.current in self.world.held.values():
            self.world.release(self.current)

    def prune(self, _):
        for resource in list(self.world.marks):
            if resource not in self.world.held:
                self.world.prune(resource)

    def deny(self, _):
        resources = self.world.acquisitions[self.current].resources
        if all(each in self.world.held for each in resources) and not self.world.overtaken(
            self.current
        ):
            self.world.deny(*resources)

    def trespass(self, _):
        self.world.attempt("unfenced", "register:0/0")
        self.world.attempt("leaked", "register:0/0")


@st.composite
def worlds(draw):
    play = Play()
    for action, argument in draw(st.lists(ACTIONS, max_size=25)):
        getattr(play, action)(argument)
    # What is changed below is there at least once.
    play.trespass(None)
    play.acquire(RESOURCES[0])
    for fate in (FATES[0], FATES[3], FATES[-2]):
        play.work(fate)
    play.acquire(RESOURCES[0])
    play.work(FATES[0])
    row = play.world.writes[-1].row
    play.world.look(play.current, row, row)
    return play.world


@given(worlds())
def test_a_correct_run_has_no_violation(world):
    assert check(world.history()) == []


# ------------------------------------------------------------------------- what is changed


def places(records, wanted):
    """Where the records are that can be changed."""
    found = [place for place, record in enumerate(records) if wanted(record)]
    assume(found)
    return found


def a_write(history, chance, **fields):
    place = chance(range(len(history.writes)))
    return replace(history, writes=changed(history.writes, place, **fields))


def lose_a_write(history, chance):
    return replace(history, writes=without(history.writes, chance(range(len(history.writes)))))


def repeat_a_write(history, chance):
    write = replace(chance(history.writes), seq=1_000_000)
    return replace(history, writes=(*history.writes, write))


def write_without_a_token(history, chance):
    return a_write(history, chance, token=None)


def write_under_an_older_token(history, chance):
    place = chance(range(len(history.writes)))
    token = history.writes[place].token - 1
    return replace(history, writes=changed(history.writes, place, token=token))


def write_as_another(history, chance):
    return a_write(history, chance, holder="another")


def write_for_nobody(history, chance):
    return a_write(history, chance, transaction=None)


def swap_two_writes(history, chance):
    writes = history.writes

    def has_a_next(write: Write) -> bool:
        return write.change == "update" and any(
            each.row == write.row and each.seq > write.seq for each in writes
        )

    places(writes, has_a_next)
    first = chance([write for write in writes if has_a_next(write)])
    second = next(each for each in writes if each.row == first.row and each.seq > first.seq)
    swapped = {first.seq: second.seq, second.seq: first.seq}
    return replace(
        history, writes=[replace(each, seq=swapped.get(each.seq, each.seq)) for each in writes]
    )


def read_what_was_before(history, chance):
    place = chance(
        places(
            history.transactions,
            lambda each: (
                each.kind in {"add", "append", "transfer"} and each.outcome is Outcome.COMMITTED
            ),
        )
    )
    first, *others = history.transactions[place].reads
    reads = (replace(first, value=first.value - 1), *others)
    return replace(history, transactions=changed(history.transactions, place, reads=reads))


def look_at_what_was_before(history, chance):
    acknowledged = {each.name for each in history.transactions if each.outcome is Outcome.COMMITTED}
    known = {(each.row, each.new) for each in history.writes if each.transaction in acknowledged}
    place = chance(
        places(
            history.transactions,
            lambda each: (
                each.kind == "look"
                and each.outcome is Outcome.COMMITTED
                and (each.reads[-1].row, each.reads[-1].value) in known
            ),
        )
    )
    last = history.transactions[place].reads[-1]
    reads = (*history.transactions[place].reads[:-1], replace(last, value=last.value - 1))
    return replace(history, transactions=changed(history.transactions, place, reads=reads))


def tell_another_outcome(history, chance):
    place = chance(
        places(
            history.transactions,
            lambda each: (
                each.kind in {"add", "append", "transfer"}
                and each.outcome in {Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.FAILED}
            ),
        )
    )
    was = history.transactions[place].outcome
    outcome = Outcome.CONFLICT if was is Outcome.COMMITTED else Outcome.COMMITTED
    return replace(history, transactions=changed(history.transactions, place, outcome=outcome))


def resolve_otherwise(history, chance):
    place = chance(
        places(history.transactions, lambda each: each.resolved in {"committed", "rolled back"})
    )
    was = history.transactions[place].resolved
    resolved = "rolled back" if was == "committed" else "committed"
    return replace(history, transactions=changed(history.transactions, place, resolved=resolved))


def let_a_trespasser_in(history, chance):
    name = chance([each.name for each in history.transactions if each.acquisition is None])
    write = replace(history.writes[-1], transaction=name, seq=1_000_000)
    return replace(history, writes=(*history.writes, write))


def lose_an_admission(history, chance):
    written = {(write.resource, write.token) for write in history.writes}
    place = chance(
        places(
            history.admissions,
            lambda each: not each.pruned and (each.resource, each.token) in written,
        )
    )
    return replace(history, admissions=without(history.admissions, place))


def lower_a_mark(history, chance):
    resource = chance(sorted(history.final.marks))
    marks = {**history.final.marks, resource: history.final.marks[resource] - 1}
    return replace(history, final=replace(history.final, marks=marks))


def change_a_number(history, chance):
    row = chance(sorted(history.final.rows))
    rows = {**history.final.rows, row: history.final.rows[row] + 1}
    return replace(history, final=replace(history.final, rows=rows))


def change_a_balance(history, chance):
    row = chance(sorted(history.final.balances))
    balances = {**history.final.balances, row: history.final.balances[row] + 1}
    return replace(history, final=replace(history.final, balances=balances))


def change_an_amount(history, chance):
    place = chance(range(len(history.writes)))
    amount = history.writes[place].amount + 1
    return replace(history, writes=changed(history.writes, place, amount=amount))


def believe_too_long(history, chance):
    def is_followed(acquisition):
        return any(
            other.resources[0] == acquisition.resources[0] and other.asked_at > acquisition.asked_at
            for other in history.acquisitions
            if other.leases
        )

    place = chance(
        places(history.acquisitions, lambda each: bool(each.leases) and is_followed(each))
    )
    leases = {
        resource: replace(lease, until=1e9)
        for resource, lease in history.acquisitions[place].leases.items()
    }
    return replace(history, acquisitions=changed(history.acquisitions, place, leases=leases))


@pytest.mark.parametrize(
    "change",
    [
        lose_a_write,
        repeat_a_write,
        write_without_a_token,
        write_under_an_older_token,
        write_as_another,
        write_for_nobody,
        swap_two_writes,
        read_what_was_before,
        look_at_what_was_before,
        tell_another_outcome,
        resolve_otherwise,
        let_a_trespasser_in,
        lose_an_admission,
        lower_a_mark,
        change_a_number,
        change_a_balance,
        change_an_amount,
        believe_too_long,
    ],
)
def test_a_changed_run_has_one(change):
    @settings(max_examples=20)
    @given(worlds(), st.data())
    def changed_anywhere(world, data):
        broken = change(world.history(), lambda among: data.draw(st.sampled_from(among)))
        violations = check(broken)
        for violation in violations:
            event(violation.checker)
        assert violations

    changed_anywhere()
