"""All mutants: what is wrong with each, who must see it, and in which schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import text

from tests.torture.mutants.texts import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

__all__ = ["MUTANTS", "Mutant"]


def function(name: str, *replacements: tuple[str, str]) -> Callable[[Connection], None]:
    """Change the text of a function of schema ``fencing``."""

    def change(connection: Connection) -> None:
        definition = connection.execute(
            text(
                "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p"
                " WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND p.proname = :name"
                " ORDER BY p.pronargs DESC LIMIT 1"
            ),
            {"name": name},
        ).scalar_one()
        connection.exec_driver_sql(replaced(definition, *replacements).replace("%", "%%"))

    return change


def statement(sql: str) -> Callable[[Connection], None]:
    """Execute something that fails if there is nothing to change."""

    def change(connection: Connection) -> None:
        connection.exec_driver_sql(sql)

    return change


def template(*replacements: tuple[str, str]) -> Callable[[Connection], None]:
    """Change what guards are rendered from, and render them anew."""

    def change(connection: Connection) -> None:
        function("render_body", *replacements)(connection)
        connection.exec_driver_sql("SELECT fencing.refresh_guards()")

    return change


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        name: What is wrong.
        schedule: What leads to it.
        checker: Who must see it.
        changes: What is changed of the database.
        twist: What is changed of the workers.
        guarded: Whether there is a guard at all.
    """

    name: str
    schedule: str
    checker: str
    changes: tuple[Callable[[Connection], None], ...] = field(default=())
    twist: str | None = None
    guarded: bool = True


_DROP_CHECK = statement("ALTER TABLE fencing.fence DROP CONSTRAINT fence_token_never_decreases")
_OWN_PAIR = "IF v_mark = p_token AND v_holder = p_holder THEN"
_TRY_LOCK = "IF NOT pg_try_advisory_xact_lock(v_key) THEN"
_SHARED_LOCK = "pg_try_advisory_xact_lock_shared(fencing.lock_key(v_resource))"
_LOCKING = "    -- One lease, which is free to enter and good."
_ADMIT_NOWHERE = (
    "ALTER FUNCTION fencing.admit(text, bigint, text, text, integer) RENAME TO admit_inside",
    """
    CREATE FUNCTION fencing.admit(text, bigint, text, text, integer) RETURNS boolean
    LANGUAGE sql AS 'SELECT true'
    """,
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencing TO PUBLIC",
)
_ADMIT_INSIDE = """
    PERFORM fencing.admit_inside(
        v_resource, CAST(split_part(split_part(p_leases, '=', 2), '.', 1) AS bigint),
        split_part(p_leases, '.', 2), '', 10000);
"""
_COMPARED = "CONTINUE WHEN FOUND AND concat(v_token, '.', v_holder) = v_claimed;"
_BOTH_ROWS = "ARRAY['new_rows', 'old_rows']"
_UNLOCKED = (
    function("require", ("v_resource FOR SHARE;", "v_resource;")),
    template(("                FOR SHARE)';", ")';")),
)
"""Guards have a way of their own for what is common, and ``require`` for the rest."""

MUTANTS = (
    # Admission.
    Mutant(
        "the CHECK of the fence is dropped",
        "a_mark_is_set_back", "marks survive",
        (_DROP_CHECK,),
    ),
    Mutant(
        "a token below the mark is admitted",
        "tokens_go_back", "marks survive",
        (
            _DROP_CHECK,
            function("admit", ("v_mark >= p_token", "false"), ("f.token < p_token", "true")),
        ),
    ),
    Mutant(
        "the mark's own token is admitted for another holder",
        "a_lock_is_granted_twice", "one holder per token",
        (
            _DROP_CHECK,
            function(
                "admit", ("v_mark >= p_token", "v_mark > p_token"),
                ("f.token < p_token", "f.token <= p_token"),
            ),
        ),
    ),
    Mutant(
        "a holder's second admission is refused (> for >=)",
        "work", "refusals have a witness",
        (function("admit", (_OWN_PAIR, "IF false THEN")),),
    ),
    Mutant(
        "the admission is a part of the holder's transaction",
        "a_holder_reads_and_undoes", "reads are current",
        (
            *map(statement, _ADMIT_NOWHERE),
            function("enter", (_LOCKING, _ADMIT_INSIDE + _LOCKING)),
        ),
    ),
    Mutant(
        "an admission does not wait for the disk (synchronous_commit off)",
        "the_database_crashes", "reads are current",
        (function("admit", ("IN ('off', 'local', 'remote_write')", "IN ('none')")),),
    ),
    Mutant(
        "an admission takes no lock",
        "sessions_of_one_lease_overlap", "successors proceed",
        (function("admit", (_TRY_LOCK, "IF false THEN")),),
    ),
    Mutant(
        "an entry takes no lock",
        "sessions_of_one_lease_overlap", "successors proceed",
        (function("enter", (_SHARED_LOCK, "true")),),
    ),
    # The guard of a table.
    Mutant(
        "the guard reads the fence without a lock, REPEATABLE READ",
        "an_entry_waits, REPEATABLE READ", "nothing after a newer admission",
        _UNLOCKED,
    ),
    Mutant(
        "the guard reads the fence without a lock, SERIALIZABLE",
        "an_entry_waits, SERIALIZABLE", "nothing after a newer admission",
        _UNLOCKED,
    ),
    Mutant(
        "the guard asks only whether a lease was presented",
        "an_entry_waits, REPEATABLE READ", "nothing after a newer admission",
        (
            *_UNLOCKED,
            function("require", (_COMPARED, "CONTINUE;")),
            function("is_claimed", ("= CAST(p_token AS text) || '.' || p_holder", "<> ''")),
        ),
    ),
    Mutant(
        "a claim is good in any transaction",
        "a_claim_is_left_behind", "nothing leaks",
        (
            function("require", ("IF NOT starts_with(v_claim, fencing.stamp() || ' ') THEN",
                                 "IF false THEN")),
            function("is_claimed", ("fencing.stamp() || ' '", "''")),
        ),
    ),
    Mutant(
        "an UPDATE checks only the new row",
        "rows_are_moved", "nothing without a lease",
        (template((_BOTH_ROWS, "ARRAY['new_rows']")),),
    ),
    Mutant(
        "an UPDATE checks only the old row",
        "rows_are_moved", "nothing without a lease",
        (template((_BOTH_ROWS, "ARRAY['old_rows']")),),
    ),
    *(
        Mutant(
            f"{operation.upper()} is not guarded",
            "nothing_is_presented", "nothing without a lease",
            (statement(f"ALTER TABLE torture.{table} DISABLE TRIGGER fencing_{operation}"),),
        )
        for operation, table in (
            ("insert", "element"), ("update", "register"), ("delete", "element"),
        )
    ),
    Mutant(
        "the guard refuses everything",
        "work", "work was done",
        (function("require", (_COMPARED, "")), template(("SELECT true FROM", "SELECT false FROM"))),
    ),
    Mutant(
        "a transaction that has begun presents a lease (fence() after the first read)",
        "a_transaction_is_older_than_its_lease", "no lost update",
        twist="enters_begun_transactions",
    ),
    # What the fence keeps.
    Mutant(
        "a fence can be renamed",
        "a_fence_is_renamed", "marks survive",
        (function("remember_previous",
                  ("IF NEW.resource IS DISTINCT FROM OLD.resource THEN", "IF false THEN")),),
    ),
    Mutant(
        "pruning keeps no floor",
        "a_fence_is_pruned", "marks survive",
        (
            function("keep_fence", ("fencing.floor_of(OLD.resource) >= OLD.token", "true")),
            function("prune", ("UPDATE fencing.floor AS f SET token = v_fence.token",
                               "UPDATE fencing.floor AS f SET token = f.token")),
        ),
    ),
    Mutant(
        "pruning takes no lock",
        "a_fence_in_use_is_not_pruned", "refusals have a witness",
        (
            function("keep_fence", ("pg_try_advisory_xact_lock(fencing.lock_key(OLD.resource))",
                                    "true")),
            function("prune", ("NOT pg_try_advisory_xact_lock(fencing.lock_key(v_fence.resource))",
                               "false")),
        ),
    ),
    Mutant(
        "an eviction ends whoever has the resource",
        "an_eviction_is_late", "refusals have a witness",
        (function("evict", ("IF v_mark >= p_token THEN", "IF false THEN"),
                  ("a.xact_start < p_since", "true")),),
    ),
    Mutant(
        "pg_xact_status is believed",
        "an_outcome_is_asked_for_in_a_crash", "outcomes are true",
        (function("outcome_of", ("fencing.incarnation() IS DISTINCT FROM p_incarnation",
                                 "false")),),
    ),
    # Healing.
    Mutant(
        "a lease that was admitted is given another token",
        "a_lock_service_is_restored", "no lost update",
        twist="raises_admitted_tokens",
    ),
    Mutant(
        "a token is raised without a look at who has the lock",
        "a_lost_lock_needs_a_higher_token", "refusals have a witness",
        twist="raise_checks_nothing",
    ),
    # The lock service's client.
    Mutant(
        "trust is measured from the answer",
        "an_answer_is_late", "trust never overlaps",
        twist="trust_from_the_reply",
    ),
    Mutant(
        "acquiring again does not give the lock its time again",
        "an_answer_is_lost", "trust never overlaps",
        twist="acquire_does_not_rearm",
    ),
    Mutant(
        "a release compares nothing",
        "a_release_is_late", "trust never overlaps",
        twist="release_compares_nothing",
    ),
    Mutant(
        "a release compares the holder's label",
        "a_release_is_late", "trust never overlaps",
        twist="release_compares_the_label",
    ),
    # No guard at all.
    Mutant(
        "there is no guard",
        "a_holder_is_paused", "no lost update",
        guarded=False,
    ),
)  # fmt: skip
