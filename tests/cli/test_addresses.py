"""Where an address came from is told, where it is the environment and the command has failed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from fencing.cli.main import COMMANDS, main

NOWHERE = "postgresql://u:secret@127.0.0.1:1/x"
NO_REDIS = "redis://u:secret@127.0.0.1:1"

VARIABLES = ("FENCING_DATABASE_URL", "FENCING_LOCKS_URL", "FENCING_REDIS_URL")


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=dict.fromkeys(VARIABLES) | environment).invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "variable", "url"),
    [
        (("install",), "FENCING_DATABASE_URL", NOWHERE),
        (("install",), "FENCING_DATABASE_URL", "nonsense"),
        (("verify",), "FENCING_DATABASE_URL", NOWHERE),
        (("verify",), "FENCING_DATABASE_URL", NO_REDIS),
        (("prune", "--older-than", "30d"), "FENCING_DATABASE_URL", NOWHERE),
        (("prune", "--older-than", "30d", "--dry-run"), "FENCING_DATABASE_URL", NOWHERE),
        (("locks",), "FENCING_LOCKS_URL", NOWHERE),
        (("locks",), "FENCING_REDIS_URL", NO_REDIS),
    ],
)
def test_a_failure_names_the_variable(arguments: tuple[str, ...], variable: str, url: str) -> None:
    result = call(*arguments, **{variable: url})
    assert result.exit_code == (2 if arguments == ("verify",) else 1)
    [error] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert error.endswith(f" (the address is from {variable})")
    assert "secret" not in result.output


def test_of_several_variables_the_one_that_counts_is_named() -> None:
    result = call("locks", FENCING_LOCKS_URL=NO_REDIS, FENCING_REDIS_URL=NO_REDIS)
    assert result.stderr.endswith(" (the address is from FENCING_LOCKS_URL)\n")


@pytest.mark.parametrize(
    "arguments",
    [("install", NOWHERE), ("verify", NOWHERE), ("prune", NOWHERE, "--older-than", "30d"),
     ("locks", NO_REDIS), ("raise", NOWHERE, "r", "1"),
     ("demo", "--database-url", NOWHERE, "--redis-url", NO_REDIS)],
)  # fmt: skip
def test_where_the_address_was_given_no_variable_is_named(arguments: tuple[str, ...]) -> None:
    result = call(*arguments, **dict.fromkeys(VARIABLES, "redis://127.0.0.1:2"))
    assert result.exit_code != 0
    assert "FENCING_" not in result.stderr


def test_the_demonstration_says_how_to_do_without() -> None:
    both = call("demo", FENCING_DATABASE_URL=NOWHERE, FENCING_REDIS_URL=NO_REDIS)
    assert both.exit_code == 1
    assert both.stderr.endswith(
        " (the addresses are from FENCING_REDIS_URL and FENCING_DATABASE_URL; where there is none, "
        "a server is started)\n"
    )
    one = call("demo", "--redis-url", NO_REDIS, FENCING_DATABASE_URL=NOWHERE)
    assert "(the address is from FENCING_DATABASE_URL; where there is none" in one.stderr


def test_every_command_that_reads_a_variable_was_tried() -> None:
    reading = {
        name
        for name in COMMANDS
        for parameter in main.get_command(None, name).params
        if parameter.envvar
    }
    assert reading == {"demo", "install", "locks", "prune", "verify"}
