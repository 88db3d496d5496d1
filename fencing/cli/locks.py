"""``fencing locks``: who holds what in a lock service, and taking a lock away."""

from __future__ import annotations

import contextlib
import json
import math
import re
from typing import TYPE_CHECKING, Any

import click

from fencing.cli.failing import failing_in_one_line, variables_read

if TYPE_CHECKING:
    from fencing.service import LockService
    from fencing.state import LockState

__all__ = ["locks"]

_VARIABLES = ["FENCING_LOCKS_URL", "FENCING_REDIS_URL"]
"""Where the address is looked for, in this order."""


@click.command()
@click.argument("url", required=False, envvar=_VARIABLES)
@click.option("--namespace", default="fencing", show_default=True, help="What the keys begin with.")
@click.option("--cluster", is_flag=True, help="URL is a node of a Redis Cluster: ask all of it.")
@click.option("--prefix", default="", metavar="TEXT", help="Only resources that begin so.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--force-release",
    metavar="RESOURCE",
    help="List nothing; take the lock on this resource from whoever holds it.",
)
def locks(
    url: str | None,
    *,
    namespace: str,
    cluster: bool,
    prefix: str,
    as_json: bool,
    force_release: str | None,
) -> None:
    """List the locks that are held in the lock service at URL, or take one away.

    A holder whose lock was taken away is not told. A guarded table refuses him when the next one is
    admitted; "fencing raise" shuts him out at once.

    URL looks like redis://user:password@host:6379/0, redis+cluster://host,host2,
    redis+sentinel://host,host2/SERVICE or redlock://host,host2,host3, like
    etcd://user:password@host:2379,host2:2379/ or zookeeper://host:2181,host2:2181, or like
    postgresql://user:password@host:5432/database, where there are no namespaces.

    Default: FENCING_LOCKS_URL, then FENCING_REDIS_URL.
    """
    if not url:
        raise click.UsageError(f"pass URL, or set {' or '.join(_VARIABLES)}")
    if force_release is not None and prefix:
        raise click.UsageError("--prefix selects what is listed; it goes with no --force-release")
    from fencing.request import check_resource

    for variable in variables_read():
        click.echo(f"At {_place(url)} ({variable}):", err=True)
    with failing_in_one_line(), contextlib.ExitStack() as stack:
        if force_release is not None:
            check_resource(force_release)
        service = _service_at(url, namespace=namespace, cluster=cluster)
        stack.callback(service.close)
        if force_release is not None:
            taken = service.force_release(force_release)
            name = _quoted(force_release)
            text = f"Took {name} from its holder." if taken else f"Nobody holds {name}."
            click.echo(json.dumps({"released": taken}) if as_json else text)
            return
        found = sorted(service.scan(prefix), key=lambda state: state.resource)
    if as_json:
        click.echo(json.dumps({"locks": [_facts(state) for state in found]}))
        return
    for state in found:
        click.echo(_line(state))
    # Where nothing is found, it may have been looked for in the wrong place.
    in_namespace = "" if found or _in_postgres(url) else f" in the namespace {_quoted(namespace)}"
    click.echo(f"{len(found)} held{in_namespace}.")


def _service_at(url: str, *, namespace: str, cluster: bool) -> Any:  # noqa: ANN401 - all of ours have scan(), which `LockService` asks of nobody
    from fencing.connecting import connect

    if cluster:
        if not url.lower().startswith("redis"):
            raise click.UsageError("--cluster is for a Redis, and says that it is one of a cluster")
        return _cluster_at(url, namespace)
    if not _in_postgres(url):
        service = connect(url, namespace=namespace)
        try:
            if url.partition("://")[0].lower() in ("redis", "rediss"):
                _check_alone(url)
        except BaseException:
            service.close()
            raise
        return service
    if namespace != "fencing":
        raise click.UsageError("there are no namespaces in PostgreSQL, so --namespace names none")
    return connect(url)


def _cluster_at(url: str, namespace: str) -> LockService:
    from fencing.connecting import connect
    from fencing.errors import LockServiceError
    from fencing.locks.redis.addresses import as_cluster
    from fencing.locks.redis.trouble import NO_CLUSTER

    try:
        return connect(as_cluster(url), namespace=namespace)
    except LockServiceError as error:
        what, colon, _ = NO_CLUSTER.partition(":")
        also = ", and +cluster in the address" if as_cluster(url) == url else ""
        told = f"{what}{colon} leave out --cluster{also}"
        raise LockServiceError(str(error).replace(NO_CLUSTER, told)) from error


def _check_alone(url: str) -> None:
    """Raise where a Redis knows only some of the locks: those of its part of a cluster."""
    from fencing.errors import FencingUsageError
    from fencing.locks.redis.looking import is_node_of_cluster

    if is_node_of_cluster(url):
        raise FencingUsageError(
            "this Redis is a node of a cluster: pass --cluster, so that all of it is asked"
        )


def _in_postgres(url: str) -> bool:
    return url.lower().startswith("postgres")


def _place(url: str) -> str:
    """An address without user, password and settings, as far as it can be told where they end."""
    scheme, _, rest = url.partition("://")
    found = re.fullmatch(r"(?:[^@/?#]*@)?([^@?#]*)(?:[?#][^@]*)?", rest)
    return f"{scheme}://{found[1] if found else '...'}"


def _facts(state: LockState) -> dict[str, Any]:
    # Without the holder's nonce, which belongs in no log.
    return {
        "resource": state.resource,
        "owner": state.owner,
        "token": state.token,
        "remaining": state.remaining if math.isfinite(state.remaining) else None,
        "counter": state.counter,
        "waiters": state.waiters,
    }


def _line(state: LockState) -> str:
    left = f"{state.remaining:.1f} s left" if math.isfinite(state.remaining) else "without end"
    by = f"token {state.token}, {_quoted(state.owner)}" if state.token else "by no lock service"
    waiting = f", {state.waiters} waiting" if state.waiters else ""
    return f"{_quoted(state.resource)}: {by}, {left}{waiting}"


def _quoted(name: str) -> str:
    """A name as JSON writes it: what it holds does nothing to a terminal."""
    return json.dumps(name, ensure_ascii=not name.isprintable())
