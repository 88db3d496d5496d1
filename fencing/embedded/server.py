"""What the embedded servers have in common: a port for life, and an end for certain."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from fencing.embedded.clocks import FalseClock
from fencing.embedded.places import EmbeddedServerError, free_port

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from fencing.embedded.process import ServerProcess

__all__ = ["LocalServer"]

PORT_ATTEMPTS = 3


class LocalServer(ABC):
    """A server on 127.0.0.1 that ends with this process; a context manager.

    Args:
        process: What runs it.
        port: The TCP port; by default a free one.
        false_clock: Whether it runs by a clock that can be made to jump.

    Raises:
        MissingProgramError: If there is to be a false clock, and no C compiler.
    """

    START_TIMEOUT: ClassVar[float]
    """How long a start may take, in seconds."""

    def __init__(
        self, process: ServerProcess, port: int | None, *, false_clock: bool = False
    ) -> None:
        self.process = process
        self._clock: FalseClock | None = None
        if false_clock:
            try:
                self._clock = FalseClock(process.directory)
            except BaseException:
                process.close()
                raise
            process.environment.update(self._clock.environment)
        self._fixed_port = port is not None
        self._kept = ExitStack()
        self.port = self._free_port() if port is None else port

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return self.process.pid

    @property
    def clock(self) -> FalseClock:
        """Its false clock.

        Raises:
            EmbeddedServerError: If it was started without one.
        """
        if self._clock is None:
            message = f"{self.process.name} was started without false_clock=True"
            raise EmbeddedServerError(message)
        return self._clock

    @abstractmethod
    def launch(self) -> None:
        """Start it without waiting until it serves; `await_ready` must follow."""

    def _free_port(self) -> int:
        """A port that is kept for this server until it is closed, also while it is away."""
        return free_port(self._kept)

    def _choose_ports(self) -> None:
        """Take free ports instead of those that another process has taken."""
        self.port = self._free_port()

    @abstractmethod
    def _serves(self) -> bool:
        """Whether our process serves."""

    def serves(self) -> bool:
        """Whether it serves by now; does not wait for it."""
        return self.pid is not None and self._serves()

    def start(self) -> Self:
        """Start it and wait until it serves.

        Raises:
            EmbeddedServerError: If it ends, or does not serve in time.
        """
        self.launch()
        self.await_ready()
        return self

    def await_ready(self) -> None:
        """Wait until it serves.

        Raises:
            EmbeddedServerError: If it ends, or does not serve in time.
        """
        for attempt in range(PORT_ATTEMPTS):
            try:
                self.process.until(self._serves, self.START_TIMEOUT)
            except EmbeddedServerError:
                # Another process may have taken the port between our look and the server's.
                taken = self.pid is None and "address already in use" in self.process.tail().lower()
                if not taken or self._fixed_port or attempt == PORT_ATTEMPTS - 1:
                    raise
                self._choose_ports()
                self.launch()
            else:
                self._fixed_port = True
                return

    def stop(self) -> None:
        """Stop it in order; `start` brings it back on the same port."""
        self.process.end()

    def kill(self) -> None:
        """Crash it (SIGKILL), and wait until all of it is gone; `start` brings it back."""
        self.process.end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop it from running (SIGSTOP): connections stay and are not answered.

        It has stopped when this returns; on macOS a moment later.
        """
        self.process.suspend()

    def resume(self) -> None:
        """Let it run on after `suspend`."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its files."""
        self.process.close()
        self._kept.close()

    def __enter__(self) -> Self:
        if self.pid is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
