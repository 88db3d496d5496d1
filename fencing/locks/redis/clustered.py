# ruff: noqa: ANN401 - redis-py leaves untyped what a script answers
"""Runs scripts on a Redis Cluster: on the node that has the keys' slot, sync and async.

Each node is talked to like a Redis of its own (:mod:`fencing.locks.redis.direct`), over connections
made like the cluster client's. Where a slot is says :mod:`fencing.locks.redis.topology`. A request
that a node redirects follows. One that is not answered for a while, or at all, has it looked for
where the slots are, of the other nodes and with a time limit for each: a node that hangs keeps
nobody when another has taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MaxConnectionsError,
    MovedError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)

from fencing.clock import now
from fencing.locks.redis.connections import async_node_maker, known_nodes, node_maker
from fencing.locks.redis.direct import AsyncDirect, Direct
from fencing.locks.redis.topology import Topology, name_of, slot_of
from fencing.locks.redis.trouble import REDIS_ERRORS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from fencing.locks.redis.scripts import Script
    from fencing.locks.redis.topology import Address
    from fencing.locks.redis.wire import Request, Wait

__all__ = ["AsyncClustered", "Clustered"]

REDIRECTIONS = 5
"""How many redirections of one request are followed."""

LOOK_SECONDS = 0.5
"""How long one node has at least to say where the slots are, in seconds; or half of the time that
the call has left."""

_SLOTS = (b"CLUSTER", b"SLOTS")

_ASTRAY = (AskError, TryAgainError)  # a MovedError is an AskError
"""After which a request of several is asked once more, on its own."""


class _Nodes:
    """What both have in common.

    Args:
        client: The cluster client that was given.
        make: Makes of an address what talks to that node.
    """

    def __init__(self, client: Any, make: Callable[[Address], Any]) -> None:
        self._make = make
        self._nodes: dict[Address, Any] = {}
        remap = client.nodes_manager.address_remap
        self._topology = Topology(known_nodes(client), remap)

    def node_of(self, key: bytes) -> str:
        """See `Sibling.node_of`."""
        address = self._topology.owner_of(slot_of(key))
        if address is None:
            raise redis.ConnectionError("it is not known which node has the slot")
        return name_of(address)

    def _node(self, address: Address) -> Any:
        node = self._nodes.get(address)
        # Two threads that make one at the same time get the same.
        return self._nodes.setdefault(address, self._make(address)) if node is None else node

    def _named(self, name: str) -> Any:
        host, _, port = name.rpartition(":")
        return self._node((host, int(port)))

    def _look(self, address: Address, answer: Any) -> list[Any]:
        """Take an answer to CLUSTER SLOTS; return the nodes that are none any more."""
        if not answer:
            raise ClusterDownError("the node has no part in a cluster")
        self._topology.learn(answer, address, now())
        members = self._topology.members
        # A signal handler may have looked meanwhile, too, and found the same.
        gone = [self._nodes.pop(each, None) for each in list(self._nodes) if each not in members]
        return [node for node in gone if node is not None]

    def _nowhere(self, error: Exception | None) -> Exception:
        if isinstance(error, ResponseError) and not isinstance(error, ClusterDownError):
            return error if _is_denied(error) else RedisClusterException(str(error))
        return redis.ConnectionError(f"no node of the cluster says where the slots are: {error}")

    def _first(self, slot: int) -> Address:
        address = self._topology.owner_of(slot)
        if address is None:
            raise ClusterDownError(f"no node has slot {slot}")
        return address

    def _check_owner(self, slot: int, asked: Address) -> None:
        if self._topology.owner_of(slot) != asked:
            raise redis.ConnectionError("it does not answer, and another node has the slot now")

    def _next(self, error: AskError, slot: int, asked: Address) -> tuple[Address, bool]:
        """Where a redirection leads, and whether only this once."""
        if isinstance(error, MovedError):
            return self._topology.redirect(slot, error.host, error.port, asked), False
        return self._topology.other(error.host, error.port, asked), True

    def _note(self, error: BaseException, address: Address) -> None:
        """Doubt what is known, where that may be the reason of a failure."""
        if isinstance(error, MaxConnectionsError | TryAgainError):
            return
        if isinstance(error, ClusterDownError | redis.ReadOnlyError) or not isinstance(
            error, ResponseError
        ):
            self._topology.doubt(address)

    def _groups(self, requests: Sequence[Request]) -> dict[Address | None, list[int]]:
        """The places of requests by the node that has their keys, as far as is known."""
        groups: dict[Address | None, list[int]] = {}
        for place, (_, keys, _) in enumerate(requests):
            address = self._topology.owner_of(slot_of(keys[0]))
            groups.setdefault(address, []).append(place)
        return groups


class Clustered(_Nodes):
    """For `fencing.locks.redis.clients.Sibling`, whose methods these are, over a cluster client."""

    def __init__(self, client: Any) -> None:
        make = node_maker(client)
        super().__init__(client, lambda address: Direct(make(address)))
        self._pid = os.getpid()
        self._looking = threading.RLock()  # a signal handler may look, too

    def run(self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float) -> Any:
        """See `Sibling.run`."""

        def ask(node: Direct, **how: Any) -> Any:
            return node.run(script, keys, args, end, **how)

        return self._follow(keys[0], ask, end)

    def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """See `Sibling.run_on`."""
        if number == 0:
            self._topology.look_again()
        self._know(end)
        primaries = self._topology.primaries
        if number >= len(primaries):
            return None
        try:
            return self._node(primaries[number]).run(script, (), args, end)
        except REDIS_ERRORS as error:
            self._note(error, primaries[number])
            raise

    def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `Sibling.run_acknowledged`."""

        def ask(node: Direct, **how: Any) -> Any:
            return node.run_acknowledged(request, wait, end, **how)

        both: tuple[Any, int] = self._follow(request[1][0], ask, end)
        return both

    def _follow(self, key: bytes, ask: Callable[..., Any], end: float) -> Any:
        self._know(end)
        slot = slot_of(key)
        address, asking = self._first(slot), False
        for _ in range(REDIRECTIONS):
            try:
                look = functools.partial(self._look_meanwhile, slot, address, end)
                return ask(self._node(address), asking=asking, meanwhile=look)
            except AskError as error:
                address, asking = self._next(error, slot, address)
            except REDIS_ERRORS as error:
                self._note(error, address)
                raise
        raise TryAgainError("nodes send us from one to another")

    def _look_meanwhile(self, slot: int, asked: Address, end: float, _: Any) -> None:
        """Raise if a node that does not answer does not have the slot any more."""
        self._topology.doubt(asked)
        with contextlib.suppress(*REDIS_ERRORS):  # then nobody is known to have taken over
            self._know(end)
        self._check_owner(slot, asked)

    def _know(self, end: float) -> None:
        """See to it that it is known where the slots are."""
        if self._pid != os.getpid():
            # What another thread of the parent held at the fork is not held in the child.
            self._looking, self._pid = threading.RLock(), os.getpid()
        if not self._topology.is_due(now()):
            return
        age = self._topology.age
        if not self._looking.acquire(timeout=min(max(0.0, end - now()), threading.TIMEOUT_MAX)):
            raise redis.TimeoutError("the call's time is up")
        try:
            if self._topology.age == age:
                self._ask_around(end)
        finally:
            self._looking.release()

    def _ask_around(self, end: float) -> None:
        failure: Exception | None = None
        for address in self._topology.to_ask():
            try:
                answer = self._node(address).command(_share(end), *_SLOTS)
                gone = self._look(address, answer)
            except REDIS_ERRORS as error:
                failure = error
                continue
            for node in gone:
                node.close()
            return
        raise self._nowhere(failure) from failure

    def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `Sibling.run_many`."""
        try:
            self._know(end)
        except REDIS_ERRORS as error:
            return [error] * len(requests)
        answers: list[Any] = [None] * len(requests)

        def ask(address: Address | None, places: list[int]) -> None:
            came = self._outcomes(address, [requests[place] for place in places], end, wait)
            for place, answer in zip(places, came, strict=True):
                answers[place] = answer

        _at_once(ask, list(self._groups(requests).items()))
        return answers

    def _outcomes(
        self, address: Address | None, requests: list[Request], end: float, wait: Wait | None
    ) -> Iterator[Any]:
        """What comes of requests to one node, each with its own errors."""
        if address is None:
            yield from [ClusterDownError("no node has the slot")] * len(requests)
            return
        for request, answer in zip(
            requests, self._node(address).run_many(requests, end, wait), strict=True
        ):
            if not isinstance(answer, BaseException):
                yield answer
                continue
            self._note(answer, address)
            yield self._once_more(request, end, wait) if isinstance(answer, _ASTRAY) else answer

    def _once_more(self, request: Request, end: float, wait: Wait | None) -> Any:
        try:
            if wait is not None:
                return self.run_acknowledged(request, wait, end)
            return self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    def connection_to(self, node: str, end: float) -> Any:
        """See `Sibling.connection_to`."""
        return self._named(node).connection_to(node, end)

    def close(self) -> None:
        """See `Sibling.close`."""
        for node in list(self._nodes.values()):
            node.close()


class AsyncClustered(_Nodes):
    """For `fencing.locks.redis.clients.AsyncSibling`, over an asyncio cluster client."""

    def __init__(self, client: Any) -> None:
        make = async_node_maker(client)
        super().__init__(client, lambda address: AsyncDirect(make(address)))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking = asyncio.Lock()

    async def run(
        self, script: Script, keys: tuple[bytes, ...], args: list[bytes], end: float
    ) -> Any:
        """See `AsyncSibling.run`."""

        def ask(node: AsyncDirect, **how: Any) -> Awaitable[Any]:
            return node.run(script, keys, args, end, **how)

        return await self._follow(keys[0], ask, end)

    async def run_on(self, number: int, script: Script, args: list[bytes], end: float) -> Any:
        """See `AsyncSibling.run_on`."""
        if number == 0:
            self._topology.look_again()
        await self._know(end)
        primaries = self._topology.primaries
        if number >= len(primaries):
            return None
        try:
            return await self._node(primaries[number]).run(script, (), args, end)
        except REDIS_ERRORS as error:
            self._note(error, primaries[number])
            raise

    async def run_acknowledged(self, request: Request, wait: Wait, end: float) -> tuple[Any, int]:
        """See `AsyncSibling.run_acknowledged`."""

        def ask(node: AsyncDirect, **how: Any) -> Awaitable[Any]:
            return node.run_acknowledged(request, wait, end, **how)

        both: tuple[Any, int] = await self._follow(request[1][0], ask, end)
        return both

    async def _follow(self, key: bytes, ask: Callable[..., Awaitable[Any]], end: float) -> Any:
        await self._know(end)
        slot = slot_of(key)
        address, asking = self._first(slot), False
        for _ in range(REDIRECTIONS):
            try:
                look = functools.partial(self._look_meanwhile, slot, address, end)
                return await ask(self._node(address), asking=asking, meanwhile=look)
            except AskError as error:
                address, asking = self._next(error, slot, address)
            except REDIS_ERRORS as error:
                self._note(error, address)
                raise
        raise TryAgainError("nodes send us from one to another")

    async def _look_meanwhile(self, slot: int, asked: Address, end: float, _: Any) -> None:
        self._topology.doubt(asked)
        with contextlib.suppress(*REDIS_ERRORS):
            await self._know(end)
        self._check_owner(slot, asked)

    async def _know(self, end: float) -> None:
        if not self._topology.is_due(now()):
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._looking, self._loop = asyncio.Lock(), loop
        age = self._topology.age
        async with asyncio.timeout(max(0.0, end - now())):
            await self._looking.acquire()
        try:
            if self._topology.age == age:
                await self._ask_around(end)
        finally:
            self._looking.release()

    async def _ask_around(self, end: float) -> None:
        failure: Exception | None = None
        for address in self._topology.to_ask():
            try:
                answer = await self._node(address).command(_share(end), *_SLOTS)
                gone = self._look(address, answer)
            except REDIS_ERRORS as error:
                failure = error
                continue
            for node in gone:
                await node.aclose()
            return
        raise self._nowhere(failure) from failure

    async def run_many(
        self, requests: Sequence[Request], end: float, wait: Wait | None = None
    ) -> list[Any]:
        """See `AsyncSibling.run_many`."""
        try:
            await self._know(end)
        except REDIS_ERRORS as error:
            return [error] * len(requests)
        answers: list[Any] = [None] * len(requests)

        async def ask(address: Address | None, places: list[int]) -> None:
            came = await self._outcomes(address, [requests[place] for place in places], end, wait)
            for place, answer in zip(places, came, strict=True):
                answers[place] = answer

        await asyncio.gather(*[ask(*group) for group in self._groups(requests).items()])
        return answers

    async def _outcomes(
        self, address: Address | None, requests: list[Request], end: float, wait: Wait | None
    ) -> list[Any]:
        if address is None:
            return [ClusterDownError("no node has the slot")] * len(requests)
        answers: list[Any] = await self._node(address).run_many(requests, end, wait)
        for place, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                self._note(answer, address)
                if isinstance(answer, _ASTRAY):
                    answers[place] = await self._once_more(requests[place], end, wait)
        return answers

    async def _once_more(self, request: Request, end: float, wait: Wait | None) -> Any:
        try:
            if wait is not None:
                return await self.run_acknowledged(request, wait, end)
            return await self.run(*request, end)
        except REDIS_ERRORS as error:
            return error

    async def connection_to(self, node: str) -> Any:
        """See `AsyncSibling.connection_to`."""
        return await self._named(node).connection_to(node)

    async def aclose(self) -> None:
        """See `AsyncSibling.aclose`."""
        for node in list(self._nodes.values()):
            await node.aclose()


def _share(end: float) -> float:
    """Until when one node is asked where the slots are, so that there is time for others."""
    at = now()
    return min(end, at + max(LOOK_SECONDS, (end - at) / 2))


def _is_denied(error: ResponseError) -> bool:
    return isinstance(error, redis.exceptions.NoPermissionError | redis.AuthenticationError)


def _at_once(
    ask: Callable[[Address | None, list[int]], None],
    groups: list[tuple[Address | None, list[int]]],
) -> None:
    """Ask several nodes at the same time: one that hangs must not keep the others' answers."""
    *others, last = groups
    threads = []
    for group in others:
        thread = threading.Thread(target=ask, args=group, name="fencing node", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            ask(*group)
        else:
            threads.append(thread)
    ask(*last)
    for thread in threads:
        thread.join()
