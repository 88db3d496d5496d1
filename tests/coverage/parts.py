"""Ways to write partitioned tables and inheritance children."""

from __future__ import annotations

from typing import Any

from tests.coverage.model import WRITES, Path, Scenario, everywhere, sql
from tests.coverage.plain import ALL_ROWS
from tests.coverage.scenarios import (
    HASH,
    HASH_PARTS,
    INHERITANCE,
    PARTITIONED,
    PARTS,
    RANGE,
    TWO_LEVELS,
)

MOVE = ("account:{mine}", "account:{mate}")
NEW = ("account:{new}",)

THROUGH_ROOT = "Partitioned tables, through the root"
THROUGH_LEAF = "Partitioned tables, straight to a partition"


def _parts(scenario: Scenario) -> dict[str, int]:
    """A number in column "part" of the rows in each leaf."""
    return HASH_PARTS if scenario is HASH else PARTS


def _through_root(scenario: Scenario) -> list[Path]:
    part = _parts(scenario)
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "INSERT": (
            sql(f"INSERT INTO entries VALUES ({{new}}, {part['first']}, 1)"),
            {"needs": NEW},
        ),
        "UPDATE of rows in every partition": (
            sql("UPDATE entries SET amount = 0 WHERE account_id = {mine}"),
            {},
        ),
        "DELETE of rows in every partition": (
            sql("DELETE FROM entries WHERE account_id = {mine}"),
            {},
        ),
        "UPDATE that moves a row to another partition": (
            sql(
                f"DELETE FROM entries WHERE account_id = {{mine}} AND part = {part['second']}",
                f"UPDATE entries SET part = {part['second']} "
                f"WHERE account_id = {{mine}} AND part = {part['first']}",
            ),
            {},
        ),
        "UPDATE that moves a row to another partition and resource": (
            sql(
                f"UPDATE entries SET part = {part['second']}, account_id = {{new}} "
                f"WHERE account_id = {{mine}} AND part = {part['first']}"
            ),
            {"needs": ("account:{mine}", "account:{new}")},
        ),
        "UPDATE that moves a row to another resource": (
            sql(
                "UPDATE entries SET account_id = {new} "
                f"WHERE account_id = {{mine}} AND part = {part['first']}"
            ),
            {"needs": ("account:{mine}", "account:{new}")},
        ),
        "ON CONFLICT DO UPDATE, one row new and one old": (
            sql(
                f"INSERT INTO entries VALUES ({{mine}}, {part['first']}, 9), "
                f"({{new}}, {part['second']}, 9) "
                "ON CONFLICT (account_id, part) DO UPDATE SET amount = excluded.amount"
            ),
            {"needs": ("account:{mine}", "account:{new}")},
        ),
        "MERGE, every branch": (
            sql(
                f"MERGE INTO entries AS e USING (VALUES (CAST({{mine}} AS bigint), 'u'), "
                f"({{mate}}, 'd'), ({{new}}, 'i')) AS v (id, what) "
                f"ON e.account_id = v.id AND e.part = {part['first']} "
                "WHEN MATCHED AND what = 'u' THEN UPDATE SET amount = 1 "
                "WHEN MATCHED THEN DELETE "
                f"WHEN NOT MATCHED THEN INSERT VALUES (v.id, {part['first']}, 1)"
            ),
            {"needs": (*MOVE, *NEW)},
        ),
        "COPY": (
            sql(
                "COPY entries FROM PROGRAM 'printf \"{new}\\t"
                f"{part['first']}\\t1\\n{{new}}\\t{part['second']}\\t1\\n\"'"
            ),
            {"needs": NEW},
        ),
        "a row in a partition made after it was fenced": (
            sql(
                "UPDATE entries SET amount = 0 "
                f"WHERE account_id = {{mine}} AND part = {part['later']}"
            ),
            {},
        ),
        "a row in a partition attached after it was fenced": (
            sql(
                "UPDATE entries SET amount = 0 "
                f"WHERE account_id = {{mine}} AND part = {part['attached']}"
            ),
            {},
        ),
        "TRUNCATE": (sql("TRUNCATE entries"), ALL_ROWS),
    }
    return [Path(THROUGH_ROOT, name, scenario, run, **more) for name, (run, more) in ways.items()]


def _through_leaf(scenario: Scenario) -> list[Path]:
    ways: dict[str, tuple[Any, dict[str, Any]]] = {}
    for leaf, part in _parts(scenario).items():
        of = LEAVES[leaf]
        columns = "(account_id, part, amount)"
        ways |= {
            f"INSERT into a partition {of}": (
                sql(f"INSERT INTO {leaf} {columns} VALUES ({{new}}, {part}, 1)"),
                {"needs": NEW},
            ),
            f"UPDATE of a partition {of}": (
                sql(f"UPDATE {leaf} SET amount = 0 WHERE account_id = {{mine}}"),
                {},
            ),
            f"DELETE from a partition {of}": (
                sql(f"DELETE FROM {leaf} WHERE account_id = {{mine}}"),
                {},
            ),
        }
        if leaf == "first":
            ways |= {
                f"COPY into a partition {of}": (
                    sql(f"COPY {leaf} {columns} FROM PROGRAM 'printf \"{{new}}\\t{part}\\t1\\n\"'"),
                    {"needs": NEW},
                ),
                f"UPDATE that moves a row to another resource in a partition {of}": (
                    sql(f"UPDATE {leaf} SET account_id = {{new}} WHERE account_id = {{mine}}"),
                    {"needs": ("account:{mine}", "account:{new}")},
                ),
            }
        gap = leaf in ("later", "attached")
        if gap and scenario is not RANGE:
            continue  # one is enough: the tables have to be made again after each
        ways[f"TRUNCATE of a partition {of}"] = (
            sql(f"TRUNCATE {leaf}"),
            (everywhere(WRITES) if gap else ALL_ROWS)
            | (
                {"spoils": True, "remark": "**a gap** until `fencing.refresh_guards()`"}
                if gap
                else {}
            ),
        )
    if scenario is TWO_LEVELS:
        ways |= {
            "INSERT into an intermediate table": (
                sql("INSERT INTO middle VALUES ({new}, 10, 1)"),
                {"needs": NEW},
            ),
            "UPDATE of an intermediate table": (
                sql("UPDATE middle SET amount = 0 WHERE account_id = {mine}"),
                {},
            ),
            "UPDATE that moves a row within an intermediate table": (
                sql(
                    "DELETE FROM middle WHERE account_id = {mine} AND part = 10",
                    "UPDATE middle SET part = 10 WHERE account_id = {mine} AND part = 0",
                ),
                {},
            ),
            "DELETE from an intermediate table": (
                sql("DELETE FROM middle WHERE account_id = {mine}"),
                {},
            ),
            "TRUNCATE of an intermediate table": (sql("TRUNCATE middle"), ALL_ROWS),
        }
    return [Path(THROUGH_LEAF, name, scenario, run, **more) for name, (run, more) in ways.items()]


LEAVES = {
    "first": "that was there",
    "second": "that was there, too",
    "later": "made after it was fenced",
    "attached": "attached after it was fenced",
}

_GAP = "**a gap** until `fencing.refresh_guards()`"

_INHERITANCE: dict[str, tuple[str, dict[str, Any]]] = {
    "INSERT into the parent": ("INSERT INTO entries VALUES ({new}, 1)", {"needs": NEW}),
    "UPDATE of the parent and its children": (
        "UPDATE entries SET amount = 0 WHERE account_id = {mine}",
        {},
    ),
    "UPDATE of the parent that finds rows in a grandchild only": (
        "UPDATE entries SET amount = 0 WHERE account_id = {mine} AND amount = 7",
        {},
    ),
    "UPDATE of the parent that finds rows in a later child only": (
        "UPDATE entries SET amount = 0 WHERE account_id = {mine} AND amount = 8",
        {},
    ),
    "DELETE from the parent and its children": (
        "DELETE FROM entries WHERE account_id = {mine}",
        {},
    ),
    "UPDATE ONLY of the parent": (
        "UPDATE ONLY entries SET amount = 0 WHERE account_id = {mine}",
        {},
    ),
    "UPDATE of the parent that moves rows to another resource": (
        "UPDATE entries SET account_id = {new} WHERE account_id = {mine} AND amount = 6",
        {"needs": ("account:{mine}", "account:{new}")},
    ),
    "MERGE into the parent": (
        (
            "MERGE INTO entries AS e USING (SELECT {mine} AS id) AS v ON e.account_id = v.id "
            "WHEN MATCHED THEN UPDATE SET amount = 1"
        ),
        {},
    ),
    "INSERT into a child": ("INSERT INTO child VALUES ({new}, 1, 'x')", {"needs": NEW}),
    "UPDATE of a child": ("UPDATE child SET amount = 0 WHERE account_id = {mine}", {}),
    "DELETE from a child": ("DELETE FROM child WHERE account_id = {mine}", {}),
    "COPY into a child": (
        "COPY child FROM PROGRAM 'printf \"{new}\\t1\\tx\\n\"'",
        {"needs": NEW},
    ),
    "UPDATE of a grandchild": ("UPDATE grandchild SET amount = 0 WHERE account_id = {mine}", {}),
    "TRUNCATE of the parent": ("TRUNCATE entries", ALL_ROWS),
    "TRUNCATE of a child": ("TRUNCATE child", ALL_ROWS),
    "TRUNCATE ONLY of a grandchild": ("TRUNCATE ONLY grandchild", ALL_ROWS),
    "INSERT into a child made after it was fenced": (
        "INSERT INTO later VALUES ({new}, 1)",
        {"needs": NEW, "remark": _GAP} | everywhere(WRITES),
    ),
    "UPDATE of a child made after it was fenced": (
        "UPDATE later SET amount = amount + 1000 WHERE account_id = {mine}",
        {"remark": _GAP} | everywhere(WRITES),
    ),
    "DELETE from a child made after it was fenced": (
        "DELETE FROM later WHERE account_id = {mine}",
        {"remark": _GAP} | everywhere(WRITES),
    ),
    "TRUNCATE of a child made after it was fenced": (
        "TRUNCATE later",
        {"remark": _GAP, "spoils": True} | everywhere(WRITES),
    ),
}

PART_PATHS = [
    *(path for scenario in PARTITIONED for path in _through_root(scenario)),
    *(path for scenario in PARTITIONED for path in _through_leaf(scenario)),
    *(
        Path("Inheritance", name, INHERITANCE, sql(statement), **more)
        for name, (statement, more) in _INHERITANCE.items()
    ),
]
