# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""Runs scripts on one Redis, over connections of our own: the sync and the async way."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from fencing.clock import now
from fencing.locks.redis.connections import (
    async_client_like,
    client_like,
    connected,
    made_by,
    pools_of,
)
from fencing.locks.redis.stack import AsyncConnectionStack, ConnectionStack
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.wire import Pipeline, packed, packed_acknowledged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.locks.redis.scripts import Script
    from fencing.locks.redis.wire import Request, Wait

__all__ = ["AsyncDirect", "Direct"]


class _OnOneRedis:
    """What both have in common."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._follows_sentinel: bool = getattr(made.connection_pool, "is_master", False)

    def _meaning(self, answer: Any) -> Any:
        if self._follows_sentinel and isinstance(answer, ReadOnlyError):
            return redis.ConnectionError("this was the primary, and is a replica now (READONLY)")
        return answer

    def _both(self, answer: Any, acknowledged: Any) -> tuple[Any, int]:
        for each in (answer, acknowledged):
            if isinstance(each, Exception):
                raise self._meaning(each)
        return answer, acknowledged


class Direct(_OnOneRedis):
    """For :class:`~fencing.locks.redis.clients.Sibling`: its methods, over a ``redis.Redis``."""

    def __init__(self, client: Any) -> None:
        super().__init__(client_like(client))
        self._stack = ConnectionStack(self._made.connection_pool)

    def run(self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float) -> Any:
        """See `Sibling.run`."""
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            connection.send(packed((script, keys, args)))
            answer = connection.answer()
            if isinstance(answer, NoScriptError):
                connection.send(packed((script, keys, args), by_text=True))
                answer = connection.answer()
            in_step = _leads_on(answer)
        finally:
            self._end(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise self._meaning(answer)
        return answer

    def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `Sibling.run_acknowledged`."""
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            connection.send(packed_acknowledged(request, wait))
            answer, acknowledged = connection.answer(), connection.answer()
            if isinstance(answer, NoScriptError):
                connection.send(packed_acknowledged(request, wait, by_text=True))
                answer, acknowledged = connection.answer(), connection.answer()
            in_step = _leads_on(answer) and _leads_on(acknowledged)
        finally:
            self._end(connection, in_step=in_step)
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
            self._end(connection, in_step=in_step)

    def _end(self, connection: Any, *, in_step: bool) -> None:
        """Give a connection back; closed, if answers may be on their way or it leads astray."""
        connection.until = math.inf
        if not in_step:
            connection.disconnect()
        self._stack.give_back(connection)

    def node_of(self, key: bytes) -> str:  # noqa: ARG002 - as on a cluster
        """See `Sibling.node_of`."""
        return ""

    def connection_to(self, node: str, end: float) -> Any:  # noqa: ARG002 - as on a cluster
        """See `Sibling.connection_to`."""
        return connected(made_by(self._made.connection_pool), end)

    def close(self) -> None:
        """See `Sibling.close`."""
        for pool in pools_of(self._made):
            pool.disconnect()


class AsyncDirect(_OnOneRedis):
    """For `fencing.locks.redis.clients.AsyncSibling`, over a ``redis.asyncio.Redis``."""

    def __init__(self, client: Any) -> None:
        super().__init__(async_client_like(client))
        self._stack = AsyncConnectionStack(self._made.connection_pool)

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float
    ) -> Any:
        """See `AsyncSibling.run`."""
        connection = self._stack.take_ready() or await self._stack.take(end)
        in_step = False
        try:
            async with asyncio.timeout(_left(connection, end)):
                await connection.send(packed((script, keys, args)))
                answer = await connection.answer()
                if isinstance(answer, NoScriptError):
                    await connection.send(packed((script, keys, args), by_text=True))
                    answer = await connection.answer()
            in_step = _leads_on(answer)
        finally:
            await self._end(connection, in_step=in_step)
        if isinstance(answer, Exception):
            raise self._meaning(answer)
        return answer

    async def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `AsyncSibling.run_acknowledged`."""
        connection = self._stack.take_ready() or await self._stack.take(end)
        in_step = False
        try:
            async with asyncio.timeout(_left(connection, end)):
                await connection.send(packed_acknowledged(request, wait))
                answer, acknowledged = await connection.answer(), await connection.answer()
                if isinstance(answer, NoScriptError):
                    await connection.send(packed_acknowledged(request, wait, by_text=True))
                    answer, acknowledged = await connection.answer(), await connection.answer()
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
            for data, places in pipeline.chunks():
                async with asyncio.timeout(_left(connection, end)):
                    await connection.send(data)
                    for place in places:
                        pipeline.answers[place] = await connection.answer()
            in_step = all(map(_leads_on, pipeline.answers))
        finally:
            await self._end(connection, in_step=in_step)

    async def _end(self, connection: Any, *, in_step: bool) -> None:
        try:
            if not in_step:
                await connection.disconnect(nowait=True)
        finally:
            self._stack.give_back(connection)

    def node_of(self, key: bytes) -> str:  # noqa: ARG002 - as on a cluster
        """See `AsyncSibling.node_of`."""
        return ""

    async def connection_to(self, node: str) -> Any:  # noqa: ARG002 - as on a cluster
        """See `AsyncSibling.connection_to`."""
        connection = made_by(self._made.connection_pool)
        await connection.connect()
        return connection

    async def aclose(self) -> None:
        """See `AsyncSibling.aclose`."""
        self._stack.leave_closed_loop()
        for pool in pools_of(self._made):
            await pool.disconnect()


def _leads_on(answer: Any) -> bool:
    """Whether the connection can be used on: it is in step, and this is the primary."""
    return not isinstance(answer, Exception) or (
        isinstance(answer, ResponseError) and not isinstance(answer, ReadOnlyError)
    )


def _left(connection: Any, end: float) -> float:
    left = end - now()
    if left <= 0:
        raise redis.TimeoutError("the call's time is up")
    longest: float | None = connection.socket_timeout  # for one answer
    return left if longest is None or left < longest else longest
