"""The Lua scripts and the keys they work on.

The keys of one resource share a hash tag, ``{…}``, so that Redis Cluster keeps them in one slot
and a script may touch them all::

    fencing:{account:42}:lock       token, holder, owner; expires with the lease
    fencing:{account:42}:counter    the token issued last; may expire where a guard can reseed it
    fencing:{account:42}:queue      who waits for the lock; expires when nobody asks any more
    fencing:{account:42}:given-back who has given up without an answer; expires after 5 minutes

Redis takes as the tag what stands between the first ``{`` and the first ``}`` after it, so braces
inside a resource's name are written ``%7B`` and ``%7D``, and therefore ``%`` is written ``%25``.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ACQUIRE", "ACQUIRE_ALL", "INSPECT", "PERMITTED", "RAISE", "RELEASE", "RELEASE_UNWANTED",
    "RENEW", "SCAN", "Script",
    "check_namespace", "keys_of", "keys_of_all", "milliseconds", "pattern_of", "resource_of_key",
]  # fmt: skip

_OURS = "fencing.locks.redis"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script; its header in ``lua/`` says what it takes and what it answers.

    Attributes:
        name: Of its file, without ``.lua``.
        package: Whose ``lua/`` it is in.
        uses: Files of ours with functions that it calls, or with what it begins with; their texts
            come before its own.
        tells: Whether it is likely to tell somebody that he has the lock now; see
            `wire.packed_behind`.
        keys: How many of a resource's keys it works on. A cluster that moves a slot serves only
            requests all of whose keys are there, and a queue seldom is.
        text: The script.
        sha: What Redis names it by.
    """

    name: str
    package: str = _OURS
    uses: tuple[str, ...] = ()
    keys: int = 4
    tells: bool = False
    text: str = field(init=False, repr=False)
    sha: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        texts = [
            (files(package) / "lua" / f"{name}.lua").read_text("utf-8")
            for package, names in ((_OURS, self.uses), (self.package, (self.name,)))
            for name in names
        ]
        text = "".join(texts)
        object.__setattr__(self, "text", text)
        # SHA-1 is what EVALSHA names a script by; nothing rests on its strength.
        digest = hashlib.sha1(text.encode(), usedforsecurity=False)
        object.__setattr__(self, "sha", digest.hexdigest())


ACQUIRE = Script("acquire", uses=("acquire_free", "issue", "hand_over", "given_back"))
ACQUIRE_ALL = Script("acquire_all", uses=("issue", "hand_over", "given_back"))
RENEW = Script("renew", uses=("issue",), keys=2)
RELEASE = Script(
    "release", uses=("release_unwanted", "issue", "hand_over", "given_back"), tells=True
)
RELEASE_UNWANTED = replace(RELEASE, tells=False)
"""The same, where nobody is likely to wait for the lock."""
RAISE = Script("raise", uses=("issue",), keys=2)
PERMITTED = Script("permitted")
INSPECT = Script("inspect")
SCAN = Script("scan")

_LOCK_ENDS = "}:lock"


@lru_cache(maxsize=1024)  # locks are taken again and again
def keys_of(namespace: str, resource: str) -> tuple[bytes, bytes, bytes, bytes]:
    """The lock, the counter, the queue and the marks of a resource, as the scripts take them.

    Bytes, because a client encodes a ``str`` in whatever encoding it was configured with.
    """
    stem = f"{namespace}:{{{_escaped(resource)}}}"
    return (
        f"{stem}:lock".encode(),
        f"{stem}:counter".encode(),
        f"{stem}:queue".encode(),
        f"{stem}:given-back".encode(),
    )


def keys_of_all(namespace: str, resources: Sequence[str]) -> tuple[bytes, ...]:
    """The keys of several resources, one resource after the other."""
    return tuple(itertools.chain(*[keys_of(namespace, resource) for resource in resources]))


def pattern_of(namespace: str, prefix: str) -> str:
    """The glob of Redis's that fits the locks on resources whose names begin with a prefix."""
    stem = f"{namespace}:{{{_escaped(prefix)}"
    literal = "".join(f"\\{char}" if char in "*?[]^-\\" else char for char in stem)
    return f"{literal}*{_LOCK_ENDS}"


def resource_of_key(namespace: str, key: str) -> str | None:
    """The resource that a lock's key belongs to; ``None`` if the key is no lock's."""
    stem = f"{namespace}:{{"
    if not (key.startswith(stem) and key.endswith(_LOCK_ENDS)):
        return None
    tag = key[len(stem) : -len(_LOCK_ENDS)]
    # "%" last: it is what the others are escaped with.
    resource = tag.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
    return resource if _escaped(resource) == tag else None


def _escaped(resource: str) -> str:
    return resource.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def check_namespace(namespace: str) -> str:
    """Return ``namespace`` if keys can begin with it.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It is empty, or holds a brace, NUL or a lone surrogate.
    """
    if not isinstance(namespace, str):
        raise TypeError(f"namespace must be a str, not {type(namespace).__name__}")
    if not namespace:
        raise ValueError("namespace must not be empty")
    if any(forbidden in namespace for forbidden in "{}\0"):
        raise ValueError(
            f"namespace must hold no braces and no NUL, not {namespace!r}: a brace would move "
            "the hash tag that keeps the keys of one resource together"
        )
    try:
        namespace.encode()
    except UnicodeEncodeError:
        raise ValueError(f"namespace must be encodable as UTF-8: {namespace!r}") from None
    return namespace


@lru_cache(maxsize=128)  # most have one and the same
def milliseconds(seconds: float) -> str:
    """A ttl as an argument of a script."""
    # Rounded up: the key must not expire before the trust that is counted from the same ttl.
    return str(math.ceil(seconds * 1000))
