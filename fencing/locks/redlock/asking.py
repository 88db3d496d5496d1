"""Asking several nodes at once: the step a shell performs, and when it need not wait any longer.

Without I/O and without a clock, like :mod:`fencing.locks.asking`, which states the rules.

A question is *clear* when no answer that is still to come could change what it comes to. Then those
who are late are waited for no more than ``LINGER_SECONDS``, and not at all if they were late before
(:class:`Gathering`); what they were asked goes on in the background. Where the time for an answer
is up before that, too few answers are `Trouble`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.locks.asking import BaseCall, Pause, Trouble, pause_after
from fencing.locks.redis.asking import Line, Reply, Signal, Wait

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fencing.locks.redis.scripts import Script

__all__ = [
    "LINGER_SECONDS", "AskNodes", "Came", "Gathering", "NodesCall", "Quorum", "Replies", "Step",
    "Steps", "Wanted", "checked", "trouble_of_nodes",
]  # fmt: skip

T = TypeVar("T")

LINGER_SECONDS = 0.05
"""How long a node that answers later than the others is waited for, in seconds."""

SHORTEST_SECONDS = 0.02
"""What a node is given for its answer even where the ttl is very short, in seconds."""

TTL_PART = 0.25
"""Part of a lease's ttl that a node's answer may take: two are needed, and half shall be left."""

Came = Reply | Trouble | None
"""What came of the request to one node; ``None``: nothing yet."""


_TOLD = 2
"""Of how many nodes a message tells."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many nodes there are, and how long each is waited for.

    Attributes:
        size: How many.
        node_timeout: How long a node's answer may take, in seconds, connecting included.
    """

    size: int
    node_timeout: float

    @property
    def majority(self) -> int:
        """How many are more than half."""
        return self.size // 2 + 1

    def within(self, ttl: float | None = None) -> float:
        """How long a node's answer may take, in seconds, for the sake of a lease of this ttl."""
        if ttl is None:
            return self.node_timeout
        return min(self.node_timeout, max(SHORTEST_SECONDS, ttl * TTL_PART))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which answers a question is clear by.

    Attributes:
        good: How answers begin of which a majority is wanted.
        bad: Those of which so many that no majority is left make it clear as well.
        stop: One of these does.
        any_majority: Whether a majority of answers will do when the time is up, whatever they are.
    """

    good: frozenset[str]
    bad: frozenset[str] = frozenset()
    stop: frozenset[str] = frozenset()
    any_majority: bool = False

    def is_clear(self, quorum: Quorum, words: Collection[str]) -> bool:
        """Whether it is, by how the answers begin that have come."""
        good = sum(word in self.good for word in words)
        bad = sum(word in self.bad for word in words)
        return (
            good >= quorum.majority
            or bad > quorum.size - quorum.majority
            or any(word in self.stop for word in words)
        )

    def suffices(self, quorum: Quorum, words: Collection[str]) -> bool:
        """Whether something can be made of it although no more answers will come."""
        enough = self.any_majority and len(words) >= quorum.majority
        return enough or self.is_clear(quorum, words)


@dataclass(frozen=True, slots=True)
class AskNodes:
    """Run a script on nodes, on all at once; send back `Replies`, or throw `Trouble`.

    Attributes:
        quorum: How many of them have to agree.
        script: Which one.
        arguments: Its ARGV; the first one comes back in every answer.
        within: How long the answers may take, in seconds, connecting included.
        wanted: What to wait for; ``None``: for what comes, and there is no `Trouble`.
        nodes: Which nodes; ``None``: all.
        see_through: Whether it must be done even while the caller is being cancelled.
        patient: Whether, without a wish, those are waited for as well that did not answer before.
        hint: What may help where too few nodes answer.
    """

    quorum: Quorum
    script: Script
    arguments: tuple[str, ...]
    within: float
    wanted: Wanted | None
    nodes: tuple[int, ...] | None = None
    see_through: bool = False
    patient: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Replies:
    """What the nodes answered.

    Attributes:
        came: Of each node.
        asked_at: When all of them were asked (:func:`fencing.clock.now`, seconds).
        at: When enough answers were there (the same clock).
    """

    came: Sequence[Came]
    asked_at: float
    at: float

    def words(self) -> list[str]:
        """How each answer begins; empty for a node that has not answered."""
        return [each.answer[0] if isinstance(each, Reply) else "" for each in self.came]

    def facts(self, word: str) -> list[list[str]]:
        """What those answers say that begin so."""
        answers = [each.answer for each in self.came if isinstance(each, Reply)]
        return [answer[2:] for answer in answers if answer[0] == word]


Step = AskNodes | Pause | Line | Wait
Steps = Generator[Step, Any, T]
"""What a call does: yields steps, and is sent `Replies` for an `AskNodes`, the time for a `Pause`,
and a `Signal` for the others."""


class Gathering:
    """What has come of a step so far, and how long to wait for the rest.

    Args:
        step: What is asked.
        size: How many nodes there are.
        asked_at: When they are asked (:func:`fencing.clock.now`, seconds).
        silent: Those that did not answer when they were asked last; kept up to date.
    """

    def __init__(self, step: AskNodes, size: int, asked_at: float, silent: set[int]) -> None:
        self.came: list[Came] = [None] * size
        self.missing = set(range(size) if step.nodes is None else step.nodes)
        self._quorum = step.quorum
        self._step = step
        self._silent = silent
        self._asked_at = asked_at
        self._ends = asked_at + step.within

    def take(self, node: int, came: Reply | Trouble) -> None:
        """Something has come from a node."""
        self.missing.discard(node)
        if isinstance(came, Reply):
            self._silent.discard(node)
            came = checked(came, self._step.arguments[0])
        else:
            self._silent.add(node)
        self.came[node] = came

    def left(self, at: float) -> float:
        """How long to wait for more, in seconds; 0: no longer."""
        if not self.missing:
            return 0.0
        wanted = self._step.wanted
        if wanted is None:
            clear = not self._step.patient and self.missing <= self._silent
        else:
            clear = wanted.is_clear(self._quorum, _words(self.came))
        if clear:
            if self.missing <= self._silent:
                return 0.0
            self._ends = min(self._ends, at + LINGER_SECONDS)
        return max(0.0, self._ends - at)

    def end(self, at: float) -> Replies:
        """Make something of what has come; raise `Trouble` where that is not enough."""
        self._silent.update(self.missing)
        wanted = self._step.wanted
        if wanted is not None and not wanted.suffices(self._quorum, _words(self.came)):
            step = self._step
            raise trouble_of_nodes(self._quorum, self.came, step.within, at=at, hint=step.hint)
        return Replies(self.came, self._asked_at, at)


def checked(reply: Reply, echo: str) -> Reply | Trouble:
    """A reply, if it is to our own question: it carries what it was asked with."""
    if len(reply.answer) < 2 or reply.answer[1] != echo:  # noqa: PLR2004 - word and echo
        return Trouble(
            f"it answered {reply.answer!r}, which is no answer to what was asked: is there a "
            "proxy in between, or a client shared between threads or processes that must not "
            "share it?",
            passing=False,
            at=reply.at,
        )
    return reply


def _may_answer(came: Came) -> bool:
    return came is None or (isinstance(came, Trouble) and came.passing)


def _words(came: Sequence[Came]) -> list[str]:
    return [each.answer[0] for each in came if isinstance(each, Reply)]


def trouble_of_nodes(
    quorum: Quorum, came: Sequence[Came], within: float, *, at: float, hint: str = ""
) -> Trouble:
    """What it means that too few nodes have given an answer that helps."""
    troubles = [(node, each) for node, each in enumerate(came) if isinstance(each, Trouble)]
    if quorum.size == 1:  # of a node that is asked for itself, no majority is wanted
        silence = f"it did not answer within {within:.3g} s"
        return troubles[0][1] if troubles else Trouble(silence, passing=True, at=at)
    answered = len(_words(came))
    silent = quorum.size - len(troubles) - answered
    told = [f"node {node}: {trouble.help}" for node, trouble in troubles[:_TOLD]]
    if silent > 0:
        told.append(f"{silent} did not answer within {within:.3g} s")
    if not told:
        told.append("they do not agree, so some were restarted or their keys deleted")
    told.extend([hint] if hint else [])
    lasting = sum(not trouble.passing for _, trouble in troubles)
    trouble = Trouble(
        f"{quorum.majority} of {quorum.size} nodes have to agree, and {answered} answered: "
        f"{'; '.join(told)}",
        passing=lasting <= quorum.size - quorum.majority,
        at=at,
    )
    trouble.__cause__ = troubles[0][1].__cause__ if troubles else None
    return trouble


class NodesCall(BaseCall):
    """One call of the lock service.

    Attributes:
        quorum: The nodes.
        ttl: Of the lease that it is about, in seconds; ``None``: of none.
    """

    def __init__(
        self,
        quorum: Quorum,
        resource: str,
        started_at: float,
        *,
        ends: float,
        ttl: float | None = None,
    ) -> None:
        super().__init__(resource, started_at, ends=ends)
        self.quorum = quorum
        self.ttl = ttl

    def ask(
        self,
        wanted: Wanted,
        script: Script,
        *arguments: str,
        nodes: tuple[int, ...] | None = None,
    ) -> Steps[Replies]:
        """Ask until enough nodes have answered; return what they did."""
        longest = self.quorum.within(self.ttl)
        hint = ""
        if longest < self.quorum.node_timeout:
            hint = f"with a ttl of {self.ttl} s they had {longest:.3g} s, a longer ttl leaves more"

        def asking(within: float) -> AskNodes:
            return AskNodes(
                self.quorum,
                script,
                arguments,
                min(within, longest),
                wanted,
                nodes,
                hint=hint,
            )

        replies: Replies = yield from self.until_answered(asking)
        return replies

    def tell(
        self,
        script: Script,
        *arguments: str,
        nodes: tuple[int, ...] | None = None,
        again: Collection[int] | None = None,
        patient: bool = True,
    ) -> Steps[None]:
        """Tell nodes something, whatever comes of it, and even while being cancelled.

        Where one has not answered it is told once more, and while no majority has answered, as
        often as there is time: a single node that is gone keeps nobody for long.

        Args:
            script: Which script.
            *arguments: Its arguments.
            nodes: Which nodes; default: all.
            again: Which of them are told more than once; default: all.
            patient: Whether those are waited for as well that did not answer before, and are told
                more than twice.
        """
        ends = self.at + self.clean_up_seconds
        asked = range(self.quorum.size) if nodes is None else nodes
        answered = tries = 0
        while True:
            replies: Replies = yield AskNodes(
                self.quorum,
                script,
                arguments,
                min(ends - self.at, self.quorum.node_timeout),
                None,
                nodes,
                see_through=True,
                patient=patient,
            )
            self.at = replies.at
            tries += 1
            answered += sum(isinstance(each, Reply) for each in replies.came)
            asked = nodes = tuple(
                node
                for node in asked
                if (again is None or node in again) and _may_answer(replies.came[node])
            )
            patient = patient and answered < self.quorum.majority
            pause = pause_after(tries)
            if not nodes or (tries > 1 and not patient) or self.at + pause >= ends:
                return
            yield from self.pause(pause, see_through=True)

    def stand_in_line(self, *, until: float) -> Steps[None]:
        """Wait for one's turn among those of this process."""
        signal: Signal = yield Line(max(0.0, until - self.at))
        self.at = signal.at

    def wait(self, seconds: float) -> Steps[None]:
        """Wait, but no longer than until the lock is released in this process."""
        signal: Signal = yield Wait(max(0.0, seconds))
        self.at = signal.at
