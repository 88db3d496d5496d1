"""What etcd answers, and what its errors mean; without I/O."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from fencing.locks.asking import Trouble

__all__ = [
    "EXISTS", "NO_LEASE", "Kv", "Reply", "Transacted", "is_stale_token", "message_in", "reply_to",
    "transacted",
]  # fmt: skip

EXISTS = "exists"
"""There is such a lease already."""

NO_LEASE = "no lease"
"""There is no such lease, or not any more."""

_OUTCOMES = {
    "lease already exists": EXISTS,
    "requested lease not found": NO_LEASE,
}

_AUTHENTICATE = (
    "etcd wants to know who asks: give the service a user and a password, "
    "etcd://user:password@host, and see that they are right"
)

# The first that fits: text to be found in the message, whether to try again, what it means.
_MEANINGS: list[tuple[str, bool, str]] = [
    (
        "database space exceeded",
        False,
        (
            "etcd takes no writes because its quota is used up (alarm NOSPACE): compact and "
            "defragment it, raise --quota-backend-bytes if need be, then disarm the alarm"
        ),
    ),
    (
        "permission denied",
        False,
        (
            "the etcd user lacks a permission: the lock service needs to read and write "
            "everything that begins with its namespace and a slash"
        ),
    ),
    ("user name is empty", False, _AUTHENTICATE),
    ("authentication failed", False, _AUTHENTICATE),
    ("invalid auth token", True, "etcd did not accept the token it gave us: try again"),
    ("auth store is old", True, "etcd's users were changed meanwhile: try again"),
    (
        "authentication is not enabled",
        False,
        "etcd knows no users, and was given one: take user and password out of the address",
    ),
    ("corrupt", False, "etcd says that its data is damaged (alarm CORRUPT): look at its members"),
    (
        "no leader",
        True,
        "etcd has no leader: see that a majority of its members runs and is connected",
    ),
    ("leader changed", True, "etcd has just got another leader: try again"),
    ("too many requests", True, "etcd has more requests than it can do: look at its load and disk"),
    ("request timed out", True, "etcd did not answer in time: look at its load, disk and network"),
    ("stopped", True, "etcd is being stopped: try again when it is back, or at another member"),
    ("request is too large", False, "etcd refuses requests of that size: see --max-request-bytes"),
]

_UNAVAILABLE = 14  # of gRPC: this member cannot do it just now


@dataclass(frozen=True, slots=True)
class Kv:
    """A key and what is known of it.

    Attributes:
        key: The key.
        value: What it holds.
        created: The revision since which it is there.
        modified: The revision of the last change.
        lease: The number of the lease it is attached to; 0: of none.
    """

    key: bytes
    value: bytes
    created: int
    modified: int
    lease: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What etcd answered.

    Attributes:
        body: The answer; an object, as JSON has it.
        asked_at: When the request was sent (:func:`fencing.clock.now`, seconds).
        at: When the answer was there (the same clock).
        failed: Why it could not be done, where that is an answer: `EXISTS` or `NO_LEASE`.
    """

    body: dict[str, Any]
    asked_at: float
    at: float
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Transacted:
    """What came of a transaction.

    Attributes:
        succeeded: Whether the comparisons held.
        revision: Of the store, after it.
        found: For each thing that was done, the keys it has read or deleted.
        counts: For each, how many keys there are in the range.
        failed: As in `Reply`; then nothing was done.
    """

    succeeded: bool
    revision: int
    found: list[list[Kv]]
    counts: list[int]
    failed: str = ""


def reply_to(status: int, content: bytes, *, asked_at: float, at: float) -> Reply:
    """Judge an answer.

    Args:
        status: Of HTTP.
        content: The answer; of a stream the first line.
        asked_at: When the request was sent (:func:`fencing.clock.now`, seconds).
        at: When the answer was there (the same clock).

    Raises:
        Trouble: It says that nothing was done, and why; or it is none of etcd's.
    """
    body = _object_in(content)
    message, code = _error_in(body)
    if status == 200 and not message:  # noqa: PLR2004 - of HTTP
        if not body:
            raise _none_of_etcd_s(status, content, at)
        return Reply(body, asked_at, at)
    for text, outcome in _OUTCOMES.items():
        if text in message:
            return Reply({}, asked_at, at, outcome)
    for text, passing, meaning in _MEANINGS:
        if text in message:
            raise Trouble(f"{meaning} ({message})", passing=passing, at=at)
    if not message:
        raise _none_of_etcd_s(status, content, at)
    raise Trouble(f"etcd refused ({message})", passing=code == _UNAVAILABLE, at=at)


def is_stale_token(status: int, content: bytes) -> bool:
    """Whether the answer is that we have to say anew who we are."""
    message = message_in(content)
    return status != 200 and ("auth token" in message or "auth store is old" in message)  # noqa: PLR2004 - of HTTP


def message_in(content: bytes) -> str:
    """What an answer says of an error; empty if it says nothing."""
    return _error_in(_object_in(content))[0]


def transacted(reply: Reply) -> Transacted:
    """Read the answer to a transaction.

    Raises:
        ValueError: It is none.
    """
    if reply.failed:
        return Transacted(succeeded=False, revision=0, found=[], counts=[], failed=reply.failed)
    try:
        responses = [next(iter(each.values())) for each in reply.body.get("responses", [])]
        return Transacted(
            succeeded=reply.body.get("succeeded", False) is True,
            revision=int(reply.body["header"]["revision"]),
            found=[[_kv(kv) for kv in kvs_in(response)] for response in responses],
            counts=[int(response.get("count", 0)) for response in responses],
        )
    except (AttributeError, KeyError, StopIteration, TypeError) as error:
        raise ValueError("no answer to a transaction") from error


def kvs_in(response: dict[str, Any]) -> list[dict[str, str]]:
    """The keys that were read or deleted, as they came."""
    kvs: list[dict[str, str]] = response.get("kvs") or response.get("prev_kvs") or []
    return kvs


def _kv(kv: dict[str, str]) -> Kv:
    return Kv(
        key=base64.b64decode(kv["key"], validate=True),
        value=base64.b64decode(kv.get("value", ""), validate=True),
        created=int(kv["create_revision"]),
        modified=int(kv["mod_revision"]),
        lease=int(kv.get("lease", 0)),
    )


def _object_in(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    if not isinstance(body, dict):
        return {}
    # In a stream each answer is the result of something.
    result = body.get("result")
    return result if isinstance(result, dict) else body


def _error_in(body: dict[str, Any]) -> tuple[str, int]:
    # In a stream it is an object, and one of its own in every version.
    facts = body.get("error")
    if isinstance(facts, dict):
        body = facts
    message = body.get("message") or (facts if isinstance(facts, str) else "")
    code = body.get("code") or body.get("grpc_code") or 0
    return (str(message), code if isinstance(code, int) else 0)


def _none_of_etcd_s(status: int, content: bytes, at: float) -> Trouble:
    told = content[:200].decode(errors="replace").strip()
    return Trouble(
        f"what answered is not etcd's JSON gateway (HTTP {status}: {told!r}): see that the address "
        "is that of an etcd 3.4 or newer, that its gateway is enabled, and that no proxy is in "
        "between",
        passing=status >= 500,  # noqa: PLR2004 - of HTTP: a proxy whose server is away
        at=at,
    )
