"""A dashboard over a real producer, and how tests ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from waiting import until

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.dashboard.collector import Collector
from upriver.dashboard.figure_types import (
    HeartbeatFigures,
    PipelineFigures,
    ServerFigures,
    StatsDocument,
)
from upriver.dashboard.figure_validation import checked
from upriver.dashboard.httpd import DashboardServer
from upriver.testing import TemporaryProducer

#: Seconds after which something is taken for stuck; never reached when all is well.
PATIENCE = 300.0
#: Seconds between two looks: short, so that tests need not wait.
INTERVAL = 0.05

_T = TypeVar("_T")


def idle(lag: int = 0, lag_seconds: float = 0.0) -> HeartbeatFigures:
    """What is known of a pipeline that has nothing to read, or not yet."""
    return HeartbeatFigures(
        time=0.0, state="idle", since=0.0, reason="", lag=lag, lag_seconds=lag_seconds
    )


class Answer(NamedTuple):
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


def ask(url: str, path: str, method: str = "GET", **headers: str) -> Answer:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
    try:
        connection.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def seen(
    url: str, wanted: Callable[[StatsDocument], bool] = lambda document: True
) -> StatsDocument:
    """The figures, as soon as they are those that are wanted."""

    def look() -> StatsDocument | None:
        document = checked(StatsDocument, ask(url, "/stats.json").content)
        return document if document["server"] is not None and wanted(document) else None

    return until(look)


def server_of(document: StatsDocument) -> ServerFigures:
    """The server's figures of a document that has them."""
    server = document["server"]
    assert server is not None
    return server


@contextmanager
def watched(
    producer: TemporaryProducer, pipelines: Sequence[Callable[[], PipelineFigures]] = ()
) -> Iterator[str]:
    """The address of a dashboard that has looked at a producer."""
    feed = ProducerFeed(producer.producer)
    with (
        Collector(feed.sample, pipelines, interval=INTERVAL) as collector,
        DashboardServer(collector, feed, port=0) as page,
    ):
        seen(page.url)
        yield page.url
