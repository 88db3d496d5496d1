"""Faults on the way to a server, by a proxy in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from fencing.embedded.proxy import TcpProxy

__all__ = ["ProxiedFaults"]


class ProxiedFaults:
    """See ``tests.contract.faults.Faults``.

    Args:
        proxy: In between.
        what: What a request that is befallen contains.
    """

    def __init__(self, proxy: TcpProxy, what: bytes) -> None:
        self.proxy = proxy
        self.what = what
        self.happened: threading.Event = proxy.swallowed

    def lose_reply(self) -> None:
        self.happened = self.proxy.swallowed
        self.proxy.swallow_reply(containing=self.what)

    def withhold_request(self) -> None:
        self.happened = self.proxy.withheld
        self.proxy.withhold_request(containing=self.what)

    def deliver_withheld(self) -> None:
        self.proxy.pass_withheld_on()

    def drop_withheld(self) -> None:
        if self.proxy.withheld.is_set():
            self.proxy.drop_withheld()

    def hold_replies(self) -> None:
        self.happened = self.proxy.held
        self.proxy.hold()

    def deliver_replies(self) -> None:
        self.proxy.release()

    def delay_replies(self, seconds: float) -> None:
        self.proxy.delay(seconds)

    def cut(self) -> None:
        self.proxy.cut()

    def refuse(self) -> None:
        self.proxy.refuse()

    def accept(self) -> None:
        self.proxy.accept()
