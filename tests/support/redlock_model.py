"""A search of what can happen to clients of three nodes: every order of messages and delays.

The clients are the real steps (:mod:`fencing.locks.redlock.acquiring`), driven by replaying what
they were sent. The nodes are a model of the scripts, which a test compares with the real ones.

* A message may arrive at any time from when it was sent, or never, in any order.
* A client goes on as soon as its question is clear, with what has come until then; or, where it is
  not, when it has waited long enough, and asks again if need be.
* Time passes for a client that has locks: from then on its trust is over, and what it had locked
  may expire on any node at any moment.
* Who was granted the lock gives it back at any moment, or never.

Checked is that no two have the lock at the same time, and that a later grant has a larger token.
Which node is which makes no difference, so states that differ in that only are one.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fencing.errors import LockServiceError
from fencing.locks.asking import Pause, Trouble
from fencing.locks.outcome import Grant
from fencing.locks.redis.asking import Reply, Signal
from fencing.locks.redlock import acquiring
from fencing.locks.redlock.asking import AskNodes, Quorum, Replies
from fencing.locks.redlock.scripts import ACCEPT, LOCK
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Explored", "Node", "Violation", "explore", "run_script", "wander"]

QUORUM = Quorum(3, 0.25)
TTL = 30.0
TICK = 100.0
"""How much later it is for a client for whom time has passed, in seconds: longer than the ttl."""

STEM = 24

Answer = tuple[str, ...]
Came = tuple[Answer | None, Answer | None, Answer | None]
NOTHING: Came = (None, None, None)
TOLD: Came = (("absent",), ("absent",), ("absent",))


class Node(NamedTuple):
    """A node: who has the lock, under which token and since which tick of his; and the rest."""

    holder: str = ""
    token: int = 0
    since: int = 0
    counter: int = 0
    marks: frozenset[str] = frozenset()


class Message(NamedTuple):
    """A request on its way."""

    client: int
    question: int
    script: str
    arguments: tuple[str, ...]
    tick: int


class Client(NamedTuple):
    """A client.

    Attributes:
        told: What its steps were sent so far, by number; of each what came, when that had been
            asked for, and when it was sent.
        came: The answers to its present question, of each node.
        tick: How often time has passed for it.
        timeouts: How often it has gone on although the question was not clear.
        state: "asks", "has" the lock, or is "done".
    """

    told: int = 0
    came: Came = NOTHING
    tick: int = 0
    timeouts: int = 0
    state: str = "asks"


class State(NamedTuple):
    """The whole; nodes, and the messages to each."""

    clients: tuple[Client, ...]
    nodes: tuple[Node, ...]
    messages: tuple[frozenset[Message], ...]
    largest: int


class Violation(Exception):  # noqa: N818 - what the search is for
    """Something that must not happen, and how it came about."""

    def __init__(self, what: str, trace: list[str]) -> None:
        super().__init__("".join(f"\n  {line}" for line in [*trace, what]))


@dataclass
class Explored:
    """How much was seen.

    Attributes:
        states: How many states there were.
        grants: Pairs of the largest token before a grant, and its own.
        refused: How often a node has refused a token as too small.
    """

    states: int = 0
    grants: set[tuple[int, int]] = field(default_factory=set)
    refused: int = 0


def run_script(
    node: Node, script: str, arguments: tuple[str, ...], tick: int = 0
) -> tuple[Node, Answer]:
    """What a script does on a node, and answers."""
    scripts: dict[str, Callable[..., tuple[Node, Answer]]] = {
        "lock": _lock, "accept": _accept, "release": _release,
    }  # fmt: skip
    return scripts[script](node, *arguments, tick)


def _lock(node: Node, holder: str, _ttl: str, _owner: str, tick: int) -> tuple[Node, Answer]:
    if node.holder == holder:
        return node._replace(since=max(node.since, tick)), ("granted", str(node.counter))
    if node.holder:
        return node, ("held", str(node.token), node.holder)
    if holder in node.marks or holder[:STEM] in node.marks:
        return node, ("late",)
    return node._replace(holder=holder, token=0, since=tick), ("granted", str(node.counter))


def _accept(node: Node, holder: str, token: str, *rest: Any) -> tuple[Node, Answer]:
    mine, proposed = node.holder == holder, int(token)
    found = "accepted" if mine else "other" if node.holder else "absent"
    if rest[0] == "own" and not mine:
        return node, (found,)
    if node.counter < proposed:
        node = node._replace(counter=proposed)
    elif not (mine and node.token == proposed):
        return node, ("above", str(node.counter))
    return (node._replace(token=proposed) if mine else node), (found,)


def _release(node: Node, holder: str, *rest: Any) -> tuple[Node, Answer]:
    is_his = bool(node.holder) and node.holder.startswith(holder)
    found = "released" if is_his else "other" if node.holder else "absent"
    if found != "released" or rest[0] == "unknown":
        node = node._replace(marks=node.marks | {holder})
    return (node._replace(holder="", token=0, since=0) if is_his else node), (found,)


class _Search:
    def __init__(self, rounds: int, ticks: tuple[int, ...], timeouts: tuple[int, ...]) -> None:
        self.clients = len(ticks)
        self.rounds = rounds
        self.ticks = ticks
        self.timeouts = timeouts
        self.found = Explored()
        self._told: list[tuple[Any, ...]] = [()]
        self._numbers: dict[tuple[Any, ...], int] = {(): 0}
        self._turned: dict[tuple[int, tuple[int, ...]], int] = {}
        self._pending: dict[tuple[int, int], Any] = {}

    def pending(self, client: int, told: int) -> Any:
        """What a client's steps want, or return, after they were sent this."""
        if (client, told) not in self._pending:
            self._pending[client, told] = self._replayed(client, self._told[told])
        return self._pending[client, told]

    def _replayed(self, client: int, told: tuple[Any, ...]) -> Any:
        request = AcquireRequest(resource="r", ttl=TTL, blocking_timeout=1e6, owner="")
        steps = acquiring.acquire(
            request, holder=f"{client + 1:x}" * 32, quorum=QUORUM, started_at=0.0
        )
        rounds = 1
        try:
            step = next(steps)
            for came, asked_at, at in told:
                if came is None:
                    step = steps.throw(Trouble("too few have answered", passing=True, at=at))
                else:
                    step = steps.send(_replies(came, asked_at, at))
                while not isinstance(step, AskNodes):
                    step = steps.send(at if isinstance(step, Pause) else Signal(at))
                rounds += step.script is LOCK and came is not None
        except StopIteration as end:
            return end.value
        except LockServiceError:  # it has waited for too long
            return None
        steps.close()
        return step if rounds <= self.rounds else None

    def start(self) -> State:
        state = State((Client(),) * self.clients, (Node(),) * 3, (frozenset(),) * 3, 0)
        for client in range(self.clients):
            state = self.asked(state, client, self.pending(client, 0))
        return state

    def asked(self, state: State, client: int, step: AskNodes) -> State:
        """The client's question is on its way."""
        told, tick = state.clients[client].told, state.clients[client].tick
        question = len(self._told[told])
        message = Message(client, question, step.script.name, step.arguments, tick)
        nodes = range(3) if step.nodes is None else step.nodes
        messages = tuple(
            sent | {message} if node in nodes else sent for node, sent in enumerate(state.messages)
        )
        return state._replace(messages=messages)

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        for _, way in self.ways(state):
            yield way()

    def ways(self, state: State) -> Iterator[tuple[Any, Callable[[], tuple[str, State]]]]:
        """What can happen next, each with what it can be sorted by."""
        for place, messages in enumerate(state.messages):
            for message in messages:
                yield (1, place, *message), partial(self.delivered, state, place, message)
        for number, client in enumerate(state.clients):
            step = self.pending(number, client.told)
            asks, has = client.state == "asks", client.state == "has"
            if has:
                yield (2, number), partial(self.released, state, number)
            if asks and client.timeouts < self.timeouts[number]:
                yield (3, number), partial(self.waited, state, number, step)
            # Before it has the locks, time makes no difference.
            if client.tick < self.ticks[number] and (has or (asks and step.script is ACCEPT)):
                yield (4, number), partial(self.later, state, number)
        for place, node in enumerate(state.nodes):
            if node.holder:
                owner = int(node.holder[0], 16) - 1
                if state.clients[owner].tick > node.since:
                    yield (5, place), partial(self.expired, state, place)

    def waited(self, state: State, number: int, step: AskNodes) -> tuple[str, State]:
        client = state.clients[number]
        waited = client._replace(timeouts=client.timeouts + 1)
        assert step.wanted is not None
        came = client.came if step.wanted.suffices(QUORUM, _words(client.came)) else None
        name = f"{number} has waited long enough"
        return self.goes_on(self.with_client(state, number, waited), number, came, name)

    def later(self, state: State, number: int) -> tuple[str, State]:
        client = state.clients[number]
        over = "done" if client.state == "has" else "asks"
        client = client._replace(tick=client.tick + 1, state=over)
        return f"time passes for {number}", self.with_client(state, number, client)

    def expired(self, state: State, place: int) -> tuple[str, State]:
        free = state.nodes[place]._replace(holder="", token=0, since=0)
        nodes = (*state.nodes[:place], free, *state.nodes[place + 1 :])
        return f"the lock on {place} expires", state._replace(nodes=nodes)

    def delivered(self, state: State, place: int, message: Message) -> tuple[str, State]:
        node, answer = run_script(
            state.nodes[place], message.script, message.arguments, message.tick
        )
        self.found.refused += answer[0] == "above"
        nodes = (*state.nodes[:place], node, *state.nodes[place + 1 :])
        left = state.messages[place] - {message}
        messages = (*state.messages[:place], left, *state.messages[place + 1 :])
        state = state._replace(nodes=nodes, messages=messages)
        name = f"{message.client}: {message.script} {message.arguments[1:2]} on {place}: {answer}"
        client = state.clients[message.client]
        if client.state != "asks" or len(self._told[client.told]) != message.question:
            return name, state
        came: Any = (*client.came[:place], answer, *client.came[place + 1 :])
        step = self.pending(message.client, client.told)
        if step.wanted.is_clear(QUORUM, _words(came)):
            return self.goes_on(state, message.client, came, name)
        return name, self.with_client(state, message.client, client._replace(came=came))

    def goes_on(self, state: State, number: int, came: Came | None, name: str) -> tuple[str, State]:
        """A client is sent what has come; ``None``: trouble."""
        client = state.clients[number]
        before = self._told[client.told]
        # It was asked when the last answers had come.
        asked_at = before[-1][2] if before else 0.0
        told = self.number_of((*before, (came, asked_at, client.tick * TICK)))
        outcome = self.pending(number, told)
        client = client._replace(told=told, came=NOTHING)
        state = self.with_client(state, number, client)
        if isinstance(outcome, AskNodes):
            # What is given back when time has passed may expire as well.
            if outcome.wanted is not None or not client.tick:
                state = self.asked(state, number, outcome)
            if outcome.wanted is None:
                # A clean-up, which is waited for only out of politeness: it goes without answers
                # once, and is sent again.
                return self.goes_on(state, number, TOLD if came == NOTHING else NOTHING, name)
            return f"{name}; it goes on", state
        if not isinstance(outcome, Grant):
            done = client._replace(state="done", told=0)
            return f"{name}; it ends", self.with_client(state, number, done)
        what = f"{name}; {number} is granted the lock, token {outcome.token}"
        if any(other.state == "has" for other in state.clients):
            raise _BadError(f"{what}, while another has it")
        if outcome.token <= state.largest:
            raise _BadError(f"{what}, after {state.largest}")
        self.found.grants.add((state.largest, outcome.token))
        state = self.with_client(state, number, client._replace(state="has"))
        return what, state._replace(largest=outcome.token)

    def released(self, state: State, number: int) -> tuple[str, State]:
        client = state.clients[number]
        holder = self.pending(number, client.told).holder
        message = Message(number, len(self._told[client.told]), "release", (holder,), client.tick)
        state = self.with_client(state, number, client._replace(state="done", told=0))
        messages = tuple(sent | {message} for sent in state.messages)
        return f"{number} releases", state._replace(messages=messages)

    def with_client(self, state: State, number: int, client: Client) -> State:
        clients = (*state.clients[:number], client, *state.clients[number + 1 :])
        return state._replace(clients=clients)

    def number_of(self, told: tuple[Any, ...]) -> int:
        number = self._numbers.setdefault(told, len(self._told))
        if number == len(self._told):
            self._told.append(told)
        return number

    def sorted(self, state: State) -> State:
        """The same with the nodes in an order of their own."""
        columns = [
            hash((
                state.nodes[place], state.messages[place],
                *[client.came[place] for client in state.clients],
                *[self.column(client.told, place) for client in state.clients],
            ))
            for place in range(3)
        ]  # fmt: skip
        order = tuple(sorted(range(3), key=columns.__getitem__))
        if order == (0, 1, 2):
            return state
        clients = tuple(
            client._replace(told=self.turned(client.told, order), came=_turned(client.came, order))
            for client in state.clients
        )
        return State(
            clients, _turned(state.nodes, order), _turned(state.messages, order), state.largest
        )

    def column(self, told: int, place: int) -> tuple[Any, ...]:
        return tuple(came and came[place] for came, _, _ in self._told[told])

    def turned(self, told: int, order: tuple[int, ...]) -> int:
        """What was told, with the nodes in another order."""
        if (told, order) not in self._turned:
            turned = tuple(
                (came and _turned(came, order), asked_at, at)
                for came, asked_at, at in self._told[told]
            )
            self._turned[told, order] = self.number_of(turned)
        return self._turned[told, order]


class _BadError(Exception):
    pass


def _turned(each: Any, order: tuple[int, ...]) -> Any:
    return tuple(each[place] for place in order)


def _replies(came: Came, asked_at: float, at: float) -> Replies:
    made = [
        None if answer is None else Reply([answer[0], "", *_facts(answer)], asked_at, at)
        for answer in came
    ]
    return Replies(made, asked_at, at)


def _words(came: Came) -> list[str]:
    return [answer[0] for answer in came if answer is not None]


def _facts(answer: Answer) -> list[str]:
    if answer[0] == "held":
        return ["30000", answer[1], answer[2], ""]
    return list(answer[1:])


def explore(
    *, rounds: int = 1, ticks: tuple[int, ...] = (0, 0), timeouts: tuple[int, ...] = (0, 0)
) -> Explored:
    """Go through everything that can happen; raise `Violation` for the shortest way to a bad end.

    Args:
        rounds: After how many rounds of its acquisition a client is looked at no longer.
        ticks: For each client, how often time passes for it.
        timeouts: For each, how often it goes on although its question is not clear.
    """
    search = _Search(rounds, ticks, timeouts)
    start = search.sorted(search.start())
    before: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque((start,))
    while waiting:
        state = waiting.popleft()
        try:
            for name, reached in search.following(state):
                following = search.sorted(reached)
                if following not in before:
                    before[following] = state, name
                    waiting.append(following)
        except _BadError as bad:
            raise Violation(str(bad), _trace(before, state)) from None
    search.found.states = len(before)
    return search.found


def wander(
    seed: int,
    *,
    steps: int = 120,
    rounds: int = 3,
    ticks: tuple[int, ...] = (1, 1, 1),
    timeouts: tuple[int, ...] = (1, 1, 1),
) -> Explored:
    """Go one way through more than can be gone through altogether; see :func:`explore`.

    Args:
        seed: Which way.
        steps: How far at most.
        rounds: See there, like the following.
        ticks: Of each client.
        timeouts: Of each client.
    """
    chance = random.Random(seed)
    search = _Search(rounds, ticks, timeouts)
    state = search.start()
    trace = []
    try:
        for _ in range(steps):
            ways = sorted(search.ways(state), key=lambda way: way[0])
            if not ways:
                break
            name, state = chance.choice(ways)[1]()
            trace.append(name)
    except _BadError as bad:
        raise Violation(str(bad), trace) from None
    search.found.states = len(trace)
    return search.found


def _trace(before: dict[State, Any], state: State) -> list[str]:
    lines = []
    while (step := before[state]) is not None:
        state, name = step
        lines.append(name)
    return lines[::-1]
