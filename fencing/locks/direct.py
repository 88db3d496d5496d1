# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""Runs scripts on one Redis, over connections of our own: the sync and the async way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from fencing.clock import now
from fencing.locks.connections import async_client_like, client_like, pools_of
from fencing.locks.stack import AsyncConnectionStack, ConnectionStack
from fencing.locks.trouble import REDIS_ERRORS
from fencing.locks.wire import Pipeline, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.locks.scripts import Script
    from fencing.locks.wire import Request

__all__ = ["AsyncDirect", "Direct"]


class Direct:
    """For `fencing.locks.clients.Sibling`, whose methods these are, over a ``redis.Redis``."""

    def __init__(self, client: Any) -> None:
        self._made = client_like(client)
        self._stack = ConnectionStack(self._made.connection_pool)

    def run(self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float) -> Any:
        """See `Sibling.run`."""
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            request = script, keys, args
            try:
                answer = connection.ask(packed(request))
            except NoScriptError:
                answer = connection.ask(packed(request, by_text=True))
            in_step = True
        except ResponseError as error:
            in_step = not isinstance(error, ReadOnlyError)
            raise
        finally:
            self._end(connection, in_step=in_step)
        return answer

    def run_many(self, requests: Sequence[Request], end: float) -> list[Any]:
        """See `Sibling.run_many`."""
        pipeline = Pipeline(requests)
        try:
            self._converse(pipeline, end)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return pipeline.answers

    def _converse(self, pipeline: Pipeline, end: float) -> None:
        connection = self._stack.take(end)
        in_step = False
        try:
            connection.until = end
            for data, places in pipeline.chunks():
                connection.send_packed_command((data,))
                for place in places:
                    try:
                        pipeline.answers[place] = connection.read_response(disable_decoding=True)
                    except ResponseError as error:
                        pipeline.answers[place] = error
            in_step = not pipeline.met(ReadOnlyError)
        finally:
            self._end(connection, in_step=in_step)

    def _end(self, connection: Any, *, in_step: bool) -> None:
        """Give a connection back; closed, if answers may be on their way or it leads astray."""
        connection.until = float("inf")
        if not in_step:
            connection.disconnect()
        self._stack.give_back(connection)

    def close(self) -> None:
        """See `Sibling.close`."""
        for pool in pools_of(self._made):
            pool.disconnect()


class AsyncDirect:
    """For `fencing.locks.clients.AsyncSibling`, over a ``redis.asyncio.Redis``."""

    def __init__(self, client: Any) -> None:
        self._made = async_client_like(client)
        self._stack = AsyncConnectionStack(self._made.connection_pool)

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float
    ) -> Any:
        """See `AsyncSibling.run`."""
        connection = self._stack.take_ready() or await self._take(end)
        in_step = False
        try:
            request = script, keys, args
            async with asyncio.timeout(_left(connection, end)):
                try:
                    answer = await connection.ask(packed(request))
                except NoScriptError:
                    answer = await connection.ask(packed(request, by_text=True))
            in_step = True
        except ResponseError as error:
            in_step = not isinstance(error, ReadOnlyError)
            raise
        finally:
            await self._end(connection, in_step=in_step)
        return answer

    async def run_many(self, requests: Sequence[Request], end: float) -> list[Any]:
        """See `AsyncSibling.run_many`."""
        pipeline = Pipeline(requests)
        try:
            await self._converse(pipeline, end)
        except REDIS_ERRORS as error:
            pipeline.fail(error)
        return pipeline.answers

    async def _converse(self, pipeline: Pipeline, end: float) -> None:
        connection = await self._take(end)
        in_step = False
        try:
            for data, places in pipeline.chunks():
                async with asyncio.timeout(_left(connection, end)):
                    await connection.send_packed_command((data,))
                    for place in places:
                        try:
                            answer = await connection.read_response(disable_decoding=True)
                        except ResponseError as error:
                            answer = error
                        pipeline.answers[place] = answer
            in_step = not pipeline.met(ReadOnlyError)
        finally:
            await self._end(connection, in_step=in_step)

    async def _take(self, end: float) -> Any:
        async with asyncio.timeout(max(0.0, end - now())):
            return await self._stack.take(end)

    async def _end(self, connection: Any, *, in_step: bool) -> None:
        try:
            if not in_step:
                await connection.disconnect(nowait=True)
        finally:
            self._stack.give_back(connection)

    async def aclose(self) -> None:
        """See `AsyncSibling.aclose`."""
        for pool in pools_of(self._made):
            await pool.disconnect()


def _left(connection: Any, end: float) -> float:
    left = end - now()
    if left <= 0:
        raise redis.TimeoutError("the call's time is up")
    longest: float | None = connection.longest
    return left if longest is None or left < longest else longest
