# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""Runs scripts on a Redis Cluster, through a cluster client of our own: sync and async.

Which node has a slot is redis-py's to know. It has no pipeline for scripts on a cluster, so that
several are run one after the other, or in asyncio at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import redis
from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import (
    AskError,
    MovedError,
    NoScriptError,
    TryAgainError,
)

from fencing.clock import now
from fencing.locks.redis.bounded import call_end
from fencing.locks.redis.connections import async_cluster_like, cluster_like, connected, made_by
from fencing.locks.redis.stack import too_many, wait_ends
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.wire import wait_words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fencing.locks.redis.scripts import Script
    from fencing.locks.redis.wire import Request, Wait

__all__ = ["AsyncClustered", "Clustered"]


class Clustered:
    """For `fencing.locks.redis.clients.Sibling`, whose methods these are, over a cluster client."""

    def __init__(self, client: Any) -> None:
        self._given = client
        self._made: Any = None
        self._size = client.get_connection_kwargs().get("max_connections") or 2**31
        self._begin()

        self._lost = False

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self._size)
        self._pid = os.getpid()

    def run(self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float) -> Any:
        """See `Sibling.run`."""
        with self._turn(end):
            client = self._client()
            try:
                return client.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return client.eval(script.text, len(keys), *keys, *args)

    def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """See `Sibling.run_on`."""
        with self._turn(end):
            client = self._client()
            node = _primary(client, number)
            if node is None:
                return None
            try:
                return client.execute_command("EVALSHA", script.sha, 0, *args, target_nodes=node)
            except NoScriptError:
                return client.execute_command("EVAL", script.text, 0, *args, target_nodes=node)

    def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `Sibling.run_acknowledged`."""
        with self._turn(end):
            client = self._client()
            if self._lost:  # only its commands make redis-py look for the slots again
                client.nodes_manager.initialize()
                self._lost = False
            try:
                node = client.get_redis_connection(client.get_node_from_key(request[1][0]))
                answers = self._send(node, request, wait)
                if isinstance(answers[0], NoScriptError):
                    answers = self._send(node, request, wait, by_text=True)
                return _both(*answers)
            except _LOST:
                self._lost = True
                raise

    @staticmethod
    def _send(node: Any, request: Request, wait: Wait, *, by_text: bool = False) -> list[Any]:
        pipeline = node.pipeline(transaction=False)
        for words in _words(request, wait, by_text=by_text):
            pipeline.execute_command(*words)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `Sibling.run_many`."""
        return [self._outcome(request, end, wait) for request in requests]

    def _outcome(self, request: Request, end: float, wait: Wait | None) -> Any:
        try:
            if wait is not None:
                return self.run_acknowledged(request, wait, end)
            return self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    def node_of(self, key: bytes) -> str:
        """See `Sibling.node_of`."""
        name: str = self._client().get_node_from_key(key).name
        return name

    def connection_to(self, node: str, end: float) -> Any:
        """See `Sibling.connection_to`."""
        client = self._client()
        place = client.get_redis_connection(client.get_node(node_name=node))
        return connected(made_by(place.connection_pool), end)

    def close(self) -> None:
        """See `Sibling.close`."""
        if self._made is not None:
            # close() alone leaves the pools of a cluster that was given as a URL as they are.
            self._made.disconnect_connection_pools()
            self._made.close()

    def _client(self) -> Any:
        if self._made is None:
            # A cluster client asks for the slots when it is made; so not before the first call,
            # whose end then holds for it.
            with self._lock:
                if self._made is None:
                    self._made = cluster_like(self._given)
        return self._made

    @contextlib.contextmanager
    def _turn(self, end: float) -> Iterator[None]:
        if self._pid != os.getpid():
            # The pools of redis-py start afresh in a forked child; what other threads of the
            # parent held at the fork must not be missing in the child for ever.
            self._begin()
        patience = max(0.0, wait_ends(end) - now())
        if not self._free.acquire(timeout=min(patience, threading.TIMEOUT_MAX)):
            raise too_many(self._size)
        running = call_end.set(end)
        try:
            yield
        finally:
            call_end.reset(running)
            self._free.release()


class AsyncClustered:
    """For `fencing.locks.redis.clients.AsyncSibling`, over an asyncio cluster client."""

    def __init__(self, client: Any) -> None:
        self._given = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def _begin(self) -> None:
        self._own = async_cluster_like(self._given)
        self._size: int = self._given.connection_kwargs["max_connections"]
        self._turns = asyncio.Semaphore(self._size)
        self._lost = False

    def _leave_closed_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._begin()
        self._loop = loop

    @property
    def _made(self) -> Any:
        self._leave_closed_loop()
        return self._own

    @contextlib.asynccontextmanager
    async def _turn(self, end: float) -> AsyncIterator[None]:
        self._leave_closed_loop()
        turns = self._turns
        try:
            async with asyncio.timeout(max(0.0, wait_ends(end) - now())):
                await turns.acquire()
        except TimeoutError:
            raise too_many(self._size) from None
        try:
            async with asyncio.timeout(max(0.0, end - now())):
                yield
        finally:
            turns.release()

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float
    ) -> Any:
        """See `AsyncSibling.run`."""
        async with self._turn(end):
            # Does nothing the second time. Without it, calls that come before the slots are
            # known go to a node at random, and a handful of redirections then makes redis-py
            # close every connection, those in use included.
            await self._made.initialize()
            try:
                return await self._made.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self._made.eval(script.text, len(keys), *keys, *args)

    async def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """See `AsyncSibling.run_on`."""
        client = self._made
        async with self._turn(end):
            await client.initialize()
            node = _primary(client, number)
            if node is None:
                return None
            on_it = {"target_nodes": node}
            try:
                return await client.execute_command("EVALSHA", script.sha, 0, *args, **on_it)
            except NoScriptError:
                return await client.execute_command("EVAL", script.text, 0, *args, **on_it)

    async def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `AsyncSibling.run_acknowledged`."""
        async with self._turn(end):
            await self._made.initialize()
            if self._lost:
                await self._made.nodes_manager.initialize()
                self._lost = False
            try:
                node = self._made.get_node_from_key(request[1][0])
                answers = await self._send(node, request, wait)
                if isinstance(answers[0], NoScriptError):
                    answers = await self._send(node, request, wait, by_text=True)
                return _both(*answers)
            except _LOST:
                self._lost = True
                raise

    @staticmethod
    async def _send(node: Any, request: Request, wait: Wait, *, by_text: bool = False) -> list[Any]:
        commands = [
            PipelineCommand(place, *words)
            for place, words in enumerate(_words(request, wait, by_text=by_text))
        ]
        await node.execute_pipeline(commands)
        return [command.result for command in commands]

    async def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `AsyncSibling.run_many`."""
        return await asyncio.gather(*[self._outcome(request, end, wait) for request in requests])

    async def _outcome(self, request: Request, end: float, wait: Wait | None) -> Any:
        try:
            if wait is not None:
                return await self.run_acknowledged(request, wait, end)
            return await self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    def node_of(self, key: bytes) -> str:
        """See `AsyncSibling.node_of`."""
        name: str = self._made.get_node_from_key(key).name
        return name

    async def connection_to(self, node: str) -> Any:
        """See `AsyncSibling.connection_to`."""
        connection = made_by(self._made.get_node(node_name=node))
        await connection.connect()
        return connection

    async def aclose(self) -> None:
        """See `AsyncSibling.aclose`."""
        await self._made.aclose()


def _primary(cluster: Any, number: int) -> Any:
    # In an order that lasts from call to call.
    primaries = sorted(cluster.get_primaries(), key=lambda node: str(node.name))
    return primaries[number] if number < len(primaries) else None


_LOST = (redis.ConnectionError, redis.TimeoutError, TryAgainError, TimeoutError, OSError)
"""After which the slot may be another node's."""


def _words(
    request: Request, wait: Wait, *, by_text: bool
) -> tuple[tuple[str | bytes | int, ...], tuple[bytes, ...]]:
    script, keys, args = request
    run = ("EVAL", script.text) if by_text else ("EVALSHA", script.sha)
    return (*run, len(keys), *keys, *args), wait_words(*wait)


def _both(answer: Any, acknowledged: Any) -> tuple[Any, int]:
    for each in (answer, acknowledged):
        if isinstance(each, MovedError | AskError):
            # Nothing was written. Asked again, it goes where the slot is.
            raise TryAgainError(str(each)) from each
        if isinstance(each, Exception):
            raise each
    return answer, acknowledged
