"""Writes docs/coverage.md from the list of write paths and attacks.

Run ``python -m tests.coverage.page`` after changing the list; a test compares the page with it.
"""

from __future__ import annotations

from pathlib import Path as File

from tests.coverage.attacks import ATTACKS
from tests.coverage.model import NOTHING, STALE, WRITES, Path
from tests.coverage.paths import PATHS
from tests.coverage.scenarios import HASH, LIST, RANGE, TWO_LEVELS

PAGE = File(__file__).parents[2] / "docs/coverage.md"

HEAD = """\
# What is covered

<!-- Written by `python -m tests.coverage.page`; change the lists in tests/coverage instead. -->

Every way to write a guarded table that we know of, and what becomes of it. Each row is a test that
is run on a real server: `tests/coverage/test_paths.py` tries every path in every situation, and
compares all rows of all tables before and after.

- **no lease**: the transaction has presented none.
- **overtaken lease**: it had entered when another holder was admitted. An admission waits for open
  transactions, so this takes force: the tests write the fence as its owner, past the lock.
- **other resource**: it has presented a good lease, on something else. Where a write touches
  several resources, each lease is left out in turn, too.
- **right lease**: it has presented a good lease on each resource that it touches.

`ZF002` and `ZF001` are the SQLSTATEs with which the whole statement is refused (a COMMIT, where the
write happens there); nothing of it is written. ¹ Under a snapshot that is older than the admission
(REPEATABLE READ, SERIALIZABLE) PostgreSQL answers 40001; so it does where a transaction entered
after its successor's admission, under such a snapshot. Both are tried at these levels, as is the
right lease.
"""
FOOT = """
In `observe` mode every write above passes, and where this page says ZF001 or ZF002 a NOTICE with
that SQLSTATE says so; `tests/coverage/test_observe.py` tries the same list.

## Attacks and accidents

What goes round the statements above, or tries to. Each row names its test.

| what | what happens | test |
|---|---|---|
"""
TAIL = """
Not tried, since there is no such thing: large objects belong to no table; rows of a foreign table
are written elsewhere, so neither it nor a parent of one can be fenced. A subscriber's *apply
worker* fires row triggers that are ENABLE ALWAYS, and no statement triggers: writes that arrive by
logical replication are checked on partitioned tables (and stop the worker), and pass elsewhere.
Guard the publisher.
"""
KINDS = {RANGE: "range", LIST: "list", HASH: "hash", TWO_LEVELS: "two levels"}


def render() -> str:
    """The whole page."""
    lines = [
        HEAD,
        "| write path | no lease | overtaken lease | other resource | right lease |",
        "|---|---|---|---|---|",
    ]
    group = ""
    for same in _rows():
        path = same[0]
        if path.group != group:
            group = path.group
            lines.append(f"| **{group}** | | | | |")
        lines.append(f"| {' | '.join(_cells(same))} |")
    attacks = [f"| {a.what} | {a.outcome} | `{a.test.rpartition('::')[2]}` |" for a in ATTACKS]
    return "\n".join(lines) + "\n" + FOOT + "\n".join(attacks) + "\n" + TAIL


def _rows() -> list[list[Path]]:
    """The paths, those that differ in nothing but their scenario together."""
    rows: dict[tuple[str, ...], list[Path]] = {}
    for path in PATHS:
        rows.setdefault((path.group, path.name, *_outcomes(path)), []).append(path)
    return list(rows.values())


def _outcomes(path: Path) -> tuple[str, str, str, str]:
    return path.none, path.overtaken, path.other, path.right


def _cells(same: list[Path]) -> list[str]:
    path = same[0]
    notes = [path.remark] if path.remark else []
    kinds = [KINDS[each.scenario] for each in same if each.scenario in KINDS]
    if kinds:
        notes.insert(0, ", ".join(kinds))
    if path.since > 15:
        notes.append(f"PostgreSQL {path.since}")
    name = path.name + (f" ({'; '.join(notes)})" if notes else "")
    none, overtaken, other, right = map(_said, _outcomes(path))
    if path.overtaken == STALE and not path.ends_transaction:
        overtaken += "¹"
    return [name.replace("|", "\\|"), none, overtaken, other, right]


def _said(outcome: str) -> str:
    return outcome if outcome in {WRITES, NOTHING} else f"`{outcome}`"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
