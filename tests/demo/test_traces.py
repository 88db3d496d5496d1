"""Nothing is left behind, however it ends."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.processes import Watch

if TYPE_CHECKING:
    import subprocess

    from tests.demo.conftest import Servers

WORKERS = 2


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    assert process.stderr is not None
    pytest.fail(f"it ended before {words!r}: {process.stderr.read()}")


def test_no_trace_after_a_performance(servers: Servers):
    with servers.start_demo("--ttl", "0.3") as process:
        read_until(process, "Act 1")
        assert len(servers.databases()) == 1  # what is looked for below can be found
        read_until(process, "takes the lease")
        assert servers.keys()
        with Watch([process.pid]) as watch:
            process.communicate()
            watch.wait()
    assert process.returncode == 0
    assert servers.databases() == []
    assert servers.keys() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("act", ["Act 1", "Act 3"])
def test_no_trace_after_a_signal_while_a_is_stopped(
    servers: Servers, act: str, number: signal.Signals
):
    # A ttl that is long enough for A to be still stopped, and B waiting, when the signal comes.
    ttl = "60" if act == "Act 1" else "2"
    with servers.start_demo("--ttl", ttl) as process:
        read_until(process, act)
        read_until(process, "is stopped (SIGSTOP)")
        assert len(psutil.Process(process.pid).children()) == WORKERS
        with Watch([process.pid]) as watch:
            process.send_signal(number)
            watch.wait()
        process.communicate()
    assert process.returncode == 128 + number
    assert servers.databases() == []
    assert servers.keys() == []


def test_processes_end_with_a_parent_that_was_killed(servers: Servers):
    with servers.start_demo("--ttl", "2") as process:
        read_until(process, "is stopped (SIGSTOP)")
        workers = psutil.Process(process.pid).children()
        assert psutil.STATUS_STOPPED in {worker.status() for worker in workers}
        with Watch([process.pid]) as watch:
            process.kill()
            watch.wait()
    servers.drop_databases()  # there was nobody left to do it
