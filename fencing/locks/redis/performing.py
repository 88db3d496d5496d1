"""Performs the steps of a call on Redis: the sync and the async shell, side by side.

They differ in nothing but ``await``, except that an async clean-up is seen through even while its
task is being cancelled.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.clock import now
from fencing.errors import FencingError
from fencing.locks.asking import ATTEMPT_SECONDS, CLEAN_UP_SECONDS, Pause, Trouble
from fencing.locks.performing import (
    go_through,
    go_through_async,
    perform_promptly,
    perform_promptly_async,
)
from fencing.locks.redis import steps
from fencing.locks.redis.asking import NO_SUCH_NODE, Ask, Call, Reply
from fencing.locks.redis.clients import AsyncSibling, Sibling
from fencing.locks.redis.listening import AsyncWaiters, Waiters
from fencing.locks.redis.scripts import RELEASE, keys_of, keys_of_all
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of
from fencing.locks.redis.waiters import AsyncWaiter, Waiter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from fencing.lease import BaseLease
    from fencing.locks.performing import Prompt
    from fencing.locks.redis.asking import Step, Steps
    from fencing.locks.redis.clients import AnyAsyncClient, AnyClient
    from fencing.locks.redis.wire import Wait

__all__ = ["AsyncPerformer", "Performer", "texts_in"]

T = TypeVar("T")

_PLAIN = (Ask, Pause)  # looked for in a tuple, because a union is slower


class Performer:
    """Performs calls over connections made like those of a client.

    Args:
        client: A ``redis.Redis`` or ``redis.RedisCluster``.
        namespace: What the keys begin with.

    Attributes:
        spans: Whether one script may work on the keys of several resources.
    """

    def __init__(self, client: AnyClient, namespace: str) -> None:
        self._sibling = Sibling(client)
        self.spans = self._sibling.spans
        self._namespace = namespace
        self._waiters = Waiters(self._sibling, namespace, self._give_back)

    def together(self, resources: Sequence[str]) -> list[list[str]]:
        """Group resources by what one script can work on: all on one Redis, one on a cluster."""
        return _groups(resources, spans=self.spans)

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        self._waiters.close()
        self._sibling.close()

    def perform(self, call: Steps[T], resource: str) -> T:
        """Perform the steps of a call on a resource; return or raise what it does."""
        keys = keys_of(self._namespace, resource)
        return go_through(call, partial(self._perform, keys, None))

    def perform_promptly(self, call: Prompt[T], resource: str) -> T:
        """Perform a call on a resource; return or raise what it does."""
        keys = keys_of(self._namespace, resource)
        return perform_promptly(call, partial(self._perform, keys, None))

    def perform_waiting(
        self, call: Callable[[str | None], Prompt[T]], resource: str, holder: str, *, in_line: bool
    ) -> T:
        """Perform an acquisition that may have to wait.

        Args:
            call: Made with the nonce that `fencing.locks.redis.acquiring.Acquiring` takes.
            resource: What it acquires.
            holder: The nonce of the acquisition.
            in_line: Whether it stands in line behind others of this process.
        """
        keys = keys_of(self._namespace, resource)
        waiter = Waiter(self._waiters, resource, keys[0], holder)
        try:
            try:
                perform = partial(self._perform, keys, waiter)
                if (nonce := waiter.enter(in_line=in_line)) is None:
                    return go_through(call(None).go_on(None), perform)
                return perform_promptly(call(nonce), perform)
            except BaseException as error:
                waiter.give_up(error)
                raise
            finally:
                waiter.leave()
        finally:
            if not waiter.has_left:  # an interrupt came before the first line of the other one
                waiter.leave()

    def perform_together(
        self, asks: Sequence[tuple[str, Ask]], within: float, wait: Wait | None = None
    ) -> list[Reply | Trouble]:
        """Ask for several resources in one pipeline, once; return what came for each.

        Args:
            asks: Resources, and what is asked for each.
            within: How long all the answers may take, in seconds.
            wait: How many replicas to wait for behind them, and how long at most, in seconds.
        """
        asked_at = now()
        requests = [
            (ask.script, keys_of(self._namespace, resource)[: ask.script.keys], _encoded(ask))
            for resource, ask in asks
        ]
        came = self._sibling.run_many(requests, asked_at + within, wait)
        return _came(came, asked_at, waited=wait is not None)

    def release(self, lease: BaseLease) -> None:
        """Give a lease back, as :class:`fencing.locks.redis.steps.Releasing` does."""
        resource = lease.resource
        wanted = resource in self._waiters.wanted
        call = steps.Releasing(lease, started_at=now(), wanted=wanted)
        perform = partial(self._perform, keys_of(self._namespace, resource), None)
        if why := perform_promptly(call, perform):
            self._waiters.note_silence(why)
        if wanted is not call.handed:
            self._waiters.note_wanted(resource, wanted=call.handed)

    def release_many(self, leases: Sequence[BaseLease]) -> list[FencingError | None]:
        """Give leases back in one pipeline; what fails is tried again by itself.

        Returns:
            For each the error that :meth:`release` would have raised, if any.
        """
        started_at = now()
        for lease in leases:
            lease.note_releasing()
        asks = [
            (lease.resource, Ask(RELEASE, steps.release_of(lease), ATTEMPT_SECONDS))
            for lease in leases
        ]
        came = self.perform_together(asks, ATTEMPT_SECONDS)
        errors: list[FencingError | None] = []
        for lease, each in zip(leases, came, strict=True):
            try:
                if isinstance(each, Trouble):
                    again = steps.Releasing(lease, started_at=started_at, repeated=True)
                    told: str | FencingError = self.perform_promptly(again, lease.resource)
                else:
                    told = steps.judge_release(lease, each, started_at=started_at)
            except FencingError as error:
                told = error
            if isinstance(told, str) and told:
                self._waiters.note_silence(told)
            errors.append(None if isinstance(told, str) else told)
        return errors

    def _give_back(self, resource: str, holder: str) -> None:
        call = Call(resource, now(), ends=now() + CLEAN_UP_SECONDS)
        self.perform(call.clean_up(holder), resource)

    def _perform(self, keys: tuple[bytes, ...], waiter: Waiter | None, step: Step) -> object:
        if not isinstance(step, Ask):
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                return now()
            return None if waiter is None else waiter.perform(step)
        asked_at = now()
        acknowledged = 0
        try:
            if step.to is None and step.wait is None:
                keys = keys[: step.script.keys]
                end = asked_at + step.within
                arguments = list(map(str.encode, step.arguments))  # as _encoded, for one call less
                answer = self._sibling.run(step.script, keys, arguments, end)
            else:
                answer, acknowledged = self._answer(step, keys, asked_at + step.within)
        except REDIS_ERRORS as error:
            raise trouble_of(error, at=now()) from error
        return Reply(texts_in(answer), asked_at, now(), acknowledged)

    def _answer(self, step: Ask, keys: tuple[bytes, ...], end: float) -> tuple[object, int]:
        """What is answered where it is not one script on the one resource alone."""
        arguments = _encoded(step)
        if isinstance(step.to, int):
            answer = self._sibling.run_on(step.to, step.script, arguments, end)
            return [NO_SUCH_NODE, arguments[0]] if answer is None else answer, 0
        if step.to is not None:
            keys = keys_of_all(self._namespace, step.to)
        else:
            keys = keys[: step.script.keys]
        if step.wait is not None:
            request = (step.script, keys, arguments)
            return self._sibling.run_acknowledged(request, step.wait, end)
        return self._sibling.run(step.script, keys, arguments, end), 0


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(self, client: AnyAsyncClient, namespace: str) -> None:
        self._sibling = AsyncSibling(client)
        self.spans = self._sibling.spans
        self._namespace = namespace
        self._waiters = AsyncWaiters(self._sibling, namespace, self._give_back)

    def together(self, resources: Sequence[str]) -> list[list[str]]:
        """See :meth:`Performer.together`."""
        return _groups(resources, spans=self.spans)

    async def aclose(self) -> None:
        """See :meth:`Performer.close`."""
        await self._waiters.aclose()
        await self._sibling.aclose()

    # Here and below, no more coroutines than needed: each is dearer than a plain call.
    def perform(self, call: Steps[T], resource: str) -> Coroutine[Any, Any, T]:
        """See :meth:`Performer.perform`."""
        keys = keys_of(self._namespace, resource)
        return go_through_async(call, partial(self._step, keys, None))

    def perform_promptly(self, call: Prompt[T], resource: str) -> Coroutine[Any, Any, T]:
        """See :meth:`Performer.perform_promptly`."""
        keys = keys_of(self._namespace, resource)
        return perform_promptly_async(call, partial(self._step, keys, None))

    async def perform_waiting(
        self, call: Callable[[str | None], Prompt[T]], resource: str, holder: str, *, in_line: bool
    ) -> T:
        """See :meth:`Performer.perform_waiting`."""
        keys = keys_of(self._namespace, resource)
        waiter = AsyncWaiter(self._waiters, resource, keys[0], holder)
        try:
            try:
                perform = partial(self._step, keys, waiter)
                if (nonce := waiter.enter(in_line=in_line)) is None:
                    return await go_through_async(call(None).go_on(None), perform)
                return await perform_promptly_async(call(nonce), perform)
            except BaseException as error:
                waiter.give_up(error)
                raise
            finally:
                waiter.leave()
        finally:
            if not waiter.has_left:  # an interrupt came before the first line of the other one
                waiter.leave()

    def _step(
        self, keys: tuple[bytes, ...], waiter: AsyncWaiter | None, step: Step
    ) -> Awaitable[object]:
        if isinstance(step, _PLAIN):
            return self._perform(step, keys)
        return _nothing() if waiter is None else waiter.perform(step)

    async def perform_together(
        self, asks: Sequence[tuple[str, Ask]], within: float, wait: Wait | None = None
    ) -> list[Reply | Trouble]:
        """See :meth:`Performer.perform_together`."""
        asked_at = now()
        requests = [
            (ask.script, keys_of(self._namespace, resource)[: ask.script.keys], _encoded(ask))
            for resource, ask in asks
        ]
        came = await self._sibling.run_many(requests, asked_at + within, wait)
        return _came(came, asked_at, waited=wait is not None)

    async def release(self, lease: BaseLease) -> None:
        """Give a lease back, as :class:`fencing.locks.redis.steps.Releasing` does."""
        wanted = lease.resource in self._waiters.wanted
        call = steps.Releasing(lease, started_at=now(), wanted=wanted)
        if why := await self.perform_promptly(call, lease.resource):
            self._waiters.note_silence(why)
        if wanted is not call.handed:
            self._waiters.note_wanted(lease.resource, wanted=call.handed)

    async def release_many(self, leases: Sequence[BaseLease]) -> list[FencingError | None]:
        """See :meth:`Performer.release_many`."""
        started_at = now()
        for lease in leases:
            lease.note_releasing()
        asks = [
            (lease.resource, Ask(RELEASE, steps.release_of(lease), ATTEMPT_SECONDS))
            for lease in leases
        ]
        came = await self.perform_together(asks, ATTEMPT_SECONDS)
        errors: list[FencingError | None] = []
        for lease, each in zip(leases, came, strict=True):
            try:
                if isinstance(each, Trouble):
                    again = steps.Releasing(lease, started_at=started_at, repeated=True)
                    told: str | FencingError = await self.perform_promptly(again, lease.resource)
                else:
                    told = steps.judge_release(lease, each, started_at=started_at)
            except FencingError as error:
                told = error
            if isinstance(told, str) and told:
                self._waiters.note_silence(told)
            errors.append(None if isinstance(told, str) else told)
        return errors

    async def _give_back(self, resource: str, holder: str) -> None:
        call = Call(resource, now(), ends=now() + CLEAN_UP_SECONDS)
        await self.perform(call.clean_up(holder), resource)

    async def _perform(self, step: Ask | Pause, keys: tuple[bytes, ...]) -> Reply | float:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return now()
        asked_at = now()
        acknowledged = 0
        try:
            if step.to is None and step.wait is None:
                keys = keys[: step.script.keys]
                end = asked_at + step.within
                arguments = list(map(str.encode, step.arguments))  # as in `Performer._perform`
                answer = await self._sibling.run(step.script, keys, arguments, end)
            else:
                answer, acknowledged = await self._answer(step, keys, asked_at + step.within)
        except REDIS_ERRORS as error:
            raise trouble_of(error, at=now()) from error
        return Reply(texts_in(answer), asked_at, now(), acknowledged)

    async def _answer(self, step: Ask, keys: tuple[bytes, ...], end: float) -> tuple[object, int]:
        arguments = _encoded(step)
        if isinstance(step.to, int):
            answer = await self._sibling.run_on(step.to, step.script, arguments, end)
            return [NO_SUCH_NODE, arguments[0]] if answer is None else answer, 0
        if step.to is not None:
            keys = keys_of_all(self._namespace, step.to)
        else:
            keys = keys[: step.script.keys]
        if step.wait is not None:
            request = (step.script, keys, arguments)
            return await self._sibling.run_acknowledged(request, step.wait, end)
        return await self._sibling.run(step.script, keys, arguments, end), 0


async def _nothing() -> None:
    pass


def _groups(resources: Sequence[str], *, spans: bool) -> list[list[str]]:
    if not spans:
        return [[resource] for resource in resources]
    return [list(resources)] if resources else []


def _came(answers: Sequence[Any], asked_at: float, *, waited: bool) -> list[Reply | Trouble]:
    at = now()
    came: list[Reply | Trouble] = []
    for each in answers:
        if isinstance(each, BaseException):
            came.append(trouble_of(each, at=at))
        else:
            answer, acknowledged = each if waited else (each, 0)
            came.append(Reply(texts_in(answer), asked_at, at, acknowledged))
    return came


def _encoded(step: Ask) -> list[bytes]:
    # Bytes, because a client encodes a ``str`` in whatever encoding it was configured with.
    return list(map(str.encode, step.arguments))


def texts_in(answer: object) -> list[str]:
    """An answer as a list of texts, whatever it is, or of the words of one; the core judges it."""
    if type(answer) is bytes:
        return answer.decode(errors="replace").split(" ")
    facts = answer if isinstance(answer, list) else [answer]
    try:
        return list(map(bytes.decode, facts))
    except (TypeError, UnicodeDecodeError):  # not what our scripts answer
        return [str(f, "utf-8", "replace") if isinstance(f, bytes) else str(f) for f in facts]
