"""What can be known of a Redis server: which questions, and the facts that come of them.

Without I/O: :func:`gather` is a generator that yields commands and is sent what they answered, so
that the sync and the async shell perform the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.redis.permissions import BY_SCRIPTS, FOR_REPLICAS, TO_RUN, TO_WAKE
from fencing.locks.redis.scripts import PERMITTED, keys_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    # A command goes out; its answer comes back, alone in a list.
    Looks = Generator[tuple[bytes | str, ...], Iterable[Any], "T"]

__all__ = ["Facts", "Looks", "Refusal", "gather"]

T = TypeVar("T")

SETTINGS = (
    "save",
    "appendfsync",
    "stop-writes-on-bgsave-error",
    "timeout",
    "tcp-keepalive",
    "min-replicas-to-write",
)
"""What only CONFIG tells."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Redis said instead of answering a command."""

    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What one server has told.

    Attributes:
        info: What INFO says; empty where it was refused.
        settings: What CONFIG says, of `SETTINGS`.
        cluster: What CLUSTER INFO says; empty where it is no cluster.
        denied: The commands of ours that the user may not call.
        refused: What could not be looked at, and what Redis said.
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    def number(self, name: str) -> int:
        """A number that INFO tells; 0 where it does not."""
        value = self.info.get(name)
        return value if isinstance(value, int) else 0


def gather(namespace: str, *, replicas: int = 0) -> Looks[Facts]:
    """The facts of one server; reads only, and touches no key.

    Args:
        namespace: Of the lock service whose server it is.
        replicas: For how many the service waits.
    """
    refused: list[tuple[str, str]] = []
    denied = yield from _denied(namespace, replicas, refused)
    (info,) = yield ("INFO",)
    if isinstance(info, Refusal):
        refused.append(("INFO", info.message))
        info = {}
    settings: dict[str, str] = {}
    for name in SETTINGS:
        (answer,) = yield ("CONFIG GET", name)
        if isinstance(answer, Refusal):
            refused.append((f"the settings {', '.join(SETTINGS)}", answer.message))
            break
        settings.update({_text(key): _text(value) for key, value in answer.items()})
    cluster: Mapping[str, Any] = {}
    if info.get("cluster_enabled"):
        (answer,) = yield ("CLUSTER INFO",)
        if isinstance(answer, Refusal):
            refused.append(("the state of the cluster", answer.message))
        else:
            cluster = answer
    return Facts(info, settings, cluster, denied, tuple(refused))


def _denied(
    namespace: str, replicas: int, refused: list[tuple[str, str]]
) -> Looks[tuple[str, ...]]:
    """Which commands of ours the user may not call."""
    key = keys_of(namespace, "verification")[0]
    channel = f"{namespace}:wake:0".encode()
    wanted = [word for command in BY_SCRIPTS for word in (command.encode(), key)]
    wanted += [word for command in TO_WAKE for word in (command.encode(), channel)]
    if replicas:
        wanted += [word for command in FOR_REPLICAS for word in (command.encode(), b"0")]
    denied = []
    (answer,) = yield ("EVALSHA", PERMITTED.sha, "0", *wanted)
    if isinstance(answer, Refusal) and not answer.message.startswith("NOSCRIPT"):
        denied.append(TO_RUN[0])
    # Sent in any case, for a service needs both.
    (answer,) = yield ("EVAL", PERMITTED.text, "0", *wanted)
    if isinstance(answer, Refusal):
        denied.append(TO_RUN[1])
        refused.append(("what scripts may call", answer.message))
        return tuple(denied)
    found, *commands = map(_text, answer)
    if found == "unknown":
        refused.append(("what scripts may call", "Redis tells it from version 7.0 on"))
    return (*denied, *commands)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
