"""Several leases that were acquired together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, overload

from fencing.errors import FencingError, LeaseLostError, LockServiceError
from fencing.interrupts import begins_in_its_try
from fencing.lease import AsyncLease, BaseLease, Lease
from fencing.lease.freeing import Failure, free_together, free_together_async, raise_all
from fencing.request import check_ttl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = ["AsyncLeaseGroup", "LeaseGroup"]

LeaseT = TypeVar("LeaseT", bound=BaseLease)

_WITHIN = 2.0
"""How long a renewal of all of them together may take, in seconds; then each is tried by itself."""

_UNTRIED = LockServiceError("the lease was not renewed together with others")


class BaseLeaseGroup(Sequence[LeaseT], Generic[LeaseT]):
    """What both kinds of group have in common; see :class:`LeaseGroup`."""

    def __init__(self, leases: Iterable[LeaseT]) -> None:
        self._leases = tuple(leases)

    @overload
    def __getitem__(self, index: int) -> LeaseT: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LeaseT, ...]: ...
    def __getitem__(self, index: int | slice) -> LeaseT | tuple[LeaseT, ...]:
        return self._leases[index]

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self._leases)}>"

    def _due(self) -> list[LeaseT]:
        """Those that a release gives back: the last one first."""
        return [
            lease
            for lease in reversed(self._leases)
            if not lease.released and not lease.is_foreign and lease.blocks.give_back()
        ]

    def _renews_many(self) -> Any:  # noqa: ANN401 - a lock service's ``renew_many``
        """What renews all of them together; ``None``: each is renewed by itself."""
        service = self._leases[0].service
        if len(self._leases) == 1 or any(lease.service is not service for lease in self._leases):
            return None
        return getattr(service, "renew_many", None)

    def _wishes(self, ttl: float | None) -> list[tuple[LeaseT, float]]:
        wishes = []
        for lease in self._leases:
            wanted = lease.ttl if ttl is None else check_ttl(ttl)
            lease.raise_if_over()
            wishes.append((lease, lease.ttl_for(wanted)))
        return wishes

    @staticmethod
    def _settle_each(
        released: Iterable[tuple[LeaseT, Failure]], body: BaseException | None
    ) -> None:
        """What each says of its release at the end of its block, as if they were nested."""
        raised = body
        for lease, failure in released:
            try:
                if failure is None:
                    continue
                if not isinstance(failure, LeaseLostError | LockServiceError):
                    raise failure  # noqa: TRY301 - as it would be by a single one
                lease._settle(failure, raised)  # noqa: SLF001 - the same, of one lease
            except Exception as error:  # noqa: BLE001 - raised when all have said theirs
                if error.__context__ is None:
                    error.__context__ = raised
                raised = error
        if raised is not body and raised is not None:
            raise raised

    @property
    def lost(self) -> bool:
        """Whether any of the leases ended before it was released."""
        return any(lease.lost for lease in self._leases)

    @property
    def remaining(self) -> float:
        """Trust left in all of them, in seconds: the least."""
        return min(lease.remaining for lease in self._leases)


class LeaseGroup(BaseLeaseGroup[Lease]):
    """Leases that were acquired together, in the order in which they were asked for.

    A context manager: inside its block all of them are in force, and its end releases all, even if
    that fails for one; in one round trip, where their lock service can. What a single lease says of
    its loss at the end of its block, each of them says; an exception of the block always wins, and
    others are notes of it.
    """

    def renew(self, ttl: float | None = None) -> None:
        """Extend each lease to ``ttl`` seconds from now; in one round trip, where that is possible.

        Args:
            ttl: New length, in seconds; default: as before.

        Raises:
            LeaseLostError: One is not ours any more; others may have been extended.
            LockServiceError: The lock service could not be asked; others may have been extended.
        """
        many = self._renews_many()
        wishes = self._wishes(ttl)
        outcomes = [_UNTRIED] * len(wishes) if many is None else many(wishes, within=_WITHIN)
        for lease, outcome in zip(self._leases, outcomes, strict=True):
            if isinstance(outcome, LockServiceError):
                lease.renew(ttl)
            elif outcome is not None:
                raise outcome

    @begins_in_its_try
    def release(self) -> None:
        """Give all of them back; each is tried, whatever becomes of the others.

        Raises:
            LeaseLostError: One had been lost before.
            LockServiceError: The lock service could not be told; locks end by their ttl.
        """
        try:
            raise_all(free_together(self._due()))
        except FencingError:
            raise
        except BaseException:
            self._give_up()
            raise

    async def __aenter__(self) -> NoReturn:
        # They have been acquired when Python gets here; nobody would release them.
        self.release()
        raise TypeError(
            "these leases were acquired synchronously, and have been released: use a plain with "
            "block, or in asyncio an AsyncGuard or an asynchronous lock service"
        )

    async def __aexit__(self, *exception: object) -> None:
        """Never reached; Python asks for it first."""

    @begins_in_its_try
    def __enter__(self) -> Self:
        try:
            with ExitStack() as stack:
                for lease in self._leases:
                    stack.enter_context(lease)
                stack.pop_all()
            return self  # noqa: TRY300 - an interrupt before this line finds the locks held, too
        except FencingError:
            raise
        except BaseException:
            self._give_up()
            raise

    @begins_in_its_try
    def __exit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            ended = [lease for lease in reversed(self._leases) if lease._close()]  # noqa: SLF001 - of one package
            self._settle_each(zip(ended, free_together(ended), strict=True), body)
        except FencingError:
            raise
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """A signal's exception came between one lease and the next: as a lease does it."""
        for lease in self._leases:
            lease._interrupted()  # noqa: SLF001 - the same, of one lease


class AsyncLeaseGroup(BaseLeaseGroup[AsyncLease]):
    """:class:`LeaseGroup` for asyncio: the same names, awaited."""

    async def renew(self, ttl: float | None = None) -> None:
        """See :meth:`LeaseGroup.renew`."""
        many = self._renews_many()
        wishes = self._wishes(ttl)
        outcomes = [_UNTRIED] * len(wishes) if many is None else await many(wishes, within=_WITHIN)
        for lease, outcome in zip(self._leases, outcomes, strict=True):
            if isinstance(outcome, LockServiceError):
                await lease.renew(ttl)
            elif outcome is not None:
                raise outcome

    async def release(self) -> None:
        """See :meth:`LeaseGroup.release`."""
        raise_all(await free_together_async(self._due()))

    async def __aenter__(self) -> Self:
        try:
            async with AsyncExitStack() as stack:
                for lease in self._leases:
                    await stack.enter_async_context(lease)
                stack.pop_all()
        except LeaseLostError:
            # Lost before its block; those whose blocks have not begun are not left held.
            for lease in self._leases:
                with suppress(LeaseLostError, LockServiceError):
                    await lease.release()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raised, ended, lost = body, [], set()
        for lease in reversed(self._leases):
            ends, loss = lease._leave(raised)  # noqa: SLF001 - of one package
            if ends:
                ended.append(lease)
            if loss is not None:
                loss.__cause__ = raised
                raised = loss
                lost.add(lease)
        failures = await free_together_async(ended)
        # Whose loss has ended the block has said so by that.
        told = [
            (lease, failure)
            for lease, failure in zip(ended, failures, strict=True)
            if lease not in lost
        ]
        self._settle_each(told, raised)
        if raised is not None and raised is not body:
            raise raised
