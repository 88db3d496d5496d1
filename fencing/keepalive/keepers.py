"""Who renews leases and tells of their loss: the sync and the async keeper, side by side.

What they do is decided in :mod:`fencing.keepalive.rules`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from fencing.clock import now
from fencing.errors import FencingError, LockServiceError
from fencing.keepalive import rules
from fencing.keepalive.agenda import Entry
from fencing.keepalive.rules import Renewal
from fencing.keepalive.tickers import LoopTicker, ThreadTicker
from fencing.lease import AsyncLease, BaseLease, Lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from fencing.request import AcquireRequest

__all__ = ["AsyncKeeper", "Keeper", "aclose_keeper", "close_keeper", "keeper_of", "watch"]

_log = logging.getLogger("fencing")

LeaseT = TypeVar("LeaseT", bound=BaseLease)

_ENDINGS = (KeyboardInterrupt, SystemExit)
"""What ends an event loop, whoever raises it."""


class Record:
    """What a keeper has to do with one lease; the lease holds it, not the other way round."""

    def __init__(self, keeper: _Keeper[Any], lease: BaseLease) -> None:
        self._keeper = keeper
        self.renewal = Renewal(weakref.ref(lease))
        self.end = Entry(weakref.ref(lease))
        self.watched = False

    def notice(self, lease: BaseLease) -> None:
        """See :class:`fencing.lease.Watcher`."""
        self._keeper.notice(lease, self)


class _Keeper(Generic[LeaseT]):
    """What both do."""

    _renewals: ThreadTicker[Renewal] | LoopTicker[Renewal]
    _ends: ThreadTicker[Entry] | LoopTicker[Entry]

    def begin(self, lease: LeaseT, request: AcquireRequest) -> None:
        """Do for a lease that a lock service has granted what was asked for with it."""
        if request.keepalive:
            self.keep(lease, request.max_lifetime)
        self.watch(lease, request)

    def keep(self, lease: LeaseT, max_lifetime: float | None = None) -> None:
        """Renew a lease from now on.

        Args:
            lease: The lease.
            max_lifetime: How long it lives at the longest, in seconds from its acquisition.
        """
        lease.keep(max_lifetime)
        renewal = self._record(lease).renewal
        renewal.kept, renewal.name = True, _name(lease)
        self._schedule(renewal, lease)
        self._watch(lease)

    def confirm(self, lease: LeaseT) -> None:
        """Renew a lease once, very soon; repeated until it is answered or trust ends.

        Whoever was just handed it waits for this. So no thread is woken for it that wakes soon
        anyway, and the lease has no record made for it: if it is over by then, that is seen then.
        """
        record = lease.watcher
        renewal = record.renewal if isinstance(record, Record) else Renewal(weakref.ref(lease))
        renewal.urgent = True
        at = now()
        renewal.early = 0.0  # what is due before takes nothing along: its holder goes on first
        self._renewals.put(renewal, at + rules.leeway(lease, at))

    def watch(self, lease: LeaseT, request: AcquireRequest) -> None:
        """Tell of the loss of a lease, as it was asked for."""
        if request.on_lost is not None:
            lease.tell_lost(request.on_lost)
            self._watch(lease)

    def notice(self, lease: LeaseT, record: Record) -> None:
        """See :class:`fencing.lease.Watcher`."""
        renewal, end = record.renewal, record.end
        if lease.is_over:
            self._renewals.drop(renewal)
            self._ends.drop(end)
            if record.watched and lease.lost and not lease.released:
                self._ends.put(end, now())  # the release has found that
            return
        if rules.first_renewal(lease) < renewal.due < math.inf:
            self._schedule(renewal, lease)  # its user has renewed it for less than before
        if record.watched and (lease.lost or lease.trusted_until < end.due):
            self._ends.put(end, now() if lease.lost else lease.trusted_until)

    def _record(self, lease: LeaseT) -> Record:
        record = lease.watcher
        if not isinstance(record, Record):
            record = lease.watcher = Record(self, lease)
        return record

    def _schedule(self, renewal: Renewal, lease: LeaseT) -> None:
        renewal.early = rules.early(lease.ttl)
        due = rules.first_renewal(lease)
        if due < math.inf:
            self._renewals.put(renewal, due)

    def _watch(self, lease: LeaseT) -> None:
        record = self._record(lease)
        record.watched = True
        due = now() if lease.lost else rules.next_look(lease)
        if due < math.inf:
            self._ends.put(record.end, due)

    def _due(self, entries: Sequence[Renewal]) -> list[tuple[Renewal, LeaseT]]:
        """Those that are still to be renewed."""
        due = []
        for entry in entries:
            lease: Any = entry.lease()
            if lease is None:
                if entry.kept:
                    _log.warning(
                        "%s was dropped without having been released: it is no longer kept alive, "
                        "and its lock ends by its ttl", entry.name,
                    )  # fmt: skip
            elif lease.is_over or lease.lost:
                continue
            elif rules.postponed(entry, lease, now()):
                self._schedule(entry, lease)
            else:
                due.append((entry, lease))
        return due

    def _settle(
        self, due: Sequence[tuple[Renewal, LeaseT]], outcomes: Sequence[FencingError | None]
    ) -> None:
        at = now()
        for (entry, lease), outcome in zip(due, outcomes, strict=True):
            following = rules.next_renewal(entry, lease, outcome, at)
            if following < math.inf:
                self._renewals.put(entry, following)

    def _lost_of(self, entries: Sequence[Entry]) -> list[LeaseT]:
        """Those that are lost by now; the others are looked at again."""
        lost = []
        for entry in entries:
            lease: Any = entry.lease()
            if lease is None:
                continue
            if lease.note_expired():
                lost.append(lease)
            elif (due := rules.next_look(lease)) < math.inf:
                self._ends.put(entry, due)
        return lost

    def _tell(self, lease: LeaseT, call: Callable[[Callable[[Any], object]], None]) -> None:
        if not lease.told:
            lease.told = True
            _log.warning("%s", lease.loss())
        for on_lost in lease.take_listeners():
            call(on_lost)


class Keeper(_Keeper[Lease]):
    """Renews leases in a thread, and tells of losses in another; daemons, while they are needed."""

    def __init__(self) -> None:
        super().__init__()
        self._renewals = ThreadTicker("fencing-keepalive", self._renew)
        self._ends = ThreadTicker("fencing-loss", self._tell_all)

    def close(self) -> None:
        """Renew nothing any more; leases that are held are told of when they run out."""
        _say_closed(self._renewals.clear())

    def _renew(self, entries: list[Renewal]) -> None:
        due = self._due(entries)
        for service, group in _by_service(due).items():
            self._settle(group, renewed(service, [lease for _, lease in group]))

    def _tell_all(self, entries: list[Entry]) -> None:
        for lease in self._lost_of(entries):

            def call(on_lost: Callable[[Any], object], lease: Lease = lease) -> None:
                try:
                    on_lost(lease)
                except BaseException:  # noqa: BLE001 - of this thread others are told, too
                    _log.exception("on_lost of %s raised", _name(lease))

            self._tell(lease, call)


class AsyncKeeper(_Keeper[AsyncLease]):
    """:class:`Keeper` for asyncio: by timers of the event loop, and a task for what has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self._renewals = LoopTicker(self._begin_renewal)
        self._ends = LoopTicker(self._tell_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[asyncio.Task[None]] = set()  # which go on when the service is closed

    async def aclose(self) -> None:
        """See :meth:`Keeper.close`."""
        _say_closed(self._renewals.clear())
        # Those of an event loop that was closed meanwhile do not go on, and cannot be cancelled.
        for held in (self._tasks, self._told):
            held.difference_update([task for task in held if task.get_loop().is_closed()])
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def watch(self, lease: AsyncLease, request: AcquireRequest) -> None:
        """See :meth:`Keeper.watch`."""
        super().watch(lease, request)
        if getattr(request, "cancel_on_loss", False):
            lease.cancel_on_loss = True
            self._watch(lease)

    def _begin_renewal(self, entries: list[Renewal]) -> None:
        _spawn(self._renew(entries), self._tasks)

    async def _renew(self, entries: list[Renewal]) -> None:
        due = self._due(entries)
        for service, group in _by_service(due).items():
            self._settle(group, await renewed_async(service, [lease for _, lease in group]))

    def _tell_all(self, entries: list[Entry]) -> None:
        lost = self._lost_of(entries)
        for lease in lost:  # first of all: what is told may raise, or take its time
            lease.cancel_blocks()
        endings: list[BaseException] = []
        for lease in lost:

            def call(on_lost: Callable[[Any], object], lease: AsyncLease = lease) -> None:
                try:
                    self._call(on_lost, lease)
                except _ENDINGS as ending:
                    endings.append(ending)

            self._tell(lease, call)
        if endings:
            raise endings[0]

    def _call(self, on_lost: Callable[[Any], object], lease: AsyncLease) -> None:
        try:
            outcome = on_lost(lease)
        except _ENDINGS:
            raise
        except BaseException:  # noqa: BLE001 - the caller's function, on nobody's stack
            _log.exception("on_lost of %s raised", _name(lease))
        else:
            if inspect.isawaitable(outcome):
                _spawn(_awaited(outcome, lease), self._told)


def _spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)  # the loop itself holds no task
    task.add_done_callback(tasks.discard)


async def _awaited(outcome: Awaitable[object], lease: AsyncLease) -> None:
    try:
        await outcome
    except (*_ENDINGS, asyncio.CancelledError):
        raise
    except BaseException:  # noqa: BLE001 - the caller's function, on nobody's stack
        _log.exception("on_lost of %s raised", _name(lease))


def renewed(service: Any, leases: Sequence[Lease]) -> list[FencingError | None]:  # noqa: ANN401 - a Grantor, perhaps with renew_many
    """Renew leases once; return for each how that failed, or ``None``."""
    leases_and_ttls = [(lease, min(lease.ttl, lease.lives_until - now())) for lease in leases]
    many = getattr(service, "renew_many", None)
    try:
        if many is not None:
            outcomes: list[FencingError | None] = many(
                leases_and_ttls, within=rules.patience(leases, now())
            )
            return outcomes
        return [_outcome(service.renew, lease, ttl) for lease, ttl in leases_and_ttls]
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the keeper
        return [_unexpected(lease, error) for lease in leases]


def _outcome(
    renew: Callable[[Lease, float], None], lease: Lease, ttl: float
) -> FencingError | None:
    try:
        renew(lease, ttl)
    except FencingError as error:
        return error
    return None


async def renewed_async(service: Any, leases: Sequence[AsyncLease]) -> list[FencingError | None]:  # noqa: ANN401 - as above
    """See `renewed`."""
    leases_and_ttls = [(lease, min(lease.ttl, lease.lives_until - now())) for lease in leases]
    many = getattr(service, "renew_many", None)
    try:
        if many is not None:
            outcomes: list[FencingError | None] = await many(
                leases_and_ttls, within=rules.patience(leases, now())
            )
            return outcomes
        return await asyncio.gather(
            *[_outcome_async(service.renew, lease, ttl) for lease, ttl in leases_and_ttls]
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the keeper
        return [_unexpected(lease, error) for lease in leases]


async def _outcome_async(
    renew: Callable[[AsyncLease, float], Awaitable[None]], lease: AsyncLease, ttl: float
) -> FencingError | None:
    try:
        await renew(lease, ttl)
    except FencingError as error:
        return error
    return None


def _unexpected(lease: BaseLease, error: Exception) -> LockServiceError:
    _log.error("%s could not be renewed", _name(lease), exc_info=error)
    return LockServiceError(f"{type(error).__name__}: {error}", resource=lease.resource)


def _by_service(
    due: Sequence[tuple[Renewal, LeaseT]],
) -> dict[Any, list[tuple[Renewal, LeaseT]]]:
    groups: dict[Any, list[tuple[Renewal, LeaseT]]] = {}
    for entry, lease in due:
        groups.setdefault(lease.service, []).append((entry, lease))
    return groups


def _name(lease: BaseLease) -> str:
    return f"the lease on {lease.resource!r} (token {lease.token})"


def _say_closed(kept: int) -> None:
    if kept:
        _log.warning(
            "the lock service was closed while leases were to be renewed in the background (%d): "
            "they no longer are, and end when what they have left is over", kept,
        )  # fmt: skip


_keepers: weakref.WeakKeyDictionary[object, Keeper | AsyncKeeper] = weakref.WeakKeyDictionary()


@overload
def keeper_of(lease: Lease) -> Keeper: ...
@overload
def keeper_of(lease: AsyncLease) -> AsyncKeeper: ...
def keeper_of(lease: Lease | AsyncLease) -> Keeper | AsyncKeeper:
    """The keeper of all leases of a lease's lock service, whatever service that is."""
    return _keepers.get(lease.service) or _made_for(lease)


def _made_for(lease: Lease | AsyncLease) -> Keeper | AsyncKeeper:
    made = AsyncKeeper() if isinstance(lease, AsyncLease) else Keeper()
    return _keepers.setdefault(lease.service, made)


def watch(lease: BaseLease, request: AcquireRequest) -> None:
    """Tell of the loss of a lease that somebody else has acquired, as it was asked for."""
    keeper: Any = keeper_of(cast("Lease", lease))  # whichever kind it is: it keeps its own
    keeper.watch(lease, request)


def close_keeper(service: object) -> None:
    """Renew nothing for a lock service any more."""
    if isinstance(keeper := _keepers.get(service), Keeper):
        keeper.close()


async def aclose_keeper(service: object) -> None:
    """:func:`close_keeper` for asyncio."""
    if isinstance(keeper := _keepers.get(service), AsyncKeeper):
        await keeper.aclose()
