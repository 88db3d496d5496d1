"""Signal handlers that begin and look for transactions while their thread does: nobody waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fencing.core import observed
from fencing.core.observed import Observations
from fencing.hooks import transaction
from fencing.hooks.transaction import Presentation, Presentations
from fencing.postgres import entry
from fencing.postgres.entry import Entry, open_blocks
from fencing.schema.names import UNFENCED
from tests.support.interrupting import ends, handled_before_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class Connection:
    """One with an open transaction, of either kind."""

    closed = invalidated = False
    pgconn = SimpleNamespace(backend_pid=1)

    def in_transaction(self) -> bool:
        return True


def lease_on(resource: str) -> Any:
    return SimpleNamespace(resource=resource, scope=None, transaction_limit=10.0, remaining=10.0)


def at_every_step(
    module: ModuleType, work: Callable[[], object], handler: Callable[[], object]
) -> int:
    """Do some work, each time with a handler before another step; return how many there are."""
    number, was_handled = 0, True
    while was_handled:
        number += 1
        with handled_before_step(number, handler, module) as steps:
            work()
        was_handled = len(steps) >= number
    return number


def test_presentations_of_an_engine() -> None:
    presentations = Presentations()

    def begin_and_look() -> None:
        connection: Any = Connection()
        presented = Presentation(connection, (lease_on("r"),))
        presentations.put(connection, presented)
        assert presented in [each for each, _ in presentations.open_on("r")]
        presentations.drop(connection)
        assert presentations.get(connection) is None

    other: Any = Connection()
    presentations.put(other, Presentation(other, (lease_on("r"),)))
    assert ends(lambda: at_every_step(transaction, begin_and_look, begin_and_look))


def test_entries_of_bare_connections() -> None:
    def enter_and_look() -> None:
        connection: Any = Connection()
        entered = Entry(connection, (lease_on("signals"),))
        entered.in_block = True
        entered.note_on(connection)
        assert entered in [each for each, _ in open_blocks("signals")]

    assert ends(lambda: at_every_step(entry, enter_and_look, enter_and_look))


def test_observations() -> None:
    observations = Observations()

    def note() -> None:
        observations._note(UNFENCED, "unfenced", None)
        assert observations.counts

    assert ends(lambda: at_every_step(observed, note, note))
