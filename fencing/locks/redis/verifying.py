"""What weakens the Redis servers of a lock service: the facts of each, judged.

Without I/O and without a clock. A guarded table is safe whatever Redis loses; what is lost here is
that the lock excludes, that its tokens go on, or that it can be had at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencing.locks.redis.permissions import TO_WAKE, acl_rules
from fencing.verification import Finding, ServiceVerification, by_gravity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fencing.locks.redis.server import Facts

__all__ = ["judged"]

OLDEST = (6, 2)
"""The oldest version of Redis that the scripts run on; every Valkey is newer."""

NEARLY_FULL = 0.9
"""Which part of a limit counts as nearly all of it."""

SLOTS = 16384
"""Of a cluster."""

_CONSEQUENCE = (
    "locks that are held can be had by others, and tokens start again (a guard then heals the "
    "counter; a lock service used alone repeats its tokens)"
)


def judged(
    nodes: Mapping[str, Facts], *, namespace: str, replicas: int = 0, by_cluster: bool = False
) -> ServiceVerification:
    """Judge what the servers of a lock service have told.

    Args:
        nodes: Their facts, by address.
        namespace: What the service's keys begin with.
        replicas: For how many replicas the service waits.
        by_cluster: Whether its client is one of Redis Cluster.
    """
    where: dict[Finding, list[str]] = {}
    for address, facts in nodes.items():
        for finding in _check(facts, namespace, replicas, by_cluster=by_cluster):
            where.setdefault(finding, []).append(address)
    return ServiceVerification(
        service=_software(next(iter(nodes.values())).info),
        nodes=tuple(nodes),
        findings=by_gravity(
            finding if len(having) == len(nodes) else _at(finding, having)
            for finding, having in where.items()
        ),
    )


def _at(finding: Finding, addresses: list[str]) -> Finding:
    return Finding(
        finding.severity,
        finding.code,
        f"{', '.join(addresses)}: {finding.message}",
        finding.remedy,
        subject=finding.subject,
    )


def _software(info: Mapping[str, Any]) -> str:
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info['redis_version']}" if "redis_version" in info else "redis"


def _check(facts: Facts, namespace: str, replicas: int, *, by_cluster: bool) -> Iterator[Finding]:
    yield from _usable(facts, namespace, replicas, by_cluster=by_cluster)
    yield from _memory(facts)
    yield from _persistence(facts)
    yield from _replication(facts, replicas)
    yield from _connections(facts)
    yield from _cluster(facts)
    for what, told in facts.refused:
        yield Finding(
            "warning" if what == "INFO" else "info", "not-looked-at",
            f"{what} could not be looked at ({told})",
            "look at it by other means, such as the console of a managed service; or verify as a "
            "user that may: +info +config|get +cluster|info",
            subject=what,
        )  # fmt: skip


def _usable(facts: Facts, namespace: str, replicas: int, *, by_cluster: bool) -> Iterator[Finding]:
    info = facts.info
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < OLDEST:
        yield Finding(
            "error", "version-old",
            f"Redis {version} is older than {'.'.join(map(str, OLDEST))}, which the scripts need",
            "upgrade it",
        )  # fmt: skip
    rules = acl_rules(namespace, cluster=by_cluster, replicas=replicas)
    if denied := [command for command in facts.denied if command not in TO_WAKE]:
        yield Finding(
            "error", "permission-missing",
            f"this user may not call {', '.join(denied)} on keys of the namespace {namespace!r}",
            f"ACL SETUSER the user with: {rules}",
        )  # fmt: skip
    if denied := [command for command in facts.denied if command in TO_WAKE]:
        yield Finding(
            "warning", "waking-denied",
            f"this user may not call {', '.join(denied)} on the channels {namespace}:wake:*: a "
            "release wakes nobody, so those who wait ask now and then",
            f"ACL SETUSER the user with: {rules}",
        )  # fmt: skip
    if info.get("cluster_enabled") and not by_cluster:
        yield Finding(
            "error", "cluster-client",
            "this is a node of a cluster, and the client knows one node: resources of other nodes "
            "are refused (MOVED)",
            "give the lock service a RedisCluster",
        )  # fmt: skip


def _memory(facts: Facts) -> Iterator[Finding]:
    limit, policy = facts.number("maxmemory"), str(facts.info.get("maxmemory_policy", ""))
    if not limit:
        return
    if policy != "noeviction":
        evicted = facts.number("evicted_keys")
        yield Finding(
            "warning", "maxmemory-evicts",
            f"maxmemory-policy is {policy}: when memory runs out, locks and counters are evicted; "
            f"{_CONSEQUENCE}" + (" - keys have been evicted since it started" if evicted else ""),
            "CONFIG SET maxmemory-policy noeviction, or give the lock service a Redis of its own",
            subject="maxmemory-policy",
        )  # fmt: skip
    elif facts.number("used_memory") >= NEARLY_FULL * limit:
        yield Finding(
            "warning", "memory-nearly-full",
            f"more than {NEARLY_FULL:.0%} of maxmemory is used: beyond it no lock can be acquired "
            "(OOM)",
            "raise maxmemory, or find out what fills it", subject="maxmemory",
        )  # fmt: skip


def _persistence(facts: Facts) -> Iterator[Finding]:
    info, settings = facts.info, facts.settings
    if not info:
        return
    appending = bool(info.get("aof_enabled"))
    if not appending and settings.get("save") == "":
        copies = (
            "; its replicas then copy the emptiness" if facts.number("connected_slaves") else ""
        )
        yield Finding(
            "warning", "persistence-none",
            f"neither an append-only file nor snapshots: a restart forgets everything{copies}; "
            f"{_CONSEQUENCE}",
            "CONFIG SET appendonly yes, and in redis.conf", subject="appendonly",
        )  # fmt: skip
    elif not appending:
        yield Finding(
            "info", "persistence-snapshots",
            ("only snapshots are" if "save" in settings else "at most snapshots are")
            + " kept: a crash forgets what was granted since the last one",
            "CONFIG SET appendonly yes, and in redis.conf", subject="appendonly",
        )  # fmt: skip
    elif settings.get("appendfsync") == "no":
        yield Finding(
            "warning", "fsync-never",
            "appendfsync is no: a crash of the machine forgets what the system had not written "
            "yet, often half a minute",
            "CONFIG SET appendfsync everysec, or always", subject="appendfsync",
        )  # fmt: skip
    if info.get("aof_last_write_status") == "err":
        yield Finding(
            "error", "persistence-failing",
            "the append-only file cannot be written, so every write is refused (MISCONF)",
            "look at the disk and at the server's log", subject="appendonly",
        )  # fmt: skip
    if info.get("rdb_last_bgsave_status") == "err" and settings.get("save") != "":
        refuses = settings.get("stop-writes-on-bgsave-error") == "yes"
        yield Finding(
            "error" if refuses else "warning", "persistence-failing",
            "the last snapshot failed" + (", so writes are refused (MISCONF)" if refuses else ""),
            "look at the disk and at the server's log", subject="save",
        )  # fmt: skip


def _replication(facts: Facts, replicas: int) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        yield Finding(
            "error", "replica",
            "this is a replica, which refuses every write (READONLY)",
            "connect to the primary, and let Sentinel or a cluster client follow it",
        )  # fmt: skip
        return
    connected = facts.number("connected_slaves")
    if facts.info and connected < replicas:
        yield Finding(
            "error", "replicas-missing",
            f"the service waits for {replicas} replica(s), and {connected} are connected: every "
            "acquire fails",
            "connect more, or lower replicas=", subject="replicas",
        )  # fmt: skip
    wanted = int(facts.settings.get("min-replicas-to-write") or 0)
    good = facts.info.get("min_slaves_good_slaves")
    if wanted and isinstance(good, int) and good < wanted:
        yield Finding(
            "error", "replicas-missing",
            f"min-replicas-to-write is {wanted}, and {good} replicas are in step: writes are "
            "refused (NOREPLICAS)",
            "look at the replicas, or lower it", subject="min-replicas-to-write",
        )  # fmt: skip
    elif connected and not wanted and facts.settings:
        yield Finding(
            "info", "replicas-optional",
            "min-replicas-to-write is 0: a primary that is cut off from its replicas goes on "
            "granting locks, and a failover grants them again",
            "CONFIG SET min-replicas-to-write 1 where a replica less is no outage",
            subject="min-replicas-to-write",
        )  # fmt: skip


def _connections(facts: Facts) -> Iterator[Finding]:
    idle = int(facts.settings.get("timeout") or 0)
    if idle:
        yield Finding(
            "warning", "timeout-cuts",
            f"timeout is {idle}: connections are closed when they were idle for {idle} s, those "
            "of waiters included where they are not exempt; each costs a new connection",
            "CONFIG SET timeout 0; tcp-keepalive finds dead clients", subject="timeout",
        )  # fmt: skip
    if facts.settings.get("tcp-keepalive") == "0":
        yield Finding(
            "warning", "keepalive-off",
            "tcp-keepalive is 0: a client whose machine has died counts as connected for ever",
            "CONFIG SET tcp-keepalive 60", subject="tcp-keepalive",
        )  # fmt: skip
    most = facts.number("maxclients")
    if most and facts.number("connected_clients") >= NEARLY_FULL * most:
        yield Finding(
            "warning", "clients-nearly-full",
            f"more than {NEARLY_FULL:.0%} of maxclients ({most}) are connected: beyond it nobody "
            "else is let in",
            "raise maxclients, or find out who connects so often", subject="maxclients",
        )  # fmt: skip


def _cluster(facts: Facts) -> Iterator[Finding]:
    state = facts.cluster
    if not state:
        return
    missing = SLOTS - int(state.get("cluster_slots_ok", SLOTS))
    if state.get("cluster_state") != "ok" or missing:
        yield Finding(
            "error", "cluster-down",
            f"the cluster's state is {state.get('cluster_state')}, and {missing} of its {SLOTS} "
            "slots are not served: resources in them cannot be locked",
            "look at CLUSTER NODES", subject="cluster_state",
        )  # fmt: skip
