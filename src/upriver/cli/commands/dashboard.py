"""``upriver dashboard``: the dashboard of pipelines' tables and of a remote server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from ...errors import ConfigError, UpriverError
from ..common_options import interruptible
from ..setting_options import access_options

if TYPE_CHECKING:
    from ...consumer.transport.access import Access
    from ...dashboard.figure_types import HeartbeatFigures
    from ...files.storage import Storage

#: The default ports, of which the first free one is used. Couchbase and its tools use none of them,
#: and several servers and dashboards can run on one machine.
PAGE_PORTS: Final = range(8180, 8200)


#: The files that --export prints.
_EXPORTS: Final = {"grafana": "grafana.json", "alerts": "alerts.yml"}


class PagePort(click.IntRange):
    """The ports to try for the page: a given one, or the default ones.

    In a configuration file, true stands for the default ones and false for no page.
    """

    name = "port"
    #: Stands for the default ports.
    FREE: ClassVar = "free"

    def __init__(self) -> None:
        super().__init__(0, 65535)

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if isinstance(value, range | tuple):
            return value  # click converts defaults twice
        if isinstance(value, bool) or value == self.FREE:
            return PAGE_PORTS if value else None
        return (super().convert(value, param, context),)


@click.command()
@click.argument("watched", metavar="TABLE|URL...", nargs=-1)
@click.option(
    "--port",
    type=PagePort(),
    default=PagePort.FREE,
    metavar="PORT",
    help=f"0: any free.  [default: {PAGE_PORTS[0]}, or the next that is free]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. This page asks nobody for a password.",
)
@click.option(
    "--export",
    type=click.Choice(list(_EXPORTS)),
    help="Print a dashboard for Grafana or alert rules for Prometheus, and exit.",
)
@access_options
def dashboard(
    watched: tuple[str, ...],
    port: Sequence[int],
    host: str,
    export: str | None,
    access: Access,
    timeout: float,
) -> None:
    """Show how pipelines and a server are doing, on a page and as metrics for Prometheus.

    TABLE is a change log or mirror; its pipeline may run anywhere that sees the same directory.
    URL is the dashboard of a server, as `upriver serve --dashboard` prints it; one can be given.
    If that server has users, give one of them: the page shows what this user may see.

    \b
    Examples:
      upriver dashboard ./orders
      upriver dashboard ./orders http://127.0.0.1:8180
      upriver dashboard --export alerts > upriver-alerts.yml
    """
    if export is not None:
        click.echo((files("upriver.dashboard") / _EXPORTS[export]).read_text(), nl=False)
        return
    if not watched:
        raise click.UsageError("give TABLE or URL, or --export grafana or alerts")
    # Imported late: only this command needs them.
    from ..._hosts import is_loopback
    from ...dashboard.collector import Collector
    from ...dashboard.httpd import DashboardServer
    from ...dashboard.progress_file import ProgressFile
    from ...dashboard.remote import RemoteServer
    from ...tables.places import TablePlace

    servers = [
        RemoteServer(
            one,
            access.user,
            access.password,
            context=access.tls_context() if one.startswith("https://") else None,
            allow_plain=access.allow_plain,
            timeout=timeout,
        )
        for one in watched
        if one.startswith(("http://", "https://"))
    ]
    if servers and access.user and not is_loopback(host):
        raise ConfigError(
            f"everybody who reaches {host} would see what user {access.user} may see: listen on "
            "127.0.0.1, or use the server's own dashboard, where viewers sign in"
        )
    if len(servers) > 1:
        raise ConfigError("one page shows one server: give one URL, and any number of tables")
    places = [TablePlace.parse(one) for one in watched if "://" not in one or _is_file(one)]
    if len(servers) + len(places) != len(watched):
        raise ConfigError("give directories of tables, or http://HOST:PORT of a dashboard")
    for place in places:
        if not place.private.is_dir():
            raise ConfigError(
                f"{place.root} is not a table of a pipeline; give the TABLE of upriver mirror, "
                "changelog or history, or http://HOST:PORT of upriver serve --dashboard"
            )
    names = _names([place.root for place in places])
    progress = [
        ProgressFile(place.progress, name, partial(heartbeat, place.storage))
        for place, name in zip(places, names, strict=True)
    ]
    server = servers[0] if servers else None
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with (
        Collector(
            server.sample if server else None, [file.sample for file in progress]
        ) as collector,
        DashboardServer(collector, server, host=host, port=port) as page,
    ):
        click.echo(f"dashboard {page.url}")
        with interruptible(lambda: "the page was there until now"):
            stopped.wait()


def _is_file(text: str) -> bool:
    return text.startswith("file:")


def heartbeat(table: Storage) -> HeartbeatFigures | None:
    """What is known of a table's pipeline; None if the table cannot be read now."""
    from ...dashboard.figure_types import HeartbeatFigures
    from ...tables.heartbeat import read_heartbeat

    try:
        found = read_heartbeat(table)
    except (UpriverError, OSError):
        return None
    return HeartbeatFigures(**asdict(found)) if found is not None else None  # type: ignore[typeddict-item]


def _names(paths: list[Path]) -> list[str]:
    """The last part of each path, or the whole path where two would be the same."""
    short = [path.name for path in paths]
    return [
        str(path) if short.count(name) > 1 or not name else name
        for path, name in zip(paths, short, strict=True)
    ]
