"""Which roles can get around a guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.verification.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.verification.facts import Facts
    from fencing.verification.guards import Guard

__all__ = ["check"]

ROLES_PAGE = "docs/how-to/roles.md"

# Their members can become superusers, by way of the server's files.
_AS_GOOD_AS_SUPERUSERS = ("pg_execute_server_program", "pg_write_server_files")

# From this version on, CREATEROLE does not make its holder a member of just any role.
_CREATEROLE_IS_BOUNDED = 160000


def check(facts: Facts, guards: Sequence[Guard]) -> Iterator[Finding]:
    """Check every role, and the one that looks."""
    if facts.owner is None:
        return
    yield from _powerful(facts)
    yield from _writers(facts)
    yield from _table_owners(facts, guards)
    yield from _who_looks(facts, guards)
    for grantee in facts.may_set_replication_role:
        yield Finding(
            "warning", "role-sets-replication",
            f"{grantee} may SET session_replication_role, which switches off foreign keys and "
            "every trigger that is not ALWAYS",
            f"REVOKE SET ON PARAMETER session_replication_role FROM {grantee}", subject=grantee,
        )  # fmt: skip


def _powerful(facts: Facts) -> Iterator[Finding]:
    """Those who always can: it is good to know who they are."""
    for severity_why, names in (
        ("superusers, whom nothing refuses", _superusers(facts)),
        (f"the owner of schema fencing, {facts.owner}, and its members", _owners(facts)),
        (
            "roles that may grant themselves the owner's, by CREATEROLE",
            [r.name for r in facts.roles if r.can_create_roles and not facts.is_superuser(r.name)]
            if facts.server < _CREATEROLE_IS_BOUNDED
            else [],
        ),
    ):
        if names:
            yield Finding(
                "info", "role-can-bypass",
                f"can switch a guard off, as {severity_why}: {', '.join(names)}",
                f"let no application connect as one of them ({ROLES_PAGE})",
                subject=", ".join(names),
            )  # fmt: skip


def _superusers(facts: Facts) -> list[str]:
    return [
        role.name
        for role in facts.roles
        if role.can_login
        and (
            facts.is_superuser(role.name)
            or not facts.belongs_to(role.name).isdisjoint(_AS_GOOD_AS_SUPERUSERS)
        )
    ]


def _owners(facts: Facts) -> list[str]:
    return [
        role.name
        for role in facts.roles
        if facts.owner in facts.belongs_to(role.name) and not facts.is_superuser(role.name)
    ]


def _writers(facts: Facts) -> Iterator[Finding]:
    for role in facts.roles:
        if role.can_login and not facts.is_superuser(role.name):
            groups = facts.belongs_to(role.name)
            if "pg_write_all_data" in groups:
                yield Finding(
                    "error", "role-writes-all",
                    f"{role.name} is a member of pg_write_all_data, and can write what the guards "
                    "rely on",
                    f"REVOKE pg_write_all_data FROM {role.name}, and grant it the tables it needs",
                    subject=role.name,
                )  # fmt: skip
            if "pg_read_all_data" in groups and facts.owner not in groups:
                yield Finding(
                    "info", "role-reads-all",
                    f"{role.name} is a member of pg_read_all_data, and can read the holders, each "
                    "of which is good for writing",
                    "let no application connect as it", subject=role.name,
                )  # fmt: skip


def _table_owners(facts: Facts, guards: Sequence[Guard]) -> Iterator[Finding]:
    trusted = {*_superusers(facts), *_owners(facts)}
    others = {
        role.name: facts.belongs_to(role.name)
        for role in facts.roles
        if role.can_login and role.name not in trusted
    }
    for guard in guards:
        owner = guard.root.owner
        names = [name for name, powers in others.items() if owner in powers]
        if names:
            yield Finding(
                "warning", "role-owns-table",
                f"belongs to {owner}, and who owns a table can switch its guard off: "
                f"{', '.join(names)}",
                f"ALTER TABLE {guard.root.name} OWNER TO a role that applications do not connect "
                f"as ({ROLES_PAGE})",
                table=guard.root.name, subject=owner,
            )  # fmt: skip


def _who_looks(facts: Facts, guards: Sequence[Guard]) -> Iterator[Finding]:
    powers = facts.belongs_to(facts.who)
    owned = sorted({guard.root.name for guard in guards if guard.root.owner in powers})
    if facts.is_superuser(facts.who):
        what = "a superuser"
    elif facts.owner in powers:
        what = "the owner of schema fencing, or a member of it"
    elif owned:
        what = f"the owner of {', '.join(owned)}, or a member of it"
    else:
        return
    yield Finding(
        "warning", "role-connected",
        f"{facts.who}, who looks, is {what}, and can switch a guard off; an application should "
        "connect as another role",
        f"verify as the role that the application connects as ({ROLES_PAGE})", subject=facts.who,
    )  # fmt: skip
