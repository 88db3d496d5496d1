"""Asking ZooKeeper: the steps a shell performs, and what every call has in common.

Without I/O and without a clock, like :mod:`fencing.locks.asking`, which states the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fencing.locks.asking import BaseCall, Pause
from fencing.locks.zookeeper.names import line_of, offset_in
from fencing.request import MAX_TOKEN

if TYPE_CHECKING:
    from fencing.errors import LockServiceError
    from fencing.locks.zookeeper.names import Node, Space

__all__ = [
    "Ask", "Call", "Check", "Children", "Create", "Delete", "Get", "Line", "Multi", "Operation",
    "Place", "Refused", "Reply", "Set", "Stat", "Step", "Steps", "Sweep", "Sync", "Wait",
    "milliseconds",
]  # fmt: skip

T = TypeVar("T")


class Stat(Protocol):
    """What ZooKeeper says about a node.

    Attributes:
        czxid: The number of the transaction that made it.
        mzxid: Of the one that wrote it last.
        ctime: When it was made, in milliseconds of the clock of the leader of that time.
        mtime: When it was written last, likewise.
        version: How often it was written.
        ephemeralOwner: The session with which it ends; 0: none.
        pzxid: The number of the transaction that made or removed a child of it last.
    """

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    ephemeralOwner: int  # noqa: N815 - ZooKeeper's name for it
    pzxid: int


# What ZooKeeper is asked to do.


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; its path and its `Stat` come back.

    Attributes:
        path: Its path, or its beginning with ``sequence``.
        data: What it holds.
        sequence: Whether ZooKeeper numbers it.
        ephemeral: Whether it ends with the session.
        container: Whether it ends some time after its last child.
    """

    path: str
    data: bytes = b""
    sequence: bool = False
    ephemeral: bool = False
    container: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node, if it is of this version; -1: of any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node, if it is of this version; its `Stat` comes back.

    Attributes:
        path: Which.
        data: What to write, or what makes it of the time at which it is sent
            (:func:`fencing.clock.now`, seconds).
        version: -1: of any.
    """

    path: str
    data: bytes | Callable[[float], bytes]
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Only if there is this node; within a `Multi`."""

    path: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a node: its bytes and its `Stat` come back.

    Attributes:
        path: Which.
        watch: Whether a `Wait` ends when it changes.
    """

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    """The names of a node's children come back.

    Attributes:
        path: Which node.
        stat: Whether its `Stat` comes with them: ``(names, stat)``.
    """

    path: str
    stat: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """Have the server catch up with the leader, so that what is read next is not out of date.

    A session sees what it has written itself. It need not see what it has written through another
    server, if it has never heard that it was done.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Multi:
    """All of these or none; ``None`` comes back, or which one was `Refused`."""

    operations: tuple[Create | Delete | Set | Check, ...]


Operation = Create | Delete | Set | Get | Children | Sync | Multi


@dataclass(frozen=True, slots=True)
class Refused:
    """What ZooKeeper did not do, as an answer.

    Attributes:
        why: ``no node``, ``exists``, ``version`` or ``not empty``.
        at: Which of a `Multi` it was.
    """

    why: str
    at: int = 0


# What the shell performs.


@dataclass(frozen=True, slots=True)
class Ask:
    """Send these together, in this order; send back a `Reply`, or throw `Trouble`.

    Attributes:
        operations: What to do.
        within: How long the answers may take, in seconds, connecting included.
    """

    operations: tuple[Operation, ...]
    within: float


@dataclass(frozen=True, slots=True)
class Line:
    """Stand in line behind others of this process, for so many seconds; send back the time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the watched node changes, for so many seconds at most; send back the time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove all nodes of a holder, now or when ZooKeeper is there again; send back the time.

    Attributes:
        parent: Under which node they are.
        holder: The nonce of the acquisition that may have made them.
        seconds: How long to wait for it.
    """

    parent: str
    holder: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What ZooKeeper answered.

    Attributes:
        came: For each operation what came of it, or `Refused`.
        asked_at: Before they were sent (:func:`fencing.clock.now`, seconds).
        at: When the last answer was there (the same clock).
    """

    came: list[Any]
    asked_at: float
    at: float


Step = Ask | Pause | Line | Wait | Sweep
Steps = Generator[Step, Any, T]


@dataclass(slots=True)
class Place:
    """Where a lease is in ZooKeeper.

    Attributes:
        path: Its node.
        promised_until: Until when ZooKeeper may have been asked to keep it at the longest
            (:func:`fencing.clock.now`, seconds). It cannot compare, so no request may shorten what
            an earlier one, perhaps still unanswered, has made longer.
    """

    path: str
    promised_until: float

    def ttl_for(self, ttl: float, at: float) -> int:
        """What to ask for at this time so that nothing is shortened, in milliseconds."""
        self.promised_until = max(self.promised_until, at + ttl)
        return milliseconds(self.promised_until - at)


def milliseconds(seconds: float) -> int:
    """A length of time in whole milliseconds, rounded up."""
    return -int(-seconds * 1000 // 1)


class Call(BaseCall):
    """One call of the lock service.

    Attributes:
        space: The nodes of its namespace.
        parent: The node under which those of the resource are.
    """

    def __init__(self, space: Space, resource: str, started_at: float, *, ends: float) -> None:
        super().__init__(resource, started_at, ends=ends)
        self.space = space
        self.parent = space.parent(resource)

    def ask_once(self, *operations: Operation, or_else: tuple[Operation, ...]) -> Steps[Reply]:
        """Ask what must not be done twice.

        After trouble nobody knows whether it was done; from then on something else is asked, and
        ``repeated`` says that it is the answer to that.
        """
        self.repeated = False

        def asking(within: float) -> Ask:
            return Ask(or_else if self.repeated else operations, within)

        reply: Reply = yield from self.until_answered(asking)
        return reply

    def ask(self, *operations: Operation) -> Steps[Reply]:
        """Ask until there is an answer; only for what may be done twice."""
        reply: Reply = yield from self.until_answered(lambda within: Ask(operations, within))
        return reply

    def set_up(self) -> Steps[None]:
        """Make the nodes under which those of the resource are."""
        space = self.space
        made = (
            Create(space.root),
            Create(space.locks),
            Create(space.offsets),
            Create(self.parent, container=True),
        )
        reply = yield from self.ask(*made)
        if any(isinstance(each, Refused) and each.why == "no node" for each in reply.came):
            raise self.error(
                f"ZooKeeper has no node {space.chroot}, which is the chroot of the address: create "
                "it, or leave it out"
            )

    def line(self) -> Steps[list[Node]]:
        """The queue of the resource."""
        reply = yield from self.ask(Children(self.parent))
        return self.line_in(reply.came[0])

    def line_in(self, came: Any) -> list[Node]:  # noqa: ANN401 - as `Reply` has it
        """The queue that an answer tells."""
        return [] if isinstance(came, Refused) else line_of(self.parent, came)

    def sweep(self, holder: str) -> Steps[None]:
        """Remove what an acquisition may have left; what stays has its ttl or its session."""
        self.at = yield Sweep(self.parent, holder, self.clean_up_seconds)

    def token_of(self, stat: Stat, offset: Any) -> int:  # noqa: ANN401 - as `Reply` has it
        """The token of a holder's node.

        Raises:
            LockServiceError: There is none, or it would be too large.
        """
        return self.checked(stat.czxid + self.offset_in(offset))

    def checked(self, token: int) -> int:
        """A token that can be counted with exactly; what could not be is an error."""
        if not 1 <= token <= MAX_TOKEN:
            raise self.error(
                f"the token would be {token}, which is not from 1 to 2**53 - 1: either the "
                "ensemble has had two million elections, or the resource's offset was set too "
                f"high by mistake; look at {self.space.offset(self.resource)}"
            )
        return token

    def offset_in(self, came: Any) -> int:  # noqa: ANN401 - as `Reply` has it
        """The offset that a `Get` has told."""
        if isinstance(came, Refused):
            return 0
        offset = offset_in(came[0])
        if offset is None:
            raise self.error(
                f"{self.space.offset(self.resource)} does not hold a number from 0 upwards, so no "
                "token can be issued; write one there that was never too low, or delete the node "
                "if a guard uses this service, which heals the tokens"
            )
        return offset

    def nonsense(self, came: object) -> LockServiceError:
        """The error for an answer that makes no sense."""
        return self.error(f"ZooKeeper answered {came!r}, which is no answer to what was asked")

    def foreign(self, path: str) -> LockServiceError:
        """The error for a node in the queue that nobody would ever be granted the lock after."""
        return self.error(
            f"the node {path} is in the queue and was not written by a lock service; look at it "
            "and delete it"
        )
