"""Performs the steps of a lock with the caller's own client: sync and async, side by side.

What must be done even while a caller is being cancelled or interrupted is done on a connection of
its own: what is on the way on the client's is unknown then, and its retries may take long.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import NoScriptError

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.compat.redis.model import GiveBack, Reply
from fencing.locks.asking import CLEAN_UP_SECONDS, BaseCall, Pause
from fencing.locks.performing import go_through, go_through_async, see_through
from fencing.locks.redis.clients import AsyncSibling, Sibling
from fencing.locks.redis.performing import texts_in
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from fencing.compat.redis.model import Run
    from fencing.compat.redis.steps import Steps

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")


class Performer:
    """Performs calls on the keys of one lock.

    Args:
        client: What the lock was made with.
        keys: The lock, and the hash beside it.
    """

    def __init__(self, client: Any, keys: tuple[bytes, bytes]) -> None:  # noqa: ANN401 - any that redis-py's locks take
        self._client = client
        self._keys = keys

    def perform(self, call: Steps[T]) -> T:
        """Perform the steps of a call; return or raise what it does."""
        return go_through(call, self._perform)

    def _perform(self, step: Run | GiveBack) -> Reply | bool:
        return self._give_back(step) if isinstance(step, GiveBack) else self._run(step)

    def _run(self, step: Run) -> Reply:
        script, arguments = step.script, step.arguments
        asked_at = now()
        try:
            answer = self._client.evalsha(script.sha, 2, *self._keys, *arguments)
        except NoScriptError:
            answer = self._client.eval(script.text, 2, *self._keys, *arguments)
        return Reply(texts_in(answer), asked_at, now())

    def _give_back(self, step: GiveBack) -> bool:
        release = step.release

        def perform(asked: float | Pause) -> object:
            if isinstance(asked, Pause):
                time.sleep(asked.seconds)
                return now()
            asked_at = now()
            try:
                sibling.run(release.script, self._keys, release.arguments, asked_at + asked)
            except REDIS_ERRORS as error:
                raise trouble_of(error, at=now()) from error
            return Reply([], asked_at, now())

        try:
            sibling = Sibling(self._client)
            try:
                return go_through(_telling(), perform)
            finally:
                sibling.close()
        except Exception:  # noqa: BLE001 - what has led here is what the caller should see
            return False


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(self, client: Any, keys: tuple[bytes, bytes]) -> None:  # noqa: ANN401 - as above
        self._client = client
        self._keys = keys

    async def perform(self, call: Steps[T]) -> T:
        """See :meth:`Performer.perform`."""
        return await go_through_async(call, self._perform)

    async def _perform(self, step: Run | GiveBack) -> Reply | bool:
        if isinstance(step, GiveBack):
            return await see_through(self._give_back(step))
        return await self._run(step)

    async def _run(self, step: Run) -> Reply:
        script, arguments = step.script, step.arguments
        asked_at = now()
        try:
            answer = await heeding(self._client.evalsha(script.sha, 2, *self._keys, *arguments))
        except NoScriptError:
            answer = await heeding(self._client.eval(script.text, 2, *self._keys, *arguments))
        return Reply(texts_in(answer), asked_at, now())

    async def _give_back(self, step: GiveBack) -> bool:
        release = step.release

        async def perform(asked: float | Pause) -> object:
            if isinstance(asked, Pause):
                await asyncio.sleep(asked.seconds)
                return now()
            asked_at = now()
            try:
                await sibling.run(release.script, self._keys, release.arguments, asked_at + asked)
            except REDIS_ERRORS as error:
                raise trouble_of(error, at=now()) from error
            return Reply([], asked_at, now())

        try:
            sibling = AsyncSibling(self._client)
            try:
                return await go_through_async(_telling(), perform)
            finally:
                await sibling.aclose()
        except Exception:  # noqa: BLE001 - what has led here is what the caller should see
            return False


def _telling() -> Generator[float | Pause, Any, bool]:
    """Clean up: yields how long an answer may take, in seconds, until there is one."""
    at = now()
    return BaseCall("", at, ends=at + CLEAN_UP_SECONDS).until_told(float)
