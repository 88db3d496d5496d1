"""The search for an order finds one if there is one: compared with trying all orders."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fencing.torture.checking.linearizability import (
    Model,
    NotLinearizable,
    Operation,
    Undecided,
    linearize,
)
from fencing.torture.checking.registers import REGISTER


def queue_step(state, operation):
    """A queue: what is taken is what was put first; ``None`` if there is nothing."""
    kind, value = operation
    if kind == "put":
        return True, (*state, value)
    if not state:
        return value is None, state
    return value == state[0], state[1:]


def cell_step(state, operation):
    """A cell that is written, read, or compared and set."""
    kind, *values = operation
    if kind == "write":
        return True, values[0]
    if kind == "read":
        return state == values[0], state
    return state == values[0], values[1]


QUEUE = Model((), queue_step)
CELL = Model(0, cell_step, lambda operation: operation[0] == "read")

small = st.integers(0, 2)
INPUTS = [
    (REGISTER, st.tuples(st.sampled_from(["add", "look"]), small)),
    (
        QUEUE,
        st.one_of(st.tuples(st.just("put"), small), st.tuples(st.just("take"), st.none() | small)),
    ),
    (
        CELL,
        st.one_of(
            st.tuples(st.just("write"), small),
            st.tuples(st.just("read"), small),
            st.tuples(st.just("swap"), small, small),
        ),
    ),
]


@st.composite
def runs(draw):
    model, inputs = draw(st.sampled_from(INPUTS))
    operations = []
    for number in range(draw(st.integers(1, 6))):
        invoked = draw(st.integers(0, 8))
        answered = draw(st.none() | st.integers(invoked, 9))
        must = answered is not None or draw(st.booleans())
        operations.append(Operation(str(number), draw(inputs), invoked, answered, must))
    return model, operations


def has_an_order(operations, model):
    """Try all orders of all selections."""
    must = [each for each in operations if each.must]
    may = [each for each in operations if not each.must]
    for selection in range(2 ** len(may)):
        chosen = must + [each for place, each in enumerate(may) if selection >> place & 1]
        if any(_allowed(order, model) for order in permutations(chosen)):
            return True
    return False


def _allowed(order, model):
    state = model.initial
    latest = float("-inf")
    for operation in order:
        # It takes effect at a moment that is not before those of the operations before it.
        latest = max(latest, operation.invoked)
        if operation.answered is not None and operation.answered < latest:
            return False
        possible, state = model.step(state, operation.input)
        if not possible:
            return False
    return True


@given(runs())
def test_it_finds_an_order_if_and_only_if_there_is_one(run):
    model, operations = run
    there_is = has_an_order(operations, model)
    event("linearizable" if there_is else "not linearizable")
    assert (linearize(operations, model) is None) == there_is


def test_it_names_the_first_that_has_no_place():
    first = Operation("first", ("add", 0), 0, 1)
    second = Operation("second", ("add", 0), 2, 4)
    other = Operation("other", ("add", 5), 3, None, must=False)
    result = linearize([first, second, other], REGISTER)
    assert isinstance(result, NotLinearizable)
    assert result.operation == second
    assert result.states == (1,)


def test_it_gives_up_rather_than_run_for_ever():
    puts = [Operation(str(number), ("put", number), 0, 10) for number in range(12)]
    take = Operation("take", ("take", 5), 11, 12)
    result = linearize([*puts, take], QUEUE, limit=1000)
    assert isinstance(result, Undecided)
    assert result.configurations > 1000


@pytest.mark.parametrize("answered", [None, 1e9])
def test_operations_that_stay_open_do_not_multiply_the_work(answered):
    """Each adds to what is possible at every moment; no moment has more than a few states."""
    operations = []
    for number in range(300):
        open_one = ("add", number)
        operations += [
            Operation(f"open {number}", open_one, 10 * number, answered, must=answered is not None),
            Operation(f"look {number}", ("look", number + 1), 10 * number + 1, 10 * number + 2),
        ]
        if answered is None:
            operations.append(Operation(f"again {number}", open_one, 10 * number, None, must=False))
    assert linearize(operations, REGISTER, limit=2000) is None


def test_what_would_change_nothing_now_may_be_needed_later():
    operations = [
        Operation("write", ("write", 2), 0, None, must=False),
        Operation("another", ("write", 2), 0, None, must=False),
        Operation("swap", ("swap", 2, 0), 0, 0),
        Operation("read", ("read", 2), 1, 1),
    ]
    assert linearize(operations, CELL) is None
