"""What weakens the etcd of a lock service: the facts that its members tell, and what they mean.

Without I/O and without a clock: :func:`gather` is a generator that yields requests and is sent what
was answered. A guarded table is safe whatever etcd loses; what is lost here is that the lock can be
had, or that it excludes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.etcd import requests
from fencing.verification import Finding, ServiceVerification, by_gravity

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from fencing.errors import LockServiceError
    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.keys import Keys
    from fencing.locks.etcd.requests import Body

    # A request goes out; its answer comes back, alone in a list.
    Looks = Generator[tuple[str, Body], Iterable[Any], "T"]

__all__ = ["Facts", "Looks", "Refusal", "gather", "judged"]

T = TypeVar("T")

OLDEST = (3, 4)
"""The oldest etcd whose gateway the service speaks to."""

DEFAULT_QUOTA = 2 * 1024**3
"""What etcd's store may grow to where nothing else was said, in bytes."""

NEARLY_FULL = 0.8
"""Which part of the quota counts as nearly all of it."""

MANY_CHANGES = 100_000
"""How many changes are worth a word where none was ever compacted."""

_ALARM = re.compile(r"alarm:(\w+)")
_COMPACTED = "compacted"
_FULL = "database space exceeded"
_DENIED = "permission denied"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What etcd said instead of answering a request."""

    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What one member has told.

    Attributes:
        status: Of the member.
        members: Of the cluster: those that vote.
        alarms: Their names, ``NOSPACE`` for instance.
        denied: What the user may not do with keys of the namespace: ``read``, ``write``.
        compacted: Whether anything was ever compacted; ``None``: it did not say.
        rejected: Why it takes no request of this user's at all; empty: it does.
        refused: What could not be looked at, and what etcd said.
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    members: Sequence[Mapping[str, Any]] = ()
    alarms: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    compacted: bool | None = None
    rejected: str = ""
    refused: tuple[tuple[str, str], ...] = ()

    def number(self, name: str) -> int:
        """A number that the status tells; 0 where it does not."""
        return int(self.status.get(name) or 0)


def gather(keys: Keys) -> Looks[Facts]:
    """The facts of one member; nothing is changed.

    Args:
        keys: Those of the lock service's namespace.
    """
    told: dict[str, dict[str, Any]] = {}
    refused: list[tuple[str, str]] = []
    for what in ("maintenance/status", "cluster/member/list"):
        (answer,) = yield what, {}
        if isinstance(answer, Refusal):
            refused.append((what, answer.message))
            answer = {}
        told[what] = answer
    place = keys.place("verify", "0" * 32)
    # etcd looks whether all of a transaction is allowed, also what is never done.
    never = requests.modified(place, 2**62)
    denied, rejected = [], ""
    for what, done in (("read", requests.get(place)), ("write", requests.put(place, b""))):
        (answer,) = yield "kv/txn", requests.transaction([never], [done], [])
        if isinstance(answer, Refusal):
            if _DENIED in answer.message:
                denied.append(what)
            elif _FULL not in answer.message:  # an alarm tells that
                rejected = answer.message
    (first,) = yield "kv/range", requests.at_revision(place, 1)
    compacted = isinstance(first, Refusal) and _COMPACTED in first.message
    status, members = told["maintenance/status"], told["cluster/member/list"].get("members") or ()
    return Facts(
        status=status,
        alarms=tuple(sorted(set(_ALARM.findall(" ".join(map(str, status.get("errors") or ())))))),
        members=tuple(member for member in members if not member.get("isLearner")),
        denied=tuple(denied),
        compacted=compacted if compacted or isinstance(first, dict) else None,
        rejected=rejected,
        refused=tuple(refused),
    )


def judged(
    outcomes: Mapping[str, Facts | LockServiceError], address: Address, namespace: str
) -> ServiceVerification:
    """Judge what the endpoints of an address have told, or why they have not.

    Args:
        outcomes: Of each endpoint.
        address: The service's.
        namespace: What the service's keys begin with.

    Raises:
        LockServiceError: None has told anything.
    """
    facts = {place: each for place, each in outcomes.items() if isinstance(each, Facts)}
    silent = {place: each for place, each in outcomes.items() if not isinstance(each, Facts)}
    if not facts:
        raise next(iter(silent.values()))
    some = next((each for each in facts.values() if each.status), next(iter(facts.values())))
    findings = [*_cluster(some, address), *_access(some, address, namespace)]
    findings += [
        Finding(
            "warning", "node-unreachable",
            f"{place} could not be reached ({error})",
            "start it, or take it out of the address", subject=place,
        )
        for place, error in silent.items()
    ]  # fmt: skip
    for place, each in facts.items():
        findings += _member(place, each)
    return ServiceVerification(
        service=f"etcd {some.status.get('version', '')}".rstrip(),
        nodes=tuple(facts),
        findings=by_gravity(findings),
    )


def _cluster(facts: Facts, address: Address) -> Iterator[Finding]:
    size = len(facts.members)
    if size and size < 3:  # noqa: PLR2004 - of which one may fail
        yield Finding(
            "warning", "members-few",
            f"the cluster has {size} member{'s' if size > 1 else ''}, of which none may fail: "
            "without it nobody acquires, and if its disk is lost, locks that are held can be had "
            "by others, and tokens start again (a guard then heals them)",
            "run 3 members, on machines of their own",
        )  # fmt: skip
    elif size and size % 2 == 0:
        yield Finding(
            "info", "members-even",
            f"the cluster has {size} members: no more of them may fail than of {size - 1}",
            "run an odd number of members",
        )  # fmt: skip
    if size > 1 and len(address.endpoints) == 1:
        yield Finding(
            "info", "endpoint-single",
            f"the address names one endpoint of a cluster of {size}: where that is one member, "
            "the service fails with it",
            "name all members in the address",
        )  # fmt: skip
    for alarm in facts.alarms:
        consequence = {
            "NOSPACE": "the quota is used up, and no lock can be acquired",
            "CORRUPT": "a member's data is damaged",
        }.get(alarm, "see etcd's documentation")
        yield Finding(
            "error", "alarm",
            f"there is an alarm {alarm}: {consequence}",
            "compact and defragment, or repair the member; then: etcdctl alarm disarm",
            subject=alarm,
        )  # fmt: skip
    revision = int(facts.status.get("header", {}).get("revision") or 0)
    if facts.compacted is False and revision > MANY_CHANGES:
        yield Finding(
            "warning", "compaction-never",
            f"none of {revision} changes was ever compacted: the store keeps them all, until its "
            "quota is used up",
            "run etcd with --auto-compaction-retention, 1h for instance",
            subject="auto-compaction-retention",
        )  # fmt: skip


def _access(facts: Facts, address: Address, namespace: str) -> Iterator[Finding]:
    if facts.rejected:
        yield Finding(
            "error", "access-refused",
            f"etcd does nothing for this user: {facts.rejected}",
            "give the address the user and the password of a role that may use the namespace",
        )  # fmt: skip
    elif facts.denied:
        yield Finding(
            "error", "permission-missing",
            f"the user {address.user!r} may not {' nor '.join(facts.denied)} keys of the namespace "
            f"{namespace!r}",
            f"etcdctl role grant-permission ROLE --prefix=true readwrite {namespace}/",
        )  # fmt: skip
    elif not address.user:
        # Where etcd knows users, it does nothing for nobody in particular.
        yield Finding(
            "info", "auth-off",
            "etcd knows no users: whoever reaches it can take locks, and delete others'",
            "let nobody else reach it, or: etcdctl auth enable, and give the service a user",
        )  # fmt: skip


def _member(place: str, facts: Facts) -> Iterator[Finding]:
    version = str(facts.status.get("version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < OLDEST:
        yield Finding(
            "error", "version-old",
            f"{place}: etcd {version} is older than {'.'.join(map(str, OLDEST))}, whose gateway "
            "the service needs",
            "upgrade it", subject=place,
        )  # fmt: skip
    if facts.status and not facts.number("leader"):
        yield Finding(
            "error", "leader-missing",
            f"{place} knows no leader: no lock can be acquired",
            "see that a majority of the members runs and is connected", subject=place,
        )  # fmt: skip
    quota = facts.number("dbSizeQuota") or DEFAULT_QUOTA
    size = facts.number("dbSize")
    if size >= NEARLY_FULL * quota:
        known = "its quota" if facts.number("dbSizeQuota") else "etcd's default quota"
        yield Finding(
            "warning", "quota-nearly-full",
            f"{place}: the store has {size} bytes, more than {NEARLY_FULL:.0%} of {known}; beyond "
            "it no lock can be acquired (alarm NOSPACE)",
            "compact and defragment it, or raise --quota-backend-bytes", subject=place,
        )  # fmt: skip
    for what, said in facts.refused:
        yield Finding(
            "info", "not-looked-at",
            f"{place}: {what} could not be looked at ({said})",
            "verify as a user that may", subject=what,
        )  # fmt: skip
