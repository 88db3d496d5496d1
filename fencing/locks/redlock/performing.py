"""Performs the steps of a call on several nodes at once: the sync and the async shell.

Each node has threads of its own in the one, and is asked in a task of its own in the other, so that
a node that does not answer holds up only what is asked of it. An answer that comes too late to be
waited for is awaited in the background all the same, and whatever the node is to be told next about
the resource is sent after that: a release must not overtake the request for the lock.
"""

from __future__ import annotations

import asyncio
import os
import queue
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.clock import now
from fencing.locks.asking import Pause, Trouble
from fencing.locks.performing import go_through, go_through_async
from fencing.locks.redis.asking import Reply
from fencing.locks.redis.clients import AsyncSibling, Sibling
from fencing.locks.redis.performing import texts_in
from fencing.locks.redis.scripts import SCAN, keys_of
from fencing.locks.redis.trouble import REDIS_ERRORS, trouble_of
from fencing.locks.redlock.asking import AskNodes, Came, Gathering, Wanted, checked
from fencing.locks.redlock.crew import Crew
from fencing.locks.redlock.scripts import RENEW
from fencing.locks.redlock.waiters import AsyncRoom, AsyncWaiter, Room, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    import redis
    import redis.asyncio

    from fencing.locks.redlock.asking import Quorum, Replies, Step, Steps
    from fencing.locks.redlock.crew import Job

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")

Asked = Reply | Trouble

TOGETHER = Wanted(frozenset({"came"}))
"""What to wait for where several leases are renewed together."""


class Performer:
    """Performs calls on nodes, over connections made like those of clients.

    Args:
        clients: One for each node.
        namespace: What the keys begin with.
        quorum: The nodes.
    """

    def __init__(self, clients: Sequence[redis.Redis], namespace: str, quorum: Quorum) -> None:
        self._siblings = [Sibling(client) for client in clients]
        self._namespace = namespace
        self._quorum = quorum
        self._silent: set[int] = set()
        self.forget()
        _performers.add(self)

    def forget(self) -> None:
        """Begin without threads and without anybody who waits, as a forked child must."""
        self._crews = [Crew(f"fencing-node-{number}") for number in range(self._quorum.size)]
        self._late: dict[tuple[int, str], Job] = {}
        self.room = Room()

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        for crew in self._crews:
            crew.close()
        for sibling in self._siblings:
            sibling.close()

    def perform(self, call: Steps[T], resource: str, waiter: Waiter | None = None) -> T:
        """Perform the steps of a call on a resource; return or raise what it does."""

        def perform(step: Step) -> object:
            if isinstance(step, AskNodes):
                return self._ask(step, resource)
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                return now()
            return (waiter or Waiter(self.room, resource)).perform(step)

        return go_through(call, perform)

    def perform_waiting(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        """Perform the steps of an acquisition that may have to wait.

        Args:
            call: Made with whether others of this process are before it.
            resource: What it acquires.
        """
        waiter = Waiter(self.room, resource)
        try:
            try:
                return self.perform(call(waiter.enter()), resource, waiter)
            except BaseException as error:
                waiter.give_up(error)
                raise
            finally:
                waiter.leave()
        finally:
            waiter.leave()  # an interrupt may have come before the first line of the other one

    def renew_together(
        self, asks: Sequence[tuple[str, tuple[str, ...]]], within: float
    ) -> tuple[list[list[Came]], float]:
        """Renew leases together, in one pipeline for each node.

        Args:
            asks: For each its resource and the arguments of the script.
            within: How long all of it may take, in seconds.

        Returns:
            For each what came from each node; and when they were asked, in seconds of
            :func:`fencing.clock.now`.
        """
        came: list[list[Came]] = [[None] * self._quorum.size for _ in asks]
        requests = _requests(self._namespace, asks)

        def run(node: int, end: float) -> Asked:
            answers = self._siblings[node].run_many(requests, end)
            return _noted(came, node, asks, answers, asked_at)

        step = _together(self._quorum, within)
        asked_at = now()
        self._gather(step, "", asked_at, run)
        return came, asked_at

    def _ask(self, step: AskNodes, resource: str) -> Replies:
        keys = () if step.script is SCAN else keys_of(self._namespace, resource)
        arguments = [argument.encode() for argument in step.arguments]

        def run(node: int, end: float) -> Asked:
            answer = self._siblings[node].run(step.script, keys, arguments, end)
            return Reply(texts_in(answer), asked_at, now())

        asked_at = now()
        return self._gather(step, resource, asked_at, run).end(now())

    def _gather(
        self, step: AskNodes, resource: str, asked_at: float, run: Callable[[int, float], Asked]
    ) -> Gathering:
        gathering = Gathering(step, self._quorum.size, asked_at, self._silent)
        box: queue.SimpleQueue[tuple[int, Asked | BaseException]] = queue.SimpleQueue()
        jobs: dict[int, Job] = {}

        def work(node: int, earlier: Job | None) -> None:
            try:
                if earlier is not None:
                    earlier.wait()
                box.put((node, self._outcome(node, run, _end(step, asked_at))))
            except BaseException as error:  # noqa: BLE001 - for the thread that asks
                box.put((node, error))

        try:
            for node in sorted(gathering.missing):
                earlier = self._late.get((node, resource)) if resource else None
                jobs[node] = self._crews[node].submit(partial(work, node, earlier))
            while (left := gathering.left(now())) > 0:
                try:
                    node, came = box.get(timeout=left)
                except queue.Empty:
                    continue
                if not isinstance(came, Reply | Trouble):
                    raise came
                gathering.take(node, came)
        finally:
            for node in gathering.missing & jobs.keys() if resource else ():
                self._note_late((node, resource), jobs[node])
        return gathering

    def _outcome(self, node: int, run: Callable[[int, float], Asked], end: float) -> Asked:
        try:
            if now() >= end:
                raise TimeoutError("it was not even asked")
            came = run(node, end)
        except REDIS_ERRORS as error:
            return trouble_of(error, at=now())
        self._silent.discard(node)
        return came

    def _note_late(self, key: tuple[int, str], job: Job) -> None:
        for each, earlier in list(self._late.items()):
            if earlier.is_done:
                self._late.pop(each, None)
        self._late[key] = job


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(
        self, clients: Sequence[redis.asyncio.Redis], namespace: str, quorum: Quorum
    ) -> None:
        self._siblings = [AsyncSibling(client) for client in clients]
        self._namespace = namespace
        self._quorum = quorum
        self._silent: set[int] = set()
        self.forget()
        _performers.add(self)

    def forget(self) -> None:
        """See :meth:`Performer.forget`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._late: dict[tuple[int, str], asyncio.Task[Asked]] = {}
        self.room = AsyncRoom()

    async def aclose(self) -> None:
        """See :meth:`Performer.close`."""
        self._leave_closed_loop()
        late = [task for task in self._late.values() if task.get_loop() is self._loop]
        await asyncio.gather(*late, return_exceptions=True)
        for sibling in self._siblings:
            await sibling.aclose()

    async def perform(self, call: Steps[T], resource: str, waiter: AsyncWaiter | None = None) -> T:
        """See :meth:`Performer.perform`."""

        async def perform(step: Step) -> object:
            if isinstance(step, AskNodes):
                return await self._ask(step, resource)
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                return now()
            return await (waiter or AsyncWaiter(self.room, resource)).perform(step)

        return await go_through_async(call, perform)

    async def perform_waiting(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        """See :meth:`Performer.perform_waiting`."""
        self._leave_closed_loop()
        waiter = AsyncWaiter(self.room, resource)
        try:
            return await self.perform(call(waiter.enter()), resource, waiter)
        except BaseException as error:
            waiter.give_up(error)
            raise
        finally:
            waiter.leave()

    async def renew_together(
        self, asks: Sequence[tuple[str, tuple[str, ...]]], within: float
    ) -> tuple[list[list[Came]], float]:
        """See :meth:`Performer.renew_together`."""
        came: list[list[Came]] = [[None] * self._quorum.size for _ in asks]
        requests = _requests(self._namespace, asks)

        async def run(node: int, end: float) -> Asked:
            answers = await self._siblings[node].run_many(requests, end)
            return _noted(came, node, asks, answers, asked_at)

        step = _together(self._quorum, within)
        asked_at = now()
        await self._gather(step, "", asked_at, run)
        return came, asked_at

    async def _ask(self, step: AskNodes, resource: str) -> Replies:
        keys = () if step.script is SCAN else keys_of(self._namespace, resource)
        arguments = [argument.encode() for argument in step.arguments]

        async def run(node: int, end: float) -> Asked:
            answer = await self._siblings[node].run(step.script, keys, arguments, end)
            return Reply(texts_in(answer), asked_at, now())

        asked_at = now()
        return (await self._gather(step, resource, asked_at, run)).end(now())

    async def _gather(
        self,
        step: AskNodes,
        resource: str,
        asked_at: float,
        run: Callable[[int, float], Coroutine[Any, Any, Asked]],
    ) -> Gathering:
        self._leave_closed_loop()
        gathering = Gathering(step, self._quorum.size, asked_at, self._silent)

        async def job(node: int, earlier: asyncio.Task[Asked] | None) -> Asked:
            if earlier is not None:
                await asyncio.wait([earlier])
            return await self._outcome(node, run, _end(step, asked_at))

        loop = asyncio.get_running_loop()
        tasks: dict[asyncio.Task[Asked], int] = {}
        for node in sorted(gathering.missing):
            earlier = self._late_one(node, resource)
            tasks[loop.create_task(job(node, earlier))] = node
        pending = set(tasks)
        try:
            while (left := gathering.left(now())) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                for task in sorted(done, key=tasks.__getitem__):
                    gathering.take(tasks[task], task.result())
        finally:
            for task in pending:
                # Also those without a resource: the loop itself holds no task.
                self._note_late((tasks[task], resource or f"\0{id(task)}"), task)
        return gathering

    async def _outcome(
        self, node: int, run: Callable[[int, float], Coroutine[Any, Any, Asked]], end: float
    ) -> Asked:
        try:
            if now() >= end:
                raise TimeoutError("it was not even asked")
            came = await run(node, end)
        except REDIS_ERRORS as error:
            return trouble_of(error, at=now())
        self._silent.discard(node)
        return came

    def _note_late(self, key: tuple[int, str], task: asyncio.Task[Asked]) -> None:
        self._late[key] = task

        def forget(_: asyncio.Task[Asked]) -> None:
            if self._late.get(key) is task:
                self._late.pop(key, None)

        task.add_done_callback(forget)

    def _leave_closed_loop(self) -> None:
        """Begin without those who wait in a loop that is over."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self.forget()
        self._loop = loop

    def _late_one(self, node: int, resource: str) -> asyncio.Task[Asked] | None:
        """What is still on its way to a node about a resource, in this loop."""
        task = self._late.get((node, resource)) if resource else None
        return task if task is not None and task.get_loop() is self._loop else None


def _end(step: AskNodes, asked_at: float) -> float:
    """When a node's answer must be there."""
    # A clean-up is given its time from when it can be sent: what it cleans up after came first.
    return (now() if step.see_through else asked_at) + step.within


def _requests(namespace: str, asks: Sequence[tuple[str, tuple[str, ...]]]) -> list[Any]:
    return [
        (RENEW, keys_of(namespace, resource), [argument.encode() for argument in arguments])
        for resource, arguments in asks
    ]


def _together(quorum: Quorum, within: float) -> AskNodes:
    return AskNodes(quorum, RENEW, ("together",), within, TOGETHER)


def _noted(
    came: list[list[Came]],
    node: int,
    asks: Sequence[tuple[str, tuple[str, ...]]],
    answers: Sequence[Any],
    asked_at: float,
) -> Asked:
    """Note what a node has answered to several requests; say whether it has answered."""
    at = now()
    trouble: Trouble | None = None
    for each, (_, arguments), answer in zip(came, asks, answers, strict=True):
        if isinstance(answer, BaseException):
            trouble = each[node] = trouble_of(answer, at=at)
        else:
            each[node] = checked(Reply(texts_in(answer), asked_at, at), arguments[0])
    return trouble or Reply(["came", "together"], asked_at, at)


_performers: weakref.WeakSet[Performer | AsyncPerformer] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for performer in list(_performers):
        performer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)
