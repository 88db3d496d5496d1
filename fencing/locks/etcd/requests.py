"""Requests to etcd, as its JSON gateway takes them: bytes in base64, numbers as texts."""

from __future__ import annotations

import base64
from typing import Any, TypeAlias

__all__ = [
    "Body", "absent", "at_revision", "attached", "before", "created", "delete", "empty", "exists",
    "first", "get", "modified", "page", "put", "transaction", "watch",
]  # fmt: skip

Body: TypeAlias = dict[str, Any]
"""A request, or a part of one."""

Range: TypeAlias = tuple[bytes, bytes]
"""The first key, and the first one behind the last."""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _keys(keys: bytes | Range) -> Body:
    if isinstance(keys, bytes):
        return {"key": _text(keys)}
    return {"key": _text(keys[0]), "range_end": _text(keys[1])}


def transaction(compare: list[Body], success: list[Body], failure: list[Body]) -> Body:
    """Do one or the other, by whether all comparisons hold."""
    return {"compare": compare, "success": success, "failure": failure}


# What is compared.


def _compared(keys: bytes | Range, target: str, result: str, **value: int) -> Body:
    texts = {name: str(number) for name, number in value.items()}
    return {**_keys(keys), "target": target, "result": result, **texts}


def absent(key: bytes) -> Body:
    """There is no such key."""
    return _compared(key, "CREATE", "EQUAL", create_revision=0)


def empty(keys: Range) -> Body:
    """There is no key in the range."""
    return _compared(keys, "CREATE", "EQUAL", create_revision=0)


def exists(key: bytes) -> Body:
    """There is such a key."""
    return _compared(key, "CREATE", "GREATER", create_revision=0)


def created(key: bytes, revision: int) -> Body:
    """It is the same key ever since this revision, whatever was put there."""
    return _compared(key, "CREATE", "EQUAL", create_revision=revision)


def modified(key: bytes, revision: int) -> Body:
    """Nothing was done to it since this revision; 0: it is not there."""
    return _compared(key, "MOD", "EQUAL", mod_revision=revision)


def attached(key: bytes, lease: int) -> Body:
    """It is there, and attached to this lease."""
    return _compared(key, "LEASE", "EQUAL", lease=lease)


# What is done.


def put(key: bytes, value: bytes, lease: int = 0) -> Body:
    """Set a key and attach it to a lease; 0: to none."""
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": str(lease)}}


def delete(key: bytes) -> Body:
    """Delete a key; answered with what it was."""
    return {"request_delete_range": {"key": _text(key), "prev_kv": True}}


def get(key: bytes) -> Body:
    """Read a key."""
    return {"request_range": _keys(key)}


def first(keys: Range) -> Body:
    """Read the key of a range that was created first; answered with how many there are, too."""
    return {
        "request_range": {
            **_keys(keys), "limit": "1", "sort_order": "ASCEND", "sort_target": "CREATE",
        }
    }  # fmt: skip


def before(keys: Range, revision: int) -> Body:
    """Read the key of a range that was created last before this revision."""
    return {
        "request_range": {
            **_keys(keys), "limit": "1", "sort_order": "DESCEND", "sort_target": "CREATE",
            "max_create_revision": str(revision - 1),
        }
    }  # fmt: skip


def page(keys: Range, limit: int) -> Body:
    """Read the first keys of a range, without their values; a request of its own."""
    return {**_keys(keys), "limit": str(limit), "keys_only": True}


def at_revision(key: bytes, revision: int) -> Body:
    """Read a key as it was at this revision; a request of its own."""
    return {**_keys(key), "revision": str(revision)}


def watch(key: bytes, revision: int) -> Body:
    """Tell of the deletion of a key, at this revision or later; a request of its own."""
    created_watch = {**_keys(key), "start_revision": str(revision), "filters": ["NOPUT"]}
    return {"create_request": created_watch}
