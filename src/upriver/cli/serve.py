"""``upriver serve``: the embedded producer as a process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ConfigError
from ..producer.settings import DEFAULT_PORT, ServerSettings
from .dashboard import DEFAULT_PORT as DASHBOARD_PORT
from .dashboard import PagePort

if TYPE_CHECKING:
    from ..producer.service import Producer

__all__ = ["serve"]


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Makes the options of a file the defaults of those that are not given."""
    if path is None:
        return
    try:
        stored = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is no TOML: {problem}") from None
    known = {str(option.name) for option in context.command.params} - {parameter.name}
    for name, value in stored.items():
        if name.replace("-", "_") not in known:
            listed = ", ".join(sorted(option.replace("_", "-") for option in known))
            raise ConfigError(f"{path}: {name!r} is no option of serve; there are {listed}")
        if not isinstance(value, str | int):
            raise ConfigError(f"{path}: {name!r} must be a text, a whole number or a boolean")
    context.default_map = {name.replace("-", "_"): value for name, value in stored.items()}


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where documents are kept. Without it they are gone when the server stops.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any free.",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Where clients shall come instead, if they reach it through a proxy or a container.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Serve the cluster map over HTTP too, for clients that bootstrap there.",
)
@click.option("--bucket", default="default", show_default=True, help="Created if it is not there.")
@click.option(
    "--vbuckets",
    type=click.IntRange(1),
    help="Of a bucket that is created; fixed for its life.  [default: 1024]",
)
@click.option(
    "--users", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A users file."
)
@click.option(
    "--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="For TLS."
)
@click.option(
    "--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="For TLS."
)
@click.option(
    "--client-authority",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Require client certificates that these certificates signed.",
)
@click.option(
    "--open-to-all", is_flag=True, help="Allow other addresses although there are no users."
)
@click.option(
    "--dashboard",
    type=PagePort(),
    is_flag=False,
    flag_value=DASHBOARD_PORT,
    metavar="[PORT]",
    help=f"Serve a page that shows how it is doing, and metrics.  [default port: {DASHBOARD_PORT}]",
)
@click.option(
    "--dashboard-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of that page, which asks nobody who they are.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="A TOML file with any of these options; what is given here wins.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every connection.")
def serve(
    data: Path | None,
    host: str,
    port: int,
    advertise: str | None,
    http_port: int | None,
    bucket: str,
    vbuckets: int | None,
    users: Path | None,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    open_to_all: bool,
    dashboard: int | None,
    dashboard_host: str,
    verbose: bool,
) -> None:
    """Serve a bucket: writes for key-value clients, changes for DCP clients, on one port.

    Prints one line with the address when it is ready, and stops cleanly on SIGINT and SIGTERM.

    \b
    Examples:
      upriver serve
      upriver serve --data ./bucket --port 0
      upriver serve --dashboard
      upriver serve --config producer.toml
    """
    # Imported here: loading the store would slow down every other command.
    from ..producer.service import Producer
    from ..store import BucketSettings

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    settings = ServerSettings(
        host=host,
        port=port,
        advertise=advertise,
        http_port=http_port,
        users=users,
        certificate=certificate,
        key=key,
        client_authority=client_authority,
        open_to_all=open_to_all,
    )
    # Without a number of vbuckets, one that exists is taken as it is.
    bucket_settings = BucketSettings(vbuckets=vbuckets) if vbuckets is not None else None
    with tempfile.TemporaryDirectory(prefix="upriver-") as scratch:
        producer = Producer(
            data or Path(scratch), settings, bucket=bucket, bucket_settings=bucket_settings
        )
        asyncio.run(_serve(producer, (dashboard_host, dashboard)))


async def _serve(producer: Producer, dashboard: tuple[str, int | None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with producer:
        with ExitStack() as pages:
            page = _page(producer, pages, *dashboard)
            vbuckets = producer.bucket.settings.vbuckets
            click.echo(f"serving {_address(producer)} ({vbuckets} vbuckets)")
            if page:
                click.echo(f"dashboard {page}")
            await stopped.wait()
            # In a thread: what looks at the producer may be waiting for its loop.
            await asyncio.to_thread(pages.close)


def _page(producer: Producer, pages: ExitStack, host: str, port: int | None) -> str:
    """Begins to serve the dashboard, if that is wanted; returns where."""
    if port is None:
        return ""
    from ..dashboard.collector import Collector
    from ..dashboard.httpd import DashboardServer
    from .dashboard_feed import ProducerFeed

    feed = ProducerFeed(producer)
    collector = Collector(feed.look)
    page = DashboardServer(collector, feed.vbucket, host=host, port=port)
    pages.enter_context(collector)
    return pages.enter_context(page).url


def _address(producer: Producer) -> str:
    """What a client connects to."""
    settings = producer.settings
    scheme = "couchbase" if settings.certificate is None else "couchbases"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{producer.port}/{producer.bucket.name}"
