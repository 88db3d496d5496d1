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
ATTACKING = "tests/coverage/test_attacks.py"
PATHS = "tests/coverage/test_paths.py"
HOSTILE = "tests/schema/test_hostile.py"
MAINTENANCE = "tests/coverage/test_maintenance.py"
FENCE = "tests/schema/test_fence.py"
PIN = "tests/schema/test_pin.py"
DDL = "tests/schema/test_ddl.py"
PARTITIONS = "tests/coverage/test_partitions.py"
INHERITANCE = "tests/coverage/test_inheritance.py"
RETENTION = "tests/coverage/test_retention.py"
DUMP = "tests/coverage/test_dump.py"
POOLERS = "tests/poolers/test_pgbouncer.py"

ATTACKS = [
    Attack(
        "a claim written by hand, under its own stamp, that is not exactly right",
        "refused",
        f"{REQUIRE}::test_a_claim_that_is_not_exactly_right_is_refused",
    ),
    Attack(
        "a claim whose fence does not exist",
        "refused",
        f"{REQUIRE}::test_a_claim_whose_fence_is_missing_is_refused",
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
    Attack(
        "a claim set for the whole session",
        "refused",
        f"{ATTACKING}::test_a_claim_for_the_whole_session_is_of_no_transaction",
    ),
    Attack(
        "a lease presented in a savepoint that is rolled back",
        "its claim is gone: refused",
        f"{REQUIRE}::test_a_claim_ends_with_its_savepoint",
    ),
    Attack(
        "a lease presented in a savepoint that is released",
        "stays presented",
        f"{ATTACKING}::test_a_lease_presented_in_a_savepoint_that_is_released_stays",
    ),
    Attack(
        "a refusal that is rolled back to a savepoint",
        "nothing is written, the transaction goes on",
        f"{REQUIRE}::test_a_refusal_caught_by_a_savepoint_leaves_the_transaction_usable",
    ),
    Attack(
        "one row of another resource among many",
        "the whole statement is refused",
        f"{REQUIRE}::test_one_row_of_another_resource_refuses_the_whole_statement",
    ),
    Attack(
        "names that a collation calls equal",
        "two resources: both leases are needed",
        f"{REQUIRE}::test_names_that_a_collation_calls_equal_are_two_resources",
    ),
    Attack(
        "`session_replication_role = replica`",
        "refused: the triggers are ENABLE ALWAYS",
        f"{PATHS}::test_without_a_lease_and_as_a_replica",
    ),
    Attack(
        "an operator or a function in a schema ahead of `pg_catalog`",
        "changes nothing",
        f"{HOSTILE}::test_an_operator_ahead_of_pg_catalog_changes_nothing",
    ),
    Attack(
        "a temporary table called like the fence",
        "changes nothing",
        f"{HOSTILE}::test_a_temporary_table_does_not_stand_in_for_the_fence",
    ),
    Attack(
        "row security that hides rows from the writer",
        "the guard sees them",
        f"{HOSTILE}::test_the_guard_sees_rows_that_row_security_hides_from_the_writer",
    ),
    Attack(
        "an application's role disables or drops the guard, or writes the fence",
        "not permitted",
        f"{HOSTILE}::test_the_fence_and_the_guard_are_out_of_its_reach",
    ),
    Attack(
        "an application's role writes `fencing.maintenance`",
        "not permitted",
        f"{MAINTENANCE}::test_not_everybody",
    ),
    Attack(
        "UPDATE of the fence by its owner, backwards or to another holder",
        "refused",
        f"{FENCE}::test_no_update_moves_the_mark_backwards_or_swaps_its_holder",
    ),
    Attack(
        "DELETE, TRUNCATE or renaming of a fence by its owner",
        "refused",
        f"{FENCE}::test_a_fence_cannot_be_removed_or_renamed",
    ),
    Attack(
        "a statement prepared before the table was fenced",
        "refused",
        f"{ATTACKING}::test_a_statement_that_was_prepared_before_the_table_was_fenced_is_checked",
    ),
    Attack(
        "a function planned before the table was fenced",
        "refused",
        f"{ATTACKING}::test_a_function_that_was_planned_before_the_table_was_fenced_is_checked",
    ),
    Attack(
        "a transaction that had written before the table was fenced",
        "fencing waits for it, and says so",
        f"{ATTACKING}::test_a_transaction_that_had_written_before_is_waited_for",
    ),
    Attack(
        "a transaction that had read before the table was fenced",
        "its writes are checked",
        f"{ATTACKING}::test_a_transaction_that_had_read_before_is_checked_at_its_first_write",
    ),
    Attack(
        "a guarded table is made a partition or a child of another",
        "refused",
        f"{PIN}::test_it_cannot_become_a_child_whose_parent_would_pass_the_guard_by",
    ),
    Attack(
        "a column of the template is dropped",
        "refused",
        f"{PIN}::test_a_column_of_its_template_is_not_dropped",
    ),
    Attack(
        "a column of the template gets another type",
        "refused where its text is not always the same",
        f"{PIN}::test_a_column_of_its_template_keeps_its_type",
    ),
    Attack(
        "a table is renamed, and another takes its name",
        "it stays guarded, the other is not",
        f"{DDL}::test_a_renamed_table_stays_guarded_and_so_does_the_next_of_its_name",
    ),
    Attack(
        "UPDATE that moves a row to another partition, with any subset of `operations`",
        "checked, as what PostgreSQL makes of it: a DELETE and an INSERT",
        f"{PARTITIONS}::test_they_need_the_lease_whichever_operations_are_guarded",
    ),
    Attack(
        (
            "a BEFORE UPDATE trigger whose name sorts behind `~fencing_move` moves a row"
            " to another partition and resource, where `operations` are not all three"
        ),
        '**passes** where only "update" is guarded',
        f"{PARTITIONS}::test_only_a_trigger_that_sorts_behind_the_guards_own_hides_the_new_resource",
    ),
    Attack(
        "TRUNCATE of a partition made or attached after it was fenced",
        "**passes** until `fencing.refresh_guards()`",
        f"{PARTITIONS}::test_their_truncate_is_the_one_gap_and_refreshing_closes_it",
    ),
    Attack(
        "a straight write to an inheritance child made after it was fenced",
        "**passes** until `fencing.refresh_guards()`",
        f"{INHERITANCE}::test_straight_writes_to_a_later_child_are_the_gap_and_refreshing_closes_it",
    ),
    Attack(
        "a partition is detached",
        "its rows are **no longer guarded**; fence it by itself",
        f"{PARTITIONS}::test_writes_to_it_are_no_longer_checked",
    ),
    Attack(
        "a detached partition is attached again",
        "guarded again",
        f"{PARTITIONS}::test_attached_again_it_is_guarded_again",
    ),
    Attack(
        "an inheritance child inherits no more",
        "it keeps its guard",
        f"{INHERITANCE}::test_it_keeps_its_guard",
    ),
    Attack(
        "the owner attaches, detaches or drops a partition with rows",
        "**passes**: DDL is no write",
        f"{ATTACKING}::test_rows_come_and_go_with_partitions_unchecked",
    ),
    Attack(
        "the owner changes a column's type, disables the triggers, drops the table",
        "**passes**: DDL is no write",
        f"{ATTACKING}::test_what_the_owner_of_the_table_changes_with_ddl_is_no_write",
    ),
    Attack(
        "maintenance, beside holders of what it writes",
        "overtakes them, in every isolation level",
        f"{MAINTENANCE}::test_who_read_before_and_writes_after_in_one_transaction",
    ),
    Attack(
        "maintenance, beside an admission",
        "the admission waits, and finds the mark above it",
        f"{MAINTENANCE}::test_an_admission_that_comes_meanwhile_waits_and_finds_the_mark",
    ),
    Attack(
        "TRUNCATE in maintenance",
        "refused: nobody knows whose rows they were",
        f"{MAINTENANCE}::test_a_truncate_is_refused_even_then",
    ),
    Attack(
        "a maintenance that is rolled back, to a savepoint too",
        "is over",
        f"{MAINTENANCE}::test_with_its_transaction_or_its_savepoint",
    ),
    Attack(
        "a fence is pruned under a holder between two transactions",
        "refused: the floor keeps the mark",
        f"{RETENTION}::test_a_holder_between_two_transactions_is_refused_and_told_its_mark",
    ),
    Attack(
        "a fence is pruned beside an old snapshot",
        "refused, 40001",
        f"{RETENTION}::test_an_old_snapshot_does_not_write_under_a_fence_that_was_pruned",
    ),
    Attack(
        "`pg_dump` and `pg_restore`",
        "guards, marks and floors are there",
        f"{DUMP}::test_every_write_is_refused_as_before",
    ),
    Attack(
        "`pg_restore --data-only` into guarded tables",
        "refused",
        f"{DUMP}::test_data_alone_is_not_restored_into_guarded_tables",
    ),
    Attack(
        "`pg_restore --disable-triggers`",
        ("**passes**, and leaves the triggers ENABLEd but not ALWAYS: `fencing verify` tells"),
        f"{DUMP}::test_disable_triggers_lets_the_data_in_and_leaves_the_guard_downgraded",
    ),
    Attack(
        "a pooler gives the connection to the next client",
        "it finds no claim, no limit, no lock",
        f"{POOLERS}::test_the_next_client_finds_no_claim_and_no_limit",
    ),
]
