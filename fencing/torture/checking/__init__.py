"""Checkers: pure functions from a history to what must not be in it.

::

    order         tokens and admissions as the database accepted them            I1 I2 I5
    marks         a resource's mark only rises                                   I11
    leases        under which leases it was written                              I6 I9
    updates       each number follows from the one before                        I3
    presence      what workers were told, and what is there                      I3 I13
    reads         what was read under a lease                                    I4
    transfers     all or none, and the sum                                       I12
    trust         for how long leases were believed in                           I15
    successors    who waited, and for how long                                   I14
    witnesses     refusals and denials have reasons                              the converse
    breakage      errors are of faults, not of mistakes                          the converse
    work          not everything is refused                                      the converse
    final         what there is at the end                                       I3
    registers, linearizability   what callers see is as if done one at a time    I3

    elements, excuses, views   what several of them need
    violation     what they say

None does any I/O or knows a clock. Each trusts as little of the others' business as it can: a
broken history is to be caught by the checker whose business it is, whatever else is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.torture.checking.breakage import nothing_breaks
from fencing.torture.checking.final import final_state_agrees
from fencing.torture.checking.leases import nothing_leaks, nothing_without_a_lease
from fencing.torture.checking.marks import marks_survive
from fencing.torture.checking.order import (
    nothing_after_a_newer_admission,
    one_holder_per_token,
    tokens_never_decrease,
)
from fencing.torture.checking.presence import (
    acknowledged_writes_are_there,
    outcomes_are_true,
    what_failed_left_nothing,
)
from fencing.torture.checking.reads import reads_are_current
from fencing.torture.checking.registers import registers_are_linearizable
from fencing.torture.checking.successors import longest_wait, successors_proceed
from fencing.torture.checking.transfers import all_or_none
from fencing.torture.checking.trust import trust_never_overlaps
from fencing.torture.checking.updates import no_lost_update
from fencing.torture.checking.violation import Violation
from fencing.torture.checking.witnesses import refusals_have_a_witness
from fencing.torture.checking.work import work_was_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.torture.history import History

__all__ = ["CHECKERS", "Checker", "Violation", "check", "longest_wait"]


@dataclass(frozen=True, slots=True)
class Checker:
    """One thing that is checked of each history.

    Attributes:
        name: Its public name, by which its violations go.
        invariant: What it checks: an invariant's number, or ``"converse"``.
        statement: What holds in each history, in one line.
        find: What violates it.
    """

    name: str
    invariant: str
    statement: str
    find: Callable[[History], list[Violation]]


CHECKERS: tuple[Checker, ...] = (
    Checker(
        "tokens never decrease",
        "I1",
        "the tokens of a resource's accepted writes never decrease",
        tokens_never_decrease,
    ),
    Checker(
        "nothing after a newer admission",
        "I2",
        "after an admission, no write with a smaller token is accepted",
        nothing_after_a_newer_admission,
    ),
    Checker(
        "no lost update",
        "I3",
        "each number is written by who had read the one before",
        no_lost_update,
    ),
    Checker(
        "acknowledged writes are there",
        "I3",
        "what was told to be committed is there, once",
        acknowledged_writes_are_there,
    ),
    Checker(
        "final state agrees",
        "I3",
        "what is there at the end is what the accepted writes have left",
        final_state_agrees,
    ),
    Checker(
        "registers are linearizable",
        "I3",
        "what workers were told is as if each transaction was done at one moment",
        registers_are_linearizable,
    ),
    Checker(
        "reads are current",
        "I4",
        "what is read under a lease contains all that was accepted before its admission",
        reads_are_current,
    ),
    Checker(
        "one holder per token",
        "I5",
        "who writes or is admitted with a token is always the same",
        one_holder_per_token,
    ),
    Checker(
        "nothing without a lease",
        "I6",
        "each write is under a lease that was granted to its worker and admitted before",
        nothing_without_a_lease,
    ),
    Checker(
        "nothing leaks",
        "I9",
        "a claim that another transaction left behind lets nobody write",
        nothing_leaks,
    ),
    Checker(
        "marks survive",
        "I11",
        "a resource's mark never goes back, and is there at the end",
        marks_survive,
    ),
    Checker(
        "all or none",
        "I12",
        "a transfer changes both accounts or none, and money is conserved",
        all_or_none,
    ),
    Checker(
        "what failed left nothing",
        "I13",
        "what was told not to be committed is not there",
        what_failed_left_nothing,
    ),
    Checker(
        "outcomes are true",
        "I13",
        "an unknown outcome is what it was found to be",
        outcomes_are_true,
    ),
    Checker(
        "successors proceed",
        "I14",
        "who waits gets the lease within its predecessor's bound, or learns who blocks it",
        successors_proceed,
    ),
    Checker(
        "trust never overlaps",
        "I15",
        "while the lock service keeps its order, one lease at a time is believed in",
        trust_never_overlaps,
    ),
    Checker(
        "refusals have a witness",
        "converse",
        "nothing is refused without a reason that the history shows",
        refusals_have_a_witness,
    ),
    Checker(
        "nothing breaks",
        "converse",
        "nobody meets an error that tells of a mistake",
        nothing_breaks,
    ),
    Checker(
        "work was done",
        "converse",
        "something of each sort that was tried was committed",
        work_was_done,
    ),
)
"""All checkers, in the order in which they are reported."""


def check(history: History) -> list[Violation]:
    """Return what violates any of the checkers, in their order."""
    return [violation for checker in CHECKERS for violation in checker.find(history)]
