"""Every example runs, twice on one database, and prints what it says it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

EXAMPLES = Path(__file__).parents[2] / "examples"

WRITE_SESSION = r"""
token \d+: opened with 100
token \d+: 100 - 30 = 70
token \d+: 70 - 20 = 50
refused: unfenced write: UPDATE of example_accounts needs a lease on .*
left: 50
"""

WRITE_SESSION_ASYNC = r"""
token \d+: opened with 100
token \d+: 100 - 20 = 80
token \d+: 80 - 20 = 60
token \d+: 60 - 20 = 40
refused: unfenced write: UPDATE of example_async_accounts needs a lease on .*
left: 40
"""

REPOSITORY = r"""
tea left: 7
refused by the database: unfenced write: public\.example_stock is guarded, .*
ada has ordered tea, milk
refused before it was sent: unfenced write: INSERT of example_orders needs a lease on .*
"""

TAKE_OVER = r"""
A: token \d+, and hangs
operator: A holds it, 1 waits
B: token \d+, and writes
A: refused: the lease on 'example-report:daily' \(token \d+\) was lost: .*
written by B
"""

TTL_EXPIRY = r"""
A: token \d+, reads 100
A: is stopped
B: token \d+, reads 100
B: writes 80
A: cannot write 70: stale fence: .*
left: 80, so B's update stands
"""

OUTPUTS = {
    "repository": REPOSITORY,
    "take_over": TAKE_OVER,
    "ttl_expiry": TTL_EXPIRY,
    "write_session": WRITE_SESSION,
    "write_session_async": WRITE_SESSION_ASYNC,
}


@pytest.fixture
def clean_redis(redis_client: redis.Redis) -> Iterator[None]:
    """Their keys have names of their own, in the namespace that a service has by default."""
    yield
    if keys := list(redis_client.scan_iter(match="fencing:{example-*")):
        redis_client.delete(*keys)


def run(name: str, redis_url: str, database_url: str) -> str:
    root = str(EXAMPLES.parent)
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        env={
            **os.environ,
            "FENCING_REDIS_URL": redis_url,
            "FENCING_DATABASE_URL": database_url,
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested():
    assert sorted(OUTPUTS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", OUTPUTS)
def test_example(name: str, redis_url: str, database: str, clean_redis: None):
    expected = OUTPUTS[name].lstrip()
    first = run(name, redis_url, database)
    assert re.fullmatch(expected, first), first
    second = run(name, redis_url, database)  # on what the first run has left
    assert re.fullmatch(expected, second), second
    tokens = [
        int(token) for token in re.findall(r"^(?:\w: )?token (\d+)", first + second, re.MULTILINE)
    ]
    assert tokens == sorted(set(tokens))
