"""Settings, prepared transactions and subscriptions that weaken a guard, or may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.verification.facts import Facts, Setting
    from fencing.verification.guards import Guard

__all__ = ["check"]


def check(facts: Facts, guards: Sequence[Guard]) -> Iterator[Finding]:
    """Check what is not ours."""
    if facts.owner is None:
        return
    for setting in facts.settings:
        yield from _setting(setting)
    for prepared in facts.prepared:
        since = f"{prepared.gid!r} of {prepared.owner}, prepared at {prepared.prepared},"
        yield Finding(
            "error" if prepared.holds else "warning", "prepared-transaction",
            f"the prepared transaction {since} "
            + ("holds locks that admissions wait for, and " if prepared.holds else "")
            + "outlives every limit",
            f"COMMIT PREPARED '{prepared.gid}' or ROLLBACK PREPARED '{prepared.gid}'",
            subject=prepared.gid,
        )  # fmt: skip
    covered = {
        oid: guard
        for guard in guards
        for oid in (guard.root.oid, *facts.descendants(guard.root.oid))
    }
    for name, relation in facts.subscriptions:
        if relation in covered:
            yield Finding(
                "warning", "subscription",
                f"the subscription {name} writes it, and presents no lease: its changes are "
                "refused, and replication stops there",
                "guard the table where its rows are written first, or leave it out of the "
                "publication",
                table=facts.by_oid[relation].name, subject=name,
            )  # fmt: skip
    if facts.standby:
        yield Finding(
            "info", "standby",
            "this is a standby, which refuses every write; what was found is what it has received",
            "verify the primary as well",
        )  # fmt: skip


def _setting(setting: Setting) -> Iterator[Finding]:
    whose = f" for {setting.role}" if setting.role else ""
    what = f"{setting.name} is {setting.value}{whose}"
    match setting.name, setting.value:
        case "max_prepared_transactions", value if value != "0":
            yield Finding(
                "warning", "setting",
                f"{what}: a prepared transaction outlives every limit and keeps its locks, so a "
                "successor may wait for ever",
                "set max_prepared_transactions = 0 unless something needs it", subject=setting.name,
            )  # fmt: skip
        case (("fsync" | "full_page_writes"), "off"):
            yield Finding(
                "warning", "setting",
                f"{what}: a crash of the machine can lose admissions, and with them a mark",
                f"set {setting.name} = on", subject=setting.name,
            )  # fmt: skip
        case "session_replication_role", value if value != "origin":
            yield Finding(
                "warning", "setting",
                f"{what}: foreign keys and every trigger that is not ALWAYS are off",
                "set session_replication_role = origin", subject=setting.name,
            )  # fmt: skip
        case "synchronous_commit", ("off" | "local" | "remote_write"):
            yield Finding(
                "info", "setting",
                f"{what}: admissions raise it for themselves; what is written under a lease can be "
                "lost in a crash, as everything can",
                "nothing has to be done", subject=setting.name,
            )  # fmt: skip
        case "default_transaction_isolation", value if value != "read committed":
            yield Finding(
                "info", "setting",
                f"{what}: each admission takes two round trips more, to choose its own",
                "nothing has to be done", subject=setting.name,
            )  # fmt: skip
        case _:
            return
