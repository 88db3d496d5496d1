"""Ways to write ordinary tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert

from tests.coverage.model import NOTHING, STALE, UNFENCED, Path, everywhere, sql
from tests.coverage.scenarios import BANK, CASCADES
from tests.support.bank import BareTransfer
from tests.support.writes import RAW_WRITES
from tests.support.writes import WRITES as SQLALCHEMY_WRITES

if TYPE_CHECKING:
    from tests.coverage.model import Ids, Run, Writer
    from tests.support.writes import RawWrite, Write

MOVE = ("account:{mine}", "account:{mate}")
NEW = ("account:{new}",)
# TRUNCATE, where a template names columns.
ALL_ROWS: dict[str, Any] = everywhere(UNFENCED) | {"noticed": (None,)}


def through_sqlalchemy(write: Write) -> Run:
    def run(writer: Writer, ids: Ids) -> None:
        write(writer.session(), ids.mine)

    return run


def through_psycopg(write: RawWrite) -> Run:
    return lambda writer, ids: write(writer.connection, ids.mine)


def insertmanyvalues(writer: Writer, ids: Ids) -> None:
    rows = [{"account_id": ids.mine, "amount": n} for n in range(3)]
    writer.session().scalars(insert(BareTransfer).returning(BareTransfer.id), rows).all()


def copy(target: str, *, binary: bool = False) -> Run:
    """COPY of three rows from the client."""

    def run(writer: Writer, ids: Ids) -> None:
        how = " (FORMAT BINARY)" if binary else ""
        with (
            writer.connection.cursor() as cursor,
            cursor.copy(f"COPY {target} FROM STDIN{how}".encode()) as rows,
        ):
            if binary:
                rows.set_types(["int8", "int4"])
            for amount in range(3):
                rows.write_row((ids.mine, amount))

    return run


def prepared_by_the_driver(writer: Writer, ids: Ids) -> None:
    writer.connection.execute(
        "UPDATE accounts SET balance = balance - 1 WHERE id = %s", [ids.mine], prepare=True
    )


def prepared_by_hand(writer: Writer, ids: Ids) -> None:
    name = f"w_{uuid.uuid4().hex}"
    sql(
        f"PREPARE {name} (bigint) AS UPDATE accounts SET balance = balance - 1 WHERE id = $1",
        f"EXECUTE {name} ({{mine}})",
    )(writer, ids)


def server_side_cursor(writer: Writer, ids: Ids) -> None:
    with writer.connection.cursor(name="one") as cursor:
        cursor.execute("SELECT * FROM accounts WHERE id = %s FOR UPDATE", [ids.mine])
        cursor.fetchone()
        writer.connection.execute("UPDATE accounts SET balance = 0 WHERE CURRENT OF one")


def call(procedure: str) -> Run:
    """A procedure that is given the claim, and ends transactions."""

    def run(writer: Writer, ids: Ids) -> None:
        connection: Any = writer.connection
        connection.rollback()
        connection.autocommit = True
        # A claim on something that is always good, where there is none.
        connection.execute(f"CALL {procedure}(%s, %s)".encode(), [ids.mine, writer.claim])

    return run


def _merge(when: str, key: str = "mine") -> Run:
    return sql(
        f"MERGE INTO accounts AS a USING (VALUES (CAST({{{key}}} AS bigint))) AS v (id) "
        f"ON a.id = v.id {when}"
    )


def _paths(group: str, ways: dict[str, Run], **options: Any) -> list[Path]:
    return [Path(group, name, BANK, run, **options) for name, run in ways.items()]


PLAIN: list[Path] = [
    *_paths(
        "SQLAlchemy",
        {name: through_sqlalchemy(write) for name, write in SQLALCHEMY_WRITES.items()},
    ),
    Path("SQLAlchemy", "insertmanyvalues with RETURNING", BANK, insertmanyvalues),
    *_paths("psycopg", {name: through_psycopg(write) for name, write in RAW_WRITES.items()}),
    *_paths(
        "Statements",
        {
            "INSERT": sql("INSERT INTO transfers (account_id, amount) VALUES ({mine}, 1)"),
            "INSERT ... SELECT": sql(
                "INSERT INTO transfers (account_id, amount) "
                "SELECT account_id, 1 FROM transfers WHERE account_id = {mine}"
            ),
            "INSERT ... RETURNING": sql(
                "INSERT INTO transfers (account_id, amount) VALUES ({mine}, 1) RETURNING id"
            ),
            "UPDATE": sql("UPDATE accounts SET balance = 0 WHERE id = {mine}"),
            "UPDATE ... FROM": sql(
                "UPDATE accounts AS a SET balance = 0 FROM transfers AS t "
                "WHERE t.account_id = a.id AND a.id = {mine}"
            ),
            "UPDATE ONLY": sql("UPDATE ONLY accounts SET balance = 0 WHERE id = {mine}"),
            "DELETE": sql("DELETE FROM transfers WHERE account_id = {mine}"),
            "DELETE ... USING": sql(
                "DELETE FROM transfers AS t USING accounts AS a "
                "WHERE a.id = t.account_id AND a.id = {mine}"
            ),
            "ON CONFLICT DO UPDATE": sql(
                "INSERT INTO accounts VALUES ({mine}, 7) "
                "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance"
            ),
            "data-modifying CTE of several tables": sql(
                "WITH a AS (UPDATE accounts SET balance = 1 WHERE id = {mine} RETURNING id), "
                "t AS (DELETE FROM transfers WHERE account_id = {mine} RETURNING id) "
                "INSERT INTO transfers (account_id, amount) SELECT id, 9 FROM a"
            ),
            "WHERE CURRENT OF": sql(
                "DECLARE one CURSOR FOR SELECT * FROM accounts WHERE id = {mine} FOR UPDATE",
                "FETCH one",
                "UPDATE accounts SET balance = 0 WHERE CURRENT OF one",
            ),
            "DELETE WHERE CURRENT OF": sql(
                "DECLARE one CURSOR FOR SELECT * FROM accounts WHERE id = {mine}",
                "FETCH one",
                "DELETE FROM accounts WHERE CURRENT OF one",
            ),
            "WHERE CURRENT OF a named cursor of psycopg": server_side_cursor,
            "PREPARE and EXECUTE": prepared_by_hand,
            "prepared by the driver": prepared_by_the_driver,
            "EXPLAIN ANALYZE": sql(
                "EXPLAIN ANALYZE UPDATE accounts SET balance = 0 WHERE id = {mine}"
            ),
        },
    ),
    Path(
        "Statements",
        "ON CONFLICT DO UPDATE, one row new and one old",
        BANK,
        sql(
            "INSERT INTO accounts VALUES ({mine}, 7), ({new}, 7) "
            "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance"
        ),
        needs=("account:{mine}", "account:{new}"),
    ),
    Path(
        "Statements",
        "ON CONFLICT DO NOTHING, one row new and one old",
        BANK,
        sql("INSERT INTO accounts VALUES ({mine}, 7), ({new}, 7) ON CONFLICT DO NOTHING"),
        needs=NEW,
        remark="the old row is not written",
    ),
    Path(
        "Statements",
        "ON CONFLICT DO NOTHING, all rows old",
        BANK,
        sql("INSERT INTO accounts VALUES ({mine}, 7) ON CONFLICT DO NOTHING"),
        **everywhere(NOTHING),
    ),
    Path(
        "Statements",
        "a statement that touches rows of two resources",
        BANK,
        sql("UPDATE accounts SET balance = 0 WHERE id IN ({mine}, {mate})"),
        needs=MOVE,
    ),
    Path(
        "Statements",
        "UPDATE that moves a row to another resource",
        BANK,
        sql("UPDATE transfers SET account_id = {mate} WHERE account_id = {mine}"),
        needs=MOVE,
        remark="both leases are needed",
    ),
    Path(
        "Statements",
        "UPDATE that swaps two resources",
        BANK,
        sql(
            "UPDATE transfers AS t SET account_id = {mine} + {mate} - t.account_id, "
            "amount = t.account_id WHERE account_id IN ({mine}, {mate})"
        ),
        needs=MOVE,
    ),
    Path(
        "Statements",
        "SELECT ... FOR UPDATE",
        BANK,
        sql("SELECT * FROM accounts WHERE id = {mine} FOR UPDATE"),
        **everywhere(NOTHING),
        remark="locks rows, writes none",
    ),
    Path(
        "Statements",
        "a statement that finds no row",
        BANK,
        sql("UPDATE accounts SET balance = 0 WHERE id = {new}"),
        **everywhere(NOTHING),
    ),
    *_paths(
        "MERGE",
        {
            "WHEN MATCHED THEN UPDATE": _merge("WHEN MATCHED THEN UPDATE SET balance = 1"),
            "WHEN MATCHED THEN DELETE": _merge("WHEN MATCHED THEN DELETE"),
            "WHEN MATCHED AND ... THEN": _merge(
                "WHEN MATCHED AND a.balance > 0 THEN UPDATE SET balance = 0 "
                "WHEN MATCHED THEN DELETE"
            ),
        },
    ),
    Path(
        "MERGE",
        "WHEN NOT MATCHED THEN INSERT",
        BANK,
        _merge("WHEN NOT MATCHED THEN INSERT VALUES (v.id, 1)", "new"),
        needs=NEW,
    ),
    Path(
        "MERGE",
        "WHEN MATCHED THEN DO NOTHING",
        BANK,
        _merge("WHEN MATCHED THEN DO NOTHING"),
        **everywhere(NOTHING),
    ),
    Path(
        "MERGE",
        "every branch at once",
        BANK,
        sql(
            "MERGE INTO accounts AS a USING (VALUES (CAST({mine} AS bigint), 'u'), "
            "({mate}, 'd'), ({new}, 'i')) AS v (id, what) ON a.id = v.id "
            "WHEN MATCHED AND what = 'u' THEN UPDATE SET balance = 1 "
            "WHEN MATCHED THEN DELETE "
            "WHEN NOT MATCHED THEN INSERT VALUES (v.id, 1)"
        ),
        needs=(*MOVE, *NEW),
    ),
    Path(
        "MERGE",
        "WHEN NOT MATCHED BY SOURCE",
        BANK,
        sql(
            "MERGE INTO accounts AS a USING (SELECT -1 AS id) AS v ON a.id = v.id "
            "WHEN NOT MATCHED BY SOURCE AND a.id = {mine} THEN UPDATE SET balance = 1 "
            "WHEN NOT MATCHED BY SOURCE AND a.id = {mate} THEN DELETE"
        ),
        needs=MOVE,
        since=17,
    ),
    Path(
        "MERGE",
        "RETURNING",
        BANK,
        _merge("WHEN MATCHED THEN UPDATE SET balance = 1 RETURNING merge_action()"),
        since=17,
    ),
    Path(
        "MERGE",
        "in a CTE",
        BANK,
        sql(
            "WITH m AS (MERGE INTO accounts AS a USING (SELECT {mine} AS id) AS v ON a.id = v.id "
            "WHEN MATCHED THEN UPDATE SET balance = 1 RETURNING a.id) SELECT * FROM m"
        ),
        since=17,
    ),
    Path(
        "MERGE",
        "into a view",
        BANK,
        sql(
            "MERGE INTO simple_view AS a USING (SELECT {mine} AS id) AS v ON a.id = v.id "
            "WHEN MATCHED THEN UPDATE SET balance = 1"
        ),
        since=17,
    ),
    *_paths(
        "COPY",
        {
            "text": copy("transfers (account_id, amount)"),
            "binary": copy("transfers (account_id, amount)", binary=True),
            "into a view with an INSTEAD OF trigger": copy(
                "view_with_trigger (account_id, amount)"
            ),
            "FROM PROGRAM": sql(
                "COPY transfers (account_id, amount) FROM PROGRAM 'printf \"{mine}\\t1\\n\"'"
            ),
        },
    ),
    *_paths(
        "Views and rules",
        {
            "UPDATE of a simple view": sql("UPDATE simple_view SET balance = 0 WHERE id = {mine}"),
            "DELETE from a simple view": sql("DELETE FROM simple_view WHERE id = {mine}"),
            "a view with check option": sql(
                "UPDATE checked_view SET balance = 0 WHERE id = {mine}"
            ),
            "a view of a view": sql("UPDATE view_of_view SET balance = 0 WHERE id = {mine}"),
            "INSTEAD OF INSERT": sql("INSERT INTO view_with_trigger VALUES ({mine}, 3)"),
            "INSTEAD OF UPDATE": sql(
                "UPDATE view_with_trigger SET amount = 3 WHERE account_id = {mine}"
            ),
            "INSTEAD OF DELETE": sql("DELETE FROM view_with_trigger WHERE account_id = {mine}"),
            "a rule DO INSTEAD, INSERT": sql("INSERT INTO view_with_rules VALUES ({mine}, 3)"),
            "a rule DO INSTEAD, UPDATE": sql(
                "UPDATE view_with_rules SET total = 3 WHERE account_id = {mine}"
            ),
            "a rule DO INSTEAD, DELETE": sql(
                "DELETE FROM view_with_rules WHERE account_id = {mine}"
            ),
            "a rule DO ALSO of an unguarded table": sql(
                "UPDATE inbox SET done = true WHERE account_id = {mine}"
            ),
        },
    ),
    Path(
        "Views and rules",
        "INSERT into a simple view",
        BANK,
        sql("INSERT INTO simple_view VALUES ({new}, 0)"),
        needs=NEW,
    ),
    *_paths(
        "Functions and procedures",
        {
            "an SQL function": sql("SELECT debit_sql({mine})"),
            "a PL/pgSQL function": sql("SELECT debit_plpgsql({mine})"),
            "a SECURITY DEFINER function": sql("SELECT debit_definer({mine})"),
            "EXECUTE in a function": sql("SELECT debit_dynamic({mine})"),
            "WHERE CURRENT OF in a function": sql("SELECT debit_cursor({mine})"),
            "a DO block": sql(
                "DO $$ BEGIN UPDATE accounts SET balance = 0 WHERE id = {mine}; END $$"
            ),
            "a procedure": sql("CALL debit_procedure({mine})"),
            "a function in a query's WHERE": sql(
                "SELECT 1 WHERE debit_plpgsql({mine}) IS NOT NULL"
            ),
        },
    ),
    Path(
        "Functions and procedures",
        "a function that swallows the error",
        BANK,
        sql("SELECT debit_swallowing({mine})"),
        none=NOTHING,
        overtaken=NOTHING,
        other=NOTHING,
        remark="nothing is written; the refusal is lost",
    ),
    Path(
        "Functions and procedures",
        "a procedure, after its COMMIT",
        BANK,
        call("debit_after_commit"),
        overtaken=STALE,
        right=UNFENCED,
        ends_transaction=True,
        remark="what was presented ended with the COMMIT",
    ),
    Path(
        "Functions and procedures",
        "a procedure that enters again after its COMMIT",
        BANK,
        call("debit_entering_again"),
        ends_transaction=True,
    ),
    *_paths(
        "Triggers",
        {
            "a deferred constraint trigger, at COMMIT": sql(
                "INSERT INTO orders (account_id) VALUES ({mine})"
            ),
            "the same after SET CONSTRAINTS IMMEDIATE": sql(
                "INSERT INTO orders (account_id) VALUES ({mine})", "SET CONSTRAINTS ALL IMMEDIATE"
            ),
            "a BEFORE INSERT trigger that gives the row to this resource": sql(
                "INSERT INTO routed VALUES ({stranger}, {mine})"
            ),
        },
    ),
    Path(
        "Triggers",
        "a BEFORE UPDATE trigger that moves the row to another resource",
        BANK,
        sql("UPDATE routed SET wanted = {mate} WHERE account_id = {mine}"),
        needs=MOVE,
    ),
    Path("TRUNCATE", "TRUNCATE", BANK, sql("TRUNCATE transfers"), **ALL_ROWS),
    Path(
        "TRUNCATE",
        "TRUNCATE of several tables",
        BANK,
        sql("TRUNCATE inbox, transfers"),
        **ALL_ROWS,
    ),
    Path(
        "TRUNCATE",
        "TRUNCATE ... CASCADE of an unguarded parent",
        BANK,
        sql("TRUNCATE owners CASCADE"),
        **ALL_ROWS,
    ),
]

_CASCADES: dict[str, tuple[str, dict[str, Any]]] = {
    "ON DELETE CASCADE": ("DELETE FROM parents WHERE id = {mine}", {}),
    "ON UPDATE CASCADE": (
        "UPDATE parents SET id = {new} WHERE id = {mine}",
        {"needs": ("account:{mine}", "account:{new}")},
    ),
    "ON DELETE SET NULL": ("DELETE FROM loose_parents WHERE id = {mine}", {}),
    "ON UPDATE SET NULL": ("UPDATE loose_parents SET id = {new} WHERE id = {mine}", {}),
    "ON DELETE SET DEFAULT": ("DELETE FROM fallback_parents WHERE id = {mine}", {}),
    "ON UPDATE SET DEFAULT": ("UPDATE fallback_parents SET id = {new} WHERE id = {mine}", {}),
    "ON DELETE SET NULL of the resource's own column": (
        "DELETE FROM named_parents WHERE id = {mine}",
        {
            "right": UNFENCED,
            "noticed": ("account:{mine}", None),
            "remark": "the row would name no resource",
        },
    ),
    "ON DELETE CASCADE into a partitioned table": (
        "DELETE FROM split_parents WHERE id = {mine}",
        {},
    ),
    "ON UPDATE CASCADE into a partitioned table": (
        "UPDATE split_parents SET id = {new} WHERE id = {mine}",
        {"needs": ("account:{mine}", "account:{new}")},
    ),
}
PLAIN += [
    Path("Foreign keys, from an unguarded parent", name, CASCADES, sql(statement), **options)
    for name, (statement, options) in _CASCADES.items()
]
