"""Directed schedules: each leads through the one interleaving that some mistake needs."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.torture.points import ADMITTED, BEGINNING, DONE, GRANTED, READ, WRITTEN
from tests.torture.mutants.schedule import unit
from tests.torture.mutants.twists import ANSWERED, EVICTED, EVICTING, HAS_READ, INQUIRING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torture.mutants.schedule import Play

__all__ = ["SCHEDULES", "Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule.

    Attributes:
        direct: Leads through it.
        twists: What is changed of all workers, without being a mistake.
        settings: SQL that the owner executes beforehand.
    """

    direct: Callable[[Play], None]
    twists: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What happens in it, in a line: of its docstring."""
        direct = self.direct.func if isinstance(self.direct, partial) else self.direct
        lines = (direct.__doc__ or "").strip().rstrip(".").splitlines()
        return lines[0][0].lower() + lines[0][1:]


def work(play: Play) -> None:
    """Nobody is in anybody's way."""
    play.start(unit("add"), unit("append"), unit("add", transactions=2, readmitted=True)).ends()


def a_lock_is_granted_twice(play: Play) -> None:
    """The lock service forgets everything, and grants the same token to somebody else."""
    first = play.start(unit("add", transactions=2), stop_at=[(BEGINNING, 2)])
    first.stops()
    play.forget_locks()
    play.start(unit("add")).ends()
    first.goes_on()
    first.ends()


def tokens_go_back(play: Play) -> None:
    """The lock service grants a smaller token than it had before."""
    play.start(unit("add"), unit("add")).ends()
    play.forget_locks()
    play.start(unit("add")).ends()


def a_fence_is_renamed(play: Play) -> None:
    """Somebody gives a fence another resource, and the lock service forgets."""
    play.start(unit("add"), unit("add")).ends()
    play.attempt("UPDATE fencing.fence SET resource = 'elsewhere'")
    play.forget_locks()
    play.start(unit("add")).ends()


def a_mark_is_set_back(play: Play) -> None:
    """Somebody writes an older token into a fence."""
    play.start(unit("add"), unit("add")).ends()
    play.attempt("UPDATE fencing.fence SET token = 1, previous_token = 0")


def a_fence_is_pruned(play: Play) -> None:
    """A fence that nobody uses is pruned, and the lock service forgets."""
    play.start(unit("add"), unit("add")).ends()
    _prune(play)
    play.forget_locks()
    play.start(unit("add")).ends()


def a_fence_in_use_is_not_pruned(play: Play) -> None:
    """A transaction is open whose fence would be old enough."""
    user = play.start(unit("add"), stop_at=[(READ, 1)])
    user.stops()
    _prune(play)
    user.goes_on()
    user.ends()


def _prune(play: Play) -> None:
    play.administer("UPDATE fencing.fence SET admitted_at = now() - interval '2 hours'")
    play.attempt("SELECT fencing.prune(interval '1 hour')")


def an_entry_waits(play: Play, isolation: str) -> None:
    """A transaction begins while an admission is under way: with the snapshot from before."""
    first = play.start(unit("add", isolation=isolation), stop_at=[(BEGINNING, 1)])
    first.stops()
    play.lose_locks()
    with play.fence_locked():
        second = play.start(unit("add"), stop_at=[(BEGINNING, 1)])
        play.until(lambda: play.sessions_that_wait() == 1)
        first.goes_on()
        play.until(lambda: play.sessions_that_wait() == 2)
    second.stops()
    first.ends()
    second.goes_on()
    second.ends()


def sessions_of_one_lease_overlap(play: Play) -> None:
    """An admission waits for one session; before that ends another one of the same lease begins."""
    first = play.start(unit("add"), stop_at=[(WRITTEN, 1)])
    first.stops()
    play.lose_locks()
    successor = play.start(unit("add"))
    play.until(lambda: play.sessions_that_wait() == 1)
    other = play.start(
        unit("add", part=1), twists=[f"borrows {first.lease}"], stop_at=[(WRITTEN, 1)]
    )
    play.until(lambda: other.has_stopped or play.sessions_that_wait() == 2)
    first.goes_on()
    first.ends()
    # Whoever had to wait for the first alone goes on now. The other stays as long as it takes for
    # everyone to see who did not.
    enough = now() + 1.5
    play.until(lambda: successor.has_ended or now() > enough)
    play.finish(other, successor)


def a_holder_reads_and_undoes(play: Play) -> None:
    """A new holder reads, and rolls back; then an older one goes on."""
    first = play.start(unit("add", transactions=2), stop_at=[(BEGINNING, 2)])
    first.stops()
    play.lose_locks()
    second = play.start(unit("look", undone=1.0), stop_at=[(DONE, 1)])
    second.stops()
    first.goes_on()
    first.ends()
    second.goes_on()
    second.ends()


def the_database_crashes(play: Play) -> None:
    """The database crashes right after an admission was acknowledged and somebody read under it."""
    first = play.start(unit("add"), stop_at=[(DONE, 1)])
    first.stops()
    _write_nothing_any_more(play)
    play.lose_locks()
    second = play.start(unit("look"), stop_at=[(DONE, 1)])
    second.stops()
    play.crash_database()
    play.start(unit("add"), twists=[f"borrows {first.lease}"]).ends()
    play.finish(first, second)


def an_outcome_is_asked_for_in_a_crash(play: Play) -> None:
    """A transaction's id is given to another one in a crash, while its outcome is asked for."""
    play.start(unit("append", 1)).ends()
    play.administer("SELECT fencing.incarnation()")  # so that to ask for it writes nothing
    _write_nothing_any_more(play)
    asker = play.start(
        unit("add"), twists=["loses_its_connection_at_commit"],
        stop_at=[(WRITTEN, 1), (INQUIRING, 1)],
    )  # fmt: skip
    asker.stops()
    ((session, number),) = play.administer(
        "SELECT pid, CAST(CAST(backend_xid AS text) AS bigint) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    os.kill(session, signal.SIGSTOP)
    asker.goes_on()
    asker.stops()
    play.crash_database()
    used = 0
    while used < number:
        ((used,),) = play.administer("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")
    asker.goes_on()
    asker.ends()


def _write_nothing_any_more(play: Play) -> None:
    """From now on only commits that wait for the disk bring anything there."""
    play.administer("CHECKPOINT")
    ((writer,),) = play.administer(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    )
    os.kill(writer, signal.SIGSTOP)


def a_transaction_is_older_than_its_lease(play: Play) -> None:
    """A transaction reads, others write, and then its lease is acquired and presented in it."""
    early = play.start(
        unit("late add"), twists=["reads_before_it_acquires"], stop_at=[(HAS_READ, 1)]
    )
    early.stops()
    play.start(unit("add")).ends()
    early.goes_on()
    early.ends()


def a_claim_is_left_behind(play: Play) -> None:
    """A transaction's claim is still in its session when the next one begins."""
    play.start(unit("add"), unit("leaked")).ends()


def rows_are_moved(play: Play) -> None:
    """Rows are moved from one resource to another, under a lease on one of them."""
    play.start(unit("append", 1), unit("append", 2)).ends()
    play.start(unit("move from 1", 1)).ends()
    play.start(unit("move from 2", 1)).ends()


def nothing_is_presented(play: Play) -> None:
    """Rows are inserted, changed and deleted without a lease."""
    play.start(unit("append", 1)).ends()
    play.start(unit("unfenced"), unit("unfenced append"), unit("unfenced erase")).ends()


def a_lock_service_is_restored(play: Play) -> None:
    """The lock service is as before somebody else had the lock: who was overtaken has it again."""
    first = play.start(
        unit("add to known", kinds=("look",), transactions=2, readmitted=True),
        stop_at=[(BEGINNING, 2)],
    )
    first.stops()
    remembered = play.remember_locks()
    play.lose_locks()
    play.start(unit("add")).ends()
    play.restore_locks(remembered)
    first.goes_on()
    first.ends()


def a_lost_lock_needs_a_higher_token(play: Play) -> None:
    """The mark is ahead of a lock that was lost before its admission; its holder dies."""
    play.start(unit("add")).ends()
    holder = play.start(unit("add", ttl=2.0), stop_at=[(GRANTED, 1), (ADMITTED, 1)])
    holder.stops()
    play.administer("SELECT fencing.raise_fence('register:1', 10)")
    play.lose_locks()
    lost_at = now()
    holder.goes_on()
    play.until(lambda: holder.has_stopped)
    holder.dies()
    play.until(lambda: not play.lock_left() and now() > lost_at + 2.1)
    play.start(unit("add", ttl=2.0)).ends()


def an_eviction_is_late(play: Play) -> None:
    """Somebody is about to end the sessions in his way when another has been admitted."""
    first = play.start(unit("add", ttl=1.0, keepalive=True), stop_at=[(WRITTEN, 1)])
    first.stops()
    evictor = play.start(
        unit("add", ttl=2.0), stop_at=[(EVICTING, 1), (EVICTED, 1)], evict_after=0.1
    )
    evictor.stops()
    first.goes_on()
    first.ends()
    living = play.start(unit("add"), stop_at=[(READ, 1)])
    living.stops()
    evictor.goes_on()
    evictor.stops()
    living.goes_on()
    living.ends()
    play.finish(evictor)


def a_release_is_late(play: Play) -> None:
    """Somebody gives back a lock that is another's by then."""
    late = play.start(unit("add", ttl=1.0), stop_at=[(DONE, 1)])
    late.stops()
    play.until(lambda: play.lock_left() == 0)
    holder = play.start(unit("add"), stop_at=[(ADMITTED, 1)])
    holder.stops()
    late.goes_on()
    late.ends()
    successor = play.start(unit("add"))
    play.until(lambda: successor.has_ended or play.somebody_is_queueing())
    play.finish(holder, successor)


def an_answer_is_late(play: Play) -> None:
    """The answer that grants a lock arrives when most of its time is over."""
    slow = play.start(unit("add", ttl=2.0), stop_at=[(ANSWERED, 1), (ADMITTED, 1)])
    slow.stops()
    next_one = play.start(unit("add"), stop_at=[(ADMITTED, 1)])
    play.until(lambda: play.lock_left() < 0.5)
    slow.goes_on()
    play.until(lambda: next_one.has_stopped)
    play.finish(slow, next_one)


def an_answer_is_lost(play: Play) -> None:
    """The answer that grants a lock is lost, and the lock asked for again when little is left."""
    an_answer_is_late(play)


def a_holder_is_paused(play: Play) -> None:
    """A holder stops between its read and its write, until others have written."""
    paused = play.start(unit("add", ttl=2.0), stop_at=[(READ, 1)])
    paused.stops()
    play.until(lambda: play.lock_left() == 0)
    play.start(unit("add")).ends()
    paused.goes_on()
    paused.ends()


_ASYNCHRONOUS_COMMITS = """
    DO $$ BEGIN
        EXECUTE format('ALTER ROLE torture_worker IN DATABASE %%I SET synchronous_commit = off',
                       current_database());
    END $$
"""

SCHEDULES = {
    schedule.direct.__name__: schedule
    for schedule in (
        Schedule(work),
        Schedule(a_lock_is_granted_twice),
        Schedule(tokens_go_back),
        Schedule(a_fence_is_renamed),
        Schedule(a_mark_is_set_back),
        Schedule(a_fence_is_pruned),
        Schedule(a_fence_in_use_is_not_pruned),
        Schedule(sessions_of_one_lease_overlap),
        Schedule(a_holder_reads_and_undoes),
        Schedule(the_database_crashes, settings=(_ASYNCHRONOUS_COMMITS,)),
        Schedule(an_outcome_is_asked_for_in_a_crash),
        Schedule(a_transaction_is_older_than_its_lease),
        Schedule(a_claim_is_left_behind),
        Schedule(rows_are_moved),
        Schedule(nothing_is_presented),
        Schedule(a_lock_service_is_restored),
        Schedule(a_lost_lock_needs_a_higher_token),
        Schedule(an_eviction_is_late, twists=("stops_at_evictions",)),
        Schedule(a_release_is_late, twists=("of_one_name",)),
        Schedule(an_answer_is_late, twists=("stops_at_answers",)),
        Schedule(an_answer_is_lost, twists=("loses_first_answer",)),
        Schedule(a_holder_is_paused),
    )
} | {
    "an_entry_waits, REPEATABLE READ": Schedule(
        partial(an_entry_waits, isolation="REPEATABLE READ")
    ),
    "an_entry_waits, SERIALIZABLE": Schedule(partial(an_entry_waits, isolation="SERIALIZABLE")),
}
"""All of them, by name."""
