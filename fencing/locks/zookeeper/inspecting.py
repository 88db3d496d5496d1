"""What is asked about locks that are others', and what the answers mean.

Without I/O and without a clock. Nothing here needs a lease.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fencing.locks.zookeeper.asking import (
    Call,
    Children,
    Create,
    Delete,
    Get,
    Refused,
    Set,
)
from fencing.locks.zookeeper.judging import Reference
from fencing.locks.zookeeper.names import content_of, offset_in
from fencing.request import MAX_TOKEN
from fencing.state import LockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.locks.zookeeper.asking import Steps
    from fencing.locks.zookeeper.names import Node, Space

__all__ = ["PAGE_RESOURCES", "ask_names", "ask_states", "end_anyones"]

ASKING_SECONDS = 2.0
"""How long each question may take, retries included, in seconds."""

PAGE_RESOURCES = 200
"""How many resources are looked at together in a scan."""


def ask_states(
    resources: Sequence[str], *, started_at: float, space: Space
) -> Steps[list[LockState]]:
    """Ask what there is of each resource.

    Raises:
        LockServiceError: ZooKeeper could not be asked.
    """
    return [state for state, _ in (yield from _look(resources, started_at, space))]


def _look(
    resources: Sequence[str], started_at: float, space: Space
) -> Steps[list[tuple[LockState, Node | None]]]:
    call = Call(space, resources[0], started_at, ends=started_at + ASKING_SECONDS)
    parents = [space.parent(resource) for resource in resources]
    # Only a write tells the time.
    reply = yield from call.ask(Set(space.clock, b""), *[Children(parent) for parent in parents])
    time, *found = reply.came
    if isinstance(time, Refused):
        reply = yield from call.ask(Create(space.root), Create(space.clock))
        if isinstance(reply.came[1], Refused) and reply.came[1].why == "no node":
            yield from call.set_up()
            yield from call.ask(Create(space.clock))
        reply = yield from call.ask(
            Set(space.clock, b""), *[Children(parent) for parent in parents]
        )
        time, *found = reply.came
        if isinstance(time, Refused):
            raise call.nonsense(time)
    clock = Reference.written(time, reply.at)
    lines = []
    for parent, names in zip(parents, found, strict=True):
        call.parent = parent
        lines.append(call.line_in(names))
    reply = yield from call.ask(
        *[Get(line[0].path) for line in lines if line],
        *[Get(space.offset(r)) for r, line in zip(resources, lines, strict=True) if line],
    )
    half = len(reply.came) // 2
    firsts, offsets = iter(reply.came[:half]), iter(reply.came[half:])
    states: list[tuple[LockState, Node | None]] = []
    for resource, line in zip(resources, lines, strict=True):
        if not line:
            states.append((LockState(resource=resource, counter=None), None))
            continue
        call.resource = resource
        state = _state(call, line, next(firsts), next(offsets), clock)
        states.append((state, line[0]))
    return states


def _state(call: Call, line: list[Node], first: Any, offset: Any, clock: Reference) -> LockState:  # noqa: ANN401 - as `Reply` has it
    free = LockState(resource=call.resource, counter=None, waiters=len(line))
    if isinstance(first, Refused) or first[1].ephemeralOwner:
        return free  # about to be another's
    data, stat = first
    content = content_of(data)
    added = 0 if isinstance(offset, Refused) else offset_in(offset[0])
    # An offset that is none, by somebody's mistake, hides nothing but the token.
    token = None if added is None else stat.czxid + added
    if content is None or (token is not None and not 1 <= token <= MAX_TOKEN):
        return LockState(
            resource=call.resource, held=True, remaining=math.inf, counter=None,
            waiters=len(line) - 1,
        )  # fmt: skip
    ttl = content.ttl / 1000
    left = min(ttl, ttl - clock.age_at(call.at, stat))
    if left <= 0:
        return LockState(resource=call.resource, counter=token, waiters=len(line) - 1)
    return LockState(
        resource=call.resource,
        held=True,
        owner=content.owner,
        token=token,
        holder=line[0].holder,
        remaining=left,
        counter=token,
        waiters=len(line) - 1,
    )


def ask_names(prefix: str, *, started_at: float, space: Space) -> Steps[list[str]]:
    """Ask for the resources that have a queue, of those whose names begin with a prefix."""
    call = Call(space, "", started_at, ends=started_at + ASKING_SECONDS)
    reply = yield from call.ask(Children(space.locks))
    came = reply.came[0]
    return [] if isinstance(came, Refused) else space.resources(came, prefix)


def end_anyones(resource: str, *, started_at: float, space: Space) -> Steps[bool]:
    """Take a lock from whoever holds it now; whoever comes after him keeps it.

    It is his node that is removed, so a request that is repeated or late takes nothing from his
    successor.

    Returns:
        Whether it was taken from somebody.

    Raises:
        LockServiceError: ZooKeeper could not be asked, or the node is no lock of ours.
    """
    [(state, node)] = yield from _look([resource], started_at, space)
    if node is None or not (state.held or state.counter):
        return False
    call = Call(space, resource, started_at, ends=started_at + 2 * ASKING_SECONDS)
    if state.held and state.holder is None:
        raise call.foreign(node.path)
    reply = yield from call.ask(Delete(node.path))
    # Gone by itself just now, unless it was an earlier request of ours that took it.
    return state.held and (not isinstance(reply.came[0], Refused) or call.repeated)
