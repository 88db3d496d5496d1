"""What goes round the write paths, or tries to: told in docs/coverage.md, tried where it says."""

from __future__ import annotations

from typing import NamedTuple


class Attack(NamedTuple):
    """One of them.

    Attributes:
        what: What is done.
        outcome: What comes of it.
        test: Where it is tried: file and function.
    """

    what: str
    outcome: str
    test: str


REQUIRE = "tests/schema/test_require.py"

ATTACKS = [
    Attack(
        "a claim written by hand, under its own stamp, that is not exactly right",
        "refused",
        f"{REQUIRE}::test_a_claim_that_is_not_exactly_right_is_refused",
    ),
    Attack(
        "a claim of another backend",
        "refused",
        f"{REQUIRE}::test_a_claim_of_another_backend_is_refused",
    ),
    Attack(
        "a claim that a pool leaks into the next transaction",
        "refused",
        f"{REQUIRE}::test_a_claim_that_leaked_into_the_next_transaction_is_refused",
    ),
]
