"""``fencing verify``: what a database, or a lock service, has, held against what it should have."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from fencing.cli.failing import in_one_line

if TYPE_CHECKING:
    from fencing.verification import ServiceVerification, Verification

__all__ = ["verify"]

FOUND, COULD_NOT_LOOK = 1, 2

_NOTHING = object()


@click.command()
@click.argument("url", required=False, envvar="FENCING_DATABASE_URL")
@click.option(
    "--models",
    multiple=True,
    metavar="MODULE:NAME",
    help="A declarative base class or a MetaData whose tables should be guarded as declared.",
)
@click.option(
    "--namespace",
    default="fencing",
    show_default=True,
    help="What the keys of a lock service begin with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
def verify(
    url: str | None, *, models: tuple[str, ...], namespace: str, as_json: bool, strict: bool
) -> None:
    """Verify the guards of the PostgreSQL database at URL, or the servers of a lock service there.

    Of a database: lists every guard, and says what is missing, switched off, changed by hand or
    left open, and what to do about it. Of a lock service: which settings may lose locks, and which
    permissions are missing. Reads only; connect as the user that the application has.

    URL looks like postgresql://user:password@host:5432/database, or redis://..., rediss://...,
    unix://..., redis+cluster://..., redis+sentinel://..., redlock://..., etcd://...,
    zookeeper://...; default: FENCING_DATABASE_URL.

    Ends with status 0 if there is no error, 1 if there is one (with --strict: or a warning), and 2
    if it could not look.
    """
    if not url:
        raise click.UsageError("pass URL, or set FENCING_DATABASE_URL")
    scheme = url.partition("://")[0].lower()
    of_redis = scheme == "unix" or scheme.startswith("redis")
    of_service = of_redis or scheme in ("redlock", "redlocks", "etcd", "etcds", "zookeeper", "zk")
    if of_service and models:
        raise click.UsageError("--models goes with the URL of a database")
    if scheme.startswith("postgres") and namespace != "fencing":
        raise click.UsageError("there are no namespaces in PostgreSQL, so --namespace names none")
    try:
        found, told, as_object = (
            _of_service(url, namespace, redis=of_redis) if of_service else _of_database(url, models)
        )
    except click.ClickException:
        raise
    except Exception as error:
        line = in_one_line(error)
        if line is None:
            raise
        click.echo(f"Error: {line}", err=True)
        sys.exit(COULD_NOT_LOOK)
    click.echo(json.dumps(as_object) if as_json else told)
    if not found.passes(strict=strict):
        sys.exit(FOUND)


def _of_database(url: str, models: tuple[str, ...]) -> tuple[Verification, str, dict[str, Any]]:
    from fencing.administration import verify_url
    from fencing.migration import place
    from fencing.verification import declared_in
    from fencing.verification.report import as_json, as_text

    declared = declared_in(*map(load, models)) if models else None
    found = verify_url(url, declared)
    return found, as_text(found, place(url)), as_json(found)


def _of_service(
    url: str, namespace: str, *, redis: bool
) -> tuple[ServiceVerification, str, dict[str, Any]]:
    from fencing.verification.report import service_as_json, service_as_text

    if redis:
        from fencing.locks.redis.looking import verify_url

        found = verify_url(url, namespace)
    else:
        from fencing.connecting import connect

        service: Any = connect(url, namespace=namespace)
        with service:
            found = service.verify()
    return found, service_as_text(found), service_as_json(found)


def load(name: str) -> Any:  # noqa: ANN401 -- whatever the module has
    """What ``package.module:name`` means.

    Raises:
        click.UsageError: Nothing.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise click.UsageError(f"--models takes package.module:name, not {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look where it is called
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute, _NOTHING)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"--models {name}: {error}") from error
    except (Exception, SystemExit) as error:  # a module that ends the program is not healthy
        told = " ".join(str(error).split())
        what = type(error).__name__ + (f": {told}" if told else "")
        raise click.UsageError(
            f"--models {name}: importing {module_name} raised {what}; "
            "let it be importable without the application around it"
        ) from error
    if found is _NOTHING:
        raise click.UsageError(f"--models {name}: {module_name} has no {path}")
    return found
