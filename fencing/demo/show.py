"""The demonstration as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from fencing import embedded
from fencing.demo.acts import ACTS, TooSlowError, play
from fencing.demo.bank import RESOURCE, Account
from fencing.demo.process import Worker
from fencing.demo.stage import ACCOUNTS, Stage

if TYPE_CHECKING:
    from fencing.demo.acts import Audience
    from fencing.demo.verdict import Outcome

__all__ = ["perform"]

GUARD = f'op.fence_table("{Account.__tablename__}", resource="{RESOURCE}")'
"""What a migration would say to guard the table."""

MAX_ATTEMPTS = 6
"""How often an act is tried, each time with a lease twice as long."""


def perform(
    audience: Audience,
    *,
    ttl: float,
    redis_url: str | None = None,
    database_url: str | None = None,
) -> dict[str, Outcome]:
    """Give the demonstration, and leave nothing behind.

    Args:
        audience: Who is shown what happens.
        ttl: Length of A's lease, in seconds.
        redis_url: A Redis; default: an embedded server.
        database_url: A database on a PostgreSQL server; default: an embedded server.

    Returns:
        The outcome of each act, by its key.

    Raises:
        DemonstrationError: It could not be given.
        EmbeddedServerError: A server was needed and could not be started.
        ValueError: An address is none.
    """
    with ExitStack() as stack:
        # First, for they take as long to start as the servers do.
        workers = (stack.enter_context(Worker("A")), stack.enter_context(Worker("B")))
        if not (redis_url and database_url):
            servers = stack.enter_context(
                embedded.start(postgres=not database_url, redis=not redis_url)
            )
            redis_url = redis_url or servers.redis_url
            database_url = database_url or servers.database_url
        stage = stack.enter_context(Stage(redis_url, database_url))
        for worker in workers:
            stack.callback(worker.close)  # before the stage is cleared, or they might use it again
        return _play_all(stage, workers, ttl, audience)


def _play_all(
    stage: Stage, workers: tuple[Worker, Worker], ttl: float, audience: Audience
) -> dict[str, Outcome]:
    accounts = iter(ACCOUNTS)
    outcomes: dict[str, Outcome] = {}
    guarded = False
    for act in ACTS:
        if act.guarded and not guarded:
            stage.guard()
            guarded = True
            audience.note(f"Now the table gets its guard:\n{GUARD}")
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                outcomes[act.key] = play(
                    act, stage, workers, account=next(accounts), ttl=ttl, audience=audience
                )
                break
            except TooSlowError:
                if attempt == MAX_ATTEMPTS:
                    raise
                ttl *= 2
                audience.note(f"The lease ran out too early: once more, with {ttl:g} s.")
    return outcomes
