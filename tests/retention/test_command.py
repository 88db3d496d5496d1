"""``fencing prune``: batches, what it tells, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from fencing import Guard, RedisLockService
from fencing.administration import Pruned, forget_leases, forget_receipts, prunable, prune
from fencing.cli.main import main
from fencing.cli.prune import read_age
from fencing.errors import FencingUsageError, GuardNotInstalledError
from tests.retention.conftest import age, tokens
from tests.schema.sql import ALICE, admit, enter

DAY = 86_400.0


@pytest.fixture
def old(owner):
    """Twenty-five old fences, and one that is not."""
    for n in range(25):
        admit(owner, 7, resource=f"old:{n}")
    age(owner)
    admit(owner, 7, resource="new")
    return owner


def call(*arguments):
    return CliRunner().invoke(main, ["prune", *arguments], env={"FENCING_DATABASE_URL": None})


def test_each_batch_is_a_transaction_of_its_own(old, fenced_database):
    seen = [(so_far, len(tokens(old))) for so_far in prune(fenced_database, DAY, batch=10)]
    # The new one is the first of the first batch.
    assert seen == [(Pruned(9, 0), 17), (Pruned(19, 0), 7), (Pruned(25, 0), 1)]


def test_what_is_in_use_is_counted_and_stays(old, connect, fenced_database):
    holder = connect(autocommit=False)
    enter(holder, ("old:3", 7, ALICE))
    assert list(prune(fenced_database, DAY))[-1] == Pruned(pruned=24, busy=1)
    assert set(tokens(old)) == {"new", "old:3"}


def test_whatever_isolation_level_is_the_default(old, fenced_database):
    name = make_url(fenced_database).database
    old.execute(
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode()
    )
    assert list(prune(fenced_database, DAY))[-1].pruned == 25


@pytest.mark.parametrize("batch", [0, -1, 5001])
def test_a_batch_out_of_its_range(fenced_database, batch):
    with pytest.raises(ValueError, match="a batch is 1 to 5000"):
        next(prune(fenced_database, DAY, batch=batch))


def test_an_age_below_an_hour_is_refused_in_the_database_s_words(old, fenced_database):
    with pytest.raises(FencingUsageError, match="a lease may live that long"):
        next(prune(fenced_database, 3599))
    result = call(fenced_database, "--older-than", "59m")
    assert result.exit_code == 1
    assert result.output == (
        "Error: cannot prune fences older than 00:59:00: a lease may live that long. Pass an hour "
        "or more, and more than any lease of yours lives.\n"
    )
    assert call(fenced_database, "--older-than", "59m", "--dry-run").output == result.output
    assert len(tokens(old)) == 26


BY_AGE = pytest.mark.parametrize(
    "function", [lambda *given: list(prune(*given)), prunable, forget_receipts, forget_leases]
)


@BY_AGE
@pytest.mark.parametrize("age", [float("nan"), float("inf"), -float("inf"), -1, 0, 36501 * DAY])
def test_an_age_that_cannot_be_is_named(old, fenced_database, function, age):
    with pytest.raises(ValueError, match=r"^older_than must be "):
        function(fenced_database, age)
    assert len(tokens(old)) == 26


@BY_AGE
def test_an_age_that_is_no_number_is_named(fenced_database, function):
    with pytest.raises(TypeError, match=r"^older_than must be a number of seconds, not str"):
        function(fenced_database, "30d")


def test_a_database_without_the_schema(database):
    with pytest.raises(GuardNotInstalledError):
        next(prune(database, DAY))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000), ("12h", 43_200), ("1d12h", 129_600), ("1.5h", 5400), ("90m", 5400),
     ("2w", 1_209_600), ("7200s", 7200)],
)  # fmt: skip
def test_ages(text, seconds):
    assert read_age(None, None, text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "30 d", "-1d", "1y", "1d-1h", "inf"])
def test_what_is_no_age(fenced_database, text):
    result = call(fenced_database, f"--older-than={text}")
    assert result.exit_code == 2
    assert "is no length of time; it looks like 30d, 12h or 1d12h" in result.output


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
@pytest.mark.parametrize("age", ["36501d", "99999999999d", f"{'9' * 400}s"])
def test_an_age_beyond_what_a_database_knows(fenced_database, age, options):
    result = call(fenced_database, "--older-than", age, *options)
    assert result.exit_code == 2
    assert "Invalid value for '--older-than'" in result.output
    assert "the largest value is 36500d" in result.output


def test_the_largest_age(fenced_database):
    assert call(fenced_database, "--older-than", "36500d").exit_code == 0


def test_it_tells_what_it_did(old, connect, fenced_database):
    enter(connect(autocommit=False), ("old:3", 7, ALICE))
    result = call(fenced_database, "--older-than", "30d", "--batch", "7")
    assert result.exit_code == 0
    assert result.output.startswith("24 fences pruned in ")
    assert result.output.endswith(" s; 1 are in use and stay; 2 are left.\n")


def test_as_json(old, fenced_database):
    told = json.loads(call(fenced_database, "--older-than", "30d", "--json").output)
    assert told.pop("seconds") >= 0
    assert told == {"pruned": 25, "busy": 0, "kept": 1, "receipts": 0, "leases": 0}


def test_a_dry_run_changes_nothing(old, fenced_database):
    result = call(fenced_database, "--older-than", "30d", "--dry-run")
    assert result.output == "25 of 26 fences are that old; nothing was changed.\n"
    told = json.loads(call(fenced_database, "--older-than", "30d", "--dry-run", "--json").output)
    assert told == {"old": 25, "total": 26}
    assert len(tokens(old)) == 26


def test_who_is_not_the_owner_is_told_so_in_one_line(old, fenced_database):
    role = f"app_{make_url(fenced_database).database}"
    old.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        url = make_url(fenced_database).set(username=role).render_as_string(hide_password=False)
        result = call(url, "--older-than", "30d")
    finally:
        old.execute(f"DROP ROLE {role}".encode())
    assert result.exit_code == 1
    assert result.output == (
        "Error: permission denied for function prune: this is for the owner of schema fencing, "
        "or a member of its role; connect as one\n"
    )


def test_no_url_says_what_is_missing():
    result = call("--older-than", "30d")
    assert result.exit_code == 2
    assert "FENCING_DATABASE_URL" in result.output


def test_a_database_that_is_not_there():
    result = call("postgresql://u:geheim@127.0.0.1:1/x", "--older-than", "30d")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "geheim" not in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_how_far_it_came_and_can_be_run_again(owner, fenced_database, number):
    for resource in ("a", "b", "c"):
        admit(owner, 7, resource=resource)
    age(owner)
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, fenced_database],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "first\n"
        child.send_signal(number)
        child.stdin.write("go on\n")
        child.stdin.flush()
        _, said = child.communicate(timeout=60)
    assert said == "Stopped: 1 fences were pruned; run it again to go on.\n"
    assert child.returncode == 128 + number
    assert len(tokens(owner)) == 2
    assert call(fenced_database, "--older-than", "30d").output.startswith("2 fences pruned")


# The command, made to wait after its first batch.
WAITING = """
import sys
from fencing import administration
from fencing.cli.main import main

def prune(*arguments, **options):
    for so_far in real(*arguments, **options):
        yield so_far
        print("first", flush=True)
        sys.stdin.readline()

real, administration.prune = administration.prune, prune
main(["prune", sys.argv[1], "--older-than", "30d", "--batch", "1"])
"""


def test_a_lock_service_that_has_forgotten_its_counter_is_raised_above_the_floor(
    old, fenced_database, redis_url, redis_namespace
):
    """A pruned fence and a flushed Redis: both know nothing, and the floor knows."""
    import sqlalchemy as sa

    list(prune(fenced_database, DAY))
    engine = sa.create_engine(fenced_database)
    with (
        RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks,
        Guard(locks, engine) as guard,
        guard.acquire("old:3") as lease,
    ):
        assert lease.token == 8
    engine.dispose()
