"""The fence itself: its owner and a superuser may try, and nothing moves it backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema.names import FENCE_KEPT, NEVER_DECREASES
from tests.schema.sql import ACCOUNT, ALICE, BOB, admit, mark, refused

if TYPE_CHECKING:
    from tests.schema.conftest import Connect


@pytest.fixture(params=["origin", "replica"])
def owner(connect: Connect, request: pytest.FixtureRequest) -> psycopg.Connection:
    """A superuser; also with session_replication_role=replica, which disables plain triggers."""
    connection = connect(autocommit=True)
    connection.execute(f"SET session_replication_role = {request.param}")
    admit(connection, 5)
    return connection


@pytest.mark.parametrize(
    "change",
    [
        "token = 4",
        "token = 4, previous_token = 0, previous_holder = ''",
        f"token = 4, previous_token = 4, previous_holder = '{ALICE}'",
        f"holder = '{BOB}'",
        f"holder = '{BOB}', previous_holder = '{BOB}', previous_token = 5",
        f"holder = '{BOB}', previous_token = 0",
        f"token = 1, holder = '{BOB}', previous_token = 0",
    ],
)
def test_no_update_moves_the_mark_backwards_or_swaps_its_holder(owner, change):
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        owner.execute(f"UPDATE fencing.fence SET {change}")
    assert caught.value.diag.constraint_name == NEVER_DECREASES
    assert mark(owner) == (5, ALICE)


def test_an_upsert_does_not_move_it_backwards_either(owner):
    with pytest.raises(psycopg.errors.CheckViolation):
        owner.execute(
            "INSERT INTO fencing.fence (resource, token, holder, owner) VALUES (%s, 4, 'x', '') "
            "ON CONFLICT (resource) DO UPDATE SET token = excluded.token",
            (ACCOUNT,),
        )


def test_an_update_may_raise_it(owner):
    owner.execute("UPDATE fencing.fence SET token = 6, holder = %s", (BOB,))
    assert mark(owner) == (6, BOB)


def test_a_row_remembers_what_it_replaced(owner):
    owner.execute("UPDATE fencing.fence SET token = 9, holder = %s, previous_token = 8", (BOB,))
    row = owner.execute("SELECT previous_token, previous_holder FROM fencing.fence").fetchone()
    assert row == (5, ALICE)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM fencing.fence",
        "TRUNCATE fencing.fence",
        "UPDATE fencing.fence SET resource = 'elsewhere'",
        "UPDATE fencing.fence SET resource = 'elsewhere', token = 6",
    ],
)
def test_a_fence_cannot_be_removed_or_renamed(owner, statement):
    with refused(FENCE_KEPT):
        owner.execute(statement)
    assert mark(owner) == (5, ALICE)


@pytest.mark.parametrize("token", [0, -1, 2**53, 2**63 - 1])
def test_a_token_outside_its_range_is_refused(admin, token):
    with pytest.raises(psycopg.errors.CheckViolation, match="fence_token_"):
        admit(admin, token)


def test_the_largest_token_is_accepted(admin):
    assert admit(admin, 2**53 - 1)
    assert mark(admin) == (2**53 - 1, ALICE)


@pytest.mark.parametrize("resource", ["", "x" * 513, "é" * 257])
def test_a_resource_of_an_impossible_length_is_refused(admin, resource):
    with pytest.raises(psycopg.errors.CheckViolation, match="fence_resource_length"):
        admit(admin, 1, resource=resource)


def test_a_resource_is_compared_byte_by_byte(admin):
    assert admit(admin, 7, resource="é" * 256)
    assert admit(admin, 1, resource="É" * 256)
    # The same letter, decomposed: another name.
    assert admit(admin, 1, resource="e\u0301")
    assert admit(admin, 1, resource="\u00e9")


def test_mark_tells_the_token_and_not_the_holder(owner):
    assert owner.execute("SELECT fencing.mark(%s)", (ACCOUNT,)).fetchone() == (5,)
    assert owner.execute("SELECT fencing.mark('unknown')").fetchone() == (None,)
