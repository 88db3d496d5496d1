"""The session with ZooKeeper that all calls of a service share, and what is sent in it.

kazoo has one connection and two or three threads of its own for it, however many wait. Whatever is
asked here is answered by a call from one of those threads; nothing here blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError, ConnectionLoss
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import make_digest_acl

from fencing.clock import now
from fencing.locks.zookeeper.asking import Children, Delete, Get, Refused, Sync
from fencing.locks.zookeeper.batches import Batch
from fencing.locks.zookeeper.connecting import Client, Handler, Result, State
from fencing.locks.zookeeper.names import line_of
from fencing.locks.zookeeper.requests import outcome_of, sent
from fencing.locks.zookeeper.trouble import trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.locks.zookeeper.asking import Operation

__all__ = ["Session", "options_of"]

_log = logging.getLogger("fencing.kazoo")
if _log.level == logging.NOTSET:
    # kazoo warns of every attempt to connect, four a second here; what comes of them is an error of
    # ours, raised where somebody waits for it.
    _log.setLevel(logging.ERROR)

_WINDOW = 100
"""How many requests are given to kazoo at a time: it writes a byte for each into a socket pair, and
blocks whoever asks when that is full."""

CLOSE_SECONDS = 2.0
"""How long the end of a session is waited for, in seconds."""

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.3, "max_delay": 0.25}


def options_of(
    session_timeout: float, user: str | None, password: str | None, more: dict[str, Any]
) -> dict[str, Any]:
    """The arguments for ``KazooClient``; with a user, the nodes it makes are for him only."""
    options = {"logger": _log, **more, "timeout": session_timeout}
    if user is not None:
        options["auth_data"] = [("digest", f"{user}:{password}")]
        options["default_acl"] = [make_digest_acl(user, password, all=True)]
    return options


class Session:
    """A session that is begun when it is needed, and again after it has ended.

    Args:
        hosts: As kazoo has them: ``host:port,host:port/chroot``.
        options: For ``KazooClient``.

    Attributes:
        hosts: As given.
        options: As given.
        failure: Why the last attempt to reach a server has failed; ``None``: there is a connection.
    """

    def __init__(self, hosts: str, options: dict[str, Any]) -> None:
        self.hosts = hosts
        self.options = options
        self._client_with(None)  # so that what kazoo does not take is told at once
        self._of_parents: list[Any] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        # Reentrant: a signal handler may use the service, too.
        self._lock = threading.RLock()
        self._client: Client = None
        self._connected = False
        self._failures = 0
        self._refusals = 0
        self._seen = 0
        self.failure: BaseException | None = None
        self._lost_at: float | None = None
        self._backlog: deque[tuple[Batch, int]] = deque()
        self._outstanding: set[_Answer] = set()
        self._watches: set[Callable[[Any], object]] = set()
        self._debts: dict[str, tuple[str, set[Callable[[], object]]]] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a session, and a connection for it."""
        return self._connected

    def ask(self, batch: Batch) -> None:
        """Send requests, as soon as there is a connection; tell their answers to the batch."""
        self._notice_fork()
        if not batch.operations:
            batch.fail(ConnectionClosedError())  # of nothing: it is done
            return
        with self._lock:
            if batch.watch is not None and any(_is_watch(each) for each in batch.operations):
                self._watches.add(batch.watch)
            self._backlog.extend((batch, number) for number in range(len(batch.operations)))
            over = self._outlived()
            self._start()
        if over is not None:
            self._end_aside(over)
        self._send()

    def _outlived(self) -> Client:
        """Do not go on with a session that must have ended; return its client."""
        lost_at, seconds = self._lost_at, self.options["timeout"]
        if self._client is None or lost_at is None or now() < lost_at + seconds:
            return None
        return self._leave()

    def _leave(self) -> Client:
        """Do not go on with the session; return its client, which is to be ended."""
        over, self._client, self._lost_at = self._client, None, None
        self._connected = False
        return over

    def _notice_fork(self) -> None:
        # A forked child has none of its parent's threads, and must not touch its connection.
        if self._pid != os.getpid():
            self._of_parents.append((self._client, self._lock))
            self._begin_anew()

    def unwatch(self, watch: Callable[[Any], object]) -> None:
        """Whoever has watched does not wait any more."""
        self._notice_fork()
        with self._lock:
            self._watches.discard(watch)

    def forget(self, batch: Batch) -> None:
        """Do not send what has not been sent of these."""
        with self._lock:
            self._backlog = deque(item for item in self._backlog if item[0] is not batch)

    def sweep(self, parent: str, holder: str, done: Callable[[], object]) -> None:
        """Remove a holder's nodes, now or with the next connection; say when that is done.

        Nobody may forget it: as long as the session lives, so does a waiter's node. What another
        connection would not help against, or a closed service, is said at once.
        """
        self._notice_fork()
        with self._lock:
            told = self._debts.setdefault(holder, (parent, set()))[1]
            told.add(done)
        self._pay(parent, holder)

    def _pay(self, parent: str, holder: str) -> None:
        def looked() -> None:
            names = looking.came[1]
            if isinstance(names, BaseException):
                self._missed(holder, [names])
            elif isinstance(names, Refused):
                self._paid(holder)
            else:
                mine = [node.path for node in line_of(parent, names) if node.holder == holder]
                deleting = Batch([Delete(path) for path in mine], lambda: deleted(deleting))
                self.ask(deleting)

        def deleted(deleting: Batch) -> None:
            failures = [each for each in deleting.came if isinstance(each, BaseException)]
            if failures:
                self._missed(holder, failures)
            else:
                self._paid(holder)

        looking = Batch([Sync(parent), Children(parent)], looked)
        self.ask(looking)

    def _missed(self, holder: str, failures: Sequence[BaseException]) -> None:
        if not all(trouble_of(each, at=0.0).passing for each in failures):
            self._told(holder)

    def _paid(self, holder: str) -> None:
        self._told(holder)
        with self._lock:
            self._debts.pop(holder, None)

    def _told(self, holder: str) -> None:
        with self._lock:
            _, told = self._debts.get(holder, ("", set()))
            waiting = list(told)
            told.clear()
        for done in waiting:
            done()

    def close(self) -> None:
        """End the session, for at most two seconds; the next request begins another."""
        self._notice_fork()
        with self._lock:
            client, self._client = self._client, None
            self._connected, self._lost_at = False, None
            debts = list(self._debts)
        for holder in debts:
            self._paid(holder)
        if client is not None:
            # kazoo waits for its connection's end, which a server that says nothing can put off.
            ending = threading.Thread(target=self._end, args=(client,), daemon=True)
            ending.start()
            ending.join(CLOSE_SECONDS)
            self._set_off_watches()
        self._fail(ConnectionClosedError("the lock service was closed"))

    def _end_aside(self, client: Client) -> None:
        threading.Thread(target=self._end, args=(client,), daemon=True).start()

    def _end(self, client: Client) -> None:
        with contextlib.suppress(Exception):
            client.stop()
            client.close()
        self._set_off_watches()

    def _set_off_watches(self) -> None:
        """Have everybody look again: kazoo does not tell watches of a session that it ends."""
        with self._lock:
            watches, self._watches = self._watches, set()
        for watch in watches:
            watch(None)

    def _start(self) -> None:
        if self._client is not None:
            return
        handler = Handler(
            lambda error: self._could_not_connect(client, error),
            lambda: self._was_not_let_in(client),
            lambda: client.connected,
        )
        client = self._client_with(handler)
        client.add_listener(handler.changed)
        client.add_listener(lambda state: self._changed(client, state))
        self._client, self._failures, self._outstanding = client, 0, set()
        self._refusals, self._seen = 0, 0
        client.start_async()

    def _client_with(self, handler: Handler | None) -> Client:
        try:
            return KazooClient(
                self.hosts, handler=handler, connection_retry=dict(_RECONNECT), **self.options
            )
        except TypeError as error:
            raise TypeError(f"a KazooClient does not take such settings: {error}") from None

    # What kazoo's threads call.

    def _could_not_connect(self, client: Client, error: BaseException) -> None:
        with self._lock:
            if client is not self._client:
                return
            self._failures += 1
            self.failure = error
            # A name may stand for two addresses, of which one is none of the server's.
            every = self._failures >= 2 * len(client.hosts)
        if every:
            self._fail(error)

    def _was_not_let_in(self, client: Client) -> None:
        """Do not insist on what the session has seen, if it is that for which no server lets it in.

        A server ends the connection of who has seen later transactions than it has. Hence one that
        has lost its data lets nobody in who was there before; but nor does it tell that from not
        being ready yet. Asked by who has seen nothing, it goes on with the session or says that
        there is none.
        """
        with self._lock:
            if client is not self._client:
                return
            self.failure = None
            self._refusals += 1
            if self._refusals < 2 * len(client.hosts):
                return
            self._seen = max(self._seen, client.last_zxid)
            client.last_zxid = 0

    def _changed(self, client: Client, state: State) -> None:
        with self._lock:
            if client is not self._client:
                return
            connected = state == KazooState.CONNECTED
            if state == KazooState.LOST:
                self._seen = 0
            if not connected:
                self._connected, self._lost_at = False, self._lost_at or now()
            goes_on_blindly = connected and self._seen > 0
            ended = client.client_state
            if ended in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                self._client = None
        if ended == KeeperState.AUTH_FAILED:
            self._fail(AuthFailedError())
        elif ended == KeeperState.CLOSED:
            self._fail(ConnectionClosedError())
        elif goes_on_blindly:
            client.sync_async("/").rawlink(lambda result: self._compare(client, result))
        elif connected:
            self._go_on(client)

    def _compare(self, client: Client, result: Result) -> None:
        """Go on with a session only where nothing is missing of what it has seen.

        In older data there may be nodes that the client has deleted since: ephemeral, they would
        stay for as long as its connection to ZooKeeper is renewed.
        """
        with self._lock:
            if client is not self._client or result.exception is not None:
                return  # it is asked again when there is another connection
            seen, self._seen = self._seen, 0
            over = self._leave() if client.last_zxid < seen else None
            if over is not None and self._backlog:
                self._start()
        if over is None:
            self._go_on(client)
        else:
            self._end_aside(over)

    def _go_on(self, client: Client) -> None:
        with self._lock:
            if client is not self._client or not client.connected:
                return
            self._connected, self._lost_at = True, None
            self._failures, self._refusals, self.failure = 0, 0, None
            debts = [(parent, holder) for holder, (parent, _) in self._debts.items()]
        for parent, holder in debts:
            self._pay(parent, holder)
        self._send()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            waiting, self._backlog = self._backlog, deque()
        for batch in {id(batch): batch for batch, _ in waiting}.values():
            batch.fail(error)

    def _send(self) -> None:
        while True:
            with self._lock:
                if not self._connected or not self._backlog or len(self._outstanding) >= _WINDOW:
                    return
                batch, number = self._backlog[0]
                answer = _Answer(self, batch, number)
                try:
                    self._backlog.popleft()
                    if number == 0:
                        batch.asked_at = now()
                    self._outstanding.add(answer)
                    result = sent(self._client, batch.operations[number], batch.watch)
                    result.rawlink(answer)  # which calls from a thread of kazoo's
                except Exception as error:  # noqa: BLE001 - of kazoo, whatever it is
                    self._outstanding.discard(answer)
                    failure = error
                except BaseException:
                    # An interrupt: nobody knows whether it was sent.
                    self._outstanding.discard(answer)
                    batch.note(number, ConnectionLoss("interrupted"))
                    raise
                else:
                    continue
            batch.note(number, failure)

    def answered(self, answer: _Answer, batch: Batch, number: int, result: Result) -> None:
        """An answer has come."""
        with self._lock:
            self._outstanding.discard(answer)
        batch.note(number, outcome_of(batch.operations[number], result))
        self._send()


class _Answer:
    """Passes an answer on, once; kazoo may say that a request failed, and answer it then."""

    def __init__(self, session: Session, batch: Batch, number: int) -> None:
        self._facts: tuple[Session, Batch, int] | None = session, batch, number

    def __call__(self, result: Result) -> None:
        if self._facts is None:
            return
        (session, batch, number), self._facts = self._facts, None
        session.answered(self, batch, number, result)


def _is_watch(operation: Operation) -> bool:
    return isinstance(operation, Get) and operation.watch
