"""How several leases are acquired together: all or none, and nobody waits in a circle.

::

    all that are missing, at once ──► all ours ──► admit each ──► renew if little is left ──► out
      ▲            │ one is another's: nothing was taken
      │            ▼
      └── give back what comes after it, wait for it alone

Whoever waits for a resource holds only such as come before it, in one order for everybody. So a
circle of holders that wait for each other, a deadlock, cannot come about. And while one is waited
for, those that are free stay free: held are only those that were waited for before. What was
waited for is given back only for something that comes before it, which is then kept; so each group
gets on, however many others want the same resources.

Plans do no I/O; see :mod:`fencing.core.plan`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.clock import now
from fencing.core.plan import (
    MAX_LOCKS,
    GiveBack,
    Lock,
    LockTogether,
    OvertakenError,
    Renew,
    admit_everywhere,
    floor_at,
    not_granted,
    refuse_own_leftovers,
    renew_if_little_is_left,
)
from fencing.errors import LeaseLostError, LockNotAcquiredError, LockServiceError
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from fencing.core.plan import PlannedDatabase, PlanOfAll, Step
    from fencing.lease import BaseLease

__all__ = ["MAX_RESOURCES", "acquire_several", "requests_for"]

MAX_RESOURCES = 1000
"""How many resources can be acquired together: nobody else is served while they are looked at."""

_SLICE = 0.5
"""Part of the trust in what is held already, after which a wait is interrupted to renew it."""

RequestT = TypeVar("RequestT", bound=AcquireRequest)

Leases = dict[str, "BaseLease"]


def requests_for(
    kind: type[RequestT],
    resources: Iterable[str],
    **options: Any,  # noqa: ANN401 - those of the request
) -> list[RequestT]:
    """A request for each resource, in the order in which they were given.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is no resource, or too many, or one twice; or an argument is out of range.
    """
    if isinstance(resources, str | bytes):
        raise TypeError(
            f"acquire_all takes several resources, not one {type(resources).__name__}: "
            f"acquire_all([{resources!r}]), or acquire({resources!r})"
        )
    requests = [kind(resource=resource, **options) for resource in resources]
    if not requests:
        raise ValueError("acquire_all takes at least one resource")
    if len(requests) > MAX_RESOURCES:
        raise ValueError(
            f"acquire_all takes at most {MAX_RESOURCES} resources, not {len(requests)}: acquire "
            "one lease that stands for all of them"
        )
    seen: set[str] = set()
    for request in requests:
        if request.resource in seen:
            raise ValueError(
                f"acquire_all was given {request.resource!r} twice; one lease on it is enough"
            )
        seen.add(request.resource)
    return requests


def _note_waited(error: BaseException, seconds: float) -> None:
    if isinstance(error, LockNotAcquiredError):
        error.waited = seconds


def acquire_several(
    requests: Sequence[AcquireRequest],
    databases: Sequence[PlannedDatabase],
    clock: Callable[[], float] = now,
    *,
    evict_after: float | None = None,
) -> PlanOfAll:
    """Plan leases that every database has admitted.

    Args:
        requests: What is asked for; they differ in the resource only. Their patience covers
            everything.
        databases: Where to admit them; there may be none.
        evict_after: As :func:`fencing.core.plan.acquire_admitted` takes it.
        clock: Tells the time, in seconds of :func:`fencing.clock.now`.

    Returns:
        The leases, in the order of the requests.

    Raises:
        LockNotAcquiredError: One was not granted, or not admitted, in time; none is held.
        LockServiceError: What the lock service granted was of no use, again and again.
    """
    began = clock()
    deadline = began + requests[0].patience
    # The order that everybody has in common: as Python sorts, which is that of the bytes in UTF-8.
    wanted = {r.resource: r for r in sorted(requests, key=lambda r: r.resource)}
    held: Leases = {}
    try:
        for _ in range(MAX_LOCKS):
            for name in wanted:
                refuse_own_leftovers(name, databases)
            try:
                yield from _take_all(wanted, held, deadline, clock)
                for name in wanted:
                    yield from admit_everywhere(held[name], databases, deadline, clock, evict_after)
                for name in wanted:  # those that were admitted first have waited for the others
                    yield from renew_if_little_is_left(held[name], clock)
            except OvertakenError as overtaken:
                name = overtaken.resource
                yield from _give_back(held)
                floor = max(wanted[name].floor, floor_at(overtaken.mark, name))
                wanted[name] = dataclasses.replace(wanted[name], floor=floor)
                if clock() >= deadline:
                    raise LockNotAcquiredError(
                        f"the lease on {name!r} was lost before all could be handed out, and no "
                        "time was left for another; try again, with a longer ttl if this recurs",
                        resource=name,
                    ) from None
            else:
                return [held[request.resource] for request in requests]
        raise LockServiceError(  # noqa: TRY301 - what is held is given back as for any other error
            f"the lock service has granted {len(wanted)} resources {MAX_LOCKS} times, and each "
            "time a lease was over before all could be handed out; its answers cannot be right, "
            f"or the ttl of {requests[0].ttl} s is too short for so many",
            resource=requests[0].resource,
        )
    except GeneratorExit:
        raise  # nobody is there to perform anything; who was interrupted gives back
    except BaseException as error:
        yield from _give_back(held)
        _note_waited(error, clock() - began)
        raise


def _take_all(
    wanted: dict[str, AcquireRequest],
    held: Leases,
    deadline: float,
    clock: Callable[[], float],
) -> Generator[Step, Any, None]:
    """Lock all that are wanted, waiting as long as may be; what is held already stays held."""
    while True:
        missing = [_at_once(request) for name, request in wanted.items() if name not in held]
        blocked = (yield from _try_all(missing, held)) if missing else None
        if blocked is None:
            return
        name = blocked.resource
        if clock() >= deadline:
            raise blocked
        places = list(wanted)
        for later in [taken for taken in held if places.index(taken) > places.index(name)]:
            yield GiveBack(held.pop(later))
        yield from _wait_for(wanted[name], held, deadline, clock)


def _at_once(request: AcquireRequest) -> AcquireRequest:
    """The same, asked of a lock service that is not to wait."""
    plain = dataclasses.replace(request, blocking=False, blocking_timeout=None, fair=False)
    return AcquireRequest(resource=request.resource, blocking=False, **plain.forwarded)


def _try_all(
    missing: Sequence[AcquireRequest], held: Leases
) -> Generator[Step, Any, LockNotAcquiredError | None]:
    """Lock all of these, or none; at once. The error says which one is held."""
    outcome = yield LockTogether(tuple(missing))
    if isinstance(outcome, LockNotAcquiredError):
        return outcome
    if outcome is not None:
        held.update((lease.resource, lease) for lease in outcome)
        return None
    taken: Leases = {}
    try:
        for request in missing:
            lease: BaseLease | None = yield Lock(request)
            if lease is None:
                yield from _give_back(taken)
                return not_granted(request.resource)
            taken[request.resource] = lease
    except GeneratorExit:
        raise  # nobody is there to perform anything; who was interrupted gives back
    except BaseException:
        yield from _give_back(taken)
        raise
    held.update(taken)
    return None


def _wait_for(
    request: AcquireRequest, held: Leases, deadline: float, clock: Callable[[], float]
) -> Generator[Step, Any, None]:
    """Wait for one lock; what is held meanwhile is renewed in time."""
    while True:
        left = deadline - clock()
        if held:
            left = min([left, *[_SLICE * (x.trusted_until - clock()) for x in held.values()]])
        patience = None if math.isinf(left) else max(0.0, left)
        try:
            lease: BaseLease = yield Lock(dataclasses.replace(request, blocking_timeout=patience))
        except LockNotAcquiredError:
            if clock() >= deadline:
                raise
        else:
            held[request.resource] = lease
            return
        for name, earlier in list(held.items()):
            try:
                yield Renew(earlier)
            except LeaseLostError:
                del held[name]  # it is missing again


def _give_back(held: Leases) -> Generator[Step, Any, None]:
    while held:
        yield GiveBack(held.popitem()[1])
