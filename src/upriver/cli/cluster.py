"""``upriver cluster``: several nodes on this machine, and the commands that their manager takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, Self

import click

from ..errors import ConfigError
from ..producer.settings import DEFAULT_PORT

__all__ = ["cluster"]

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
#: What is decided when a cluster is made, and cannot be given to one that exists.
_FIXED: Final = ("nodes", "replicas", "vbuckets", "port", "bucket", "users")


@click.group()
def cluster() -> None:
    """Run several nodes on this machine: replicas, rebalance, failover.

    One manager process keeps the map and carries out these commands. It can be killed and started
    again at any time. There is only one: it agrees with nobody, and never fails a node over by
    itself. Nodes go on serving while it is away, but copies stand still.

    A command can be interrupted: the manager goes on with what it has begun, and the same command
    given again waits for that and does what is left. Only failover and stop wait for nobody: they
    break off what is under way, and it has to be given again.

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
    """Make a cluster, or start the one in the directory; returns when it serves.

    The processes go on in the background until `upriver cluster stop`. All but --data is for a
    cluster that is made.
    """
    # Imported here: loading the store would slow down every other command.
    from ..cluster import starting

    if starting.exists(data):
        given = [name for name in _FIXED if _is_given(context, name)]
        if given:
            raise ConfigError(
                f"there is a cluster in {data}, and --{given[0]} is for a new one: leave it out"
            )
    else:
        starting.create(
            data,
            nodes=nodes,
            replicas=replicas,
            vbuckets=vbuckets,
            bucket=bucket,
            port=port,
            users=users,
        )
    with _Progress() as progress:
        status = starting.start_manager(data, progress.show)
    click.echo(f"serving {status['source']} ({status['vbuckets']} vbuckets)")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


@cluster.command()
@_DATA
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(data: Path, as_json: bool) -> None:
    """Show the nodes, what each has, and how far copies are behind."""
    told = _run(data, "status")
    if as_json:
        click.echo(json.dumps(told))
    else:
        _show(told)


@cluster.command("add-node")
@_DATA
def add_node(data: Path) -> None:
    """Start another node. It has nothing until the cluster is rebalanced."""
    told = _run(data, "add-node")
    click.echo(f"{told['added']} is there; now: upriver cluster rebalance --data {data}")


@cluster.command("remove-node")
@_DATA
@_NODE
def remove_node(data: Path, node: str) -> None:
    """Move everything away from a node, and stop it."""
    _show(_run(data, "remove-node", node))


@cluster.command()
@_DATA
def rebalance(data: Path) -> None:
    """Spread the vbuckets evenly; clients go on meanwhile."""
    _show(_run(data, "rebalance"))


@cluster.command()
@_DATA
@_NODE
def failover(data: Path, node: str) -> None:
    """Give up a node: its process is killed, and replicas take its place.

    What the node had and its replicas had not got yet is lost. A rebalance that is under way is
    broken off.
    """
    _show(_run(data, "failover", node))


@cluster.command()
@_DATA
@_NODE
def recover(data: Path, node: str) -> None:
    """Bring back a node that was failed over, as replicas of what the others have.

    What it has that was never copied is taken back. Rebalance to have it serve again.
    """
    _show(_run(data, "recover", node))


@cluster.command()
@_DATA
def stop(data: Path) -> None:
    """Stop all nodes and the manager; `start` brings them back with their data."""
    _run(data, "stop")


class _Progress:
    """How far a command is, on stderr: one line drawn over again, or off a terminal plain lines.

    What does not change is not said twice.
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
    """Gives a command, shows how far it is, and returns what came of it."""
    from ..cluster.api import call

    told: dict[str, Any] = {}
    with _Progress() as progress:
        for line in call(data.resolve(), command, node):
            if "result" in line:
                told = line["result"]
            else:
                progress.show(line)
    return told


def _show(told: dict[str, Any]) -> None:
    click.echo(
        f"{told['source']}\n{told['vbuckets']} vbuckets, {told['replicas']} replicas, "
        f"map version {told['rev']}"
    )
    for node in told["nodes"]:
        click.echo(
            f"  {node['name']:<4} {node['address']:<22} {node['state']:<14} "
            f"{node['active']:>4} active {node['replica']:>4} replica"
            + (f"  {node['behind']} changes behind" if node["behind"] else "")
        )
    if told["without_active"]:
        text = f"  {told['without_active']} vbuckets have no active copy now"
        if told["silent"]:
            text += f": bring back {', '.join(told['silent'])}, or fail over what is lost"
        click.echo(text)
    if told["moving"]:
        click.echo(f"  {len(told['moving'])} vbuckets are moving")
    if told["under_way"]:
        click.echo(f"  under way: {told['under_way']}")
