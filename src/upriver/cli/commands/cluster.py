"""``upriver cluster``: starts a local cluster and sends commands to its manager."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, Self

import click

from ...errors import ConfigError
from ...producer.server_settings import DEFAULT_PORT
from ..setting_options import json_option
from ..suggestions import SuggestingGroup

_DATA: Final = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="UPRIVER_CLUSTER",
    show_envvar=True,
    help="The cluster's directory.",
)
_NODE: Final = click.argument("node")
_ERASE: Final = "\r\x1b[K"
#: Options of a new cluster, which cannot be changed later.
_FIXED: Final = ("nodes", "replicas", "vbuckets", "port", "bucket", "users")


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """Run several nodes on this machine: replicas, rebalance, failover.

    One manager process keeps the map and executes these commands. It can be killed and restarted
    at any time. There is no consensus and no automatic failover. While the manager is down,
    replication stops, and after 15 seconds nodes refuse writes.

    An interrupted command goes on in the manager; the same command given again waits for it and
    does what is left. Failover and stop do not wait: they abort a running command, which has to be
    given again.

    \b
    Examples:
      upriver cluster start --data ./cluster --nodes 3 --replicas 1
      upriver cluster status --data ./cluster
      upriver cluster failover --data ./cluster n2
      upriver cluster recover --data ./cluster n2
      upriver cluster rebalance --data ./cluster
      upriver cluster stop --data ./cluster
    """


@cluster.command()
@_DATA
@click.option("--nodes", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--replicas", type=click.IntRange(0), default=1, show_default=True, help="Of each vbucket."
)
@click.option("--vbuckets", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Of the first node; the others follow. 0: any free ones.",
)
@click.option("--bucket", default="default", show_default=True)
@click.option(
    "--users", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A users file."
)
@click.pass_context
def start(
    context: click.Context,
    data: Path,
    nodes: int,
    replicas: int,
    vbuckets: int,
    port: int,
    bucket: str,
    users: Path | None,
) -> None:
    """Create a cluster, or start the one in the directory; returns when it serves.

    The processes run in the background until `upriver cluster stop`. All options but --data are
    for a new cluster.
    """
    # Imported late: loading the store would slow down every other command.
    from ...cluster import cluster_start

    if cluster_start.exists(data):
        given = [name for name in _FIXED if _is_given(context, name)]
        if given:
            raise ConfigError(
                f"{data} has a cluster already, and --{given[0]} is for a new one: leave it out"
            )
    else:
        cluster_start.create(
            data,
            nodes=nodes,
            replicas=replicas,
            vbuckets=vbuckets,
            bucket=bucket,
            port=port,
            users=users,
        )
    with _Progress() as progress:
        status = cluster_start.start_manager(data, progress.show)
    click.echo(f"serving {status['source']} ({status['vbuckets']} vbuckets)")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


@cluster.command()
@_DATA
@json_option("For programs.")
def status(data: Path, as_json: bool) -> None:
    """Show the nodes, their vbuckets, and how far replicas are behind."""
    result = _run(data, "status")
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)


@cluster.command("add-node")
@_DATA
def add_node(data: Path) -> None:
    """Start another node. It has no vbuckets until the cluster is rebalanced."""
    result = _run(data, "add-node")
    click.echo(f"{result['added']} is added; next: upriver cluster rebalance --data {data}")


@cluster.command("remove-node")
@_DATA
@_NODE
def remove_node(data: Path, node: str) -> None:
    """Move all vbuckets away from a node, and stop it."""
    _show(_run(data, "remove-node", node))


@cluster.command()
@_DATA
def rebalance(data: Path) -> None:
    """Spread the vbuckets evenly over the nodes, while clients keep working."""
    _show(_run(data, "rebalance"))


@cluster.command()
@_DATA
@_NODE
def failover(data: Path, node: str) -> None:
    """Fail a node over: its process is killed, and replicas become active.

    Changes that the replicas do not have yet are lost. A running rebalance is aborted.
    """
    _show(_run(data, "failover", node))


@cluster.command()
@_DATA
@_NODE
def recover(data: Path, node: str) -> None:
    """Bring back a failed-over node as replicas of the other nodes' vbuckets.

    Changes that it never replicated are rolled back. Rebalance to make it active again.
    """
    _show(_run(data, "recover", node))


@cluster.command()
@_DATA
def stop(data: Path) -> None:
    """Stop all nodes and the manager; `start` brings them back with their data."""
    _run(data, "stop")


class _Progress:
    """Progress of a command on stderr: one line that is redrawn, or plain lines without a terminal.

    A line is printed only if it changed.
    """

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_place and self._text:
            click.echo(err=True)

    def show(self, line: dict[str, Any]) -> None:
        text = line.get("waiting") or f"{line['done']} of {line['total']} {line['what']}"
        if text != self._text:
            self._text = text
            if self._in_place:
                text = _ERASE + text
            click.echo(text, err=True, nl=not self._in_place)


def _run(data: Path, command: str, node: str = "") -> dict[str, Any]:
    """Sends a command to the manager, shows its progress, and returns its result."""
    from ...cluster.control_socket import call

    result: dict[str, Any] = {}
    with _Progress() as progress:
        for line in call(data.resolve(), command, node):
            if "result" in line:
                result = line["result"]
            else:
                progress.show(line)
    return result


def _show(result: dict[str, Any]) -> None:
    click.echo(
        f"{result['source']}\n{result['vbuckets']} vbuckets, {result['replicas']} replicas, "
        f"map version {result['rev']}"
    )
    for node in result["nodes"]:
        click.echo(
            f"  {node['name']:<4} {node['address']:<22} {node['state']:<14} "
            f"{node['active']:>4} active {node['replica']:>4} replica"
            + (f"  {node['behind']} changes behind" if node["behind"] else "")
        )
        if node["problem"]:
            click.echo(f"       {node['problem']}")
    if result["without_active"]:
        text = f"  {result['without_active']} vbuckets have no active copy now"
        if result["silent"]:
            text += f": bring back {', '.join(result['silent'])}, or fail over what is lost"
        click.echo(text)
    for problem in result["problems"]:
        click.echo(f"  {problem}")
    if result["moving"]:
        click.echo(f"  {len(result['moving'])} vbuckets are moving")
    if result["under_way"]:
        click.echo(f"  under way: {result['under_way']}")
