"""``upriver serve``: the embedded producer as a process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...producer.server_settings import (
    DEFAULT_PORT,
    PeerRelease,
    ServerSettings,
    usual_http_port,
)
from ...session.stream_request_checks import Policy
from ..common_options import INTERRUPTED, log_level
from ..setting_options import config_option
from .dashboard import PAGE_PORTS, PagePort

if TYPE_CHECKING:
    from ...producer.embedded import Producer

_MIB: Final = 1024 * 1024
_DEFAULTS: Final = ServerSettings()
#: Python's own 5 ms would be added to an answer several times over.
_SWITCH_SECONDS: Final = 0.0005


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
    help="For the cluster map and management over HTTP, with TLS over HTTPS; its address is "
    "printed too.  [default: 8091 beside port 11210, 18091 beside 11207, if free; else any free]",
)
@click.option("--bucket", default="default", show_default=True, help="Created if it is not there.")
@click.option(
    "--vbuckets",
    type=click.IntRange(1),
    help="Of a bucket that is created; fixed for its life.  [default: 1024]",
)
@click.option(
    "--restored",
    is_flag=True,
    help="The data is an older copy: begin new branches, so that readers of later changes are "
    "rolled back.",
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
    "--max-connections",
    default=_DEFAULTS.max_connections,
    show_default=True,
    type=click.IntRange(1),
    help="Connections at once; fewer where the system allows fewer open files.",
)
@click.option(
    "--buffer-memory",
    default=_DEFAULTS.buffer_memory // _MIB,
    show_default=True,
    type=click.IntRange(32),
    metavar="MIB",
    help="What all connections together may hold, read or to be sent.",
)
@click.option(
    "--read-memory",
    type=click.IntRange(1),
    metavar="MIB",
    help="The bucket's cache of blocks read from disk.  [default: 256, or as it was]",
)
@click.option(
    "--write-memory",
    type=click.IntRange(1),
    metavar="MIB",
    help="The bucket's writes that are not yet in files.  [default: 64, or as it was]",
)
@click.option(
    "--plain-without-tls",
    is_flag=True,
    help="Take passwords without TLS from other machines too, for clients that only have PLAIN. "
    "On loopback addresses they are always taken.",
)
@click.option(
    "--log-needs-open",
    is_flag=True,
    help="Close connections that ask for a failover log before Open, as release 3.0.2 does.",
)
@click.option(
    "--end-zero-is-no-end",
    is_flag=True,
    help="Never end a stream whose request has the end seqno 0, as document 004 says. Couchbase "
    "Server ends it at once, and readers of an empty vbucket up to now rely on that.",
)
@click.option(
    "--peers",
    type=click.Choice([release.value for release in PeerRelease]),
    default=PeerRelease.TODAY.value,
    show_default=True,
    help="What is sent to nodes that replicate with it and cannot say so themselves. With 3.0, "
    "vbucket states on a stream have the numbers of the drafts. With 2014, mutations of draft 001 "
    "have the 31 bytes of extras that consumers of that time want, and nothing else is different: "
    "which draft a node speaks is found out.",
)
@click.option(
    "--dashboard",
    type=PagePort(),
    is_flag=False,
    flag_value=PagePort.FREE,
    metavar="[PORT]",
    help="Serve a page that shows how it is doing, and metrics.  "
    f"[default port: {PAGE_PORTS[0]}, or the next that is free]",
)
@click.option(
    "--dashboard-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of that page; on another one than loopback it has the server's TLS. With "
    "users, viewers sign in.",
)
@config_option
@click.option("-v", "--verbose", is_flag=True, help="Log every connection.")
def serve(
    data: Path | None,
    host: str,
    port: int,
    advertise: str | None,
    http_port: int | None,
    bucket: str,
    vbuckets: int | None,
    restored: bool,
    users: Path | None,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    open_to_all: bool,
    max_connections: int,
    buffer_memory: int,
    read_memory: int | None,
    write_memory: int | None,
    plain_without_tls: bool,
    log_needs_open: bool,
    end_zero_is_no_end: bool,
    peers: str,
    dashboard: Sequence[int] | None,
    dashboard_host: str,
    verbose: bool,
) -> None:
    """Serve a bucket: writes for key-value clients, changes for DCP clients, on one port.

    Prints one line with the address when it is ready, and stops cleanly on SIGINT and SIGTERM,
    with the status 130 or 0.

    \b
    Examples:
      upriver serve
      upriver serve --data ./bucket --port 0
      upriver serve --dashboard
      upriver serve --config producer.toml
    """
    # Imported here: loading the store would slow down every other command.
    from ...producer.embedded import Producer
    from ...store import BucketSettings

    if verbose:
        log_level(logging.INFO)
    os.umask(0o077)  # what is stored is for this user alone
    settings = ServerSettings(
        host=host,
        port=port,
        advertise=advertise,
        http_port=usual_http_port(host, port) if http_port is None else http_port,
        users=users,
        certificate=certificate,
        key=key,
        client_authority=client_authority,
        open_to_all=open_to_all,
        max_connections=max_connections,
        buffer_memory=buffer_memory * _MIB,
        plain_without_tls=plain_without_tls,
        policy=Policy(log_needs_open=log_needs_open, end_zero_is_unbounded=end_zero_is_no_end),
        peers=PeerRelease(peers),
    )
    memory = {"read_memory": read_memory, "write_memory": write_memory}
    # A thread that searches a document lets the loop wait for this long whenever both want to run.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Without a number of vbuckets, one that exists is taken as it is.
    bucket_settings = BucketSettings(vbuckets=vbuckets) if vbuckets is not None else None
    with tempfile.TemporaryDirectory(prefix="upriver-") as scratch:
        producer = Producer(
            data or Path(scratch),
            settings,
            bucket=bucket,
            bucket_settings=bucket_settings,
            bucket_changes={name: mib * _MIB for name, mib in memory.items() if mib is not None},
        )
        if restored:
            producer.bucket.begin_branches()
        began = time.monotonic()
        number = asyncio.run(
            _serve(producer, (dashboard_host, dashboard), tells_http=http_port is not None)
        )
    if number == signal.SIGINT:
        click.echo(f"interrupted: served for {time.monotonic() - began:.0f} s", err=True)
        raise SystemExit(INTERRUPTED)


async def _serve(
    producer: Producer, dashboard: tuple[str, Sequence[int] | None], *, tells_http: bool
) -> int:
    """Serves until a signal comes, and returns its number."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    async with producer:
        with ExitStack() as pages:
            page = _page(producer, pages, *dashboard)
            vbuckets = producer.bucket.settings.vbuckets
            click.echo(f"serving {_address(producer)} ({vbuckets} vbuckets)")
            if tells_http:
                click.echo(f"management {_http_address(producer)}")
            if page:
                click.echo(f"dashboard {page}")
            received = await stopped
            # In a thread: what looks at the producer may be waiting for its loop.
            await asyncio.to_thread(pages.close)
    return received


def _page(producer: Producer, pages: ExitStack, host: str, ports: Sequence[int] | None) -> str:
    """Begins to serve the dashboard, if that is wanted; returns where."""
    if ports is None:
        return ""
    from ..._hosts import is_loopback
    from ...dashboard.collector import Collector
    from ...dashboard.httpd import DashboardServer
    from ..dashboard.producer_figures import ProducerFeed

    feed = ProducerFeed(producer)
    collector = Collector(feed.sample)
    page = DashboardServer(
        collector,
        feed,
        host=host,
        port=ports,
        tls=None if is_loopback(host) else producer.settings.tls_context(),
        plain_passwords=producer.settings.plain_without_tls,
    )
    pages.enter_context(collector)
    return pages.enter_context(page).url


def _http_address(producer: Producer) -> str:
    settings = producer.settings
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{producer.server.http_port}/pools"


def _address(producer: Producer) -> str:
    """What a client connects to."""
    from ..dashboard.producer_figures import server_address

    return f"{server_address(producer)}/{producer.bucket.name}"
