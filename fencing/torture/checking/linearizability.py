"""Whether concurrent operations can have taken effect one at a time.

Each operation is invoked and answered; it is to have taken effect at one moment in between, so that
all of them in the order of these moments are what a single caller could have seen. The search is
that of Wing and Gong, linearizing just in time, as Lowe does: operations are put into the order
only when one of them is answered and has no place yet. What has been searched is remembered, as the
set of configurations that are possible at a moment: a state, and those of the open operations that
have taken effect in it. So the work depends on how many operations are open at a time, not on how
many there are.

Two reductions, both without regard to what the states mean:

- An open operation that only reads takes effect as soon as it can: whatever comes after it would
  come after it all the same. (Not so one that merely happens to leave a state as it is: it may be
  needed later, in another.)
- Of operations with the same input that are never answered, the first invoked stands for each.

The known checkers are Porcupine (Go) and Knossos (Clojure); there is none for Python.

References: J. Wing, C. Gong, "Testing and Verifying Concurrent Objects", 1993; G. Lowe, "Testing
for linearizability", 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Model", "NotLinearizable", "Operation", "Undecided", "linearize"]

State = TypeVar("State", bound=Hashable)
Input = TypeVar("Input", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation(Generic[Input]):
    """What one caller did.

    Attributes:
        name: What it is called in a report.
        input: What it did and what it was answered, as the model understands it.
        invoked: When it began.
        answered: When it was answered; ``None`` if never: it may take effect at any time after.
        must: Whether it has taken effect at all. One that was answered must.
    """

    name: str
    input: Input
    invoked: float
    answered: float | None
    must: bool = True


@dataclass(frozen=True, slots=True)
class Model(Generic[State, Input]):
    """What a single caller sees.

    Attributes:
        initial: The state before all operations.
        step: The state after an operation in a state, and whether the operation could be answered
            as it was there.
        only_reads: Whether an operation leaves every state as it is. Only for speed: none is also
            an answer.
    """

    initial: State
    step: Callable[[State, Input], tuple[bool, State]]
    only_reads: Callable[[Input], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class NotLinearizable(Generic[State, Input]):
    """There is no order.

    Attributes:
        operation: The first that has no place in any.
        states: Those that were possible when it was answered.
        open: What else was open then.
    """

    operation: Operation[Input]
    states: tuple[State, ...]
    open: tuple[Operation[Input], ...]


@dataclass(frozen=True, slots=True)
class Undecided(Generic[Input]):
    """There are too many possibilities to go through.

    Attributes:
        operation: The one at whose answer the search was given up.
        configurations: How many there were then.
    """

    operation: Operation[Input]
    configurations: int


def linearize(
    operations: Iterable[Operation[Input]],
    model: Model[State, Input],
    *,
    limit: int = 100_000,
) -> NotLinearizable[State, Input] | Undecided[Input] | None:
    """Look for an order of operations that the model allows.

    Args:
        operations: What was done, in any order.
        model: What a single caller would see.
        limit: How many configurations to go through at one answer, before giving up.

    Returns:
        ``None`` if there is an order.
    """
    return _Search(list(operations), model, limit).run()


# A state, and the open operations (by number) that have taken effect in it.
_Configuration = tuple[State, frozenset[int]]


class _Search(Generic[State, Input]):
    def __init__(
        self, operations: list[Operation[Input]], model: Model[State, Input], limit: int
    ) -> None:
        self._operations = operations
        self._model = model
        self._limit = limit
        self._configurations: set[_Configuration[State]] = {(model.initial, frozenset())}
        # Open operations that will be answered; those that never are, by input, in order.
        self._open: dict[int, None] = {}
        self._unanswered: dict[Input, list[int]] = {}
        # Those that are never answered, and have taken effect whatever was the case.
        self._certain: set[int] = set()

    def run(self) -> NotLinearizable[State, Input] | Undecided[Input] | None:
        for number, is_answer in self._events():
            if not is_answer:
                self._invoke(number)
                continue
            failure = self._answer(number)
            if failure is not None:
                return failure
        return None

    def _events(self) -> list[tuple[int, bool]]:
        """Invocations and answers by time; of one moment, invocations first: they may overlap."""
        events: list[tuple[float, bool, int]] = []
        for number, operation in enumerate(self._operations):
            events.append((operation.invoked, False, number))
            if operation.answered is not None:
                events.append((operation.answered, True, number))
            elif operation.must:
                events.append((float("inf"), True, number))
        events.sort()
        return [(number, is_answer) for _time, is_answer, number in events]

    def _invoke(self, number: int) -> None:
        operation = self._operations[number]
        if operation.answered is None and not operation.must:
            self._unanswered.setdefault(operation.input, []).append(number)
        else:
            self._open[number] = None
        self._configurations = {self._settled(each, (number,)) for each in self._configurations}

    def _answer(self, number: int) -> NotLinearizable[State, Input] | Undecided[Input] | None:
        """Keep the configurations in which an operation has taken effect, or can do so now."""
        if number in self._certain:
            return None
        found: set[_Configuration[State]] = set()
        searched = set(self._configurations)
        left = list(searched)
        while left:
            configuration = left.pop()
            state, done = configuration
            if number in done:
                found.add((state, done - {number}))
                continue
            for each in self._candidates(done):
                possible, after = self._model.step(state, self._operations[each].input)
                if not possible:
                    continue
                further = self._settled((after, done | {each}))
                if further not in searched:
                    searched.add(further)
                    left.append(further)
            if len(searched) > self._limit:
                return Undecided(self._operations[number], len(searched))
        if not found:
            return NotLinearizable(
                self._operations[number],
                tuple({state for state, _done in self._configurations}),
                tuple(self._operations[each] for each in self._open if each != number),
            )
        self._open.pop(number, None)
        self._configurations = self._without_what_all_have(found)
        return None

    def _candidates(self, done: frozenset[int]) -> Iterable[int]:
        """Open operations that have not taken effect, of equal ones that need not the first."""
        for each in self._open:
            if each not in done:
                yield each
        for equal in self._unanswered.values():
            for each in equal:
                if each not in done:
                    yield each
                    break

    def _settled(
        self, configuration: _Configuration[State], candidates: Iterable[int] | None = None
    ) -> _Configuration[State]:
        """A configuration in which all has taken effect that can and only reads."""
        state, done = configuration
        read = []
        for each in self._candidates(done) if candidates is None else candidates:
            made = self._operations[each].input
            if self._model.only_reads(made) and self._model.step(state, made)[0]:
                read.append(each)
        return (state, done.union(read)) if read else configuration

    def _without_what_all_have(
        self, configurations: set[_Configuration[State]]
    ) -> set[_Configuration[State]]:
        """Forget operations that are never answered once they have taken effect in all."""
        common = frozenset(
            each
            for each in frozenset.intersection(*(done for _state, done in configurations))
            if self._operations[each].answered is None
        )
        if not common:
            return configurations
        self._certain |= common
        for each in common:
            self._open.pop(each, None)
        for key in [*self._unanswered]:
            left = [each for each in self._unanswered[key] if each not in common]
            if left:
                self._unanswered[key] = left
            else:
                del self._unanswered[key]
        return {(state, done - common) for state, done in configurations}
