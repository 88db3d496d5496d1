"""Writes to tables whose templates are of every kind."""

from __future__ import annotations

from typing import Any

from tests.coverage.model import UNFENCED, WRITES, Path, everywhere, sql
from tests.coverage.plain import ALL_ROWS
from tests.coverage.scenarios import TEMPLATES

ORDER = ("tenant:{mine}/order:{mine}",)
NOBODYS = {"right": UNFENCED, "overtaken": UNFENCED, "noticed": (None,)}
ODD = '"Odd ""Names"" of"'

_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "two columns, `tenant:{tenant_id}/order:{order_id}`": (
        "UPDATE tenant_orders SET state = 'paid' WHERE tenant_id = {mine} AND order_id = {mine}",
        {"needs": ORDER},
    ),
    "two columns, one of which changes": (
        "UPDATE tenant_orders SET tenant_id = {mate} WHERE tenant_id = {mine}",
        {"needs": (*ORDER, "tenant:{mate}/order:{mine}")},
    ),
    "two columns, INSERT": (
        "INSERT INTO tenant_orders VALUES ({mine}, {new}, 'new')",
        {"needs": ("tenant:{mine}/order:{new}",)},
    ),
    "a child table that names its parent's resource": (
        "UPDATE order_lines SET item = 'y' WHERE tenant_id = {mine} AND order_id = {mine}",
        {"needs": ORDER},
    ),
    "parent and child in one statement, one lease": (
        (
            "WITH o AS (UPDATE tenant_orders SET state = 'x' WHERE tenant_id = {mine} RETURNING *) "
            "INSERT INTO order_lines (tenant_id, order_id, item) "
            "SELECT tenant_id, order_id, 'z' FROM o"
        ),
        {"needs": ORDER},
    ),
    "a constant, `ledger`": (
        "INSERT INTO ledger (entry) VALUES ('{mine}')",
        {"needs": ("ledger",)},
    ),
    "a constant, a statement over all rows": (
        "UPDATE ledger SET entry = entry || 'x'",
        {"needs": ("ledger",)},
    ),
    "a constant, TRUNCATE": (
        "TRUNCATE ledger",
        {"needs": ("ledger",), "spoils": True, "remark": "one lease covers every row"},
    ),
    "a text column": (
        "UPDATE by_text SET amount = 0 WHERE name = 'name {mine}'",
        {"needs": ("text:name {mine}",)},
    ),
    "a text column, `a` and `A`": (
        "UPDATE by_text SET name = 'NAME {mine}' WHERE name = 'name {mine}'",
        {"needs": ("text:name {mine}", "text:NAME {mine}"), "remark": "two resources"},
    ),
    "a varchar column": (
        "UPDATE by_varchar SET amount = 0 WHERE name = '{mine}'",
        {"needs": ("varchar:{mine}",)},
    ),
    "a uuid column": (
        "UPDATE by_uuid SET amount = 0 WHERE id = '00000000-0000-0000-0000-{mine:012d}'",
        {"needs": ("uuid:00000000-0000-0000-0000-{mine:012d}",)},
    ),
    "a boolean column": (
        "UPDATE by_bool SET amount = 0 WHERE account_id = {mine}",
        {"needs": ("bool:true/{mine}",), "remark": "`true`, not `t`"},
    ),
    "a smallint column": (
        "UPDATE by_smallint SET amount = 0 WHERE id = {mine}",
        {"needs": ("small:{mine}",)},
    ),
    "a column of a domain": (
        "UPDATE by_domain SET amount = 0 WHERE id = {mine}",
        {"needs": ("domain:{mine}",)},
    ),
    "a generated column": (
        "UPDATE by_generated SET amount = 0 WHERE base = {mine}",
        {"needs": ("generated:{mine}",)},
    ),
    "a generated column, whose base changes": (
        "UPDATE by_generated SET base = {mate} WHERE base = {mine}",
        {"needs": ("generated:{mine}", "generated:{mate}")},
    ),
    "quoted names": (
        f'UPDATE {ODD} SET amount = 0 WHERE "It\'s a column; --" = {{mine}}',
        {"needs": ("odd:{mine}",)},
    ),
    "INSERT of a row whose column is NULL": (
        "INSERT INTO nullable VALUES (NULL, {mine})",
        {**NOBODYS, "remark": "the row would name no resource"},
    ),
    "UPDATE of a row whose column is NULL": (
        "UPDATE nullable SET amount = 6 WHERE account_id IS NULL",
        {**NOBODYS, "remark": "the row names no resource"},
    ),
    "UPDATE that makes the column NULL": (
        "UPDATE nullable SET account_id = NULL WHERE account_id = {mine}",
        {
            "right": UNFENCED,
            "noticed": ("account:{mine}", None),
            "remark": "the row would name no resource",
        },
    ),
    '`operations=("update", "delete")`, INSERT with a generated key': (
        "INSERT INTO keyed (amount) VALUES ({mine})",
        everywhere(WRITES) | {"remark": "not guarded"},
    ),
    '`operations=("update", "delete")`, UPDATE': (
        "UPDATE keyed SET amount = 0 WHERE id = {mine}",
        {"needs": ("keyed:{mine}",)},
    ),
    '`operations=("update", "delete")`, DELETE': (
        "DELETE FROM keyed WHERE id = {mine}",
        {"needs": ("keyed:{mine}",)},
    ),
    '`operations=("update", "delete")`, ON CONFLICT DO UPDATE of an old row': (
        "INSERT INTO keyed VALUES ({mine}, 9) ON CONFLICT (id) DO UPDATE SET amount = 9",
        {"needs": ("keyed:{mine}",)},
    ),
    '`operations=("update", "delete")`, TRUNCATE': ("TRUNCATE keyed", ALL_ROWS),
    '`operations=("insert",)`, INSERT': (
        "INSERT INTO append_guarded VALUES ({mine}, 1)",
        {},
    ),
    '`operations=("insert",)`, UPDATE': (
        "UPDATE append_guarded SET amount = amount + 1 WHERE account_id = {mine}",
        everywhere(WRITES) | {"remark": "not guarded"},
    ),
    '`operations=("insert",)`, TRUNCATE': (
        "TRUNCATE append_guarded",
        everywhere(WRITES) | {"spoils": True, "remark": "not guarded: TRUNCATE goes with delete"},
    ),
    '`operations=("delete",)`, MERGE that updates': (
        (
            "MERGE INTO delete_guarded AS d USING (SELECT {mine} AS id) AS v ON account_id = v.id "
            "WHEN MATCHED THEN UPDATE SET amount = amount + 1"
        ),
        everywhere(WRITES) | {"remark": "not guarded"},
    ),
    '`operations=("delete",)`, MERGE that deletes': (
        (
            "MERGE INTO delete_guarded AS d USING (SELECT {mine} AS id) AS v ON account_id = v.id "
            "WHEN MATCHED THEN DELETE"
        ),
        {},
    ),
}
TEMPLATE_PATHS = [
    Path("Templates and operations", name, TEMPLATES, sql(statement), **more)
    for name, (statement, more) in _WAYS.items()
]
