"""``fencing locks`` with the address of any lock service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fencing import connect
from fencing.cli.main import main
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from click.testing import Result


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["locks", *arguments])


def output_of(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(params=["etcd", "zookeeper", "postgresql"])
def where(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """An address, and the settings that keep others out."""
    if request.param == "postgresql":
        return plain_url(request.getfixturevalue("fenced_database")), {}
    namespace = request.getfixturevalue(f"{request.param}_namespace")
    return request.getfixturevalue(f"{request.param}_url"), {"namespace": namespace}


def test_locks_are_listed_and_taken_away(where: tuple[str, dict[str, str]]) -> None:
    url, settings = where
    options = (url, *[word for name, value in settings.items() for word in (f"--{name}", value)])
    with connect(url, **settings) as locks, locks.acquire("account:1", ttl=60, owner="me") as lease:
        other = locks.acquire("other", ttl=60)
        listed = json.loads(output_of(*options, "--prefix", "account:", "--json"))["locks"]
        assert [(each["resource"], each["owner"], each["token"]) for each in listed] == [
            ("account:1", "me", lease.token)
        ]
        assert "2 held." in output_of(*options)
        assert "Took" in output_of(*options, "--force-release", "other")
        assert "1 held." in output_of(*options)
        assert not other.owned()


def test_where_nothing_is_held_it_says_where_it_has_looked(
    where: tuple[str, dict[str, str]],
) -> None:
    url, settings = where
    if not settings:  # PostgreSQL has no namespaces
        assert output_of(url) == "0 held.\n"
        return
    namespace = settings["namespace"]
    told = output_of(url, "--namespace", namespace)
    assert told == f'0 held in the namespace "{namespace}".\n'


@pytest.mark.parametrize(
    ("url", "option", "said"),
    [
        ("etcd://127.0.0.1:1", "--cluster", "--cluster is for a Redis"),
        ("redlock://a,b,c", "--cluster", "--cluster is for a Redis"),
        ("postgresql://127.0.0.1:1/x", "--namespace=mine", "no namespaces in PostgreSQL"),
        ("memcached://127.0.0.1:1", "--json", "no lock service has addresses with memcached://"),
    ],
)
def test_what_makes_no_sense_is_told(url: str, option: str, said: str) -> None:
    done = run(url, option)
    assert done.exit_code != 0
    assert said in " ".join(done.output.split())
