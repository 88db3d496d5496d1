# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""Runs scripts on one Redis, over connections of our own: the sync and the async way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.locks.redis.bounded import call_end
from fencing.locks.redis.connections import (
    close_idle,
    connected,
    made_by,
    sentinel_pools_of,
)
from fencing.locks.redis.stack import AsyncConnectionStack, ConnectionStack
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.wire import (
    ASKING,
    Pipeline,
    packed,
    packed_acknowledged,
    packed_behind,
    packed_words,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fencing.locks.redis.scripts import Script
    from fencing.locks.redis.wire import Request, Wait

__all__ = ["AsyncDirect", "Direct"]


SILENT_SECONDS = 0.5
"""After how long a silence it is looked whether another server has taken over, in seconds."""


class _OnOneRedis:
    """What both have in common."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._follows_sentinel: bool = getattr(made.connection_pool, "is_master", False)

    def node_of(self, key: bytes) -> str:  # noqa: ARG002 - as on a cluster
        """See `Sibling.node_of`; who waits must listen where the primary is now."""
        where = self._made.connection_pool.master_address if self._follows_sentinel else None
        return "" if where is None else f"{where[0]}:{where[1]}"

    def _check_place(self, connection: Any, place: tuple[str, int]) -> None:
        if place != (connection.host, connection.port):
            raise redis.ConnectionError("it does not answer, and is not the primary any more")

    def _meaning(self, answer: Any) -> Any:
        if self._follows_sentinel and _is_read_only(answer):
            return redis.ConnectionError("this was the primary, and is a replica now (READONLY)")
        return answer

    def _both(self, answer: Any, acknowledged: Any) -> tuple[Any, int]:
        for each in (answer, acknowledged):
            if isinstance(each, Exception):
                raise self._meaning(each)
        return answer, acknowledged


class Direct(_OnOneRedis):
    """For :class:`~fencing.locks.redis.clients.Sibling`: its methods, over a ``redis.Redis``.

    Args:
        made: A client that was made here.
    """

    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self._stack = ConnectionStack(self._made.connection_pool)

    def run(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        args: list[bytes],
        end: float,
        *,
        asking: bool = False,
        meanwhile: Callable[[Any], None] | None = None,
    ) -> Any:
        """See `Sibling.run`.

        Args:
            script: As there.
            keys: As there.
            args: As there.
            end: As there.
            asking: Whether another node has sent us here this once.
            meanwhile: Called with the connection when there was no answer for ``SILENT_SECONDS``;
                what it raises ends the waiting.
        """
        connection = self._stack.take(end)
        in_step = False
        try:
            if script.tells and not asking:
                data = packed_behind((script, keys, args))
                connection.skip()
            else:
                data = packed((script, keys, args))
            if meanwhile is None and not (asking or self._follows_sentinel):
                connection.until = end  # as _first_answer, with nothing in between
                connection.send(data)
                answer = connection.answer()
            else:
                answer = self._first_answer(connection, data, end, meanwhile, asking=asking)
            if not isinstance(answer, Exception):  # as it nearly always is
                in_step = True
                return answer
            if isinstance(answer, NoScriptError):
                connection.until = end
                data = packed((script, keys, args), by_text=True)
                answer = self._answer(connection, data, asking=asking)
            in_step = _leads_on(answer)
        finally:
            self._stack.give_back(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise self._meaning(answer)
        return answer

    def command(self, end: float, *words: bytes) -> Any:
        """Run a command; return its answer, or raise its error."""
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            answer = self._answer(connection, packed_words(*words), asking=False)
            in_step = _leads_on(answer)
        finally:
            self._stack.give_back(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _first_answer(
        self,
        connection: Any,
        data: bytes,
        end: float,
        meanwhile: Callable[[Any], None] | None,
        *,
        asking: bool,
    ) -> Any:
        if self._follows_sentinel:
            meanwhile = meanwhile or self._ask_sentinels
        if meanwhile is None or asking or not _is_patient(connection):
            connection.until = end
            return self._answer(connection, data, asking=asking)
        connection.until = min(end, now() + SILENT_SECONDS)
        try:
            return self._answer(connection, data, asking=False)
        except redis.TimeoutError:
            connection.until = end
            if now() >= end:
                raise
            meanwhile(connection)
            return connection.answer()

    def _ask_sentinels(self, connection: Any) -> None:
        asking = call_end.set(connection.until)
        try:
            place = self._made.connection_pool.get_master_address()
        except REDIS_ERRORS:
            return  # nobody is known to have taken over
        finally:
            call_end.reset(asking)
        self._check_place(connection, place)

    @staticmethod
    def _answer(connection: Any, data: bytes, *, asking: bool) -> Any:
        if not asking:
            connection.send(data)
            return connection.answer()
        connection.send(ASKING + data)
        permitted = connection.answer()
        answer = connection.answer()
        return permitted if isinstance(permitted, Exception) else answer

    def run_acknowledged(
        self,
        request: Request,
        wait: Wait,
        end: float,
        *,
        asking: bool = False,
        meanwhile: Callable[[Any], None] | None = None,
    ) -> tuple[Any, int]:
        """See `Sibling.run_acknowledged`; ``asking`` and ``meanwhile`` as in `run`."""
        connection = self._stack.take(end)
        in_step = False
        try:
            data = packed_acknowledged(request, wait)
            answer = self._first_answer(connection, data, end, meanwhile, asking=asking)
            connection.until = end
            acknowledged = connection.answer()
            if isinstance(answer, NoScriptError):
                data = packed_acknowledged(request, wait, by_text=True)
                answer = self._answer(connection, data, asking=asking)
                acknowledged = connection.answer()
            in_step = _leads_on(answer) and _leads_on(acknowledged)
        finally:
            self._stack.give_back(connection, in_step=in_step)
        return self._both(answer, acknowledged)

    def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `Sibling.run_many`."""
        pipeline = Pipeline(requests, wait)
        try:
            self._converse(pipeline, end)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return [self._meaning(answer) for answer in pipeline.outcomes()]

    def _converse(self, pipeline: Pipeline, end: float) -> None:
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            for data, places in pipeline.chunks():
                connection.send(data)
                for place in places:
                    pipeline.answers[place] = connection.answer()
            in_step = all(map(_leads_on, pipeline.answers))
        finally:
            self._stack.give_back(connection, in_step=in_step)

    def connection_to(self, node: str, end: float) -> Any:  # noqa: ARG002 - as on a cluster
        """See `Sibling.connection_to`."""
        return connected(made_by(self._made.connection_pool), end)

    def close(self) -> None:
        """See `Sibling.close`."""
        self._stack.close()
        for pool in sentinel_pools_of(self._made):
            pool.disconnect(inuse_connections=False)


class AsyncDirect(_OnOneRedis):
    """For `fencing.locks.redis.clients.AsyncSibling`, over a ``redis.asyncio.Redis``."""

    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self._stack = AsyncConnectionStack(self._made.connection_pool)

    async def run(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        args: list[bytes],
        end: float,
        *,
        asking: bool = False,
        meanwhile: Callable[[Any], Awaitable[None]] | None = None,
    ) -> Any:
        """See `AsyncSibling.run`, and `Direct.run`."""
        connection = self._stack.take_ready() or await self._stack.take(end)
        in_step = False
        try:
            until = connection.limit(end)
            behind = script.tells and not asking
            data = (packed_behind if behind else packed)((script, keys, args))
            if behind:
                connection.skip()
            if meanwhile is None and not (asking or self._follows_sentinel):
                answer = await connection.ask(data)  # as _first_answer, with nothing in between
            else:
                answer = await self._first_answer(connection, data, until, meanwhile, asking=asking)
            if not isinstance(answer, Exception):  # as it nearly always is
                in_step = True
                return answer
            if isinstance(answer, NoScriptError):
                data = packed((script, keys, args), by_text=True)
                answer = await self._answer(connection, data, asking=asking)
            in_step = _leads_on(answer)
        finally:
            if in_step and connection.is_wanted:
                self._stack.give_back(connection)  # as `_end`, for one coroutine less
            else:
                await self._end(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise self._meaning(answer)
        return answer

    async def command(self, end: float, *words: bytes) -> Any:
        """See `Direct.command`."""
        connection = self._stack.take_ready() or await self._stack.take(end)
        in_step = False
        try:
            connection.limit(end)
            answer = await self._answer(connection, packed_words(*words), asking=False)
            in_step = _leads_on(answer)
        finally:
            await self._end(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _first_answer(
        self,
        connection: Any,
        data: bytes,
        until: float,
        meanwhile: Callable[[Any], Awaitable[None]] | None,
        *,
        asking: bool,
    ) -> Awaitable[Any]:
        meanwhile = meanwhile or (self._ask_sentinels if self._follows_sentinel else None)
        if meanwhile is None or asking or not _is_patient(connection):
            return self._answer(connection, data, asking=asking)
        return self._answer_looking(connection, data, until, meanwhile)

    @staticmethod
    async def _answer_looking(
        connection: Any, data: bytes, until: float, meanwhile: Callable[[Any], Awaitable[None]]
    ) -> Any:
        connection.until = min(until, now() + SILENT_SECONDS)
        try:
            return await connection.ask(data)
        except (TimeoutError, redis.TimeoutError):
            if now() >= until:
                raise
        finally:
            connection.until = until
        async with asyncio.timeout(until - now()):
            await meanwhile(connection)
        return await connection.answer()

    async def _ask_sentinels(self, connection: Any) -> None:
        try:
            place = await heeding(self._made.connection_pool.get_master_address())
        except REDIS_ERRORS:
            return
        self._check_place(connection, place)

    @staticmethod
    def _answer(connection: Any, data: bytes, *, asking: bool) -> Awaitable[Any]:
        answer: Awaitable[Any] = connection.ask(ASKING + data if asking else data)
        return _permitted(connection, answer) if asking else answer

    async def run_acknowledged(
        self,
        request: Request,
        wait: Wait,
        end: float,
        *,
        asking: bool = False,
        meanwhile: Callable[[Any], Awaitable[None]] | None = None,
    ) -> tuple[Any, int]:
        """See `AsyncSibling.run_acknowledged`, and `Direct.run`."""
        connection = self._stack.take_ready() or await self._stack.take(end)
        in_step = False
        try:
            until = connection.limit(end)
            data = packed_acknowledged(request, wait)
            answer = await self._first_answer(connection, data, until, meanwhile, asking=asking)
            acknowledged = await connection.answer()
            if isinstance(answer, NoScriptError):
                data = packed_acknowledged(request, wait, by_text=True)
                answer = await self._answer(connection, data, asking=asking)
                acknowledged = await connection.answer()
            in_step = _leads_on(answer) and _leads_on(acknowledged)
        finally:
            await self._end(connection, in_step=in_step)
        return self._both(answer, acknowledged)

    async def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `AsyncSibling.run_many`."""
        pipeline = Pipeline(requests, wait)
        try:
            await self._converse(pipeline, end)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return [self._meaning(answer) for answer in pipeline.outcomes()]

    async def _converse(self, pipeline: Pipeline, end: float) -> None:
        connection = await self._stack.take(end)
        in_step = False
        try:
            for data, (first, *others) in pipeline.chunks():
                connection.limit(end)
                pipeline.answers[first] = await connection.ask(data)
                for place in others:
                    pipeline.answers[place] = await connection.answer()
            in_step = all(map(_leads_on, pipeline.answers))
        finally:
            await self._end(connection, in_step=in_step)

    async def _end(self, connection: Any, *, in_step: bool) -> None:
        try:
            if not in_step or not connection.is_wanted:
                await connection.disconnect(nowait=True)
        finally:
            self._stack.give_back(connection)

    async def connection_to(self, node: str) -> Any:  # noqa: ARG002 - as on a cluster
        """See `AsyncSibling.connection_to`."""
        connection = made_by(self._made.connection_pool)
        await connection.connect()
        return connection

    async def aclose(self) -> None:
        """See `AsyncSibling.aclose`."""
        await self._stack.aclose()
        for pool in sentinel_pools_of(self._made):
            await close_idle(pool)


async def _permitted(connection: Any, permission: Awaitable[Any]) -> Any:
    """The answer behind a node's permission to ask it this once; what is wrong with that, if so."""
    permitted = await permission
    answer = await connection.answer()
    return permitted if isinstance(permitted, Exception) else answer


def _is_patient(connection: Any) -> bool:
    """Whether a connection waits so long for an answer that there is time to look."""
    longest: float | None = connection.socket_timeout
    return longest is None or longest > SILENT_SECONDS


def _leads_on(answer: Any) -> bool:
    """Whether the connection can be used on: it is in step, and this is the primary."""
    return not isinstance(answer, Exception) or (
        isinstance(answer, ResponseError) and not _is_read_only(answer)
    )


def _is_read_only(answer: Any) -> bool:
    # Before version 7, Redis tells it in the middle of a message about the script.
    return isinstance(answer, ReadOnlyError) or (
        isinstance(answer, ResponseError) and "-READONLY " in str(answer)
    )
